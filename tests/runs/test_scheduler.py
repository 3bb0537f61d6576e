"""Scheduler: decisions about items, by events and `now`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.limits import backoff
from agentos.runs._rules.scheduler import FAILED, FREE_ROTATIONS, MAX_PAUSING, UNFINISHED, Again, Scheduler, parse_halt
from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT

NOW = 1000.0


def make_scheduler(
    retries: int = 2, max_workers: int = 2, halt: str | None = None, total: int | None = None
) -> Scheduler:
    return Scheduler(max_workers=max_workers, retries=retries, halt=parse_halt(halt) if halt else None, total=total)


def start(scheduler: Scheduler, item_id: str = "i") -> Item:
    item = Item(item_id, None)
    scheduler.add(item)
    scheduler.take(None)
    scheduler.start(item, NOW)
    return item


def again(scheduler: Scheduler, item: Item, kind: str | None, refused_by: str | None = None) -> bool:
    """End the attempt; return whether the item has started again, and not failed."""
    decision = scheduler.fail_attempt(item, kind, NOW, 0.5, refused_by)
    if decision is FAILED:
        return False
    assert isinstance(decision, Again)
    scheduler.wake(NOW + 1e6)
    assert scheduler.take(None) is item
    scheduler.start(item, NOW)
    return True


def test_transient_error_spends_a_retry() -> None:
    scheduler = make_scheduler(retries=2)
    item = start(scheduler)
    assert [again(scheduler, item, TRANSIENT) for _ in range(3)] == [True, True, False]
    assert item.attempts == 3
    assert (scheduler.completed, scheduler.failed) == (1, 1)


@pytest.mark.parametrize("kind", [PERMANENT, None])
def test_permanent_error_fails_without_retry(kind: str | None) -> None:
    scheduler = make_scheduler()
    assert not again(scheduler, start(scheduler), kind)


@pytest.mark.parametrize("kind", [RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED, AUTH_FAILED])
def test_refused_item_waits_for_a_lease_only(kind: str) -> None:
    """It does not pause: another credential may be usable."""
    scheduler = make_scheduler()
    item = start(scheduler)
    scheduler.fail_attempt(item, kind, NOW, 0.5, None)
    assert scheduler.take(None) is item


@pytest.mark.parametrize("kind", [RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED, AUTH_FAILED])
def test_refusals_spend_retries_after_free_rotations(kind: str) -> None:
    scheduler = make_scheduler(retries=2)
    item = start(scheduler)
    rotations = 0
    while again(scheduler, item, kind):
        rotations += 1
    assert rotations == FREE_ROTATIONS + 2


def test_refused_item_starts_next() -> None:
    scheduler = make_scheduler()
    item = start(scheduler, "first")
    scheduler.add(Item("second", None))
    scheduler.fail_attempt(item, RATE_LIMITED, NOW, 0.5)
    assert scheduler.sent_back == 1
    assert scheduler.take(None) is item
    scheduler.start(item, NOW)
    assert scheduler.sent_back == 0


def test_auth_failed_item_starts_after_another_item() -> None:
    scheduler = make_scheduler()
    item = start(scheduler, "first")
    second = Item("second", None)
    scheduler.add(second)
    scheduler.fail_attempt(item, AUTH_FAILED, NOW, 0.5)
    assert scheduler.take(None) is second


def test_item_refused_by_three_proven_credentials_fails() -> None:
    scheduler = make_scheduler()
    item = start(scheduler)
    assert again(scheduler, item, AUTH_FAILED, "a")
    assert again(scheduler, item, AUTH_FAILED, "a")
    assert again(scheduler, item, AUTH_FAILED, None)  # not proven: does not count against the item
    assert again(scheduler, item, AUTH_FAILED, "b")
    assert not again(scheduler, item, AUTH_FAILED, "c")


def test_item_fails_after_three_worker_deaths() -> None:  # invariant 24
    scheduler = make_scheduler(retries=0)
    item = start(scheduler)
    assert [again(scheduler, item, WORKER_DIED) for _ in range(3)] == [True, True, False]


def test_stopping_scheduler_leaves_failed_items_unfinished() -> None:
    scheduler = make_scheduler()
    first, second = start(scheduler, "first"), start(scheduler, "second")
    scheduler.stop("interrupted")
    scheduler.stop("another reason comes too late")
    assert scheduler.fail_attempt(first, TRANSIENT, NOW, 0.5) is UNFINISHED
    assert not scheduler.is_over()
    assert scheduler.fail_attempt(second, INTERRUPTED, NOW, 0.5) is UNFINISHED
    assert scheduler.is_over()
    assert list(scheduler.unfinished) == ["first", "second"]
    assert scheduler.stopped == "interrupted"


def test_permanent_failure_counts_while_stopping() -> None:
    scheduler = make_scheduler()
    item = start(scheduler)
    scheduler.stop("interrupted")
    assert scheduler.fail_attempt(item, PERMANENT, NOW, 0.5) is FAILED


def test_room_is_zero_with_one_ready_item_per_worker() -> None:
    scheduler = make_scheduler(max_workers=3)
    assert scheduler.room() == 3
    for number in range(3):
        scheduler.add(Item(str(number), None))
    assert scheduler.room() == 0


def test_room_is_zero_while_too_many_items_pause() -> None:  # invariant 26
    scheduler = make_scheduler(retries=9, max_workers=MAX_PAUSING)
    for number in range(MAX_PAUSING):
        scheduler.fail_attempt(start(scheduler, str(number)), TRANSIENT, NOW, 0.5)
    assert scheduler.room() == 0
    scheduler.wake(NOW + 100)
    assert scheduler.ready == MAX_PAUSING


@pytest.mark.parametrize(
    ("halt", "failed", "completed", "total", "expected"),
    [
        ("now,fail=1", 0, 5, 10, False),
        ("now,fail=1", 1, 5, 10, True),
        ("soon,fail=3", 2, 5, 10, False),
        ("soon,fail=10%", 9, 50, 100, False),
        ("soon,fail=10%", 10, 50, 100, True),
        ("soon,fail=10%", 1, 5, None, False),  # too few items for a percentage
        ("soon,fail=10%", 1, 10, None, True),
        ("soon,fail=10%", 0, 10, 0, False),
    ],
)
def test_halt_condition_counts_or_compares_percent(
    halt: str, failed: int, completed: int, total: int | None, expected: bool
) -> None:
    assert parse_halt(halt).is_reached(failed, completed, total) is expected


@pytest.mark.parametrize(
    "text", ["", "now", "later,fail=1", "now,fail=0", "now,fail=x", "now,success=1", "soon,fail=101%", "now,fail=-1"]
)
def test_wrong_halt_raises(text: str) -> None:
    with pytest.raises(ValueError, match=r"halt"):
        parse_halt(text)


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1))
def test_backoff_grows_to_a_minute_with_half_jitter(failures: int, jitter: float) -> None:
    full = backoff.delay(failures, 1.0)
    assert full / 2 <= backoff.delay(failures, jitter) <= full <= 60
    assert backoff.delay(failures + 1, 1.0) >= full


class SchedulerMachine(RuleBasedStateMachine):
    """Checks after any sequence of events that every item has one state and ends at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = make_scheduler(retries=1, max_workers=3)
        self.now = NOW
        self.read_ids: list[str] = []
        self.requesting: list[Item] = []
        self.running: list[Item] = []
        self.ended: list[str] = []

    @precondition(lambda self: self.scheduler.room() > 0)
    @rule(scope=st.sampled_from([None, "x"]))
    def read(self, scope: str | None) -> None:
        item = Item(f"item-{len(self.read_ids)}", None, scope)
        self.read_ids.append(item.id)
        self.scheduler.add(item)

    @precondition(lambda self: self.scheduler.lanes and self.scheduler.free_workers() > 0)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.scheduler.lanes, key=str)))
        self.requesting.append(self.scheduler.take(scope))

    @precondition(lambda self: self.requesting)
    @rule(is_granted=st.booleans())
    def lease(self, is_granted: bool) -> None:
        item = self.requesting.pop()
        if is_granted and self.scheduler.free_workers() > 0:
            self.scheduler.start(item, self.now)
            self.running.append(item)
        else:
            self.scheduler.put_back(item)

    @precondition(lambda self: self.running)
    @rule(kind=st.sampled_from(["ok", None, TRANSIENT, RATE_LIMITED, AUTH_FAILED, PERMANENT, WORKER_DIED, INTERRUPTED]))
    def end(self, kind: str | None) -> None:
        item = self.running.pop(0)
        if kind == "ok":
            self.scheduler.succeed(item)
            self.ended.append(item.id)
        elif self.scheduler.fail_attempt(item, kind, self.now, 0.5) is FAILED:
            self.ended.append(item.id)

    @rule(seconds=st.sampled_from([0.1, 1.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        next_at = self.scheduler.wake(self.now)
        assert next_at is None or next_at > self.now

    @invariant()
    def each_item_is_unfinished_or_ended(self) -> None:  # invariant 19
        assert len(set(self.ended)) == len(self.ended) == self.scheduler.completed
        assert set(self.scheduler.unfinished) | set(self.ended) == set(self.read_ids)
        assert not set(self.scheduler.unfinished) & set(self.ended)

    @invariant()
    def counts_match_items(self) -> None:
        scheduler = self.scheduler
        assert scheduler.running == len(self.running) <= scheduler.max_workers
        lanes = [item for lane in scheduler.lanes.values() for item in lane]
        assert scheduler.ready == len(lanes) == len(set(lanes))
        assert scheduler.sent_back == sum(item.is_sent_back for item in scheduler.unfinished.values())
        assert all(scheduler.lanes.values())


TestSchedulerMachine = SchedulerMachine.TestCase


def test_ready_item_does_not_count_as_pausing() -> None:
    scheduler = make_scheduler()
    item = start(scheduler)
    scheduler.add(Item("ready", None))
    assert not scheduler.is_pausing
    scheduler.fail_attempt(item, TRANSIENT, NOW, 0.5, None)
    assert scheduler.is_pausing
    scheduler.wake(NOW + 1e6)
    assert not scheduler.is_pausing
