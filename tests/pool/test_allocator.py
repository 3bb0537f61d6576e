"""The allocator, called with `now`: no clock, no thread."""

from __future__ import annotations

import pytest

from agentos.events import EXHAUSTED, CoolDownStarted, CredentialQuarantined, PoolWaiting
from agentos.limits.cool_downs import MAX_COOL_DOWN, MIN_COOL_DOWN, cool_down
from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import ENDED, LIVE, REFUSED, WAITING
from agentos.pool._rules.records import LeaseRecord
from agentos.pool._rules.wait_reasons import explain, reasons
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

NOW = 1000.0


def make_pool(*ids: str, max_concurrent: int = 1, group: str | None = None, provider: str | None = None) -> Allocator:
    pool = Allocator()
    for id_ in ids:
        pool.add(id_, group or f"own {id_}", provider, frozenset(), Limits(max_concurrent=max_concurrent), NOW)
    return pool


def ask(pool: Allocator, now: float = NOW, **wishes: object) -> LeaseRecord:
    record = LeaseRecord(**wishes)  # type: ignore[arg-type]
    pool.request(record, now)
    return record


def credential_of(record: LeaseRecord) -> str | None:
    return record.credential.id if record.state == LIVE and record.credential else None


def take_served(pool: Allocator) -> list[LeaseRecord]:
    records, pool.served = pool.served, []
    return records


def test_least_recently_used_credential_is_granted() -> None:
    pool = make_pool("a", "b", "c")
    first = [ask(pool) for _ in range(3)]
    assert [credential_of(record) for record in first] == ["a", "b", "c"]
    for index in (1, 0, 2):
        pool.lease_end.end(first[index], NOW)
    assert [credential_of(ask(pool)) for _ in range(3)] == ["b", "a", "c"]


def test_credential_with_least_relative_load_is_granted() -> None:
    pool = Allocator()
    pool.add("small", "s", None, frozenset(), Limits(max_concurrent=2), NOW)
    pool.add("large", "l", None, frozenset(), Limits(max_concurrent=8), NOW)
    grants = [credential_of(ask(pool)) for _ in range(10)]
    assert grants.count("small") == 2
    assert grants.count("large") == 8
    assert grants[:3] == ["small", "large", "large"]  # 1/2 is more than 1/8


def test_live_leases_never_exceed_max_concurrent() -> None:  # invariant 1
    pool = make_pool("a", max_concurrent=3)
    records = [ask(pool) for _ in range(5)]
    assert [record.state for record in records] == [LIVE] * 3 + [WAITING] * 2


def test_preferred_credential_is_granted_if_usable() -> None:
    pool = make_pool("a", "b", "c")
    preferred = ask(pool, prefer="c")
    assert credential_of(preferred) == "c"
    assert credential_of(ask(pool, prefer="c")) == "a"  # "c" is in use: another credential instead of a wait
    pool.lease_end.end(preferred, NOW)
    assert credential_of(ask(pool)) == "b"


def test_release_serves_exactly_the_first_waiter() -> None:  # invariants 6, 18
    pool = make_pool("a")
    holder = ask(pool)
    waiters = [ask(pool) for _ in range(3)]
    assert pool.lease_end.end(holder, NOW)
    assert take_served(pool) == [waiters[0]]
    assert credential_of(waiters[0]) == "a"
    assert waiters[1].state == WAITING


def test_new_request_does_not_overtake_a_waiter() -> None:  # invariant 6
    pool = make_pool("a")
    holder = ask(pool)
    waiter = ask(pool)
    newcomer = ask(pool)
    pool.lease_end.end(holder, NOW)
    assert take_served(pool) == [waiter]
    assert not pool.request(LeaseRecord(), NOW, wait=False)
    pool.lease_end.end(waiter, NOW)
    assert take_served(pool) == [newcomer]


def test_request_with_front_is_served_first() -> None:
    pool = make_pool("a")
    holder = ask(pool)
    waiter = ask(pool)
    sent_back = LeaseRecord()
    pool.request(sent_back, NOW, front=True)
    pool.lease_end.end(holder, NOW)
    assert take_served(pool) == [sent_back]
    pool.lease_end.end(sent_back, NOW)
    assert take_served(pool) == [waiter]


def test_grant_comes_exactly_when_cooldown_ends() -> None:  # invariants 4, 7
    pool = make_pool("a")
    pool.cool(pool.credentials["a"].group, None, 60.0, RATE_LIMITED, NOW)
    waiter = ask(pool)
    assert pool.next_wake_at() == NOW + 60
    pool.advance(NOW + 59.999)
    assert take_served(pool) == []
    pool.advance(NOW + 60)
    assert take_served(pool) == [waiter]
    assert pool.next_wake_at() is None


def test_later_end_of_two_cooldowns_holds() -> None:  # invariant 4
    pool = make_pool("a")
    group = pool.credentials["a"].group
    pool.cool(group, None, 60.0, RATE_LIMITED, NOW)
    pool.cool(group, None, 10.0, RATE_LIMITED, NOW + 1)
    waiter = ask(pool, now=NOW + 11)
    pool.advance(NOW + 59)
    assert waiter.state == WAITING
    pool.advance(NOW + 60)
    assert waiter.state == LIVE


def test_prolonged_cooldown_ends_at_its_new_end() -> None:
    pool = make_pool("a")
    group = pool.credentials["a"].group
    pool.cool(group, None, 10.0, RATE_LIMITED, NOW)
    pool.cool(group, None, 60.0, RATE_LIMITED, NOW + 1)
    waiter = ask(pool, now=NOW + 1)
    pool.advance(NOW + 10)
    assert waiter.state == WAITING
    pool.advance(NOW + 61)
    assert waiter.state == LIVE


def test_group_cools_together_in_one_scope() -> None:
    pool = make_pool("a", "b", group="org")
    pool.add("c", "other", None, frozenset(), Limits(max_concurrent=1), NOW)
    pool.cool(pool.credentials["a"].group, "big-model", 60.0, RATE_LIMITED, NOW)
    assert credential_of(ask(pool, scope="big-model")) == "c"
    assert ask(pool, scope="big-model").state == WAITING
    assert credential_of(ask(pool, scope="small-model")) == "a"
    assert credential_of(ask(pool)) == "b"


def test_credential_serves_only_its_scopes() -> None:
    pool = Allocator()
    pool.add("a", "a", None, frozenset({"x"}), Limits(max_concurrent=1), NOW)
    assert ask(pool, scope="y").state == REFUSED
    assert credential_of(ask(pool, scope="x")) == "a"
    waiter_x, waiter_any = ask(pool, scope="x"), ask(pool)
    pool.lease_end.end(pool.credentials["a"].leases[1], NOW)
    assert take_served(pool) == [waiter_x]
    pool.lease_end.end(waiter_x, NOW)
    assert take_served(pool) == [waiter_any]


def test_oldest_waiter_of_all_scopes_is_served() -> None:
    pool = make_pool("a")
    holder = ask(pool)
    late_scope, early = "x", ask(pool, scope="y")
    later = ask(pool, scope=late_scope)
    pool.lease_end.end(holder, NOW)
    assert take_served(pool) == [early]
    pool.lease_end.end(early, NOW)
    assert take_served(pool) == [later]


def test_overload_backoff_doubles_until_a_success() -> None:
    pool = make_pool("a", "b", provider="p")
    a = pool.credentials["a"]
    for expected in (1.0, 2.0, 4.0):
        pool.feedback.apply(a, None, Verdict(OVERLOADED), NOW, jitter=1.0)
        assert a.provider.cooling[None] == NOW + expected
        assert pool.credentials["b"].usable_at(None) == NOW + expected  # an overload cools all keys of the provider
    pool.feedback.apply(a, None, None, NOW)
    pool.advance(NOW + 4)
    pool.feedback.apply(a, None, Verdict(OVERLOADED), NOW + 4, jitter=1.0)
    assert a.provider.cooling[None] == NOW + 5


def test_quarantined_credential_is_granted_after_restore_only() -> None:  # invariant 5
    pool = make_pool("a", "b")
    pool.quarantine("a", "no credit", NOW)
    assert credential_of(ask(pool)) == "b"
    waiter = ask(pool)
    assert waiter.state == WAITING
    pool.restore("a", NOW)
    assert take_served(pool) == [waiter]
    assert credential_of(waiter) == "a"


def test_free_credential_is_not_granted_after_quarantine() -> None:  # invariant 5
    pool = make_pool("a", "b")
    for record in [ask(pool), ask(pool)]:
        pool.lease_end.end(record, NOW)
    pool.quarantine("a", "no credit", NOW)
    assert credential_of(ask(pool)) == "b"
    assert ask(pool).state == WAITING


def test_credential_quarantined_in_use_serves_no_waiter() -> None:  # invariant 5
    pool = make_pool("a", "b")
    first, second = ask(pool), ask(pool)
    waiter = ask(pool)
    pool.quarantine("a", "no credit", NOW)
    pool.lease_end.end(first, NOW)
    assert take_served(pool) == []
    pool.lease_end.end(second, NOW)
    assert take_served(pool) == [waiter]
    assert credential_of(waiter) == "b"


def test_refusal_cools_its_key_not_the_group() -> None:  # invariant 5
    pool = make_pool("a", "b", group="team")
    a, b = pool.credentials["a"], pool.credentials["b"]
    pool.feedback.apply(a, LeaseRecord("item-1"), Verdict(AUTH_FAILED), NOW)
    assert (a.usable_at(None), b.usable_at(None)) == (NOW + 5, 0.0)


def test_refusals_of_two_requesters_quarantine() -> None:
    pool = make_pool("a", "b")
    a = pool.credentials["a"]
    pool.feedback.apply(a, LeaseRecord("item-1"), Verdict(AUTH_FAILED), NOW)
    assert a.quarantine is None
    assert a.usable_at(None) == NOW + 5
    pool.feedback.apply(a, LeaseRecord("item-1"), Verdict(AUTH_FAILED), NOW + 6)
    assert a.quarantine is None  # the item itself may be the reason
    pool.feedback.apply(a, LeaseRecord("item-2"), Verdict(AUTH_FAILED, message="bad key"), NOW + 12)
    assert a.quarantine is not None
    assert "bad key" in a.quarantine
    assert pool.credentials["b"].quarantine is None  # invariant 5
    assert any(isinstance(event, CredentialQuarantined) for event in pool.events)


@pytest.mark.parametrize("reason", ["refused by the provider 2 times in a row", "disabled: by hand"])
def test_later_refusals_leave_the_reason_of_a_quarantine(reason: str) -> None:
    """They answer requests that were in flight; the count of the announced reason is that of all other processes."""
    pool = make_pool("a", max_concurrent=4)
    a = pool.credentials["a"]
    pool.quarantine("a", reason, NOW)
    for number in range(4):
        pool.feedback.apply(a, LeaseRecord(f"item-{number}"), Verdict(AUTH_FAILED, message="bad key"), NOW)
    assert a.quarantine == reason


def test_success_between_refusals_prevents_quarantine() -> None:
    pool = make_pool("a")
    a = pool.credentials["a"]
    pool.feedback.apply(a, LeaseRecord("item-1"), Verdict(AUTH_FAILED), NOW)
    pool.feedback.apply(a, LeaseRecord("item-2"), None, NOW)
    pool.feedback.apply(a, LeaseRecord("item-3"), Verdict(AUTH_FAILED), NOW)
    assert a.quarantine is None


def test_three_refusals_of_one_requester_quarantine() -> None:  # invariant 17
    pool = make_pool("a")
    a = pool.credentials["a"]
    for _ in range(3):
        assert a.quarantine is None
        pool.feedback.apply(a, LeaseRecord("lonely"), Verdict(AUTH_FAILED), NOW)
    assert a.quarantine is not None


def test_all_quarantined_refuses_waiters_and_new_requests() -> None:  # invariant 17
    pool = make_pool("a")
    holder = ask(pool)
    waiter = ask(pool)
    pool.quarantine("a", "bad key", NOW)
    assert take_served(pool) == [waiter]
    assert waiter.state == REFUSED
    assert ask(pool).state == REFUSED
    assert reasons(pool.credentials.values(), None) == {"a": "bad key"}
    pool.lease_end.end(holder, NOW)
    assert ask(pool).state == REFUSED


def test_second_release_changes_nothing() -> None:  # invariant 15
    pool = make_pool("a")
    first = ask(pool)
    assert pool.lease_end.end(first, NOW)
    second = ask(pool)
    assert not pool.lease_end.end(first, NOW)
    assert credential_of(second) == "a"


def test_release_ends_only_its_own_lease() -> None:  # invariant 15
    pool = make_pool("a", max_concurrent=2)
    first, second = ask(pool), ask(pool)
    pool.lease_end.end(first, NOW)
    assert list(pool.credentials["a"].leases.values()) == [second]


def test_fence_grows_when_credential_leaves_and_returns() -> None:  # invariant 13
    pool = make_pool("a")
    record = ask(pool)
    pool.lease_end.end(record, NOW)
    pool.remove("a", NOW)
    pool.add("a", "a", None, frozenset(), Limits(max_concurrent=1), NOW)
    assert ask(pool).fence > record.fence


def test_lease_of_removed_credential_stays_valid() -> None:
    pool = make_pool("a", "b")
    record = ask(pool)
    pool.remove("a", NOW)
    assert pool.members.leaving["a"].leases
    assert credential_of(ask(pool)) == "b"
    waiter = ask(pool)
    assert pool.lease_end.end(record, NOW)
    assert waiter.state == WAITING
    assert not pool.members.leaving


def test_withdraw_leaves_no_waiter_and_no_lease() -> None:  # invariant 9
    pool = make_pool("a")
    holder = ask(pool)
    first, second = ask(pool), ask(pool)
    assert pool.lease_end.withdraw(first, NOW)
    assert first.state == ENDED
    pool.lease_end.end(holder, NOW)
    assert take_served(pool) == [second]
    assert not pool.lease_end.withdraw(second, NOW)  # it was granted: the lease ends unused
    assert not pool.credentials["a"].leases
    assert pool.credentials["a"].used_requests == 1  # of the first lease only
    assert len(pool.queue) == 0


def test_confirm_rejects_lease_of_unusable_credential() -> None:  # invariant 11
    pool = make_pool("a", max_concurrent=2)
    first, second = ask(pool), ask(pool)
    waiter, behind = ask(pool), ask(pool)
    pool.lease_end.end(first, NOW)
    assert take_served(pool) == [waiter]
    pool.feedback.apply(pool.credentials["a"], second, Verdict(RATE_LIMITED, retry_after=10), NOW)
    assert not pool.confirm(waiter, NOW)
    assert waiter.state == WAITING
    pool.advance(NOW + 10)
    assert take_served(pool)[0] is waiter  # still the first in the queue
    assert pool.confirm(waiter, NOW + 10)
    assert behind.state == WAITING


def test_wait_reason_is_announced_once_per_episode() -> None:
    pool = make_pool("a", "b")
    records = [ask(pool), ask(pool)]
    for _ in range(3):
        ask(pool)
    events = [event for event in pool.events if isinstance(event, PoolWaiting)]
    assert [(event.reason, event.credentials, event.in_use) for event in events] == [(EXHAUSTED, 2, 2)]
    pool = make_pool("a")
    pool.cool(pool.credentials["a"].group, None, 30, RATE_LIMITED, NOW)
    ask(pool)
    events = [event for event in pool.events if isinstance(event, PoolWaiting)]
    assert [(event.reason, event.usable_in) for event in events] == [(RATE_LIMITED, 30)]
    assert records


def test_change_of_wait_reason_is_announced() -> None:
    pool = make_pool("a", "b")
    first, second = ask(pool), ask(pool)
    ask(pool)
    for record in (first, second):
        assert record.credential is not None
        pool.feedback.apply(record.credential, record, Verdict(RATE_LIMITED, retry_after=30), NOW)
        pool.lease_end.end(record, NOW)
        ask(pool)
        ask(pool)
    events = [event.reason for event in pool.events if isinstance(event, PoolWaiting)]
    assert events == [EXHAUSTED, RATE_LIMITED]


@pytest.mark.parametrize(
    ("verdict", "seconds"),
    [
        (Verdict(RATE_LIMITED), 60),
        (Verdict(RATE_LIMITED, retry_after=1.5), 1.5),
        (Verdict(RATE_LIMITED, retry_after=20.5, cool_down=43200), 43200),
        (Verdict(RATE_LIMITED, retry_after=0), MIN_COOL_DOWN),
        (Verdict(RATE_LIMITED, retry_after=-30), MIN_COOL_DOWN),
        (Verdict(RATE_LIMITED, retry_after=float("nan")), 60),
        (Verdict(QUOTA_EXHAUSTED), 3600),
        (Verdict(AUTH_FAILED), 5),
    ],
)
def test_cooldown_seconds_by_verdict(verdict: Verdict, seconds: float) -> None:  # invariant 4
    assert cool_down(verdict) == seconds


@pytest.mark.parametrize("seconds", [1e9, float("inf")])
def test_huge_wait_is_capped_and_reported(seconds: float) -> None:  # invariant 4
    pool = make_pool("a")
    pool.cool(pool.credentials["a"].group, None, seconds, RATE_LIMITED, NOW)
    (event,) = pool.events
    assert isinstance(event, CoolDownStarted)
    assert event.seconds == MAX_COOL_DOWN
    assert event.hint == seconds


def test_settle_counts_once_while_lease_is_live() -> None:  # invariants 15, 16
    pool = make_pool("a")
    record = ask(pool, tokens=100)
    assert pool.settle(record, None, 250, NOW)
    assert not pool.settle(record, None, 9999, NOW)
    pool.lease_end.end(record, NOW)
    assert not pool.settle(record, None, 9999, NOW)
    assert (pool.credentials["a"].used_requests, pool.credentials["a"].used_tokens) == (1, 250)


def test_heaps_of_many_scopes_are_bounded() -> None:
    pool = make_pool("a", "b")
    for number in range(2000):
        record = ask(pool, scope=f"scope-{number}")
        assert record.state == LIVE
        pool.lease_end.end(record, NOW)
    assert len(pool.ready.by_class) <= 256
    assert all(len(heap) <= 510 for heap in pool.ready.by_class.values())


def test_grant_costs_one_step_with_100000_waiters() -> None:  # invariant 18
    pool = make_pool(*(f"key-{n}" for n in range(10)))
    holders = [ask(pool) for _ in range(10)]
    waiters = [ask(pool) for _ in range(100_000)]
    for _ in range(100_000):
        pool.lease_end.end(holders.pop(0), NOW)
        (record,) = take_served(pool)  # exactly one wake-up per grant
        holders.append(record)
    assert [record.state for record in waiters].count(LIVE) == 10
    assert len(pool.queue) == 0


def test_wait_tells_paused_credentials_from_paced_ones() -> None:
    """Of five credentials one is in use, one admits its next request in a second, one after minutes, one was refused,
    and one cools down for a moment while it serves a request."""
    pool = make_pool("busy", "refused", "serving")
    for id_, rate in (("paced", 60), ("slow", 0.2)):
        pool.add(id_, id_, None, frozenset(), Limits(requests_per_minute=rate, burst=1, max_concurrent=2), NOW)
        assert credential_of(ask(pool, prefer=id_)) == id_
        pool.lease_end.end(next(iter(pool.credentials[id_].leases.values())), NOW)
    for id_ in ("busy", "serving"):
        assert credential_of(ask(pool, prefer=id_)) == id_
    pool.cool(pool.credentials["refused"].cooldown_scopes[0], None, 5.0, AUTH_FAILED, NOW)
    pool.cool(pool.credentials["serving"].cooldown_scopes[0], None, 5.0, RATE_LIMITED, NOW)
    waiting = explain(pool, None, NOW)
    assert (waiting.reason, waiting.credentials, waiting.cooling, waiting.paused) == (EXHAUSTED, 5, 4, 2)
