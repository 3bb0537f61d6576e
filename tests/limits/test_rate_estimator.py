"""Undeclared limits: runs against a provider that refuses, in virtual time, and the estimator alone."""

from __future__ import annotations

import math

import pytest

from agentos.events import CredentialQuarantined, LimitLearned
from agentos.limits._rate_estimator import RateEstimator
from agentos.limits._rate_probe import MAX_UNEXPLAINED
from agentos.limits._rate_search import MAX_GAP, Episode, RateSearch
from agentos.limits.backoff import MAX_SECONDS
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import QUOTA_EXHAUSTED, RATE_LIMITED, Verdict
from agentos.workflows.parallel import Limits
from tests.support import virtual

NOW = 1000.0
DECLARED = Limits(requests_per_minute=600, burst=10, max_concurrent=4)


def test_declared_limit_is_used_fully_and_never_exceeded() -> None:
    ran = virtual.run(limits=DECLARED)
    assert ran.share > 0.98
    assert ran.refused == 0


def test_limit_in_headers_holds_from_the_first_answer() -> None:
    ran = virtual.run(headers="on")
    assert ran.share > 0.95
    assert ran.refused <= 5


@pytest.mark.parametrize("retry_after", ["seconds", "whole", "ms", "date", None])
@pytest.mark.parametrize("seed", [1, 2])
def test_limit_is_learned_from_refusals(retry_after: str | None, seed: int) -> None:
    ran = virtual.run(requests=2000, retry_after=retry_after, seed=seed)
    assert ran.share > 0.9
    assert ran.refused <= 30
    events = [event for event in ran.told if isinstance(event, LimitLearned)]
    assert len(events) == 4  # one for each key
    assert all(500 < event.requests_per_minute < 700 for event in events)


@pytest.mark.parametrize("retry_after", ["seconds", None])
@pytest.mark.parametrize(("rate", "requests", "min_share"), [(1.0, 400, 0.85), (50.0, 4000, 0.9)])
def test_slow_and_fast_limits_are_learned_alike(
    retry_after: str | None, rate: float, requests: int, min_share: float
) -> None:
    ran = virtual.run(rate=rate, burst=rate, requests=requests, retry_after=retry_after)
    assert ran.share > min_share
    assert ran.refused <= 50


@pytest.mark.parametrize("retry_after", ["seconds", "whole", None])
def test_keys_that_secretly_share_a_limit_use_it(retry_after: str | None) -> None:
    for seed in range(3):
        ran = virtual.run(keys=8, sharing=4, requests=1600, retry_after=retry_after, seed=seed)
        assert ran.share > 0.85
        assert ran.refused <= 60


def test_refusals_of_one_group_never_slow_another() -> None:
    """Declared groups are independent, however often they are refused together."""
    pool = Allocator()
    for name in ("a", "b"):
        pool.add(name, f"group {name}", "provider", frozenset(), Limits(), 0.0)
    now = NOW
    for _ in range(100):
        records = [LeaseRecord(prefer=name) for name in ("a", "b")]
        assert all(pool.request(record, now) for record in records)
        for record in records:
            pool.lease_end.end(record, now + 0.01, Verdict(RATE_LIMITED, retry_after=0.1))
        now += 60.0
        pool.advance(now)
        other = LeaseRecord(prefer="a")
        assert pool.request(other, now)
        pool.lease_end.end(other, now + 0.01, Verdict(RATE_LIMITED, retry_after=600))
        assert pool.request(LeaseRecord(prefer="b"), now + 0.02, wait=False)
        now += 700.0
        pool.advance(now)
        for lease in tuple(pool.credentials["b"].leases.values()):
            pool.lease_end.end(lease, now, success=True)
        now += 700.0
        pool.advance(now)


def test_dead_and_exhausted_keys_cost_few_requests() -> None:
    ran = virtual.run(limits=DECLARED, dead={"key-1"}, out_of_quota={"key-2"})
    assert ran.share > 0.97
    assert ran.provider.limited <= 3
    assert [event.credential_id for event in ran.told if isinstance(event, CredentialQuarantined)] == ["key-1"]


# --- the estimator ----------------------------------------------------------------------------------------------


def make_estimator(max_in_flight: int = 1) -> RateEstimator:
    return RateEstimator(NOW, None, max_in_flight)


def test_refusals_of_one_episode_cut_the_rate_once() -> None:
    estimator = make_estimator(4)
    for _ in range(4):
        estimator.take(1, 0, NOW)
    estimator.refuse(NOW, 0, 0, 0.1, NOW + 0.02)
    estimate = estimator.estimate
    for _ in range(3):
        estimator.refuse(NOW, 0, 0, 0.1, NOW + 0.03)
    assert estimator.estimate == estimate


def test_refusals_of_one_episode_double_the_wait_once() -> None:
    estimator = make_estimator(4)
    for _ in range(4):
        estimator.take(1, 0, NOW)
    first = estimator.refuse(NOW, 0, 0, None, NOW + 0.02)
    for _ in range(3):
        assert estimator.refuse(NOW, 0, 0, None, NOW + 0.03) <= first
    assert estimator.refusals == 1


@pytest.mark.parametrize("served", [0, 3])  # before any success nothing is learned, but the hint is obeyed
def test_wait_after_a_refusal_equals_the_hint(served: int) -> None:
    estimator = make_estimator()
    estimator.sent = served
    assert estimator.refuse(NOW, 0, 0, 12.5, NOW) == 12.5
    assert (estimator.estimate is not None) == bool(served)
    assert estimator.refuse(NOW + 13, 0, 0, 12.5, NOW + 13) == 12.5


def test_wait_without_a_hint_doubles_until_a_success() -> None:
    estimator, now, waits = make_estimator(), NOW, []
    for _ in range(12):
        estimator.take(1, 0, now)
        estimator.in_flight -= 1
        waits.append(estimator.refuse(now, 0, 0, None, now + 0.01))
        now += waits[-1] + 1
    assert waits == sorted(waits)
    assert waits[3] == pytest.approx(2 * waits[2])
    assert waits[-1] == MAX_SECONDS
    estimator.record_success(now, 1, now + 0.1)
    estimator.take(1, 0, now + 1)
    estimator.in_flight -= 1
    assert estimator.refuse(now + 1, 0, 0, None, now + 1.1) < MAX_SECONDS


def test_refusals_at_any_rate_start_a_probe() -> None:
    estimator, now, rates = make_estimator(), NOW, []
    for _ in range(MAX_UNEXPLAINED + 1):  # the first refusal only gives an estimate
        for _ in range(7):  # every seventh request is refused, at any rate
            now = max(now + 0.01, estimator.ready_at(1, 0, now))
            estimator.take(1, 0, now)
            estimator.answer(now)
            estimator.record_success(now, 1, now + 0.01)
        estimator.refuse(now, 0, 0, 0.001, now + 0.01)
        assert estimator.bucket is not None
        rates.append(estimator.bucket.rate)
    assert rates[-1] > 5 * rates[-2]


def test_early_refusals_reduce_a_proven_rate_in_growing_steps() -> None:
    search = RateSearch()
    search.start(10.0)
    while not search.is_narrow:
        search.record_success(1.0, 0.0)
        if search.rate > 20.0:
            search.refuse(Episode(1, 1, 0.1, 0.0, 0.0, 0.0, is_exact=False, after_refusal=False), 0.1, 1.0)
    proven, rates = search.low, []
    for _ in range(12):
        search.refuse(Episode(0, 0, 0.01, 0.0, 0.0, 0.0, is_exact=False, after_refusal=True), 0.1, 1.0)
        rates.append(search.rate)
    assert rates[3] > 0.75 * proven
    assert rates[-1] < 0.25 * proven


def test_headers_of_an_older_request_are_ignored() -> None:
    estimator = make_estimator()
    estimator.observe(NOW + 1, 60, 60, 10, None, NOW + 2)
    estimator.observe(NOW, 60, 60, 50, None, NOW + 2)
    assert estimator.bucket is not None
    assert estimator.bucket.level(NOW + 2) == 10


def test_requests_in_flight_reduce_remaining_requests_in_headers() -> None:
    estimator = make_estimator(5)
    for _ in range(3):
        estimator.take(1, 0, NOW)
    estimator.observe(NOW, 60, 60, 4, None, NOW)
    assert estimator.bucket is not None
    assert estimator.bucket.level(NOW) == 2


def test_header_of_a_refusal_does_not_slow_its_limit_down() -> None:
    """The answers in between are not shown to the pool: a worker of urllib has the headers of exceptions only."""
    estimator = make_estimator(4)
    now = NOW
    for _ in range(100):
        estimator.take(1, 0, now)
        now += 0.01
        estimator.answer(now - 0.01)
        estimator.record_success(now - 0.01, 4, now)
    estimator.take(1, 0, now)
    estimator.observe(now, 3000, 60, 0, 0.02, now)
    now += estimator.refuse(now, 0, 0, 0.01, now)
    estimator.answer(now)
    start = now
    for _ in range(100):
        now = max(now, estimator.ready_at(1, 0, now)) + 0.001  # the request waits a moment longer than it has to
        estimator.take(1, 0, now)
        estimator.answer(now)
        estimator.record_success(now, 4, now)
    assert now - start < 1.1 * 100 / 50


def test_exhausted_header_limit_admits_a_request_at_its_reset() -> None:
    estimator = make_estimator()
    estimator.observe(NOW, 60, 3600, 0, 2.0, NOW)
    assert estimator.ready_at(1, 0, NOW) == pytest.approx(NOW + 2)


@pytest.mark.parametrize(("limit", "period"), [(-1, 60), (0, 60), (60, 0)])
def test_header_without_a_valid_limit_is_ignored(limit: float, period: float) -> None:
    estimator = make_estimator()
    estimator.observe(NOW, limit, period, 0, None, NOW)
    assert estimator.ready_at(1, 0, NOW) == 0.0


# --- in the pool ----------------------------------------------------------------------------------------------------


def pool_of(max_concurrent: int, provider: str | None = None) -> Allocator:
    pool = Allocator()
    pool.add("key", "key", provider, frozenset(), Limits(max_concurrent=max_concurrent), NOW)
    return pool


def test_requests_sent_after_a_refused_one_do_not_count() -> None:
    """The first of three requests is refused, and its answer comes last."""
    pool = pool_of(3)
    records = [LeaseRecord() for _ in range(3)]
    for second, record in enumerate(records):
        assert pool.request(record, NOW + second)
    for record in records[1:]:
        pool.lease_end.end(record, NOW + 3, success=True)
    pool.lease_end.end(records[0], NOW + 4, Verdict(RATE_LIMITED))
    assert pool.credentials["key"].group.pace.estimators[None].estimate is None


def test_new_pool_grants_several_leases_at_once() -> None:
    pool = pool_of(4)
    assert [pool.request(LeaseRecord(), NOW) for _ in range(5)] == [True] * 4 + [False]


def test_first_request_after_a_cool_down_goes_alone() -> None:
    pool = pool_of(4)
    first = LeaseRecord()
    pool.request(first, NOW)
    pool.feedback.apply(pool.credentials["key"], first, Verdict(QUOTA_EXHAUSTED, retry_after=10), NOW)
    pool.lease_end.end(first, NOW)
    records = [LeaseRecord() for _ in range(4)]
    for record in records:
        pool.request(record, NOW)
    pool.advance(NOW + 10)
    assert pool.served == records[:1]
    pool.lease_end.end(records[0], NOW + 10.1)
    assert pool.served == records[:3]  # each success admits one more


def test_new_credential_is_probed_with_one_request() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), DECLARED, NOW)
    records = [LeaseRecord() for _ in range(3)]
    for record in records:
        record.waits_for_probe = True
    assert [pool.request(record, NOW) for record in records] == [True, False, False]
    pool.feedback.apply(pool.credentials["key"], records[0], None, NOW + 0.1)
    pool.lease_end.end(records[0], NOW + 0.1)
    assert pool.served == records[1:]


def test_probe_of_a_new_credential_times_out() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), DECLARED, NOW)
    records = [LeaseRecord() for _ in range(2)]
    for record in records:
        record.waits_for_probe = True
        pool.request(record, NOW)
    wake_at = pool.next_wake_at()
    assert wake_at is not None
    pool.advance(wake_at)
    assert pool.served == records[1:]


def test_limit_learned_in_one_scope_spares_other_scopes() -> None:
    pool = pool_of(1)
    record = LeaseRecord(scope="large")
    pool.request(record, NOW)
    pool.feedback.apply(pool.credentials["key"], record, Verdict(RATE_LIMITED, retry_after=30), NOW)
    pool.lease_end.end(record, NOW)
    assert not pool.request(LeaseRecord(scope="large"), NOW + 1, wait=False)
    assert pool.request(LeaseRecord(scope="small"), NOW + 1)


def test_group_without_refusals_stays_on_the_fast_path() -> None:
    pool = pool_of(1)
    for _ in range(100):
        record = LeaseRecord()
        assert pool.request(record, NOW)
        pool.lease_end.end(record, NOW)
    assert pool.credentials["key"].group.pace.is_free


@pytest.mark.parametrize("hint", [1.0, None])
def test_refusal_before_any_success_gives_no_estimate(hint: float | None) -> None:
    """Others may have used the limit up: the wait is obeyed, and says nothing about the rate."""
    estimator = RateEstimator(0.0, None, 1)
    estimator.begin(-math.inf, 0)
    assert estimator.refuse(0.0, 0, 0, hint, 0.0) == 1.0
    assert estimator.estimate is None


def test_sleep_of_the_machine_teaches_no_long_gap() -> None:
    estimator = RateEstimator(0.0, None, 1)
    now = 0.0
    for seconds_asleep in (1.0, 1e6, 1e6, 1e6):
        for _ in range(4):
            now = max(now, estimator.ready_at(1, 0, now)) + 0.01
            sent_at = now
            estimator.take(1, 0, now)
            estimator.in_flight -= 1
        now += seconds_asleep
        estimator.refuse(sent_at, 0, 0, None, now)
        estimator.record_success(now, 1, now)
    assert estimator.ready_at(1, 0, now) - now <= 1.2 * MAX_GAP
