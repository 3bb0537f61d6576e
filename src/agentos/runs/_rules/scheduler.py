"""Scheduler: decides what happens to each item of a run.

Events go in (an item was read, an attempt started, an attempt ended in a verdict); decisions come out: ended, or again
at an instant. The scheduler does not know the pool; the driver joins the two. The states of an item and the
transitions between them are in `item_states`.

An item is in `unfinished` from when it is read until it has ended. When the run stops, the ids in it are named to the
caller (`get_checkpoints`).
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.limits import backoff
from agentos.verdict import AUTH_FAILED, PERMANENT, RETRY_ON_OTHER_KEY, TRANSIENT

from .circuit_breaker import Advice

# Attempts of an item that may end with a retry on another credential before each further one spends a retry of the
# item. A refusal is the credential's fault, but after that many the item itself may be the reason.
FREE_ROTATIONS = 20
# An item fails when this many credentials have refused it that serve other items.
MAX_REFUSALS = 3
# An item fails when its worker process has died this many times.
MAX_DEATHS = 3
# Seconds that an item without a pool pauses after the first refusal without a hint; doubled each time.
MIN_PAUSE = 1.0
# Upper bound of the items that pause or wait for their scope. They hold no worker, so reading goes on past them.
MAX_PAUSING = 1000
# For inputs of unknown length: items that have to be completed before a percentage of failures is evaluated.
MIN_FOR_PERCENT = 10


class Halt(NamedTuple):
    """The condition of the option `halt`: a number or a percentage of failed items that stops the run."""

    when: str  # "now" or "soon"
    failures: float
    is_percent: bool
    text: str

    def is_reached(self, failed: int, completed: int, total: int | None) -> bool:
        """Return whether enough items have failed. `total`: None if the length of the input is not known."""
        if not self.is_percent:
            return failed >= self.failures
        if total is None and completed < MIN_FOR_PERCENT:
            return False
        return failed >= 1 and failed * 100 >= self.failures * (completed if total is None else total)


def parse_halt(text: str) -> Halt:
    """Return the condition that `now,fail=1` or `soon,fail=10%` describes; raise ValueError for any other form."""
    when, _, condition = text.partition(",")
    name, _, number = condition.partition("=")
    is_percent = number.endswith("%")
    digits = number.rstrip("%") if is_percent else number
    if when not in ("now", "soon") or name != "fail" or not digits.isdecimal() or int(digits) < 1:
        raise ValueError(f"halt must look like 'now,fail=1' or 'soon,fail=10%', not {text!r}")
    if is_percent and int(digits) > 100:
        raise ValueError(f"halt cannot wait for more than 100% to fail: {text!r}")
    return Halt(when, int(digits), is_percent, text)


class Failed(NamedTuple):
    """The item has ended, as a failure."""


class Again(NamedTuple):
    """The item is tried again: at once if `at` is None, else at that instant."""

    at: float | None


class Unfinished(NamedTuple):
    """The run is stopping: the item stays unfinished and becomes a checkpoint."""


FAILED = Failed()
AT_ONCE = Again(None)
UNFINISHED = Unfinished()

Decision = Failed | Again | Unfinished


class NoPool(NamedTuple):
    """The run has no pool that could hold the item back."""

    wait: float | None  # seconds that the provider asked for, if it did


class Scheduler:
    """The items of one run, their states and their order. Pure: time and jitter are arguments."""

    def __init__(self, *, max_workers: int, retries: int, halt: Halt | None = None, total: int | None = None,
                 now: float = 0.0) -> None:  # fmt: skip
        self.max_workers = max_workers
        self.retries = retries
        self.halt = halt
        self.total = total
        self.unfinished: dict[str, Item] = {}
        self.lanes: dict[str | None, deque[Item]] = {}
        self.ready = 0  # over all lanes
        self.running = 0
        self.sent_back = 0  # items whose last attempt was refused by a provider and that have not started again
        self.completed = self.failed = 0
        self.is_source_ended = False
        self.stopped: str | None = None  # the reason why nothing new starts
        self.last_start = now  # of any attempt; but those that a printed refusal ended do not count
        self.last_progress = now  # when an attempt last ended in another way
        self._pausing: list[tuple[float, int, Item]] = []
        self._numbers = 0

    # --- reading --------------------------------------------------------------------------------------------------

    def room(self, blocked: int = 0) -> int:
        """Return how many items may be read now, so that one is ready for each worker.

        `blocked`: ready items that cannot start, because their scope has to wait for a credential.
        """
        if self.stopped is not None or self.is_source_ended or len(self._pausing) + blocked >= MAX_PAUSING:
            return 0
        return self.max_workers - self.ready + blocked

    def add(self, item: Item) -> None:
        """Add an item that was read to the lane of its scope."""
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
        """Remove and return the next ready item of a lane, which requests a lease or starts."""
        lane = self.lanes[scope]
        item = lane.popleft()
        self.ready -= 1
        if not lane:
            del self.lanes[scope]
        return item

    def put_back(self, item: Item) -> None:
        """Make an item ready again that got no lease, as the first of its lane."""
        self._put_back(item, front=True)

    def start(self, item: Item, now: float) -> None:
        """Count an attempt at the item that starts now."""
        self.last_start = now
        item.attempts += 1
        if item.attempts == 1:
            item.started_at = now
        if item.is_sent_back:
            item.is_sent_back = False
            self.sent_back -= 1
        self.running += 1

    # --- ending ---------------------------------------------------------------------------------------------------

    def succeed(self, item: Item) -> None:
        self.running -= 1
        self.completed += 1
        del self.unfinished[item.id]

    def fail_attempt(self, item: Item, kind: str | None, now: float, jitter: float,
                     refused_by: str | None = None, no_pool: NoPool | None = None,
                     advice: Advice | None = None, usable_at: float | None = None) -> Decision:  # fmt: skip
        """Decide how to continue with an item whose attempt failed.

        `kind`: of a verdict, WORKER_DIED, INTERRUPTED, or None (an exception that no provider caused). `refused_by`:
        the credential of an auth_failed, if other items use that credential successfully. `advice`: of the circuit
        breaker, for a failure that may be the credential's fault. `usable_at`: the instant that a gateway named when it
        refused the attempt's last request; the item waits for it and spends no retry.
        """
        self.running -= 1
        if advice is not None and kind in RETRY_ON_OTHER_KEY:
            self.last_start = self.last_progress  # a start that was refused at once is no progress
        else:
            self.last_progress = now
        if usable_at is not None:
            decision: Decision = Again(usable_at)
        elif no_pool is not None and kind in RETRY_ON_OTHER_KEY:
            decision = self._decide_alone(item, kind, no_pool, now, jitter)
        else:
            decision = self._decide(item, kind, now, jitter, refused_by, advice)
        if decision is FAILED:
            self.failed += 1
            self.completed += 1
            del self.unfinished[item.id]
            return decision
        if self.stopped is not None or decision is UNFINISHED:
            return UNFINISHED
        assert isinstance(decision, Again)
        if decision.at is None or usable_at is not None:
            item.is_sent_back = True
            self.sent_back += 1
        if decision.at is not None:
            self._numbers += 1
            heappush(self._pausing, (decision.at, self._numbers, item))
        else:
            # After an auth_failed another item goes first: the pool has to learn whether the key or the item is bad.
            self._put_back(item, front=kind != AUTH_FAILED)
        return decision

    def reject(self, item_id: str | None = None) -> None:
        """Count an item that fails without an attempt. `item_id`: only if the item was added."""
        if item_id is not None:
            del self.unfinished[item_id]
        self.failed += 1
        self.completed += 1

    def count_recorded(self, count: int) -> None:
        """Count items of the input that had ended before this launch."""
        self.completed += count

    def give_up(self) -> None:
        """Stop waiting for one running attempt; its item stays unfinished."""
        self.running -= 1

    def wake(self, now: float) -> float | None:
        """Make items ready whose pause is over, and return the end of the next pause; None if no item pauses."""
        while self._pausing and self._pausing[0][0] <= now:
            item = heappop(self._pausing)[2]
            self._put_back(item, front=item.is_sent_back)  # a refused item had its turn before
        return self._pausing[0][0] if self._pausing else None

    # --- the whole ------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Start nothing from now on. Of several reasons the first stays."""
        if self.stopped is None:
            self.stopped = reason

    def is_over(self) -> bool:
        """Return whether no attempt runs and none will start."""
        if self.running:
            return False
        return self.stopped is not None or (self.is_source_ended and not self.unfinished)

    def is_halted(self) -> bool:
        return self.halt is not None and self.halt.is_reached(self.failed, self.completed, self.total)

    @property
    def is_pausing(self) -> bool:
        """Whether an item pauses before its next attempt. Read from any thread."""
        return bool(self._pausing)

    def waiting(self) -> int:
        """Return the number of items that are ready, requesting or pausing."""
        return len(self.unfinished) - self.running

    # --- decisions -----------------------------------------------------------------------------------------

    def _decide(self, item: Item, kind: str | None, now: float, jitter: float, refused_by: str | None,
                advice: Advice | None) -> Decision:  # fmt: skip
        # 1. The run asked the attempt to stop.
        if kind == INTERRUPTED:
            return UNFINISHED
        # 2. The worker process has died: spends no retry, but is limited.
        if kind == WORKER_DIED:
            item.deaths += 1
            return FAILED if item.deaths >= MAX_DEATHS else Again(now + backoff.delay(item.deaths, jitter))
        # 3. Credential or provider refused: continue with another credential, or when one is usable again.
        if kind in RETRY_ON_OTHER_KEY:
            if refused_by is not None:
                item.refused_by |= {refused_by}
                if len(item.refused_by) >= MAX_REFUSALS:
                    return FAILED
            again = Again(now + advice.pause) if advice is not None and advice.pause else AT_ONCE
            if advice is not None and advice.is_free:
                return again
            item.rotations += 1
            if item.rotations <= FREE_ROTATIONS:
                return again
            item.failures += 1
            return FAILED if item.failures > self.retries else again
        # 4. The credential may be at fault: try another one.
        if advice is not None and advice.is_free:
            has_others = self.ready > 0 or self.running > 0 or not self.is_source_ended
            return Again(now + advice.pause) if advice.pause and has_others else AT_ONCE
        # 5. A retry may help.
        if kind == TRANSIENT:
            item.failures += 1
            return FAILED if item.failures > self.retries else Again(now + backoff.delay(item.failures, jitter))
        # 6. A retry will not help.
        assert kind in (PERMANENT, None), kind
        return FAILED

    def _decide_alone(self, item: Item, kind: str, no_pool: NoPool, now: float, jitter: float) -> Decision:
        """Decide for an item whose worker brings its own key: no pool delays its next start, so the item pauses."""
        item.rotations += 1
        if item.rotations > FREE_ROTATIONS:
            item.failures += 1
        if kind == AUTH_FAILED or item.failures > self.retries:
            return FAILED
        wait = no_pool.wait if no_pool.wait is not None else backoff.delay(item.rotations, jitter, base=MIN_PAUSE)
        return Again(now + wait)

    def _put_back(self, item: Item, *, front: bool) -> None:
        lane = self.lanes.setdefault(item.scope, deque())
        if front:
            lane.appendleft(item)
        else:
            lane.append(item)
        self.ready += 1
