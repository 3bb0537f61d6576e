"""The simulated store of a shared pool: a journal in memory with an epoch, and the owner that has the lock.

`OwnerProcess` runs the real `OwnerLoop` on it; it can be killed at each step of a commit, stopped, and replaced.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner import owner_process
from agentos.pool.shared._owner.clocks import PoolClock
from agentos.pool.shared._owner.owner import Owner
from agentos.pool.shared._owner.owner_process import OwnerLoop
from agentos.pool.shared._owner.session import Session
from agentos.pool.shared.transport import Deposed, JournalMissing, Loaded, OwnerStart, StoreLost

from .checked_allocator import CheckedAllocator
from .links import SimulatedLink
from .oracle import PoolOracle

if TYPE_CHECKING:
    from .world import World

# Steps of a commit at which an owner can be killed.
BEFORE_JOURNAL, AFTER_JOURNAL, BEFORE_REPLY, AFTER_REPLY = STEPS = (1, 2, 3, 4)
# Seconds for which the lock of an owner lives whose host has vanished.
LOCK_SECONDS = 5.0


class OwnerKilled(BaseException):
    """The owner's process was killed in the middle of a step."""


class JournalStore:
    """What all owners of a pool share. `wall_ahead` is the wall clock against the clock that passes evenly."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_server = world.scenario.store == "server"
        self.wall_ahead = 0.0
        self.epoch = 0
        self.journals = 0
        self.owner: OwnerProcess | None = None  # that members find
        self.processes: list[OwnerProcess] = []  # also stopped ones that were replaced
        self.locked_until = 0.0  # by an owner whose host has vanished
        self.renew()

    def renew(self) -> None:
        """Begin with an empty journal."""
        self.journals += 1
        self.identity = f"journal-{self.journals}"
        self.snapshot: tuple[int, bytes] | None = None
        self.batches: list[tuple[int, float, bytes]] = []
        self.hold_seconds = 0.0  # of the next owner: the store has noticed a loss
        self.owners: list[OwnerStart] = []

    @property
    def position(self) -> int:
        if self.batches:
            return self.batches[-1][0]
        return 0 if self.snapshot is None else self.snapshot[0]

    def now(self) -> float:
        return self.world.now + self.world.epoch

    def load(self) -> Loaded:
        self.epoch += 1
        first, state = self.snapshot or (0, None)
        batches = [(at, entries) for position, at, entries in self.batches if position > first]
        hold_seconds, self.hold_seconds = self.hold_seconds, 0.0
        self.owners.append(OwnerStart(str(self.epoch), self.position))
        return Loaded(self.identity, self.position, state, batches, self.now(), hold_seconds, self.owners.copy())

    def connect(self) -> OwnerProcess:
        """Return the owner; start one if there is none. Raises `StoreLost`."""
        owner = self.owner
        if owner is None or owner.is_dead:
            if self.world.now < self.locked_until:
                raise StoreLost("the lock of an owner that is gone has not expired")
            if owner is not None or self.epoch:
                self.world.situations.note("take-over")
            owner = self.owner = OwnerProcess(self.world, self)
            self.processes = [other for other in self.processes if not other.is_dead]
            self.processes.append(owner)
        return owner

    def depose(self, owner: OwnerProcess) -> None:
        """Replace an owner that does not answer, unless another member has done so already."""
        if self.owner is owner:
            self.world.situations.note("silent owner replaced")
            self.epoch += 1
            self.owner = None

    # --- losses -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Lose everything. A living owner writes it anew; else the next one holds, as the store has noticed it."""
        self.world.losses += 1
        self.world.lost_at = self.world.now
        self.renew()
        self.hold_seconds = self.world.scenario.ttl

    def lose_end(self, count: int) -> None:
        """Lose the last batches, with the owner: the store was restarted from an older copy."""
        self.world.losses += 1
        self.world.lost_at = self.world.now
        if self.owner is not None:
            self.owner.kill()
        self.batches = self.batches[: max(0, len(self.batches) - count)]
        self.owners = [owner for owner in self.owners if owner.position <= self.position]
        self.hold_seconds = self.world.scenario.ttl if self.is_server else 0.0
        if not self.is_server:  # members notice it, if they have seen what is lost
            self.world.loss_unnoticed_until = self.world.now + 2.0 * self.world.scenario.ttl


class SimulatedEndpoint:
    """Journal and links of one owner process."""

    def __init__(self, process: OwnerProcess, store: JournalStore) -> None:
        self._process = process
        self._store = store
        self._world = store.world
        self._epoch = 0
        self.arrived: list[tuple[Hashable, bytes | None]] = []
        self.links: dict[int, SimulatedLink] = {}
        self.crash_at: int | None = None  # a step of the next commit with entries
        self.failures = 0  # commits that fail before one succeeds
        self.clock = PoolClock(store.now(), elapsed_clock=store.now, wall_clock=lambda: store.now() + store.wall_ahead)

    def load(self) -> Loaded:
        loaded = self._store.load()
        self._epoch = self._store.epoch
        self._identity, self._owners = loaded.identity, list(loaded.owners)
        return loaded

    def receive(self, timeout: float) -> list[tuple[Hashable, bytes | None]]:
        arrived, self.arrived = self.arrived, []
        return arrived

    def commit(self, at: float, entries: bytes | None, frames: list[tuple[Hashable, bytes]]) -> None:
        store = self._store
        if entries is not None or store.is_server:  # sockets need no check: a member leaves a stopped owner's socket
            self._check_epoch()
        if entries is not None:
            self._crash_if(BEFORE_JOURNAL)
            if self.failures:
                self.failures -= 1
                self._world.situations.note("journal cannot be written")
                raise StoreLost("the disk is full")
            if store.identity != self._identity:
                raise JournalMissing
            store.batches.append((store.position + 1, at, entries))
            self._crash_if(AFTER_JOURNAL)
            if frames:
                self._crash_if(BEFORE_REPLY)
        self.send(frames)
        if entries is not None and frames:
            self._crash_if(AFTER_REPLY)

    def _crash_if(self, step: int) -> None:
        if self.crash_at == step:
            self._world.situations.note(f"owner killed at step {step}")
            raise OwnerKilled

    def _check_epoch(self) -> None:
        if self._epoch != self._store.epoch:
            self._world.situations.note("stale owner's commit refused")
            raise Deposed

    def send(self, frames: list[tuple[Hashable, bytes]]) -> None:
        for key, frame in frames:
            link = self.links.get(key)  # type: ignore[call-overload]
            if link is not None:
                link.tell(frame)

    def save(self, at: float, snapshot: bytes, position: int) -> None:
        self._check_epoch()
        store = self._store
        if store.identity != self._identity:
            raise JournalMissing
        assert position == store.position, "the owner and its journal have different positions"
        store.snapshot = (position, snapshot)
        store.batches = []
        self._world.situations.note("snapshot saved")

    def rewrite(self, at: float, snapshot: bytes, position: int) -> None:
        self._check_epoch()
        self._store.identity, self._store.hold_seconds = self._identity, 0.0
        self._store.owners = self._owners.copy()
        self._store.snapshot, self._store.batches = (position, snapshot), []
        self._world.situations.note("journal written anew")

    def is_current(self) -> bool:
        return self._epoch == self._store.epoch

    def pause(self, seconds: float) -> None: ...

    def has_ended(self, session_id: str) -> bool:
        """Know the ends of processes, as on one machine; in every second history not, as over a server."""
        living = (p.member for p in self._world.all_processes if not p.is_dead and not p.is_closed)
        if self._world.seed % 2 or any(member is not None and member.session_id == session_id for member in living):
            return False
        self._world.situations.note("end of a process found by the next owner")
        return True

    def disconnect_strangers(self, members: Container[Hashable]) -> None: ...

    def disconnect(self, connection: Hashable) -> None:
        link = self.links.pop(connection, None)  # type: ignore[call-overload]
        if link is not None:
            link.break_for_member(0.001)

    def close(self) -> None: ...


class OwnerProcess:
    """An owner as a process of its own."""

    def __init__(self, world: World, store: JournalStore) -> None:
        self.world = world
        self.store = store
        self.name = f"owner {store.epoch + 1}"
        self.is_dead = False
        self.paused_until = 0.0
        self.turned_at = store.now()
        self._turn_at = -1.0  # of the scheduled turn; negative: none
        self.endpoint = SimulatedEndpoint(self, store)
        self.oracle = PoolOracle(world.situations)
        self.oracle.is_replaying = True
        self.loop = CheckedLoop(self.endpoint, self.oracle)
        self.oracle.is_replaying = False
        for credential in self.owner.allocator.credentials.values():  # its limit may have been lowered
            self.oracle.leases_at_redeclaration[credential.id] = len(credential.leases)
        self.schedule()

    @property
    def owner(self) -> Owner:
        return self.loop._owner

    def schedule(self) -> None:
        """Schedule the next turn, or bring it forward. Called after every step."""
        if self.is_dead:
            return
        due = self.world.now
        if not self.endpoint.arrived:
            due = max(due, min(self.owner.next_at(), self.loop._check_at) - self.world.epoch + 1e-6)
        if self._turn_at < 0 or due < self._turn_at:
            self._turn_at = due
            self.world.schedule(due, "turn", lambda: self._turn(due), self)  # type: ignore[arg-type]

    def _turn(self, due: float) -> None:
        if self._turn_at != due:
            return
        self._turn_at = -1.0
        self.loop._active_at = due + self.world.epoch  # it has waited until then, and was stopped since
        self.turned_at = self.store.now()
        try:
            if self.loop._is_over():
                self.loop._save(self.turned_at)
                self.kill()
                return
            waiting = len(self.owner.allocator.queue)
            self.loop.turn()
            self.world.pool_events(self.loop.events)
            self.loop.events = []
        except Deposed:
            self.kill()
        except OwnerKilled:
            if waiting:
                self.world.situations.note("owner killed while requests wait")
            self.kill()

    def kill(self) -> None:
        """Die. Members notice it by their links, or when the lock has expired."""
        self.is_dead = True
        is_visible = not self.store.is_server or self.world.rng.random() < 0.7
        if self.store.owner is self and not is_visible:
            self.store.locked_until = self.world.now + LOCK_SECONDS
        for link in list(self.endpoint.links.values()):
            link.break_for_member(self.world.rng.uniform(0.0, 0.1) if is_visible else LOCK_SECONDS)
        self.endpoint.links.clear()


class CheckedLoop(OwnerLoop):
    """The loop with an owner that reports every decision to an oracle. It has no second chance after an error."""

    def __init__(self, endpoint: SimulatedEndpoint, oracle: PoolOracle) -> None:
        self.oracle = oracle
        self.events: list[object] = []
        super().__init__(endpoint)

    def _restored(self, loaded: Loaded) -> Owner:
        with mock.patch.object(owner_process, "Owner", partial(CheckedOwner, self)):
            owner = super()._restored(loaded)
        assert self._entries_since_snapshot == 0, "the journal cannot be read"
        return owner

    def _start_over(self, connection: object, error: Exception) -> None:
        raise error


class CheckedOwner(Owner):
    """An owner whose allocator reports to an oracle."""

    def __init__(self, loop: CheckedLoop, *args: Any) -> None:
        super().__init__(*args)
        self._loop = loop
        self.allocator = CheckedAllocator(loop.oracle, self.store_scope, self.allocator.members.first_fence)

    def take(self, connection: Hashable, number: int, message: wire.Message, now: float) -> None:
        session = self._links.get(connection)
        if session is not None and number <= session.heard and not isinstance(message, wire.Hello | wire.Query):
            self._loop.oracle.note("repeated message counted once")
        super().take(connection, number, message, now)

    def _announce(self, event: Any, session: Session | None, now: float) -> None:
        self._loop.events.append(event)
        super()._announce(event, session, now)
