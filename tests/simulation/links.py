"""A simulated link between a member and an owner, with the faults of each transport.

A link over a socket delivers frames in order until it breaks. Through a server a frame can be lost, doubled or late;
each has a counter, as in `envelopes`: a doubled one is ignored, and a lost one breaks the link when the next one shows
the gap.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from agentos.pool.shared.transport import StoreLost

if TYPE_CHECKING:
    from .journal_store import OwnerProcess
    from .process import Process

# Seconds after which an owner knows that a member without a connection to the server is gone.
ABSENCE_SECONDS = 2.5


class SimulatedLink:
    """One link. The number of the link is its key in the owner's endpoint."""

    numbers = 0

    def __init__(self, process: Process, owner: OwnerProcess) -> None:
        self.process = process
        self.owner = owner
        self.world = process.world
        self.is_server = owner.store.is_server
        self.number = self.world.next_link()
        self.is_broken = False  # for the member
        self.is_closed = False  # by the member
        self.lose_next = self.double_next = False  # faults
        self.tell_lose_next = False
        self.late_by = 0.0  # seconds by which the next frame is late
        self._asked = self._asks_received = 0
        self._told = self._tells_received = 0
        self._inbox: deque[tuple[float, int, bytes]] = deque()  # arrival, counter, frame
        self._ask_at = self._tell_at = 0.0  # when the last frame arrives: they arrive in order
        owner.endpoint.links[self.number] = self

    # --- the member's side ------------------------------------------------------------------------------------------

    def send(self, frame: bytes, is_flushed: bool = False) -> None:
        if self.is_broken:
            raise StoreLost("the link is broken")
        self._asked += 1
        counter = self._asked
        if self.process.is_cut:
            return  # lost on the way: the gap is noticed later
        if self.lose_next and self.is_server:
            self.lose_next = False
            self.world.situations.note("message lost")
            return
        self._ask_at = max(self._ask_at, self.world.now + self.world.short_delay() + self.late_by)
        if self.late_by:
            self.world.situations.note("message late")
            self.late_by = 0.0
        for _ in range(2 if self.double_next and self.is_server else 1):
            self.world.schedule(self._ask_at, "a frame reaches the owner", lambda: self._arrive(counter, frame))
        self.double_next = False

    def _arrive(self, counter: int, frame: bytes) -> None:
        owner = self.owner
        if owner.is_dead or self.number not in owner.endpoint.links:
            return
        if counter <= self._asks_received:
            self.world.situations.note("doubled message ignored")
            return
        if counter != self._asks_received + 1:
            self.break_for_member(self.world.short_delay())  # the owner says that it has missed a message
            return
        self._asks_received = counter
        owner.endpoint.arrived.append((self.number, frame))

    def flush(self, receives: bool = False) -> None: ...

    def wake(self) -> None: ...

    def receive(self, timeout: float) -> list[bytes]:
        return []

    @property
    def has_unsent(self) -> bool:
        return False

    def close(self) -> None:
        """Leave the owner. It learns that at once from a socket, and later or never from a server."""
        self.is_closed = self.is_broken = True
        if not self.is_server and not self.process.is_cut:
            self.disconnect_owner(self.world.short_delay())

    abandon = close

    def vanish(self) -> None:
        """The member's process was killed."""
        self.is_closed = self.is_broken = True
        if not self.is_server:
            self.disconnect_owner(self.world.short_delay())
        elif self.world.rng.random() < 0.7:  # else its machine is gone, too
            self.disconnect_owner(ABSENCE_SECONDS)

    def disconnect_owner(self, seconds: float) -> None:
        at = max(self._ask_at, self.world.now + seconds)
        self.world.schedule(at, "the owner sees a link closed", self._close_at_owner)

    def _close_at_owner(self) -> None:
        if not self.owner.is_dead and self.owner.endpoint.links.pop(self.number, None) is not None:
            self.owner.endpoint.arrived.append((self.number, None))

    # --- the owner's side -------------------------------------------------------------------------------------------

    def tell(self, frame: bytes) -> None:
        self._told += 1
        counter = self._told
        if self.process.is_cut:
            self.world.situations.note("reply lost")
            return
        if self.tell_lose_next and self.is_server:
            self.tell_lose_next = False
            self.world.situations.note("reply lost")
            return
        self._tell_at = max(self._tell_at, self.world.now + self.world.short_delay())
        self._inbox.append((self._tell_at, counter, frame))
        self.world.schedule(self._tell_at, "a frame of the owner arrives", self.drain, self.process)

    def drain(self) -> None:
        """Deliver what has arrived: a process that was stopped finds it before it sends a heartbeat."""
        while self._inbox and self._inbox[0][0] <= self.world.now and not self.is_broken:
            _, counter, frame = self._inbox.popleft()
            if not self.process.is_cut:
                self._take(counter, frame)

    def _take(self, counter: int, frame: bytes) -> None:
        if counter != self._tells_received + 1:
            self._break("a message of the owner was lost")
            return
        self._tells_received = counter
        assert self.process.member is not None
        self.process.member.deliver(self, frame)

    def break_for_member(self, seconds: float) -> None:
        at = max(self._tell_at, self.world.now + seconds)
        self.world.schedule(at, "a link breaks", lambda: self._break("the connection was closed"), self.process)

    def _break(self, reason: str) -> None:
        if not self.is_broken and self.process.member is not None:
            self.is_broken = True
            self.process.member.lose_link(self, StoreLost(reason))
