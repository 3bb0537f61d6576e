"""Cool-downs whose end is a guess: probed by one request at growing intervals."""

from __future__ import annotations

import pytest

from agentos.events import CoolDownStarted
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.guessed_cool_downs import HOLD_SECONDS
from agentos.pool._rules.lease_states import LIVE, WAITING
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

from .test_allocator import NOW, ask, credential_of, make_pool, take_served

NO_TIME = Verdict(QUOTA_EXHAUSTED)
TILL_MIDNIGHT = Verdict(QUOTA_EXHAUSTED, cool_down=30_000.0, is_guess=True)


def refused(pool: Allocator, record: LeaseRecord, now: float, verdict: Verdict = NO_TIME) -> float:
    """End a lease with a refusal; return for how long its group cools."""
    pool.lease_end.end(record, now, verdict)
    (event,) = [event for event in pool.events if isinstance(event, CoolDownStarted)]
    pool.events.clear()
    return event.seconds


@pytest.mark.parametrize("verdict", [NO_TIME, TILL_MIDNIGHT])
def test_probes_come_at_growing_intervals(verdict: Verdict) -> None:
    pool = make_pool("a")
    record, now, pauses = ask(pool), NOW, []
    for _ in range(8):
        seconds = refused(pool, record, now, verdict)
        pauses.append(seconds)
        record = ask(pool, now)
        assert record.state == WAITING
        pool.advance(now + seconds - 0.001)
        assert record.state == WAITING
        now += seconds
        pool.advance(now)
        assert record.state == LIVE
        assert pool.confirm(record, now)
    assert pauses == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]


def test_named_time_is_obeyed_to_its_end() -> None:  # invariant 4
    for verdict in (Verdict(QUOTA_EXHAUSTED, 7200.0), Verdict(QUOTA_EXHAUSTED, 30.0, cool_down=7200.0)):
        pool = make_pool("a")
        assert refused(pool, ask(pool), NOW, verdict) == 7200.0


def test_probe_does_not_come_before_a_named_hint() -> None:  # invariant 4
    pool = make_pool("a")
    assert refused(pool, ask(pool), NOW, Verdict(QUOTA_EXHAUSTED, 90.0, cool_down=30_000.0, is_guess=True)) == 90.0


def test_short_guess_is_not_prolonged() -> None:
    pool = make_pool("a")
    assert refused(pool, ask(pool), NOW, Verdict(QUOTA_EXHAUSTED, cool_down=20.0, is_guess=True)) == 20.0


def cooled_group() -> tuple[Allocator, LeaseRecord, LeaseRecord]:
    """Return a pool of two keys that share a quota, a minute after a refusal: a probe, and a waiter behind it."""
    pool = make_pool("a", "b", group="team", max_concurrent=4)
    refused(pool, ask(pool), NOW)
    probe, waiter = ask(pool), ask(pool)
    pool.advance(NOW + 60.0)
    assert take_served(pool) == [probe]
    assert pool.confirm(probe, NOW + 60.0)
    assert waiter.state == WAITING
    return pool, probe, waiter


def test_one_request_probes_a_whole_group() -> None:
    pool, _, waiter = cooled_group()
    assert ask(pool, NOW + 61.0).state == WAITING
    pool.advance(NOW + 60.0 + HOLD_SECONDS - 0.01)
    assert waiter.state == WAITING


def test_success_of_probe_opens_the_group() -> None:
    pool, probe, waiter = cooled_group()
    pool.lease_end.end(probe, NOW + 61.0, success=True)
    pool.advance(NOW + 61.0)
    assert waiter.state == LIVE
    assert not pool.credentials["a"].group.guesses
    assert refused(pool, waiter, NOW + 62.0) == 60.0  # counted anew


def test_slow_probe_holds_others_up_for_seconds() -> None:
    pool, probe, waiter = cooled_group()
    pool.advance(NOW + 60.0 + HOLD_SECONDS)
    assert waiter.state == LIVE
    assert probe.state == LIVE


def test_unused_probe_makes_room_for_the_next() -> None:
    pool, probe, waiter = cooled_group()
    last = ask(pool, NOW + 60.5)
    pool.lease_end.withdraw(probe, NOW + 61.0)
    pool.advance(NOW + 61.0)
    assert waiter.state == LIVE
    assert last.state == WAITING


def test_named_time_in_refusal_of_probe_is_obeyed() -> None:  # invariant 4
    """It ends before the hold for the probe, which ends with the probe."""
    pool, probe, waiter = cooled_group()
    pool.lease_end.end(probe, NOW + 61.0, Verdict(RATE_LIMITED, 2.0))
    pool.advance(NOW + 62.9)
    assert waiter.state == WAITING
    pool.advance(NOW + 63.0)
    assert waiter.state == LIVE


def test_refusals_in_flight_count_once() -> None:
    pool = make_pool("a", max_concurrent=3)
    first, second = ask(pool), ask(pool)
    assert refused(pool, first, NOW + 0.5) == 60.0
    pool.lease_end.end(second, NOW + 1.0, NO_TIME)
    assert pool.credentials["a"].usable_at(None) == NOW + 61.0


def test_clear_ends_cool_downs_and_quarantine() -> None:
    pool = make_pool("a", "b", group="team")
    refused(pool, ask(pool), NOW, Verdict(QUOTA_EXHAUSTED, 7200.0))
    pool.quarantine("b", "refused", NOW)
    waiter = ask(pool, NOW + 1.0)
    pool.clear("b", NOW + 2.0)
    assert waiter.state == LIVE
    assert credential_of(ask(pool, NOW + 3.0)) is not None
    pool.advance(NOW + 8000.0)
    assert pool.credentials["a"].cooled == pool.credentials["b"].cooled == 0


def test_clear_of_overload_starts_its_backoff_anew() -> None:
    pool = make_pool("a", provider="p")
    for second in range(3):
        pool.feedback.apply(pool.credentials["a"], None, Verdict("overloaded"), NOW + 100.0 * second, jitter=1.0)
    pool.clear("a", NOW + 201.0)
    assert credential_of(ask(pool, NOW + 201.0)) == "a"
    pool.feedback.apply(pool.credentials["a"], None, Verdict("overloaded"), NOW + 300.0, jitter=1.0)
    assert pool.credentials["a"].usable_at(None) == NOW + 301.0


def test_printed_verdict_changes_no_credential() -> None:  # invariant 42
    pool = make_pool("a")
    record = ask(pool)
    pool.lease_end.end(record, NOW, Verdict("transient", 3600.0, message=RATE_LIMITED, is_printed=True))
    assert not pool.events
    assert credential_of(ask(pool)) == "a"
