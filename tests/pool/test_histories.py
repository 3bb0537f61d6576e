"""Faults that the simulation found in the allocator: each history in its shortest form."""

from __future__ import annotations

from typing import Any

from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE, WAITING
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import AUTH_FAILED, OVERLOADED, RATE_LIMITED, Verdict

NOW = 1000.0
DAY = 86_400.0
ANY: frozenset[str] = frozenset()


def pool_of(*limits: Limits, group: str | None = None, ends_after: Any = lambda _resets, now: now + DAY) -> Allocator:
    pool = Allocator()
    for number, each in enumerate(limits):
        pool.add(f"k{number}", group or f"g{number}", "p", ANY, each, NOW, ends_after)
    return pool


def request(pool: Allocator, tokens: int = 0, *, prefer: str | None = None, front: bool = False, at: float = NOW,
          waits_for_probe: bool = False) -> LeaseRecord:  # fmt: skip
    record = LeaseRecord("me", 1, tokens, prefer=prefer)
    record.waits_for_probe = waits_for_probe
    pool.request(record, at, front=front)
    return record


# --- invariant 8: no request waits beside a usable credential -------------------------------------------------------


def test_next_head_may_use_credential_blocked_for_large_request() -> None:
    tokens = Limits(tokens_per_minute=500)
    pool = pool_of(tokens, tokens)
    request(pool, 400, prefer="k0")
    leases = request(pool, 0, prefer="k1")
    small = next(iter(pool.credentials["k0"].leases.values()))
    large = request(pool, 400)
    pool.lease_end.end(small, NOW)  # 100 tokens remain: not enough for the first waiter
    behind = request(pool, 50)
    assert (large.state, behind.state) == (WAITING, WAITING)
    pool.lease_end.end(leases, NOW + 1)
    assert large.credential is pool.credentials["k1"]
    assert behind.credential is pool.credentials["k0"]


def test_front_request_may_use_credential_blocked_for_others() -> None:
    pool = pool_of(Limits(tokens_per_minute=500, max_concurrent=3))
    request(pool, 400)
    assert request(pool, 400).state == WAITING
    assert request(pool, 50, front=True).state == LIVE


def test_waiter_without_probe_wait_uses_unproven_credential() -> None:
    declared = Limits(requests_per_minute=600, burst=10, max_concurrent=2)
    pool = pool_of(declared, declared)
    first, second = request(pool, waits_for_probe=True), request(pool, waits_for_probe=True)
    assert {first.state, second.state} == {LIVE}
    patient, impatient = request(pool, waits_for_probe=True), request(pool)
    assert patient.state == impatient.state == WAITING
    pool.lease_end.withdraw(patient, NOW)
    pool.advance(NOW)
    assert impatient.state == LIVE


def test_success_in_slow_start_serves_the_whole_group() -> None:
    pool = pool_of(Limits(), Limits(), group="g")
    for credential in pool.credentials.values():
        pool.feedback.apply(credential, None, None, NOW)
    first = request(pool, waits_for_probe=True)
    second, third = request(pool, waits_for_probe=True), request(pool, waits_for_probe=True)
    assert (second.state, third.state) == (WAITING, WAITING)
    pool.lease_end.end(first, NOW + 0.1)
    assert (second.state, third.state) == (LIVE, LIVE)


def test_request_after_slow_start_success_finds_whole_group() -> None:
    pool = pool_of(Limits(), Limits(), group="g")
    first = request(pool, waits_for_probe=True)
    second = request(pool, waits_for_probe=True)
    assert second.state == WAITING
    pool.lease_end.withdraw(second, NOW)
    assert first.credential is not None
    pool.lease_end.end(first, NOW + 0.1)
    pool.quarantine(first.credential.id, "it is the other's turn", NOW + 0.1)
    assert request(pool, at=NOW + 0.1, waits_for_probe=True).state == LIVE


# --- invariant 1: live leases never exceed max_concurrent ------------------------------------------------------------


def test_lowered_concurrency_holds_until_enough_leases_end() -> None:
    pool = pool_of(Limits(requests_per_minute=600, burst=10, max_concurrent=3))
    leases = [request(pool) for _ in range(3)]
    pool.redeclare("k0", "g0", "p", ANY, Limits(requests_per_minute=600, burst=10, max_concurrent=1), NOW)
    pool.lease_end.end(leases[0], NOW)
    assert not pool.request(LeaseRecord(), NOW, wait=False)
    pool.lease_end.end(leases[1], NOW)
    pool.lease_end.end(leases[2], NOW)
    assert pool.request(LeaseRecord(), NOW, wait=False)


# --- invariant 4: no grant before a cool-down ends ------------------------------------------------------------------


def test_limits_in_refusal_serve_no_waiter_during_cooldown() -> None:
    pool = pool_of(Limits(max_concurrent=1))
    first, second = request(pool), request(pool)
    verdict = Verdict(RATE_LIMITED, retry_after=40.0, limit_requests=100, remaining_requests=100)
    pool.credentials["k0"].max_concurrent = 2
    pool.feedback.apply(pool.credentials["k0"], first, verdict, NOW + 1)
    pool.lease_end.end(first, NOW + 1)
    assert second.state == WAITING
    pool.advance(NOW + 40.9)
    assert second.state == WAITING
    pool.advance(NOW + 41)
    assert second.state == LIVE


def test_overload_in_flight_is_not_counted_again() -> None:
    pool = pool_of(Limits(max_concurrent=2))
    first, second = request(pool), request(pool)
    pool.feedback.apply(pool.credentials["k0"], first, Verdict(OVERLOADED, retry_after=2.0), NOW + 1)
    pool.feedback.apply(pool.credentials["k0"], second, Verdict(OVERLOADED, retry_after=30.0), NOW + 1.5)
    assert pool.credentials["k0"].usable_at(None) == NOW + 31.5
    assert pool.credentials["k0"].provider.overloads[None][0] == 1


def test_redeclared_credential_keeps_its_cooldown() -> None:
    pool = pool_of(Limits())
    first = request(pool)
    pool.feedback.apply(pool.credentials["k0"], first, Verdict(AUTH_FAILED), NOW)
    pool.lease_end.end(first, NOW)
    pool.redeclare("k0", "g0", "p", ANY, Limits(max_concurrent=2), NOW)
    second = request(pool)
    assert second.state == WAITING
    pool.advance(NOW + 5)
    assert second.state == LIVE


# --- invariant 2: limits --------------------------------------------------------------------------------------------


def test_usage_counts_after_change_of_limit() -> None:
    pool = pool_of(Limits(tokens_per_minute=1000, max_concurrent=9))
    first = request(pool, 100)
    pool.redeclare("k0", "g0", "p", ANY, Limits(tokens_per_minute=900, max_concurrent=9), NOW)
    pool.settle(first, 1, 900, NOW + 1)
    assert request(pool, 10, at=NOW + 2).state == WAITING
    assert request(pool, 10, at=NOW + 62).state == LIVE


def test_refund_counts_after_change_of_limit() -> None:
    pool = pool_of(Limits(tokens_per_minute=1000, max_concurrent=9))
    first = request(pool, 900)
    pool.redeclare("k0", "g0", "p", ANY, Limits(tokens_per_minute=950, max_concurrent=9), NOW)
    waiting = request(pool, 500)
    assert waiting.state == WAITING
    pool.settle(first, 1, 100, NOW + 1)
    assert waiting.state == LIVE


def test_usage_counts_for_limit_newer_than_lease() -> None:
    for before in (Limits(max_concurrent=9), Limits(requests_per_day=40, max_concurrent=9)):
        pool = pool_of(before)
        first = request(pool)
        pool.redeclare("k0", "g0", "p", ANY, Limits(tokens_per_minute=900, max_concurrent=9), NOW)
        pool.settle(first, 1, 850, NOW + 1)
        assert request(pool, 100, at=NOW + 2).state == WAITING
        assert request(pool, 100, at=NOW + 62).state == LIVE


def test_usage_of_yesterday_is_dropped_with_new_limit() -> None:
    limits = Limits(requests_per_day=3, max_concurrent=9)
    pool = pool_of(limits, ends_after=lambda _resets, now: (now // DAY + 1) * DAY)
    assert [request(pool).state for _ in range(4)] == [LIVE, LIVE, LIVE, WAITING]
    pool = pool_of(limits, ends_after=lambda _resets, now: (now // DAY + 1) * DAY)
    for _ in range(3):
        request(pool)
    changed = Limits(requests_per_day=4, max_concurrent=9)
    pool.redeclare("k0", "g0", "p", ANY, changed, NOW + DAY, lambda _resets, now: (now // DAY + 1) * DAY)
    assert [request(pool, at=NOW + DAY).state for _ in range(4)] == [LIVE] * 4


def test_leases_in_flight_are_counted_once() -> None:
    pool = pool_of(Limits(max_concurrent=2))
    pace = pool.credentials["k0"].group.pace
    long = request(pool)
    pace.estimators[None].slow_start = None  # no limit was met
    pace._has_started = True
    pace._update_is_free()
    assert pace.is_free
    short = request(pool)
    pool.feedback.apply(pool.credentials["k0"], short, Verdict(RATE_LIMITED, retry_after=1.0), NOW + 1)
    pool.lease_end.end(short, NOW + 1)
    pool.lease_end.end(long, NOW + 2)
    assert pace.estimators[None].in_flight == 0


# --- invariants 8 and 17: redeclared credentials ----------------------------------------------------------------------


def test_waiter_survives_redeclare_of_only_credential() -> None:
    pool = pool_of(Limits())
    first, second = request(pool), request(pool)
    pool.redeclare("k0", "g0", "p", ANY, Limits(requests_per_minute=100), NOW)
    assert second.state == WAITING
    assert not pool.served
    pool.lease_end.end(first, NOW)
    assert second.state == LIVE


def test_waiter_is_served_when_strictest_member_leaves() -> None:
    pool = pool_of(Limits(max_concurrent=9))
    pool.add("k1", "g0", "p", frozenset({"other"}), Limits(requests_per_day=1), NOW)
    first, second = LeaseRecord("a", scope="mine"), LeaseRecord("b", scope="mine")
    assert [pool.request(first, NOW), pool.request(second, NOW)] == [True, False]
    pool.redeclare("k1", "g1", "p", frozenset({"other"}), Limits(requests_per_day=1), NOW)
    assert second.state == LIVE


def test_refund_to_left_group_serves_its_waiters() -> None:
    limits = Limits(tokens_per_minute=1000, max_concurrent=9)
    pool = pool_of(limits)
    pool.add("k1", "g0", "p", frozenset({"other"}), limits, NOW)
    lent, waiting = LeaseRecord("a", 1, 900, "other", "k1"), LeaseRecord("b", 1, 500, "mine")
    assert pool.request(lent, NOW)
    assert lent.credential is pool.credentials["k1"]
    pool.redeclare("k1", "g1", "p", frozenset({"other"}), limits, NOW)
    assert not pool.request(waiting, NOW)
    pool.settle(lent, 1, 100, NOW + 1)
    assert waiting.state == LIVE


def test_answer_to_set_aside_lease_does_not_count_again() -> None:
    pool = pool_of(Limits(), Limits())
    record = request(pool)
    pool.feedback.apply(pool.credentials["k0"], record, Verdict(AUTH_FAILED), NOW)
    pool.lease_end.set_aside(record, NOW)
    assert pool.request(record, NOW)
    assert record.credential is pool.credentials["k1"]
    pool.lease_end.end(record, NOW)
    estimators = [estimator for c in pool.credentials.values() for estimator in c.group.pace.estimators.values()]
    assert [estimator.in_flight for estimator in estimators] == [0] * len(estimators)
    assert not record.is_answered


# --- credentials that were quarantined, and limits declared later ---------------------------------------------------


def test_success_after_quarantine_proves_credential_again() -> None:
    """Otherwise requests that wait for a probe use it one at a time for ever."""
    pool = pool_of(Limits(max_concurrent=2))
    pool.lease_end.end(request(pool), NOW, success=True)
    pool.quarantine("k0", "by a person", NOW)
    pool.restore("k0", NOW)
    pool.lease_end.end(request(pool), NOW, success=True)
    assert pool.credentials["k0"].is_proven


def test_usage_beyond_reservation_counts_for_limit_declared_later() -> None:
    pool = pool_of(Limits())
    lease = request(pool)
    pool.redeclare("k0", "g0", "p", ANY, Limits(tokens_per_minute=100), NOW)
    pool.use_more(lease, 0, 500, NOW)
    pool.lease_end.end(lease, NOW)
    assert request(pool, 10).state == WAITING
