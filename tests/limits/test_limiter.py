"""Declared limits: buckets, windows and days alone, and as the pool enforces them."""

from __future__ import annotations

import math
import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.limits._limiter import FIRST_ARRIVAL_SECONDS, RateLimiter
from agentos.limits._periods import CalendarPeriod
from agentos.limits._windows import ARRIVAL_JITTER_SECONDS, JITTER_SECONDS, Bucket, Rolling
from agentos.limits.amounts import NO_BINDING
from agentos.limits.declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, strictest
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE
from agentos.pool._rules.records import LeaseRecord
from agentos.testing import SlidingWindow
from agentos.verdict import OVERLOADED, Verdict
from agentos.workflows.parallel import Limits

NOW = 1000.0
# Seconds for which usage counts in a window of a minute.
MINUTE = 60 + ARRIVAL_JITTER_SECONDS


def day_end(now: float) -> float:
    return (now // 100 + 1) * 100  # a day of a hundred seconds


def calendar(_resets: str, now: float) -> float:
    return day_end(now)


def make_limiter(**limits: float) -> RateLimiter:
    return RateLimiter(Limits(**limits), calendar, NOW)  # type: ignore[arg-type]


# --- buckets, windows and days --------------------------------------------------------------------------------------


def test_bucket_admits_its_content_then_its_rate() -> None:
    bucket = Bucket(10.0, 3.0, NOW)
    for _ in range(3):
        assert bucket.ready_at(1, NOW) == 0.0
        bucket.take(1, NOW)
    first = bucket.ready_at(1, NOW)
    assert first == pytest.approx(NOW + JITTER_SECONDS + 0.1)  # after a burst, refilling starts late, once
    assert bucket.ready_at(1, first) == 0.0
    bucket.take(1, first)
    assert bucket.ready_at(1, first) == pytest.approx(first + 0.1)


def test_unused_bucket_fills_up_to_its_capacity() -> None:
    bucket = Bucket(10.0, 3.0, NOW)
    for _ in range(3):
        assert bucket.ready_at(1, NOW + 100) == 0.0
        bucket.take(1, NOW + 100)
    assert bucket.ready_at(1, NOW + 100) > NOW + 100


def test_bucket_in_debt_admits_nothing() -> None:
    bucket = Bucket(1.0, 2.0, NOW)
    bucket.take(5, NOW)
    assert bucket.ready_at(1, NOW) == pytest.approx(NOW + JITTER_SECONDS + 4)


def test_full_bucket_admits_more_than_its_capacity() -> None:
    bucket = Bucket(1.0, 2.0, NOW)
    assert bucket.ready_at(5, NOW) == 0.0


def test_returned_amount_does_not_overfill_a_bucket() -> None:
    bucket = Bucket(1.0, 2.0, NOW)
    bucket.take(1, NOW)
    bucket.take(-5, NOW)
    assert bucket.level(NOW + 100) == 2.0


def test_window_admits_when_its_oldest_entry_expires() -> None:
    window = Rolling(2)
    window.take(1, NOW)
    window.take(1, NOW + 10)
    assert window.ready_at(1, NOW + 10) == NOW + MINUTE
    assert window.ready_at(1, NOW + MINUTE) == 0.0
    assert window.ready_at(2, NOW + MINUTE) == NOW + MINUTE + 10


def test_window_never_admits_more_than_its_limit() -> None:
    assert Rolling(2).ready_at(3, NOW) == math.inf


def test_late_request_and_an_early_one_share_no_window() -> None:
    """A request that took 200 ms longer to the provider than the next one is 59.8 s before it in the provider's log."""
    window = Rolling(1)
    window.take(1, NOW)
    assert window.ready_at(1, NOW + 60) - NOW - 0.2 >= 60
    short = Rolling(1, 2.0)
    short.take(1, NOW)
    assert short.ready_at(1, NOW + 1) == pytest.approx(NOW + 2.05)  # a fortieth of a short window at most


def test_late_first_request_causes_no_refusal() -> None:
    """The first request of a process arrives a second late: its client is imported, and it connects. The judge is the
    window of the simulated provider."""
    limiter, provider, now = make_limiter(tokens_per_minute=1_000), SlidingWindow(1_000, counts="tokens"), NOW
    for number in range(40):
        now = max(now, limiter.ready_at(1, 100, now))
        taken = limiter.take(1, 100, now)
        now += 1.0 if number == 0 else 0.01
        assert provider.fits_at(now, 100) == now
        provider.admit(now, 100)
        limiter.end(taken, has_arrived=True, now=now + 0.1)
        now += 0.1
    assert now - NOW < 3 * MINUTE + 4


def test_slow_first_answer_delays_usage_by_its_arrival() -> None:
    limiter = make_limiter(tokens_per_minute=100)
    taken = limiter.take(1, 100, NOW)
    assert limiter.ready_at(1, 100, NOW) == NOW + FIRST_ARRIVAL_SECONDS + MINUTE
    limiter.end(taken, has_arrived=False, now=NOW + 1)  # no success: it may still be on its way
    limiter.end(taken, has_arrived=True, now=NOW + 30)
    again = NOW + FIRST_ARRIVAL_SECONDS + MINUTE
    assert limiter.ready_at(1, 100, NOW + 30) == again
    limiter.take(1, 100, again)
    assert limiter.ready_at(1, 100, again) == again + MINUTE


def test_correction_counts_overshoot_from_now_and_frees_surplus() -> None:
    window = Rolling(100)
    entry = window.take(50, NOW)
    window.correct(entry, 120, 0, NOW + 30)
    assert window.ready_at(1, NOW + 31) == NOW + MINUTE  # in debt until then
    assert window.ready_at(40, NOW + MINUTE) == NOW + 30 + MINUTE  # the overshoot counts for its own minute
    window = Rolling(100)
    entry = window.take(100, NOW)
    window.correct(entry, 10, 0, NOW + 1)
    assert window.ready_at(90, NOW + 1) == 0.0


def test_repeated_corrections_of_an_entry_count_once() -> None:
    window = Rolling(100)
    entry = window.take(10, NOW)
    for amount in (20, 30, 40):
        window.correct(entry, amount, 0, NOW + 1)
    assert window.total == 40


def test_day_usage_resets_when_the_day_ends() -> None:
    day = CalendarPeriod(2, 100, day_end)
    day.take(2, NOW + 30)
    assert day.ready_at(1, NOW + 50) == NOW + 100
    assert day.ready_at(1, NOW + 100) == 0.0


def test_restored_usage_counts_until_it_expires() -> None:  # invariant 2
    old = make_limiter(requests_per_minute=10, burst=10, tokens_per_minute=1000, requests_per_day=30)
    old.confirm(old.take(0, 0, NOW), NOW)
    old.take(6, 600, NOW)
    live = old.take(2, 200, NOW + 5)
    state, occupied = old.state([live], NOW + 10), old.occupied_by(live)
    new = make_limiter(requests_per_minute=10, burst=10, tokens_per_minute=1000, requests_per_day=30)
    new.restore(state, NOW + 10)
    entries = new.restore_lease(occupied, NOW + 5)
    assert new.usage(NOW + 10) == old.usage(NOW + 10)
    assert new.ready_at(3, 0, NOW + 13) == pytest.approx(NOW + 60, abs=0.2)
    for limiter, lease in ((old, live), (new, entries)):
        limiter.correct(lease, (2, 200, None), (1, 50, None), NOW + 20)
    assert new.usage(NOW + 20) == old.usage(NOW + 20)
    assert new.usage(NOW + 61)[REQUESTS_PER_MINUTE] == (1, 10)
    assert new.usage(NOW + 66)[TOKENS_PER_MINUTE] == (0, 1000)


def test_restored_usage_counts_for_limit_declared_again() -> None:
    old = make_limiter(requests_per_minute=10, tokens_per_minute=1000, requests_per_day=30)
    old.take(6, 600, NOW)
    old.change(Limits(requests_per_minute=10), calendar, NOW)
    new = make_limiter(requests_per_minute=10)
    new.restore(old.state([], NOW), NOW)
    new.change(Limits(tokens_per_minute=1000, requests_per_day=30), calendar, NOW)
    assert new.usage(NOW + 1) == {TOKENS_PER_MINUTE: (600, 1000), REQUESTS_PER_DAY: (6, 30)}


def test_strictest_of_two_declarations_holds() -> None:
    first = Limits(requests_per_minute=60, tokens_per_minute=100, requests_per_day=10, day_resets="08:00 UTC")
    combined = strictest(first, Limits(requests_per_minute=30, tokens_per_minute=200, burst=2))
    assert (combined.requests_per_minute, combined.tokens_per_minute, combined.requests_per_day) == (30, 100, 10)
    assert (combined.burst, combined.day_resets) == (2, "08:00 UTC")
    assert strictest(Limits(), first) == first
    assert strictest(first, Limits()) == first


@pytest.mark.parametrize(
    ("limits", "requests", "tokens", "name"),
    [
        ({"requests_per_minute": 60, "burst": 1}, 1, 0, REQUESTS_PER_MINUTE),
        ({"tokens_per_minute": 100}, 1, 60, TOKENS_PER_MINUTE),
        ({"requests_per_day": 1}, 1, 0, REQUESTS_PER_DAY),
    ],
)
def test_binding_names_the_limit_that_decides(limits: dict[str, float], requests: int, tokens: int, name: str) -> None:
    rate_limiter = make_limiter(**limits)
    assert rate_limiter.binding(requests, tokens, NOW) == NO_BINDING
    rate_limiter.take(requests, tokens, NOW)
    binding = rate_limiter.binding(requests, tokens, NOW)
    assert binding.at > NOW
    assert binding.name == name
    assert binding.amount == max(limits.values())


def test_too_large_requests_are_recognised() -> None:
    rate_limiter = make_limiter(requests_per_minute=10, tokens_per_minute=100, requests_per_day=50)
    assert rate_limiter.too_large(10, 100) is None
    assert "11 requests" in str(rate_limiter.too_large(11, 0))
    assert "101 tokens" in str(rate_limiter.too_large(1, 101))


def test_limiter_admits_exactly_its_limit_in_a_minute() -> None:
    rate_limiter = make_limiter(requests_per_minute=600, burst=10)
    sent, now = 0, NOW
    while now < NOW + 60:
        at = rate_limiter.ready_at(1, 0, now)
        if at:
            now = at
            continue
        rate_limiter.take(1, 0, now)
        sent += 1
    assert sent == 600


# --- enforced by the pool -------------------------------------------------------------------------------------------

LIMITS = st.fixed_dictionaries(
    {
        "requests_per_minute": st.sampled_from([None, 1, 3, 20, 60]),
        "tokens_per_minute": st.sampled_from([None, 50, 200]),
        "requests_per_day": st.sampled_from([None, 4, 30]),
        "burst": st.sampled_from([None, 1, 5]),
        "max_concurrent": st.sampled_from([1, 3]),
    }
)


# Seconds by which the difference of two instants may be wrong.
ROUNDING = 1e-6


class GrantChecker:
    """Recount grants from plain lists and compare with the limits."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests: deque[tuple[float, float]] = deque()
        self.tokens: deque[tuple[float, float]] = deque()

    def record_grant(self, record: LeaseRecord, now: float) -> None:
        self.requests.append((now, record.requests))
        self.tokens.append((now, record.tokens))
        limits = self.limits
        if limits.requests_per_minute is not None:
            assert sum(n for at, n in self.requests if at > now - 60 + ROUNDING) <= limits.requests_per_minute
        if limits.tokens_per_minute is not None:
            assert sum(n for at, n in self.tokens if at > now - 60 + ROUNDING) <= limits.tokens_per_minute
        if limits.requests_per_day is not None:
            today = day_end(now) - 100
            assert sum(n for at, n in self.requests if at >= today) <= limits.requests_per_day


@given(limits=LIMITS, members=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_no_window_of_a_group_exceeds_its_limit(
    limits: dict[str, float], members: int, seed: int
) -> None:  # invariants 2, 3, 7, 8
    rules = Limits(**limits)  # type: ignore[arg-type]
    dice = random.Random(seed)
    pool, checker, now = Allocator(), GrantChecker(rules), NOW
    for number in range(members):
        pool.add(f"key-{number}", "group", None, frozenset(), rules, NOW, calendar)
    live: list[LeaseRecord] = []
    waiting: list[LeaseRecord] = []

    def collect_served() -> None:
        for record in pool.served:
            waiting.remove(record)
            if record.state == LIVE:
                checker.record_grant(record, now)
                live.append(record)
        pool.served.clear()

    for _ in range(60):
        action = dice.random()
        if action < 0.5:
            record = LeaseRecord(tokens=dice.choice([0, 0, 5, 40]), scope=dice.choice([None, None, "model"]))
            if pool.request(record, now):
                checker.record_grant(record, now)
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
        collect_served()
        for record in waiting:
            heads = [next(iter(queue.values())) for queue in pool.waiting.values()]
            has_older_claim = any(head.tokens and head.sequence < record.sequence for head in heads)
            if record in heads and not has_older_claim:
                for credential in pool.credentials.values():
                    is_free = credential.has_room() and credential.usable_at(record.scope) <= now
                    assert not (is_free and not credential.paced_until(record.scope, 1, record.tokens, now))
    # All waiting requests are served if time passes and leases are released.
    for _ in range(3000):
        if not waiting:
            break
        for record in live:
            pool.lease_end.end(record, now)
        live.clear()
        collect_served()
        wake_at = pool.next_wake_at()
        assert wake_at is not None or not waiting or live
        if wake_at is not None:
            now = max(now, wake_at)
            pool.advance(now)
            collect_served()
    assert not waiting


def succeed(pool: Allocator) -> None:
    """Send a first request: until it succeeds, usage counts longer."""
    record = LeaseRecord()
    assert pool.request(record, NOW)
    pool.lease_end.end(record, NOW, success=True)


def test_large_head_request_is_served_before_small_ones() -> None:  # invariant 6
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(tokens_per_minute=100, max_concurrent=9), NOW)
    succeed(pool)
    assert pool.request(LeaseRecord(tokens=60), NOW)
    large, small = LeaseRecord(tokens=90), LeaseRecord(tokens=10)
    assert not pool.request(large, NOW)
    assert not pool.request(small, NOW)
    pool.advance(NOW + MINUTE)
    assert pool.served == [large, small]


def test_tokens_freed_by_settle_serve_a_waiter() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(tokens_per_minute=100, max_concurrent=9), NOW)
    first, second = LeaseRecord(tokens=90), LeaseRecord(tokens=80)
    assert pool.request(first, NOW)
    assert not pool.request(second, NOW)
    assert pool.settle(first, None, 10, NOW + 1)
    assert pool.served == [second]
    assert not pool.settle(first, None, 90, NOW + 1)  # a lease is settled once


def test_withdrawn_lease_uses_nothing() -> None:  # invariant 16
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(requests_per_minute=1, tokens_per_minute=10), NOW)
    first = LeaseRecord(tokens=10)
    assert pool.request(first, NOW)
    pool.lease_end.withdraw(first, NOW)
    assert pool.request(LeaseRecord(tokens=10), NOW + 0.1)


def test_requests_freed_by_settle_serve_a_waiter() -> None:  # invariant 8
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(requests_per_minute=2, burst=2, max_concurrent=9), NOW)
    first, second = LeaseRecord(requests=2), LeaseRecord()
    assert pool.request(first, NOW)
    assert not pool.request(second, NOW)
    assert pool.settle(first, 1, None, NOW + 1)
    assert pool.served == [second]


@pytest.mark.parametrize("verdict", [None, Verdict(OVERLOADED)])
def test_failed_request_stays_counted(verdict: Verdict | None) -> None:  # invariant 2
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(requests_per_minute=1), NOW)
    first = LeaseRecord()
    assert pool.request(first, NOW)
    if verdict is not None:
        pool.feedback.apply(pool.credentials["key"], first, verdict, NOW)
    pool.lease_end.end(first, NOW)
    assert not pool.request(LeaseRecord(), NOW + 30, wait=False)  # every cool-down has ended by then


def test_groups_with_room_serve_while_others_are_limited() -> None:
    pool = Allocator()
    for name in ("a", "b"):
        pool.add(name, name, None, frozenset(), Limits(requests_per_minute=60, max_concurrent=5), NOW)
    records = [record for record in (LeaseRecord() for _ in range(4)) if pool.request(record, NOW)]
    assert [record.credential.id for record in records if record.credential] == ["a", "b"]
    pool.advance(NOW + 1 + JITTER_SECONDS)
    assert len(pool.served) == 2


def test_small_requests_of_other_scopes_starve_no_large_one() -> None:  # invariant 6
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(tokens_per_minute=100, max_concurrent=99), NOW)
    succeed(pool)
    assert pool.request(LeaseRecord(tokens=50, scope="small"), NOW)
    large = LeaseRecord(tokens=90, scope="large")
    assert not pool.request(large, NOW)
    for second in range(1, 60, 5):
        assert not pool.request(LeaseRecord(tokens=20, scope="small"), NOW + second, wait=False)
        assert pool.request(LeaseRecord(scope="small"), NOW + second)  # requests without tokens are not held back
    pool.advance(NOW + MINUTE)
    assert pool.served == [large]


def test_credential_too_small_for_the_head_serves_the_next() -> None:
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


def test_further_key_of_a_group_keeps_its_usage() -> None:
    pool = Allocator()
    rules = Limits(requests_per_minute=2, requests_per_day=3, burst=2, max_concurrent=5)
    pool.add("a", "team", None, frozenset(), rules, NOW, calendar)
    assert [pool.request(LeaseRecord(), NOW) for _ in range(2)] == [True, True]
    pool.add("b", "team", None, frozenset(), rules, NOW, calendar)
    assert not pool.request(LeaseRecord(), NOW, wait=False)
    pool.add("c", "team", None, frozenset(), Limits(requests_per_minute=1), NOW, lambda _resets, now: now + 5)
    assert not pool.request(LeaseRecord(), NOW + 59, wait=False)
    assert pool.request(LeaseRecord(), NOW + 60)
    assert not pool.request(LeaseRecord(), NOW + 90, wait=False)


def test_correction_after_the_reset_leaves_today_unchanged() -> None:
    day = RateLimiter(Limits(requests_per_day=10), calendar, NOW)
    entries = day.take(10, 0, NOW + 90)
    day.take(10, 0, NOW + 101)
    day.correct(entries, (10, 0, None), (1, 0, None), NOW + 102)
    assert day.ready_at(1, 0, NOW + 102) == NOW + 200


def test_waiter_too_large_for_lowered_limits_is_refused() -> None:
    pool = Allocator()
    pool.add("a", "team", None, frozenset(), Limits(tokens_per_minute=100), NOW)
    assert pool.request(LeaseRecord(tokens=90), NOW)
    waiter = LeaseRecord(tokens=80)
    assert not pool.request(waiter, NOW)
    pool.add("b", "team", None, frozenset(), Limits(tokens_per_minute=50), NOW)
    assert pool.served == [waiter]
    assert waiter.too_large
