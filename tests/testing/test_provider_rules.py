"""Rules of the simulated provider in virtual time: an amount fits at the instant that a rule promises."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.testing import (
    Concurrency,
    DailyQuota,
    FixedWindow,
    PerSecondSlices,
    Rule,
    SlidingWindow,
    TokenBucket,
    TokensPerMinute,
)


def admit_if_fits(rule: Rule, now: float, amount: float = 1) -> bool:
    if rule.fits_at(now, amount) > now:
        return False
    rule.admit(now, amount)
    return True


def admit_all(rule: Rule, now: float) -> int:
    count = 0
    while admit_if_fits(rule, now):
        count += 1
    return count


def test_token_bucket_admits_its_burst_then_its_rate() -> None:
    rule = TokenBucket(rate=2.0, burst=5)
    assert admit_all(rule, 100.0) == 5
    assert rule.fits_at(100.0) == 100.5
    assert admit_all(rule, 100.5) == 1
    assert admit_all(rule, 102.0) == 3
    assert admit_all(rule, 1000.0) == 5


def test_token_bucket_reports_remaining_and_full_time() -> None:
    rule = TokenBucket(rate=2.0, burst=5)
    assert (rule.stated_limit, rule.remaining(0.0), rule.full_at(0.0)) == (120, 5, 0.0)
    rule.admit(0.0)
    rule.admit(0.0)
    assert (rule.remaining(0.0), rule.full_at(0.0)) == (3, 1.0)
    assert (rule.remaining(0.25), rule.full_at(0.25)) == (3, 1.0)


def test_amount_above_the_burst_never_fits() -> None:
    assert TokensPerMinute(1000).fits_at(0.0, 1001) == math.inf
    assert FixedWindow(10).fits_at(0.0, 11) == math.inf
    assert SlidingWindow(10).fits_at(0.0, 11) == math.inf


def test_tokens_per_minute_refill_evenly_and_accept_corrections() -> None:
    rule = TokensPerMinute(6000)
    assert rule.counts == "tokens"
    rule.admit(0.0, 6000)
    assert rule.fits_at(0.0, 100) == pytest.approx(1.0)
    rule.give_back(0.5, 3000, taken_at=0.0)
    assert rule.remaining(0.5) == 3050
    rule.give_back(0.5, -4000, taken_at=0.0)  # more than was reserved: debt
    assert rule.remaining(0.5) == 0
    assert rule.fits_at(0.5, 50) == pytest.approx(10.5)


def test_fixed_window_starts_at_full_minutes() -> None:
    rule = FixedWindow(limit=3, period=60)
    assert admit_all(rule, 59.0) == 3
    assert rule.fits_at(59.5) == 60.0
    assert admit_all(rule, 60.0) == 3
    assert rule.full_at(61.0) == 120.0
    assert rule.remaining(61.0) == 0


def test_fixed_window_ignores_corrections_after_its_end() -> None:
    rule = FixedWindow(limit=100, counts="tokens")
    rule.admit(50.0, 100)
    rule.give_back(55.0, 40, taken_at=50.0)
    assert rule.remaining(55.0) == 40
    rule.admit(61.0, 10)
    rule.give_back(62.0, 60, taken_at=50.0)
    assert rule.remaining(62.0) == 90


def test_sliding_window_admits_its_limit_in_any_period() -> None:
    rule = SlidingWindow(limit=3, period=60)
    assert [admit_if_fits(rule, at) for at in (0.0, 30.0, 59.0, 59.5)] == [True, True, True, False]
    assert rule.fits_at(59.5) == 60.0
    assert admit_all(rule, 60.0) == 1
    assert rule.fits_at(60.0) == 90.0
    assert rule.remaining(60.0) == 0
    assert rule.full_at(60.0) == 120.0


def test_sliding_window_of_tokens_reports_when_enough_expired() -> None:
    rule = SlidingWindow(limit=100, period=60, counts="tokens")
    for at, amount in ((0.0, 50), (10.0, 30), (20.0, 20)):
        rule.admit(at, amount)
    assert rule.fits_at(20.0, 60) == 70.0
    rule.give_back(21.0, 50, taken_at=0.0)
    assert rule.fits_at(21.0, 50) == 21.0
    assert rule.remaining(65.0) == 50


def test_per_second_slices_divide_a_limit_per_minute() -> None:
    rule = PerSecondSlices(per_minute=180)
    assert rule.stated_limit == 180
    assert admit_all(rule, 7.2) == 3
    assert rule.fits_at(7.2) == 8.0
    assert admit_all(rule, 8.0) == 3
    assert admit_all(PerSecondSlices(per_minute=20), 0.0) == 1


def test_concurrency_is_free_after_a_request_ends() -> None:
    rule = Concurrency(2, hint=0.5)
    assert admit_all(rule, 0.0) == 2
    assert rule.fits_at(10.0) == 10.5
    assert rule.remaining(10.0) == 0
    rule.give_back(10.0, 1, taken_at=0.0)
    assert admit_all(rule, 10.0) == 1


def test_daily_quota_resets_at_midnight_utc_by_default() -> None:
    rule = DailyQuota(2)
    noon = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()
    assert admit_all(rule, noon) == 2
    assert rule.fits_at(noon) == datetime(2026, 11, 16, tzinfo=UTC).timestamp()
    assert rule.stated_limit == 2
    assert admit_all(rule, noon + 12 * 3600) == 2


def test_daily_quota_resets_at_local_time_of_its_zone() -> None:
    zone = ZoneInfo("America/Los_Angeles")
    rule = DailyQuota(1, resets="00:00 America/Los_Angeles")
    saturday_noon = datetime(2026, 10, 31, 12, tzinfo=zone).timestamp()
    rule.admit(saturday_noon)
    sunday = rule.fits_at(saturday_noon)
    assert sunday == datetime(2026, 11, 1, tzinfo=zone).timestamp()
    rule.admit(sunday)
    assert rule.fits_at(sunday) - sunday == 25 * 3600  # the day on which summer time ends
    late = DailyQuota(1, resets="23:30 UTC")
    late.admit(0.0)
    assert late.fits_at(0.0) == 23.5 * 3600


@pytest.mark.parametrize("make", [lambda: TokenBucket(0, 1), lambda: FixedWindow(0), lambda: SlidingWindow(1, 0)])
def test_limit_of_zero_is_rejected(make: object) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        make()  # type: ignore[operator]


RULES = {
    "bucket": lambda: TokenBucket(3.0, 4),
    "fixed": lambda: FixedWindow(5, 2.0),
    "sliding": lambda: SlidingWindow(5, 2.0),
    "slices": lambda: PerSecondSlices(150),
    "daily": lambda: DailyQuota(5),
}


@pytest.mark.parametrize("kind", RULES)
@given(pauses=st.lists(st.floats(0, 3), min_size=1, max_size=60), epoch=st.sampled_from([0.0, 1_794_772_800.4]))
def test_amount_fits_at_the_instant_that_fits_at_returns(kind: str, pauses: list[float], epoch: float) -> None:
    rule = RULES[kind]()
    now = epoch
    for pause in pauses:
        now += pause
        fits_at = rule.fits_at(now)
        assert fits_at >= now
        assert (rule.remaining(now) > 0) == (fits_at <= now)
        now = fits_at
        assert rule.fits_at(now) <= now
        rule.admit(now)
        assert rule.full_at(now) >= now


@given(pauses=st.lists(st.floats(0, 1), min_size=1, max_size=80))
def test_no_period_holds_more_than_a_sliding_window_allows(pauses: list[float]) -> None:
    rule = SlidingWindow(4, 2.0)
    instants: list[float] = []
    now = 0.0
    for pause in pauses:
        now += pause
        if admit_if_fits(rule, now):
            instants.append(now)
    for start in instants:
        assert sum(start <= at < start + 2.0 - 1e-5 for at in instants) <= 4


def test_fresh_copy_leaves_its_pattern_unchanged() -> None:
    pattern = SlidingWindow(1)
    copy = pattern.fresh()
    copy.admit(0.0)
    assert pattern.remaining(0.0) == 1
    assert copy.remaining(0.0) == 0
