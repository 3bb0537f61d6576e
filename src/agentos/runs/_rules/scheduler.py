"""The run: what becomes of each item.

Facts go in (an item was read, an attempt started, an attempt ended in a verdict) and decisions come out: done, failed,
or again at an instant. The run does not know the pool; the coordinator joins the two.

An item is *ready* (in the lane of its scope), *asking* for a lease, *running*, or *pausing* before its next try. It is
`unfinished` from the moment it is read until it has ended, and what is unfinished when the run stops is a checkpoint.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.limits import backoff
from agentos.verdict import AUTH_FAILED, PERMANENT, RETRY_ON_OTHER_KEY, TRANSIENT

# Rotating to another credential is not the item's fault and spends no retry, until it has happened so often that the
# item itself may be the reason.
FREE_ROTATIONS = 20
# An item refused by so many credentials that others use successfully is itself the problem.
MOST_REFUSALS = 3
# An item that took its worker process down so often fails.
MOST_DEATHS = 3
# Without a pool: seconds after the first limit that tells no wait; doubled each time.
LEAST_PAUSE = 1.0
# Items that pause, or wait for their scope, hold no worker, so reading goes on past them; this bounds how far.
MOST_PAUSING = 1000
# Below this many items a percentage says nothing yet (for inputs whose length is not known).
LEAST_FOR_PERCENT = 10


class Halt(NamedTuple):
    """When to give up: after so many failed items, or so many percent of all."""

    when: str  # "now" or "soon"
    failures: float
    is_percent: bool
    text: str

    def is_reached(self, failed: int, completed: int, total: int | None) -> bool:
        if not self.is_percent:
            return failed >= self.failures
        if total is None and completed < LEAST_FOR_PERCENT:
            return False
        return failed >= 1 and failed * 100 >= self.failures * (completed if total is None else total)


def parse_halt(text: str) -> Halt:
    """`now,fail=1`, `soon,fail=10%`: when, and why."""
    when, _, why = text.partition(",")
    name, _, number = why.partition("=")
    is_percent = number.endswith("%")
    digits = number.rstrip("%") if is_percent else number
    if when not in ("now", "soon") or name != "fail" or not digits.isdecimal() or int(digits) < 1:
        raise ValueError(f"halt must look like 'now,fail=1' or 'soon,fail=10%', not {text!r}")
    if is_percent and int(digits) > 100:
        raise ValueError(f"halt cannot wait for more than 100% to fail: {text!r}")
    return Halt(when, int(digits), is_percent, text)


class Failed(NamedTuple):
    """The item has its one outcome."""


class Again(NamedTuple):
    """The item is tried again: at once (`at` is None), or at an instant."""

    at: float | None


class Unfinished(NamedTuple):
    """The run is stopping: the item stays behind as a checkpoint."""


FAILED = Failed()
AT_ONCE = Again(None)
UNFINISHED = Unfinished()

Decision = Failed | Again | Unfinished


class NoPool(NamedTuple):
    """The run has no credentials of ours. `wait`: seconds that the provider asks for, where it does."""

    wait: float | None


class Run:
    def __init__(self, *, max_workers: int, retries: int, halt: Halt | None = None, total: int | None = None) -> None:
        self.max_workers = max_workers
        self.retries = retries
        self.halt = halt
        self.total = total
        self.unfinished: dict[str, Item] = {}
        self.lanes: dict[str | None, deque[Item]] = {}
        self.ready = 0  # over all lanes
        self.running = 0
        self.sent_back = 0  # items that a provider sent back and that have not started again
        self.completed = self.failed = 0
        self.is_source_ended = False
        self.stopped: str | None = None  # why nothing new starts
        self._pausing: list[tuple[float, int, Item]] = []
        self._numbers = 0

    # --- reading --------------------------------------------------------------------------------------------------

    def room(self, blocked: int = 0) -> int:
        """How many more items may be read now: until as many are ready as there are workers, not counting the `blocked`
        ones, and within bounds."""
        if self.stopped is not None or self.is_source_ended or len(self._pausing) + blocked >= MOST_PAUSING:
            return 0
        return self.max_workers - self.ready + blocked

    def read(self, item: Item) -> None:
        self.unfinished[item.id] = item
        self.ready += 1
        lane = self.lanes.get(item.scope)
        if lane is None:
            self.lanes[item.scope] = deque((item,))
        else:
            lane.append(item)

    # --- starting -------------------------------------------------------------------------------------------------

    def free_workers(self) -> int:
        return 0 if self.stopped is not None else self.max_workers - self.running

    def take(self, scope: str | None) -> Item:
        """The next ready item of a lane; it asks for a lease, or starts."""
        lane = self.lanes[scope]
        item = lane.popleft()
        self.ready -= 1
        if not lane:
            del self.lanes[scope]
        return item

    def put_back(self, item: Item) -> None:
        """It could not be started after all: it stays the first of its lane."""
        self._put_back(item, front=True)

    def started(self, item: Item, now: float) -> None:
        item.attempts += 1
        if item.attempts == 1:
            item.started_at = now
        if item.is_sent_back:
            item.is_sent_back = False
            self.sent_back -= 1
        self.running += 1

    # --- ending ---------------------------------------------------------------------------------------------------

    def succeeded(self, item: Item) -> None:
        self.running -= 1
        self.completed += 1
        del self.unfinished[item.id]

    def failed_attempt(self, item: Item, kind: str | None, now: float, jitter: float,
                       refused_by: str | None = None, no_pool: NoPool | None = None) -> Decision:  # fmt: skip
        """What becomes of an item whose attempt ended in `kind`: a verdict, WORKER_DIED, INTERRUPTED, or None (an
        exception that says nothing about a provider). `refused_by`: the credential of an auth_failed, if proven."""
        self.running -= 1
        if no_pool is not None and kind in RETRY_ON_OTHER_KEY:
            decision = self._decide_alone(item, kind, no_pool, now, jitter)
        else:
            decision = self._decide(item, kind, now, jitter, refused_by)
        if decision is FAILED:
            self.failed += 1
            self.completed += 1
            del self.unfinished[item.id]
            return decision
        if self.stopped is not None or decision is UNFINISHED:
            return UNFINISHED
        assert isinstance(decision, Again)
        if decision.at is not None:
            self._numbers += 1
            heappush(self._pausing, (decision.at, self._numbers, item))
        else:
            item.is_sent_back = True
            self.sent_back += 1
            # An item whose key was refused lets another go first: a second opinion is what the pool needs now.
            self._put_back(item, front=kind != AUTH_FAILED)
        return decision

    def rejected(self, item_id: str | None = None) -> None:
        """An item fails without an attempt: it cannot be started as given. `item_id`: if it had been read."""
        if item_id is not None:
            del self.unfinished[item_id]
        self.failed += 1
        self.completed += 1

    def recorded(self, count: int) -> None:
        """So many items of the input had ended before this run began."""
        self.completed += count

    def give_up(self) -> None:
        """A running attempt that will not be waited for any longer; its item stays unfinished."""
        self.running -= 1

    def wake(self, now: float) -> float | None:
        """Makes ready what has paused long enough; returns when the next one will have."""
        while self._pausing and self._pausing[0][0] <= now:
            self._put_back(heappop(self._pausing)[2], front=False)
        return self._pausing[0][0] if self._pausing else None

    # --- the whole ------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Nothing new starts. The first reason stays."""
        if self.stopped is None:
            self.stopped = reason

    def is_over(self) -> bool:
        if self.running:
            return False
        return self.stopped is not None or (self.is_source_ended and not self.unfinished)

    def is_halted(self) -> bool:
        return self.halt is not None and self.halt.is_reached(self.failed, self.completed, self.total)

    def waiting(self) -> int:
        return len(self.unfinished) - self.running

    # --- the rules inside -----------------------------------------------------------------------------------------

    def _decide(self, item: Item, kind: str | None, now: float, jitter: float, refused_by: str | None) -> Decision:
        # 1. It was told to stop and did.
        if kind == INTERRUPTED:
            return UNFINISHED
        # 2. The worker process is gone: not a retry, but not for ever either.
        if kind == WORKER_DIED:
            item.deaths += 1
            return FAILED if item.deaths >= MOST_DEATHS else Again(now + backoff.delay(item.deaths, jitter))
        # 3. The credential or the provider is the reason: go on with another one, or when it is usable again.
        if kind in RETRY_ON_OTHER_KEY:
            if refused_by is not None:
                item.refused_by |= {refused_by}
                if len(item.refused_by) >= MOST_REFUSALS:
                    return FAILED
            item.rotations += 1
            if item.rotations <= FREE_ROTATIONS:
                return AT_ONCE
            item.failures += 1
            return FAILED if item.failures > self.retries else AT_ONCE
        # 4. It may work next time.
        if kind == TRANSIENT:
            item.failures += 1
            return FAILED if item.failures > self.retries else Again(now + backoff.delay(item.failures, jitter))
        # 5. It will not.
        assert kind in (PERMANENT, None), kind
        return FAILED

    def _decide_alone(self, item: Item, kind: str, no_pool: NoPool, now: float, jitter: float) -> Decision:
        """Its worker has a key of its own, and no pool that would hold it back: so it waits by itself."""
        item.rotations += 1
        if item.rotations > FREE_ROTATIONS:
            item.failures += 1
        if kind == AUTH_FAILED or item.failures > self.retries:
            return FAILED
        wait = no_pool.wait if no_pool.wait is not None else backoff.delay(item.rotations, jitter, base=LEAST_PAUSE)
        return Again(now + wait)

    def _put_back(self, item: Item, *, front: bool) -> None:
        lane = self.lanes.setdefault(item.scope, deque())
        if front:
            lane.appendleft(item)
        else:
            lane.append(item)
        self.ready += 1
