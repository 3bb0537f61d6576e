"""The run by facts and `now`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentos import events
from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.limits import backoff
from agentos.runs._rules.bottleneck import Bottleneck
from agentos.runs._rules.scheduler import FAILED, FREE_ROTATIONS, MAX_PAUSING, UNFINISHED, Again, Scheduler, parse_halt
from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT

NOW = 1000.0


def make_run(retries: int = 2, max_workers: int = 2, halt: str | None = None, total: int | None = None) -> Scheduler:
    return Scheduler(max_workers=max_workers, retries=retries, halt=parse_halt(halt) if halt else None, total=total)


def start(run: Scheduler, item_id: str = "i") -> Item:
    item = Item(item_id, None)
    run.add(item)
    run.take(None)
    run.start(item, NOW)
    return item


def again(run: Scheduler, item: Item, kind: str | None, refused_by: str | None = None) -> bool:
    """Ends the attempt; True if the item has started again, False if it has failed."""
    decision = run.fail_attempt(item, kind, NOW, 0.5, refused_by)
    if decision is FAILED:
        return False
    assert isinstance(decision, Again)
    run.wake(NOW + 1e6)
    assert run.take(None) is item
    run.start(item, NOW)
    return True


def test_a_transient_error_spends_the_retries() -> None:
    run = make_run(retries=2)
    item = start(run)
    assert [again(run, item, TRANSIENT) for _ in range(3)] == [True, True, False]
    assert item.attempts == 3
    assert (run.completed, run.failed) == (1, 1)


@pytest.mark.parametrize("kind", [PERMANENT, None])
def test_what_will_not_work_next_time_fails_at_once(kind: str | None) -> None:
    run = make_run()
    assert not again(run, start(run), kind)


@pytest.mark.parametrize("kind", [RATE_LIMITED, QUOTA_EXHAUSTED, OVERLOADED, AUTH_FAILED])
def test_rotating_spends_no_retry_until_it_has_happened_very_often(kind: str) -> None:
    run = make_run(retries=2)
    item = start(run)
    rotations = 0
    while again(run, item, kind):
        rotations += 1
    assert rotations == FREE_ROTATIONS + 2


def test_an_item_that_was_sent_back_is_the_next_to_start() -> None:
    run = make_run()
    item = start(run, "first")
    run.add(Item("second", None))
    run.fail_attempt(item, RATE_LIMITED, NOW, 0.5)
    assert run.sent_back == 1
    assert run.take(None) is item
    run.start(item, NOW)
    assert run.sent_back == 0


def test_an_item_whose_key_was_refused_lets_another_give_a_second_opinion() -> None:
    run = make_run()
    item = start(run, "first")
    second = Item("second", None)
    run.add(second)
    run.fail_attempt(item, AUTH_FAILED, NOW, 0.5)
    assert run.take(None) is second


def test_an_item_refused_by_three_credentials_that_others_use_is_permanent() -> None:
    run = make_run()
    item = start(run)
    assert again(run, item, AUTH_FAILED, "a")
    assert again(run, item, AUTH_FAILED, "a")
    assert again(run, item, AUTH_FAILED, None)  # not proven: says nothing about the item
    assert again(run, item, AUTH_FAILED, "b")
    assert not again(run, item, AUTH_FAILED, "c")


def test_three_deaths_of_its_worker_process_fail_an_item() -> None:  # invariant 24
    run = make_run(retries=0)
    item = start(run)
    assert [again(run, item, WORKER_DIED) for _ in range(3)] == [True, True, False]


def test_a_stopping_run_leaves_items_unfinished_instead_of_trying_again() -> None:
    run = make_run()
    first, second = start(run, "first"), start(run, "second")
    run.stop("interrupted")
    run.stop("another reason comes too late")
    assert run.fail_attempt(first, TRANSIENT, NOW, 0.5) is UNFINISHED
    assert not run.is_over()
    assert run.fail_attempt(second, INTERRUPTED, NOW, 0.5) is UNFINISHED
    assert run.is_over()
    assert list(run.unfinished) == ["first", "second"]
    assert run.stopped == "interrupted"


def test_a_permanent_failure_counts_also_while_stopping() -> None:
    run = make_run()
    item = start(run)
    run.stop("interrupted")
    assert run.fail_attempt(item, PERMANENT, NOW, 0.5) is FAILED


def test_reading_stops_when_as_many_are_ready_as_there_are_workers() -> None:
    run = make_run(max_workers=3)
    assert run.room() == 3
    for number in range(3):
        run.add(Item(str(number), None))
    assert run.room() == 0


def test_reading_stops_when_too_many_items_pause() -> None:  # invariant 26
    run = make_run(retries=9, max_workers=MAX_PAUSING)
    for number in range(MAX_PAUSING):
        run.fail_attempt(start(run, str(number)), TRANSIENT, NOW, 0.5)
    assert run.room() == 0
    run.wake(NOW + 100)
    assert run.ready == MAX_PAUSING


@pytest.mark.parametrize(
    ("halt", "failed", "completed", "total", "expected"),
    [
        ("now,fail=1", 0, 5, 10, False),
        ("now,fail=1", 1, 5, 10, True),
        ("soon,fail=3", 2, 5, 10, False),
        ("soon,fail=10%", 9, 50, 100, False),
        ("soon,fail=10%", 10, 50, 100, True),
        ("soon,fail=10%", 1, 5, None, False),  # too few to speak of percent
        ("soon,fail=10%", 1, 10, None, True),
        ("soon,fail=10%", 0, 10, 0, False),
    ],
)
def test_when_a_run_halts(halt: str, failed: int, completed: int, total: int | None, expected: bool) -> None:
    assert parse_halt(halt).is_reached(failed, completed, total) is expected


@pytest.mark.parametrize(
    "text", ["", "now", "later,fail=1", "now,fail=0", "now,fail=x", "now,success=1", "soon,fail=101%", "now,fail=-1"]
)
def test_a_halt_that_makes_no_sense_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"halt"):
        parse_halt(text)


@given(failures=st.integers(1, 10_000), jitter=st.floats(0, 1))
def test_pauses_grow_up_to_a_minute_and_are_spread_over_the_upper_half(failures: int, jitter: float) -> None:
    full = backoff.delay(failures, 1.0)
    assert full / 2 <= backoff.delay(failures, jitter) <= full <= 60
    assert backoff.delay(failures + 1, 1.0) >= full


class RunMachine(RuleBasedStateMachine):
    """Whatever happens, every item that was read has exactly one place, and ends at most once."""

    def __init__(self) -> None:
        super().__init__()
        self.run_ = make_run(retries=1, max_workers=3)
        self.now = NOW
        self.read_ids: list[str] = []
        self.asking: list[Item] = []
        self.running: list[Item] = []
        self.ended: list[str] = []

    @precondition(lambda self: self.run_.room() > 0)
    @rule(scope=st.sampled_from([None, "x"]))
    def read(self, scope: str | None) -> None:
        item = Item(f"item-{len(self.read_ids)}", None, scope)
        self.read_ids.append(item.id)
        self.run_.add(item)

    @precondition(lambda self: self.run_.lanes and self.run_.free_workers() > 0)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        scope = data.draw(st.sampled_from(sorted(self.run_.lanes, key=str)))
        self.asking.append(self.run_.take(scope))

    @precondition(lambda self: self.asking)
    @rule(comes=st.booleans())
    def lease(self, comes: bool) -> None:
        item = self.asking.pop()
        if comes and self.run_.free_workers() > 0:
            self.run_.start(item, self.now)
            self.running.append(item)
        else:
            self.run_.put_back(item)

    @precondition(lambda self: self.running)
    @rule(kind=st.sampled_from(["ok", None, TRANSIENT, RATE_LIMITED, AUTH_FAILED, PERMANENT, WORKER_DIED, INTERRUPTED]))
    def end(self, kind: str | None) -> None:
        item = self.running.pop(0)
        if kind == "ok":
            self.run_.succeed(item)
            self.ended.append(item.id)
        elif self.run_.fail_attempt(item, kind, self.now, 0.5) is FAILED:
            self.ended.append(item.id)

    @rule(seconds=st.sampled_from([0.1, 1.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        next_at = self.run_.wake(self.now)
        assert next_at is None or next_at > self.now

    @invariant()
    def every_item_is_unfinished_or_has_ended_once(self) -> None:  # invariant 19
        assert len(set(self.ended)) == len(self.ended) == self.run_.completed
        assert set(self.run_.unfinished) | set(self.ended) == set(self.read_ids)
        assert not set(self.run_.unfinished) & set(self.ended)

    @invariant()
    def the_counts_are_right(self) -> None:
        run = self.run_
        assert run.running == len(self.running) <= run.max_workers
        lanes = [item for lane in run.lanes.values() for item in lane]
        assert run.ready == len(lanes) == len(set(lanes))
        assert run.sent_back == sum(item.is_sent_back for item in run.unfinished.values())
        assert all(run.lanes.values())


TestRunMachine = RunMachine.TestCase


def test_the_reason_that_held_the_longest_bound_the_run() -> None:
    what = Bottleneck(0.0)
    what.note(events.WORKERS, 0.0)
    what.note(events.KEYS, 1.0)
    what.note(events.WORKERS, 5.0)
    what.note(None, 6.0)
    assert what.text(3, 4) == "the 4 credentials, all in use, not the workers"
    what.note(events.WORKERS, 6.0)
    what.note(None, 60.0)
    assert what.text(3, 4) == "3 workers, not the keys"
    assert what.text(3, None) == "3 workers"
