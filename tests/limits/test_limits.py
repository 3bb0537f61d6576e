"""Declared limits, by facts and `now`."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.limits._limiter import RateLimiter
from agentos.limits._windows import JITTER_SECONDS, Bucket, Day, Window
from agentos.limits.declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, strictest
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import LeaseRecord
from agentos.pool.lease_states import LIVE
from agentos.verdict import OVERLOADED, Verdict
from agentos.workflows.parallel import Limits

NOW = 1000.0


def at_noon(now: float) -> float:
    return (now // 100 + 1) * 100  # a day of a hundred seconds


def limiter(**limits: float) -> RateLimiter:
    return RateLimiter(Limits(**limits), at_noon, NOW)  # type: ignore[arg-type]


# --- the parts ------------------------------------------------------------------------------------------------------


def test_a_bucket_lets_its_content_through_at_once_and_then_at_its_rate() -> None:
    bucket = Bucket(10.0, 3.0, NOW)
    for _ in range(3):
        assert bucket.ready_at(1, NOW) == 0.0
        bucket.take(1, NOW)
    first = bucket.ready_at(1, NOW)
    assert first == pytest.approx(NOW + JITTER_SECONDS + 0.1)  # a little is kept back after a burst, once
    assert bucket.ready_at(1, first) == 0.0
    bucket.take(1, first)
    assert bucket.ready_at(1, first) == pytest.approx(first + 0.1)


def test_a_bucket_that_nobody_uses_holds_no_more_than_it_can() -> None:
    bucket = Bucket(10.0, 3.0, NOW)
    for _ in range(3):
        assert bucket.ready_at(1, NOW + 100) == 0.0
        bucket.take(1, NOW + 100)
    assert bucket.ready_at(1, NOW + 100) > NOW + 100


def test_a_bucket_in_debt_has_to_be_filled_first() -> None:
    bucket = Bucket(1.0, 2.0, NOW)
    bucket.take(5, NOW)
    assert bucket.ready_at(1, NOW) == pytest.approx(NOW + JITTER_SECONDS + 4)


def test_more_than_a_bucket_holds_is_let_through_a_full_one_as_debt() -> None:
    bucket = Bucket(1.0, 2.0, NOW)
    assert bucket.ready_at(5, NOW) == 0.0


def test_what_is_given_back_does_not_overfill_a_bucket() -> None:
    bucket = Bucket(1.0, 2.0, NOW)
    bucket.take(1, NOW)
    bucket.take(-5, NOW)
    assert bucket.level(NOW + 100) == 2.0


def test_a_window_admits_again_exactly_when_the_oldest_leaves_it() -> None:
    window = Window(2)
    window.take(1, NOW)
    window.take(1, NOW + 10)
    assert window.ready_at(1, NOW + 10) == NOW + 60
    assert window.ready_at(1, NOW + 60) == 0.0
    assert window.ready_at(2, NOW + 60) == NOW + 70


def test_a_window_never_admits_what_is_larger_than_itself() -> None:
    assert Window(2).ready_at(3, NOW) == math.inf


def test_overshoot_counts_from_when_it_is_known_and_what_was_not_used_is_free_again() -> None:
    window = Window(100)
    entry = window.take(50, NOW)
    window.correct(entry, 120, NOW + 30)
    assert window.ready_at(1, NOW + 31) == NOW + 60  # in debt until then
    assert window.ready_at(40, NOW + 60) == NOW + 90  # and the overshoot counts for a minute of its own
    window = Window(100)
    entry = window.take(100, NOW)
    window.correct(entry, 10, NOW + 1)
    assert window.ready_at(90, NOW + 1) == 0.0


def test_what_is_corrected_several_times_counts_once() -> None:
    window = Window(100)
    entry = window.take(10, NOW)
    for amount in (20, 30, 40):
        window.correct(entry, amount, NOW + 1)
    assert window.total == 40


def test_a_day_begins_anew_at_its_reset() -> None:
    day = Day(2, at_noon)
    day.take(2, NOW + 30)
    assert day.ready_at(1, NOW + 50) == NOW + 100
    assert day.ready_at(1, NOW + 100) == 0.0


def test_what_others_have_seen_of_a_lost_log_counts_once_and_until_it_leaves_the_window() -> None:  # invariant 2
    lost = limiter(requests_per_minute=10, burst=10, tokens_per_minute=1000, requests_per_day=30)
    lost.take(6, 600, NOW)
    lost.take(2, 200, NOW + 5)
    report = lost.report(NOW + 10)
    found = limiter(requests_per_minute=10, burst=10, tokens_per_minute=1000, requests_per_day=30)
    for elapsed in (2, 2, 3):  # by three who have seen it
        found.merge(report, elapsed, NOW + 10 + elapsed)
    assert found.usage(NOW + 13) == {
        REQUESTS_PER_MINUTE: (8, 10), TOKENS_PER_MINUTE: (800, 1000), REQUESTS_PER_DAY: (8, 30),
    }  # fmt: skip
    assert found.ready_at(2, 0, NOW + 13) == 0.0
    assert found.ready_at(3, 0, NOW + 13) == pytest.approx(NOW + 60, abs=1)
    assert found.usage(NOW + 61.5)[REQUESTS_PER_MINUTE] == (2, 10)
    assert found.usage(NOW + 66.5)[TOKENS_PER_MINUTE] == (0, 1000)
    found.merge(report, 90, NOW + 100)
    assert found.usage(NOW + 100)[REQUESTS_PER_MINUTE] == (0, 10)


def test_the_strictest_of_two_declarations_holds() -> None:
    one = Limits(requests_per_minute=60, tokens_per_minute=100, requests_per_day=10, day_resets="08:00 UTC")
    both = strictest(one, Limits(requests_per_minute=30, tokens_per_minute=200, burst=2))
    assert (both.requests_per_minute, both.tokens_per_minute, both.requests_per_day) == (30, 100, 10)
    assert (both.burst, both.day_resets) == (2, "08:00 UTC")
    assert strictest(Limits(), one) == one
    assert strictest(one, Limits()) == one


@pytest.mark.parametrize(
    ("limits", "requests", "tokens", "name"),
    [
        ({"requests_per_minute": 60, "burst": 1}, 1, 0, REQUESTS_PER_MINUTE),
        ({"tokens_per_minute": 100}, 1, 60, TOKENS_PER_MINUTE),
        ({"requests_per_day": 1}, 1, 0, REQUESTS_PER_DAY),
    ],
)
def test_the_limit_that_decides_is_named(limits: dict[str, float], requests: int, tokens: int, name: str) -> None:
    known = limiter(**limits)
    assert known.binding(requests, tokens, NOW) == (0.0, None)
    known.take(requests, tokens, NOW)
    at, binding = known.binding(requests, tokens, NOW)
    assert at > NOW
    assert binding == name


def test_a_request_that_no_waiting_can_help_is_known_as_such() -> None:
    known = limiter(requests_per_minute=10, tokens_per_minute=100, requests_per_day=50)
    assert known.too_large(10, 100) is None
    assert "11 requests" in str(known.too_large(11, 0))
    assert "101 tokens" in str(known.too_large(1, 101))


def test_a_bucket_alone_would_let_more_through_in_a_minute_than_the_limit() -> None:
    known = limiter(requests_per_minute=600, burst=10)
    sent, now = 0, NOW
    while now < NOW + 60:
        at = known.ready_at(1, 0, now)
        if at:
            now = at
            continue
        known.take(1, 0, now)
        sent += 1
    assert sent == 600


# --- the pool keeps them --------------------------------------------------------------------------------------------

figures = st.fixed_dictionaries(
    {
        "requests_per_minute": st.sampled_from([None, 1, 3, 20, 60]),
        "tokens_per_minute": st.sampled_from([None, 50, 200]),
        "requests_per_day": st.sampled_from([None, 4, 30]),
        "burst": st.sampled_from([None, 1, 5]),
        "max_concurrent": st.sampled_from([1, 3]),
    }
)


class Judge:
    """Counts what was granted, with nothing but lists."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests: deque[tuple[float, float]] = deque()
        self.tokens: deque[tuple[float, float]] = deque()

    def granted(self, record: LeaseRecord, now: float) -> None:
        self.requests.append((now, record.requests))
        self.tokens.append((now, record.tokens))
        limits = self.limits
        if limits.requests_per_minute is not None:
            assert sum(n for at, n in self.requests if at > now - 60) <= limits.requests_per_minute
        if limits.tokens_per_minute is not None:
            assert sum(n for at, n in self.tokens if at > now - 60) <= limits.tokens_per_minute
        if limits.requests_per_day is not None:
            today = at_noon(now) - 100
            assert sum(n for at, n in self.requests if at >= today) <= limits.requests_per_day


@given(limits=figures, members=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_no_window_of_a_group_ever_holds_more_than_its_limit(
    limits: dict[str, float], members: int, seed: int
) -> None:  # invariants 2, 3, 7, 8
    rules = Limits(**limits)  # type: ignore[arg-type]
    dice = random.Random(seed)
    pool, judge, now = Allocator(), Judge(rules), NOW
    for number in range(members):
        pool.add(f"key-{number}", "group", None, frozenset(), rules, NOW, at_noon)
    live: list[LeaseRecord] = []
    waiting: list[LeaseRecord] = []

    def note_served() -> None:
        for record in pool.served:
            waiting.remove(record)
            if record.state == LIVE:
                judge.granted(record, now)
                live.append(record)
        pool.served.clear()

    for _ in range(60):
        action = dice.random()
        if action < 0.5:
            record = LeaseRecord(tokens=dice.choice([0, 0, 5, 40]), scope=dice.choice([None, None, "model"]))
            if pool.request(record, now):
                judge.granted(record, now)
                live.append(record)
            else:
                waiting.append(record)
        elif action < 0.75 and live:
            pool.lease_end.end(live.pop(dice.randrange(len(live))), now)
        else:
            wake_at = pool.next_wake_at()
            step = dice.choice([0.05, 1.0, 7.0, 61.0])
            now = min(now + step, wake_at) if wake_at is not None else now + step
            pool.advance(now)
        note_served()
        for record in waiting:
            heads = [next(iter(queue.values())) for queue in pool.waiting.values()]
            has_older_claim = any(head.tokens and head.sequence < record.sequence for head in heads)
            if record in heads and not has_older_claim:
                for credential in pool.credentials.values():
                    is_free = credential.has_room() and credential.usable_at(record.scope) <= now
                    assert not (is_free and not credential.paced_until(record.scope, 1, record.tokens, now))
    # Everything that waits is served in the end, if only time passes and leases come back.
    for _ in range(3000):
        if not waiting:
            break
        for record in live:
            pool.lease_end.end(record, now)
        live.clear()
        note_served()
        wake_at = pool.next_wake_at()
        assert wake_at is not None or not waiting or live
        if wake_at is not None:
            now = max(now, wake_at)
            pool.advance(now)
            note_served()
    assert not waiting


def test_a_large_request_at_the_head_is_served_before_small_ones_behind_it() -> None:  # invariant 6
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(tokens_per_minute=100, max_concurrent=9), NOW)
    assert pool.request(LeaseRecord(tokens=60), NOW)
    large, small = LeaseRecord(tokens=90), LeaseRecord(tokens=10)
    assert not pool.request(large, NOW)
    assert not pool.request(small, NOW)
    pool.advance(NOW + 60)
    assert pool.served == [large, small]


def test_what_is_settled_for_less_serves_those_who_wait_for_it() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(tokens_per_minute=100, max_concurrent=9), NOW)
    first, second = LeaseRecord(tokens=90), LeaseRecord(tokens=80)
    assert pool.request(first, NOW)
    assert not pool.request(second, NOW)
    assert pool.settle(first, None, 10, NOW + 1)
    assert pool.served == [second]
    assert not pool.settle(first, None, 90, NOW + 1)  # once


def test_a_lease_that_was_never_picked_up_uses_nothing() -> None:  # invariant 16
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(requests_per_minute=1, tokens_per_minute=10), NOW)
    first = LeaseRecord(tokens=10)
    assert pool.request(first, NOW)
    pool.lease_end.withdraw(first, NOW)
    assert pool.request(LeaseRecord(tokens=10), NOW + 0.1)


def test_a_request_that_fits_once_another_is_settled_for_less_is_served_then() -> None:  # invariant 8
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(requests_per_minute=2, burst=2, max_concurrent=9), NOW)
    first, second = LeaseRecord(requests=2), LeaseRecord()
    assert pool.request(first, NOW)
    assert not pool.request(second, NOW)
    assert pool.settle(first, 1, None, NOW + 1)
    assert pool.served == [second]


@pytest.mark.parametrize("verdict", [None, Verdict(OVERLOADED)])
def test_a_failed_request_is_not_given_back(verdict: Verdict | None) -> None:  # invariant 2
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(requests_per_minute=1), NOW)
    first = LeaseRecord()
    assert pool.request(first, NOW)
    if verdict is not None:
        pool.feedback.apply(pool.credentials["key"], first, verdict, NOW)
    pool.lease_end.end(first, NOW)
    assert not pool.request(LeaseRecord(), NOW + 30, wait=False)  # whatever has cooled is over by then


def test_of_several_groups_those_with_room_serve_while_others_wait_for_their_limit() -> None:
    pool = Allocator()
    for name in ("a", "b"):
        pool.add(name, name, None, frozenset(), Limits(requests_per_minute=60, max_concurrent=5), NOW)
    granted = [record for record in (LeaseRecord() for _ in range(4)) if pool.request(record, NOW)]
    assert [record.credential.id for record in granted if record.credential] == ["a", "b"]
    pool.advance(NOW + 1 + JITTER_SECONDS)
    assert len(pool.served) == 2


def test_a_large_request_is_not_starved_by_small_ones_of_another_scope() -> None:  # invariant 6
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(tokens_per_minute=100, max_concurrent=99), NOW)
    assert pool.request(LeaseRecord(tokens=50, scope="small"), NOW)
    large = LeaseRecord(tokens=90, scope="large")
    assert not pool.request(large, NOW)
    for second in range(1, 60, 5):
        assert not pool.request(LeaseRecord(tokens=20, scope="small"), NOW + second, wait=False)
        assert pool.request(LeaseRecord(scope="small"), NOW + second)  # what needs no tokens takes none away
    pool.advance(NOW + 60)
    assert pool.served == [large]


def test_a_credential_whose_limit_is_too_small_for_the_first_waiter_serves_the_next() -> None:
    pool = Allocator()
    pool.add("small", "small", None, frozenset(), Limits(tokens_per_minute=10), NOW)
    pool.add("large", "large", None, frozenset(), Limits(tokens_per_minute=100), NOW)
    busy = [LeaseRecord(tokens=10), LeaseRecord(tokens=10)]
    assert all(pool.request(record, NOW) for record in busy)
    first, second = LeaseRecord(tokens=95), LeaseRecord()
    pool.request(first, NOW)
    pool.request(second, NOW)
    on_small = next(record for record in busy if record.credential is pool.credentials["small"])
    pool.lease_end.end(on_small, NOW)
    assert pool.served == [second]


def test_a_further_key_of_a_group_does_not_renew_its_allowance() -> None:
    pool = Allocator()
    rules = Limits(requests_per_minute=2, requests_per_day=3, burst=2, max_concurrent=5)
    pool.add("a", "team", None, frozenset(), rules, NOW, at_noon)
    assert [pool.request(LeaseRecord(), NOW) for _ in range(2)] == [True, True]
    pool.add("b", "team", None, frozenset(), rules, NOW, at_noon)
    assert not pool.request(LeaseRecord(), NOW, wait=False)
    pool.add("c", "team", None, frozenset(), Limits(requests_per_minute=1), NOW, lambda now: now + 5)
    assert not pool.request(LeaseRecord(), NOW + 59, wait=False)
    assert pool.request(LeaseRecord(), NOW + 60)
    assert not pool.request(LeaseRecord(), NOW + 90, wait=False)


def test_what_was_not_used_yesterday_is_not_given_to_today() -> None:
    day = RateLimiter(Limits(requests_per_day=10), at_noon, NOW)
    taken = day.take(10, 0, NOW + 99)
    day.take(10, 0, NOW + 101)
    day.correct(taken, -9, 0, 1, 0, NOW + 102)
    assert day.ready_at(1, 0, NOW + 102) == NOW + 200


def test_a_new_key_that_makes_a_group_too_small_for_a_waiter_tells_it() -> None:
    pool = Allocator()
    pool.add("a", "team", None, frozenset(), Limits(tokens_per_minute=100), NOW)
    assert pool.request(LeaseRecord(tokens=90), NOW)
    waiter = LeaseRecord(tokens=80)
    assert not pool.request(waiter, NOW)
    pool.add("b", "team", None, frozenset(), Limits(tokens_per_minute=50), NOW)
    assert pool.served == [waiter]
    assert waiter.too_large
