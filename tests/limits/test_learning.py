"""Limits that nobody declared: runs against a provider that refuses, in virtual time."""

from __future__ import annotations

import math

import pytest

from agentos.events import CredentialQuarantined, LimitLearned, LimitShared
from agentos.limits._rate_estimator import MAX_GAP, RateEstimator
from agentos.limits._rate_probe import MAX_UNEXPLAINED
from agentos.limits.backoff import MAX_SECONDS
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import QUOTA_EXHAUSTED, RATE_LIMITED, Verdict
from agentos.workflows.parallel import Limits
from tests.support import virtual

NOW = 1000.0
DECLARED = Limits(requests_per_minute=600, burst=10, max_concurrent=4)


def test_a_declared_limit_is_used_up_and_not_passed() -> None:
    ran = virtual.run(limits=DECLARED)
    assert ran.share > 0.98
    assert ran.refused == 0


def test_a_limit_in_headers_is_kept_from_the_first_answer_on() -> None:
    ran = virtual.run(headers="on")
    assert ran.share > 0.95
    assert ran.refused <= 5


@pytest.mark.parametrize("retry_after", ["seconds", "whole", "ms", "date", None])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_limit_is_learned_from_refusals(retry_after: str | None, seed: int) -> None:
    ran = virtual.run(retry_after=retry_after, seed=seed)
    assert ran.share > 0.9
    assert ran.refused <= 30
    learned = [event for event in ran.told if isinstance(event, LimitLearned)]
    assert len(learned) == 4  # each key's, once
    assert all(540 < event.requests_per_minute < 700 for event in learned)


@pytest.mark.parametrize("retry_after", ["seconds", None])
@pytest.mark.parametrize(("rate", "requests", "least"), [(1.0, 400, 0.85), (50.0, 4000, 0.9)])
def test_slow_and_fast_limits_are_learned_alike(
    retry_after: str | None, rate: float, requests: int, least: float
) -> None:
    ran = virtual.run(rate=rate, burst=rate, requests=requests, retry_after=retry_after)
    assert ran.share > least
    assert ran.refused <= 50


def test_keys_that_secretly_share_a_limit_are_used_well_and_may_be_found_out() -> None:
    found = []
    for seed in range(5):
        ran = virtual.run(keys=8, sharing=4, requests=4000, seed=seed)
        assert ran.share > 0.85
        assert ran.refused <= 60
        found += [event.groups for event in ran.told if isinstance(event, LimitShared) and event.is_shared]
    assert found  # not in every run: they must be refused together again and again
    assert all(set(groups) <= {"key-0", "key-1", "key-2", "key-3"} for groups in found)


@pytest.mark.parametrize("seed", range(4))
def test_keys_of_equal_limits_that_start_together_are_not_taken_for_one(seed: int) -> None:
    ran = virtual.run(requests=1600, seed=seed)
    assert not [event for event in ran.told if isinstance(event, LimitShared)]


def test_dead_and_exhausted_keys_cost_a_handful_of_requests() -> None:
    ran = virtual.run(limits=DECLARED, dead={"key-1"}, out_of_quota={"key-2"})
    assert ran.share > 0.97
    assert ran.provider.limited <= 3
    assert [event.credential_id for event in ran.told if isinstance(event, CredentialQuarantined)] == ["key-1"]


# --- one estimator ----------------------------------------------------------------------------------------------------


def estimator(most: int = 1) -> RateEstimator:
    return RateEstimator(NOW, None, most)


def test_refusals_of_one_episode_cut_once() -> None:
    known = estimator(4)
    for _ in range(4):
        known.take(1, 0, NOW)
    known.in_flight = 0
    known.refuse(NOW, 1, 0.1, NOW + 0.02)
    estimate = known.estimate
    for _ in range(3):
        known.refuse(NOW, 1, 0.1, NOW + 0.03)
    assert known.estimate == estimate


def test_refusals_of_one_episode_do_not_double_the_wait_each() -> None:
    known = estimator(4)
    for _ in range(4):
        known.take(1, 0, NOW)
    first = known.refuse(NOW, 1, None, NOW + 0.02)
    for _ in range(3):
        assert known.refuse(NOW, 1, None, NOW + 0.03) <= first
    assert known.refusals == 1


def test_a_hint_is_obeyed_to_the_letter() -> None:
    assert estimator().refuse(NOW, 1, 12.5, NOW) == 12.5


def test_without_a_hint_the_wait_doubles_up_to_a_minute_until_a_success() -> None:
    known, now, waits = estimator(), NOW, []
    for _ in range(12):
        known.take(1, 0, now)
        known.in_flight -= 1
        waits.append(known.refuse(now, 1, None, now + 0.01))
        now += waits[-1] + 1
    assert waits == sorted(waits)
    assert waits[3] == pytest.approx(2 * waits[2])
    assert waits[-1] == MAX_SECONDS
    known.record_success(now, 1, now + 0.1)
    known.take(1, 0, now + 1)
    known.in_flight -= 1
    assert known.refuse(now + 1, 1, None, now + 1.1) < MAX_SECONDS


def test_refusals_that_come_however_slow_we_go_are_not_about_our_rate() -> None:
    known, now, slowest = estimator(), NOW, 0.0
    for _ in range(MAX_UNEXPLAINED):
        for _ in range(7):  # every seventh request is refused, at any speed
            now = max(now + 0.01, known.ready_at(1, 0, now))
            known.take(1, 0, now)
            known.in_flight -= 1
            known.record_success(now, 1, now + 0.01)
        slowest = known.bucket.rate if known.bucket is not None else 0.0
        known.refuse(now, 1, 0.001, now + 0.01)
    assert known.bucket is not None
    assert known.bucket.rate > 5 * slowest


def test_an_older_answer_does_not_overrule_a_newer_one() -> None:
    known = estimator()
    known.observe(NOW + 1, 60, 60, 10, None, NOW + 2)
    known.observe(NOW, 60, 60, 50, None, NOW + 2)
    assert known.bucket is not None
    assert known.bucket.level(NOW + 2) == 10


def test_what_is_on_its_way_is_taken_off_what_a_header_says_is_left() -> None:
    known = estimator(5)
    for _ in range(3):
        known.take(1, 0, NOW)
    known.observe(NOW, 60, 60, 4, None, NOW)
    assert known.bucket is not None
    assert known.bucket.level(NOW) == 2


def test_an_empty_allowance_is_asked_again_at_its_reset_at_the_latest() -> None:
    known = estimator()
    known.observe(NOW, 60, 3600, 0, 2.0, NOW)
    assert known.ready_at(1, 0, NOW) == pytest.approx(NOW + 2)


@pytest.mark.parametrize(("limit", "period"), [(-1, 60), (0, 60), (60, 0)])
def test_a_header_that_makes_no_sense_says_nothing(limit: float, period: float) -> None:
    known = estimator()
    known.observe(NOW, limit, period, 0, None, NOW)
    assert known.ready_at(1, 0, NOW) == 0.0


# --- in the pool ----------------------------------------------------------------------------------------------------


def pool_of(most: int, provider: str | None = None) -> Allocator:
    pool = Allocator()
    pool.add("key", "key", provider, frozenset(), Limits(max_concurrent=most), NOW)
    return pool


def test_whoever_asks_for_several_leases_at_once_gets_them() -> None:
    pool = pool_of(4)
    assert [pool.request(LeaseRecord(), NOW) for _ in range(5)] == [True] * 4 + [False]


def test_after_a_cool_down_the_first_request_goes_alone() -> None:
    pool = pool_of(4)
    first = LeaseRecord()
    pool.request(first, NOW)
    pool.feedback.apply(pool.credentials["key"], first, Verdict(QUOTA_EXHAUSTED, retry_after=10), NOW)
    pool.lease_end.end(first, NOW)
    asked = [LeaseRecord() for _ in range(4)]
    for record in asked:
        pool.request(record, NOW)
    pool.advance(NOW + 10)
    assert pool.served == asked[:1]
    pool.lease_end.end(asked[0], NOW + 10.1)
    assert pool.served == asked[:3]  # each success makes room for one more


def test_a_run_tries_a_new_credential_with_one_request_first() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), DECLARED, NOW)
    asked = [LeaseRecord() for _ in range(3)]
    for record in asked:
        record.waits_for_probe = True
    assert [pool.request(record, NOW) for record in asked] == [True, False, False]
    pool.feedback.apply(pool.credentials["key"], asked[0], None, NOW + 0.1)
    pool.lease_end.end(asked[0], NOW + 0.1)
    assert pool.served == asked[1:]


def test_a_run_does_not_wait_for_ever_for_the_first_answer() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), DECLARED, NOW)
    asked = [LeaseRecord() for _ in range(2)]
    for record in asked:
        record.waits_for_probe = True
        pool.request(record, NOW)
    wake_at = pool.next_wake_at()
    assert wake_at is not None
    pool.advance(wake_at)
    assert pool.served == asked[1:]


def test_what_is_learned_in_one_scope_is_not_applied_to_another() -> None:
    pool = pool_of(1)
    record = LeaseRecord(scope="large")
    pool.request(record, NOW)
    pool.feedback.apply(pool.credentials["key"], record, Verdict(RATE_LIMITED, retry_after=30), NOW)
    pool.lease_end.end(record, NOW)
    assert not pool.request(LeaseRecord(scope="large"), NOW + 1, wait=False)
    assert pool.request(LeaseRecord(scope="small"), NOW + 1)


def test_a_group_that_met_no_limit_is_only_counted() -> None:
    pool = pool_of(1)
    for _ in range(100):
        record = LeaseRecord()
        assert pool.request(record, NOW)
        pool.lease_end.end(record, NOW)
    assert pool.credentials["key"].group.pace.is_free


def test_a_refusal_before_anything_was_counted_is_believed() -> None:
    one = RateEstimator(0.0, None, 1)
    one.begin(-math.inf, 0)
    assert one.refuse(0.0, 1, 1.0, 0.0) == 1.0
    assert one.estimate is not None
    assert one.estimate > 0.1


def test_a_machine_that_slept_while_a_request_was_on_its_way_has_not_learned_a_limit_of_days() -> None:
    estimator = RateEstimator(0.0, None, 1)
    now = 0.0
    for slept in (1.0, 1e6, 1e6, 1e6):
        for _ in range(4):
            now = max(now, estimator.ready_at(1, 0, now)) + 0.01
            sent_at = now
            estimator.take(1, 0, now)
            estimator.in_flight -= 1
        now += slept
        estimator.refuse(sent_at, 1, None, now)
        estimator.record_success(now, 1, now)
    assert estimator.ready_at(1, 0, now) - now <= 1.2 * MAX_GAP
