"""A member of the shared pool as it really is, but for its threads and its view of other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.pool._replicas import member
from agentos.pool._replicas import shared_pool as shared
from agentos.pool._replicas.log import Entry, StoreLost, StoreRefused
from agentos.pool._replicas.member import Member

from .digests import digest
from .server import DIGEST_EVERY, brief

if TYPE_CHECKING:
    from .process import Process
    from .server import Link

PLACE = "one machine"
# Nobody talks to a store without a break.
BREAK = 0.0005


class Talker(Member):
    """The owner calls `talk_once` at the instant `due_at`, which `wake` may bring forward."""

    def __init__(self, process: Process, link: Link, ttl: float) -> None:
        self.process = process
        self.not_before = 0.0
        super().__init__(link, "the store", process.clock, process.on_event, ttl)
        member._OPEN.discard(self)

    def wake(self, by: float = 0.0) -> None:
        """Who looks around by itself after every step need not be woken."""

    def sync(self, seconds: float) -> None:
        """Nobody waits in real time for what comes in virtual time."""
        self._wants_news = True

    def due_at(self) -> float:
        due = self._due_at()
        if self.handles.waiting and self._log.poll_seconds is not None:
            due = min(due, self.now() + self._log.poll_seconds)
        return max(due, self.not_before)

    def talk_once(self) -> bool:
        """What the thread does each time it wakes. False: there is nothing more to say, ever."""
        if self._is_over():
            self._log.close()
            return False
        try:
            is_polled = self.handles.waiting > 0 and self._log.poll_seconds is not None
            if self._due_at() <= self.now() or (is_polled and self._log.has_news()):
                self._exchange()
            self.not_before = self.now() + BREAK
        except (StoreLost, StoreRefused) as error:
            self._on_lost(error)
        return True

    def close(self) -> None:
        self._is_closing = True
        self.say((shared.LEAVE,))

    def _on_lost(self, error: StoreLost | StoreRefused) -> None:
        pause, self._retry_in = self._retry_in, 0.0
        if self.lost_since is None:
            self.process.world.situations.note("store lost")
        super()._on_lost(error)  # waits for no time
        self._retry_in = min(member.LAST_RETRY, 2.0 * pause)
        self.not_before = self.now() + pause

    def _found(self) -> None:
        if self.lost_since is not None:
            self.process.world.situations.note("store found")
        super()._found()

    def _lose_session(self) -> None:
        super()._lose_session()
        self.session_id = self.process.world.next_session()
        self.process.session_ids.append(self.session_id)
        self._box.statements[0] = (shared.JOIN, "host", self.process.pid, None, self.ttl, PLACE)

    def _bury(self) -> None:
        assert self.copy is not None
        self._bury_at = self.now() + member.BURY_SECONDS
        for session in self.copy.sessions.values():
            if self.process.world.is_gone(session.pid):
                self.process.world.situations.note("neighbour buried")
                self.say((shared.GONE, session.id), by_thread=False)

    def _begin(self, start: object) -> None:
        super()._begin(start)  # type: ignore[arg-type]
        if start.state is not None:  # type: ignore[attr-defined]
            self.process.world.situations.note("kept state thawed")
        self._compare()

    def _apply(self, entry: Entry) -> None:
        super()._apply(entry)
        self._compare()

    def _compare(self) -> None:
        """All copies are the same at the same place of the log."""
        assert self.copy is not None
        place = (self._epoch, self._position)
        expected = self.process.world.server.digests.get(place)
        if expected is not None:
            found = digest(self.copy) if place[1] % DIGEST_EVERY == 0 else brief(self.copy)
            assert found == expected, f"two copies differ at {place}\n{found}\n{expected}"
