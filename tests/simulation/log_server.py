"""The simulated store of a shared pool: a log of batches, with the faults that a store can have.

`Connection` is one process's access to it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentos.limits.reset_times import day_ends
from agentos.pool._replicas.box import read_batch
from agentos.pool._replicas.log import Answer, Entry, Start, StoreLost
from agentos.pool._replicas.shared_pool import ASK, JOIN

from .checked_allocator import CheckedSharedPool
from .digests import digest
from .oracle import PoolOracle

if TYPE_CHECKING:
    from .world import World

# Replicas are compared by a short summary at every log entry, and by their whole state at every n-th.
DIGEST_INTERVAL = 50
# Number of entries before a snapshot that the log keeps.
ENTRIES_BEFORE_SNAPSHOT = 20


class LogServer:
    """A log as Redis keeps it: one order, one clock, and a new epoch after data was lost."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offset = world.epoch  # of the server's clock against virtual time, in seconds
        self.epochs = 0
        self.renew_oracle()
        self.judge: CheckedSharedPool | None = None
        self.epoch = ""  # empty: the server has no data
        self.is_restarted = False  # with data lost, until the next load
        self.doubtful_length = 0  # length of the log when its end may have been lost
        self.entries: list[Entry] = []  # all entries, also those before `base`: the judge replays them
        self.base = 0  # number of entries that members can no longer read
        self.at = 0.0
        self.snapshot: tuple[int, bytes] | None = None
        self.connections: list[Connection] = []
        self.digests: dict[tuple[str, int], str] = {}

    def renew_oracle(self) -> None:
        self.oracle = PoolOracle(self.world.situations)

    def now(self) -> float:
        return max(self.world.now + self.offset, self.at)

    # --- requests of members ---------------------------------------------------------------------------------------

    def load(self) -> Start:
        if not self.epoch or self.is_restarted:
            self.epochs += 1
            if not self.epoch:
                self.judge = None
                self.entries, self.base, self.snapshot = [], 0, None
            self.is_restarted = False
            self.epoch = f"epoch-{self.epochs}"
            if not self.entries:
                self.at = 0.0
                self.at = self.now()
            self.doubtful_length = len(self.entries)
        position, state = self.snapshot or (0, None)
        is_doubtful = len(self.entries) == self.doubtful_length  # until the first batch after the loss
        return Start(self.epoch, self.now(), state, position, self.entries[position:], is_doubtful)

    def append(self, batch: bytes) -> None:
        at = self.at = round(self.now(), 6)
        entry = (at, batch)
        self.entries.append(entry)
        self._apply(entry)
        for connection in self.connections:
            connection.deliver(len(self.entries), entry)

    def keep(self, position: int, state: bytes) -> None:
        if position <= (self.snapshot or (0, b""))[0]:
            return
        self.snapshot = (position, state)
        self.base = max(self.base, position - ENTRIES_BEFORE_SNAPSHOT)

    # --- faults ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Lose all data."""
        self._remember_leases()
        self.epoch = ""
        self.renew_oracle_after_loss()

    def restart(self, lost: int) -> None:
        """Restart and lose the last entries."""
        self._remember_leases()
        keep = max(len(self.entries) - lost, self.snapshot[0] if self.snapshot else 0, min(1, len(self.entries)))
        self.entries = self.entries[:keep]
        self.at = self.entries[-1][0] if self.entries else 0.0
        self.is_restarted = True
        self.renew_oracle_after_loss()
        self.judge = None
        self.oracle.is_replaying = True
        for entry in self.entries:
            self._apply(entry)
        self.oracle.is_replaying = False
        self.oracle.not_before = self._not_before
        for connection in self.connections:
            connection.is_connected = False

    def _remember_leases(self) -> None:
        """Remember the last expiry of a lease of the lost log, and the fencing tokens used so far."""
        self.world.lost_fences = {id_: max(fences) for id_, fences in self.world.used_fences.items()}
        sessions = () if self.judge is None else self.judge.sessions.values()
        self._not_before = max(
            (s.expires_at for s in sessions if any(r.fence for r in s.leases.values())), default=self.oracle.not_before
        )
        self._not_before = max(self._not_before, self.oracle.not_before)

    def renew_oracle_after_loss(self) -> None:
        dead = self.oracle.dead_sessions
        self.renew_oracle()
        self.oracle.dead_sessions = dead
        self.oracle.not_before = self._not_before if not self.epoch else self.oracle.not_before

    # --- the judge -------------------------------------------------------------------------------------------------

    def _apply(self, entry: Entry) -> None:
        if self.judge is None:
            self.judge = CheckedSharedPool(entry[0], day_ends, self.oracle)
        session_id, number, statements = read_batch(entry[1])
        session = self.judge.sessions.get(session_id)
        if session is not None and session.expires_at <= entry[0]:
            session = None
        # A batch that joins is not late: the log forgot its session, and the batch creates a new one.
        is_joining = bool(statements) and statements[0][0] == JOIN
        is_late = number <= session.batch if session is not None else not is_joining
        expected = None
        if is_late and not self.oracle.is_replaying:  # invariants 14, 15: a late batch has no effect
            clone = pickle.loads(pickle.dumps(self.judge))
            clone.apply(entry[0], session_id, number, ())
            clone.take_events()
            expected = digest(clone)
            if session is None and any(statement[0] != ASK for statement in statements):
                self.world.situations.note("late batch of a lost session")
        self.judge.apply(entry[0], session_id, number, statements)
        self.world.pool_events(self.judge.take_events())
        if expected is not None:
            assert digest(self.judge) == expected, "a late batch changed the pool"
        position = (self.epoch, len(self.entries))
        if not self.oracle.is_replaying:
            self.digests[position] = digest(self.judge) if position[1] % DIGEST_INTERVAL == 0 else summarize(self.judge)


def summarize(copy: CheckedSharedPool) -> str:
    """Return the state that differs first when two replicas diverge."""
    pool = copy.pool
    leases = [(c.id, c.fence, list(c.leases), c.cooled, c.quarantine) for c in pool.credentials.values()]
    waiting = [[record.id for record in queue.values()] for queue in pool.waiting.values()]
    return repr((copy.at, pool.sequence, leases, waiting, list(copy.sessions), copy.next_at()))


class Connection:
    """A `Log` over a simulated network. Faults are set through its attributes."""

    def __init__(self, server: LogServer, is_polled: bool) -> None:
        self.server = server
        self.world = server.world
        self.poll_seconds: float | None = 0.1 if is_polled else None
        self.is_cut = False
        self.is_connected = True
        self.known_epoch = ""
        self.is_cut_after_load = False
        self.replies_to_lose = 0
        self.next_batch_delay: float | None = None  # seconds; the sender gives up before the batch arrives
        self._read_length = 0
        self._on_entry: Callable[[int, Entry], None] | None = None
        self._on_missed: Callable[[], None] | None = None
        self.call_later: Callable[[float, str, Callable[[], None]], None] = lambda *_: None
        server.connections.append(self)

    def look(self) -> Start | None:
        return self.server.load() if self.server.epoch else None

    def load(self, ttl: float) -> Start:
        self._reach_server()
        self.is_connected = True
        start = self.server.load()
        self.known_epoch = start.epoch
        if self.is_cut_after_load:
            self.is_cut_after_load = False
            self._lose("no route")
        return start

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:
        self._reach_server()
        server = self.server
        if not self.is_connected:
            self.is_connected = True
            return Answer("", 0.0, None)
        if epoch != server.epoch or server.is_restarted:
            return Answer(server.epoch, 0.0, None)
        if batch is not None:
            if self.next_batch_delay is not None:
                self._delay_batch(epoch, batch, self.next_batch_delay)
            server.append(batch)
            if self.replies_to_lose:
                self.replies_to_lose -= 1
                self.world.situations.note("lost reply")
                self._lose("the reply was lost")
        at = server.now()
        self.world.pass_network_delay()
        self._read_length = len(server.entries)
        return Answer(epoch, at, None if position < server.base else server.entries[position:])

    def _delay_batch(self, epoch: str, batch: bytes, seconds: float) -> None:
        """Deliver the batch after its sender has given up on the reply."""

        def arrive() -> None:
            if self.server.epoch == epoch and not self.server.is_restarted:
                self.world.situations.note("late batch")
                self.server.append(batch)

        self.next_batch_delay = None
        self.world.schedule(self.world.now + seconds, "a late batch arrives", arrive)
        self._lose("no answer in time")

    def _reach_server(self) -> None:
        self.world.pass_network_delay()
        if self.is_cut:
            self._lose("no route")

    def _lose(self, reason: str) -> None:
        if self.poll_seconds is None:
            self.is_connected = False
        if self._on_missed is not None:
            on_missed, self._on_entry, self._on_missed = self._on_missed, None, None
            self.world.situations.note("log entries missed")
            on_missed()
        raise StoreLost(reason)

    def has_news(self) -> bool:
        self._reach_server()
        return self._read_length != len(self.server.entries)

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None:
        if self.poll_seconds is None:
            self._reach_server()
            self._on_entry, self._on_missed = heard, missed if heard is not None else None

    def deliver(self, position: int, entry: Entry) -> None:
        """Deliver a new entry of the log after a short delay. Entries of another epoch are dropped: a process that
        slept while the server was flushed would take them for entries of the old log."""
        if self._on_entry is not None and not self.is_cut:
            on_entry, epoch = self._on_entry, self.server.epoch

            def call() -> None:
                if self._on_entry is on_entry and not self.is_cut and epoch == self.known_epoch:
                    on_entry(position, entry)

            self.call_later(self.world.short_delay(), "a log entry is delivered", call)

    def keep(self, epoch: str, position: int, state: bytes) -> None:
        self._reach_server()
        if epoch == self.server.epoch:
            self.server.keep(position, state)

    def abandon(self) -> None: ...

    def close(self) -> None:
        self._on_entry = self._on_missed = None
