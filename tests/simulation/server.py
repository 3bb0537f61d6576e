"""The store: a log of batches, and the faults that a store can have. `Link` is one process's connection to it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentos.limits.reset_times import day_ends
from agentos.pool._replicas.box import read_batch
from agentos.pool._replicas.log import Answer, Entry, Start, StoreLost
from agentos.pool._replicas.shared_pool import ASK, JOIN

from .digests import digest
from .watch import Watch
from .watched import WatchedSharedPool

if TYPE_CHECKING:
    from .world import World

# Whole states are compared at every so many entries; what can be compared quickly, at each.
DIGEST_EVERY = 50
# So many entries before a kept state stay.
KEPT_BEHIND = 20


class Server:
    """As Redis does it: one order, one clock, and a new epoch when what it knew is gone."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offset = world.epoch  # of its clock
        self.epochs = 0
        self.begin_watching()
        self.judge: WatchedSharedPool | None = None
        self.epoch = ""  # none: the server is empty
        self.is_restarted = False  # and nobody has noticed yet
        self.doubt = 0  # so long was the log when it was found that some of it may be missing
        self.entries: list[Entry] = []  # all of them, for the judge
        self.base = 0  # so many of them are gone
        self.at = 0.0
        self.kept: tuple[int, bytes] | None = None
        self.links: list[Link] = []
        self.digests: dict[tuple[str, int], str] = {}

    def begin_watching(self) -> None:
        self.watch = Watch(self.world.situations)

    def now(self) -> float:
        return max(self.world.now + self.offset, self.at)

    # --- what processes do ----------------------------------------------------------------------------------------

    def load(self) -> Start:
        if not self.epoch or self.is_restarted:
            self.epochs += 1
            if not self.epoch:
                self.judge = None
                self.entries, self.base, self.kept = [], 0, None
            self.is_restarted = False
            self.epoch = f"epoch-{self.epochs}"
            if not self.entries:
                self.at = 0.0
                self.at = self.now()
            self.doubt = len(self.entries)
        position, state = self.kept or (0, None)
        is_doubtful = len(self.entries) == self.doubt  # until somebody, who had it, too, has spoken
        return Start(self.epoch, self.now(), state, position, self.entries[position:], is_doubtful)

    def append(self, batch: bytes) -> None:
        at = self.at = round(self.now(), 6)
        entry = (at, batch)
        self.entries.append(entry)
        self._judge(entry)
        for link in self.links:
            link.tell(len(self.entries), entry)

    def keep(self, position: int, state: bytes) -> None:
        if position <= (self.kept or (0, b""))[0]:
            return
        self.kept = (position, state)
        self.base = max(self.base, position - KEPT_BEHIND)

    # --- faults ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """It is empty from now on."""
        self._remember_leases()
        self.epoch = ""
        self.begin_watching_after_loss()

    def restart(self, lost: int) -> None:
        """With its data, but for the last entries."""
        self._remember_leases()
        keep = max(len(self.entries) - lost, self.kept[0] if self.kept else 0, min(1, len(self.entries)))
        self.entries = self.entries[:keep]
        self.at = self.entries[-1][0] if self.entries else 0.0
        self.is_restarted = True
        self.begin_watching_after_loss()
        self.judge = None
        self.watch.is_replaying = True
        for entry in self.entries:
            self._judge(entry)
        self.watch.is_replaying = False
        self.watch.not_before = self._not_before
        for link in self.links:
            link.is_connected = False

    def _remember_leases(self) -> None:
        """The last instant at which somebody who knows the old log may trust a lease of it; and its fences."""
        self.world.lost_fences = {id_: max(fences) for id_, fences in self.world.handed_out.items()}
        sessions = () if self.judge is None else self.judge.sessions.values()
        self._not_before = max(
            (s.expires_at for s in sessions if any(r.fence for r in s.leases.values())), default=self.watch.not_before
        )
        self._not_before = max(self._not_before, self.watch.not_before)

    def begin_watching_after_loss(self) -> None:
        dead = self.watch.dead_sessions
        self.begin_watching()
        self.watch.dead_sessions = dead
        self.watch.not_before = self._not_before if not self.epoch else self.watch.not_before

    # --- judging --------------------------------------------------------------------------------------------------

    def _judge(self, entry: Entry) -> None:
        if self.judge is None:
            self.judge = WatchedSharedPool(entry[0], day_ends, self.watch)
        session_id, number, statements = read_batch(entry[1])
        session = self.judge.sessions.get(session_id)
        if session is not None and session.expires_at <= entry[0]:
            session = None
        # A session that joins again when it has been forgotten is another one, which nobody uses.
        is_joining = bool(statements) and statements[0][0] == JOIN
        is_late = number <= session.batch if session is not None else not is_joining
        expected = None
        if is_late and not self.watch.is_replaying:  # invariants 14, 15: as if nothing had been said
            clone = pickle.loads(pickle.dumps(self.judge))
            clone.apply(entry[0], session_id, number, ())
            clone.take_events()
            expected = digest(clone)
            if session is None and any(said[0] != ASK for said in statements):
                self.world.situations.note("late batch of a lost session")
        self.judge.apply(entry[0], session_id, number, statements)
        self.world.pool_events(self.judge.take_events())
        if expected is not None:
            assert digest(self.judge) == expected, "what came too late has changed something"
        place = (self.epoch, len(self.entries))
        if not self.watch.is_replaying:
            self.digests[place] = digest(self.judge) if place[1] % DIGEST_EVERY == 0 else brief(self.judge)


def brief(copy: WatchedSharedPool) -> str:
    """What differs first when two copies go different ways."""
    pool = copy.pool
    leases = [(c.id, c.fence, list(c.leases), c.cooled, c.quarantine) for c in pool.credentials.values()]
    waiting = [[record.id for record in queue.values()] for queue in pool.waiting.values()]
    return repr((copy.at, pool._sequence, leases, waiting, list(copy.sessions), copy.next_at()))


class Link:
    """A connection (`_stores.log.Log`), whose faults are set by hand."""

    def __init__(self, server: Server, is_polled: bool) -> None:
        self.server = server
        self.world = server.world
        self.poll_seconds: float | None = 0.1 if is_polled else None
        self.is_cut = False
        self.is_connected = True
        self.known_epoch = ""
        self.is_cut_after_load = False
        self.loses_replies = 0
        self.is_late_by: float | None = None  # the next batch arrives by so much later than anybody waits for it
        self._seen = 0
        self._heard: Callable[[int, Entry], None] | None = None
        self._missed: Callable[[], None] | None = None
        self.later: Callable[[float, str, Callable[[], None]], None] = lambda *_: None
        server.links.append(self)

    def look(self) -> Start | None:
        return self.server.load() if self.server.epoch else None

    def load(self, ttl: float) -> Start:
        self._travel()
        self.is_connected = True
        start = self.server.load()
        self.known_epoch = start.epoch
        if self.is_cut_after_load:
            self.is_cut_after_load = False
            self._lose("no route")
        return start

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:
        self._travel()
        server = self.server
        if not self.is_connected:
            self.is_connected = True
            return Answer("", 0.0, None)
        if epoch != server.epoch or server.is_restarted:
            return Answer(server.epoch, 0.0, None)
        if batch is not None:
            if self.is_late_by is not None:
                self._send_later(epoch, batch, self.is_late_by)
            server.append(batch)
            if self.loses_replies:
                self.loses_replies -= 1
                self.world.situations.note("lost reply")
                self._lose("the reply was lost")
        at = server.now()
        self.world.travel()
        self._seen = len(server.entries)
        return Answer(epoch, at, None if position < server.base else server.entries[position:])

    def _send_later(self, epoch: str, batch: bytes, seconds: float) -> None:
        """It is on its way for longer than anybody waits for a reply."""

        def arrive() -> None:
            if self.server.epoch == epoch and not self.server.is_restarted:
                self.world.situations.note("late batch")
                self.server.append(batch)

        self.is_late_by = None
        self.world.at(self.world.now + seconds, "a late batch arrives", arrive)
        self._lose("no answer in time")

    def _travel(self) -> None:
        self.world.travel()
        if self.is_cut:
            self._lose("no route")

    def _lose(self, reason: str) -> None:
        if self.poll_seconds is None:
            self.is_connected = False
        if self._missed is not None:
            missed, self._heard, self._missed = self._missed, None, None
            self.world.situations.note("news missed")
            missed()
        raise StoreLost(reason)

    def has_news(self) -> bool:
        self._travel()
        return self._seen != len(self.server.entries)

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None:
        if self.poll_seconds is None:
            self._travel()
            self._heard, self._missed = heard, missed if heard is not None else None

    def tell(self, position: int, entry: Entry) -> None:
        """What anybody has said, a moment later. Not of another log than the one that is known here: a process that
        slept while the server was flushed would take its entries for those of the old one."""
        if self._heard is not None and not self.is_cut:
            heard, epoch = self._heard, self.server.epoch

            def hear() -> None:
                if self._heard is heard and not self.is_cut and epoch == self.known_epoch:
                    heard(position, entry)

            self.later(self.world.moment(), "hears", hear)

    def keep(self, epoch: str, position: int, state: bytes) -> None:
        self._travel()
        if epoch == self.server.epoch:
            self.server.keep(position, state)

    def abandon(self) -> None: ...

    def close(self) -> None:
        self._heard = self._missed = None
