"""Limits through the public API of the pool."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

from agentos.events import CoolDownStarted, Heartbeat, LimitLearned, PoolWaiting, RunEnded
from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    AuthFailed,
    Credential,
    CredentialCoordinator,
    LeaseTimeout,
    Limits,
    Overloaded,
    ParallelCoordinator,
    QuotaExhausted,
    RateLimited,
    RequestTooLarge,
)
from tests.conftest import eventually

SECRETS = ["sk-limits-one-123456", "sk-limits-two-123456", "sk-limits-three-123456"]


def pool_of(clock: FakeClock, count: int = 1, **limits: Any) -> CredentialCoordinator:
    rules = Limits(**limits)
    keys = [Credential(secret, id=f"key-{n}", limits=rules) for n, secret in enumerate(SECRETS[:count], 1)]
    return CredentialCoordinator(keys, clock=clock)


class Response:
    """An answer of any client library: only status and headers are read."""

    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


# --- declared -------------------------------------------------------------------------------------------------------


def test_window_admits_no_more_requests_than_declared() -> None:  # invariant 2
    clock = FakeClock()
    pool = pool_of(clock, requests_per_minute=3, burst=3, max_concurrent=10)
    for _ in range(3):
        key = pool.reserve_credential("me")
        assert key is not None
        pool.release(key)
    assert pool.reserve_credential("me") is None
    clock.advance(59.9)
    assert pool.reserve_credential("me") is None
    clock.advance(0.1)
    assert pool.reserve_credential("me") is not None


def test_limits_count_per_quota_group() -> None:  # invariant 3
    clock = FakeClock()
    rules = Limits(requests_per_minute=2, burst=2)
    keys = [Credential(secret, quota_group="team", limits=rules) for secret in SECRETS]
    pool = CredentialCoordinator(keys, clock=clock)
    assert [pool.reserve_credential() is not None for _ in range(3)] == [True, True, False]


def test_day_limit_resets_at_declared_time() -> None:
    clock = FakeClock(epoch=1794772800.0)  # noon in California
    pool = pool_of(clock, requests_per_day=1, day_resets="00:00 America/Los_Angeles", max_concurrent=5)
    assert pool.reserve_credential() is not None
    clock.advance(43_199)
    assert pool.reserve_credential() is None
    assert pool.states()[0].waits_for == "requests per day"
    clock.advance(1)
    assert pool.reserve_credential() is not None


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="does not know the time zone"):
        pool_of(FakeClock(), requests_per_day=1, day_resets="00:00 Nowhere/Land")


def test_settled_overshoot_of_tokens_is_debt() -> None:
    clock = FakeClock()
    pool = pool_of(clock, tokens_per_minute=1000, max_concurrent=5)
    with pool.lease(tokens=400) as lease:
        lease.settle(tokens=1300)
        lease.settle(tokens=1)  # only the first counts
    assert pool.states()[0].used["tokens per minute"] == (1300, 1000)
    with pytest.raises(LeaseTimeout, match="tokens per minute") as caught, pool.lease(tokens=1, timeout=0):
        raise AssertionError
    assert caught.value.reason == "rate_limited"
    assert pool.reserve_credential() is None  # a request without tokens does not get past the debt either
    clock.advance(61)
    with pool.lease(tokens=100):
        pass


def test_forged_usage_of_a_minute_is_forgotten_after_it() -> None:  # invariant 46
    """A worker or a command reports a billion requests. The bucket's debt must not outlast the window."""
    clock = FakeClock()
    pool = pool_of(clock, requests_per_minute=100, tokens_per_minute=1000)
    with pool.lease() as lease:
        lease.settle(requests=10**9, tokens=10**9)
    assert pool.reserve_credential() is None
    clock.advance(62)
    assert pool.reserve_credential() is not None


def test_request_above_every_limit_is_refused_with_reason() -> None:
    pool = pool_of(FakeClock(), tokens_per_minute=1000)
    with pytest.raises(RequestTooLarge, match="2000 tokens"), pool.lease(tokens=2000):
        raise AssertionError
    with pytest.raises(RequestTooLarge):
        pool.call(lambda key: key, tokens=2000)


def test_large_request_is_served_by_larger_limit() -> None:
    small = Credential(SECRETS[0], id="small", limits=Limits(tokens_per_minute=100))
    large = Credential(SECRETS[1], id="large", limits=Limits(tokens_per_minute=1000))
    pool = CredentialCoordinator([small, large], clock=FakeClock())
    with pool.lease(tokens=500) as lease:
        assert lease.credential_id == "large"


def test_waiter_is_served_when_its_limit_admits_it() -> None:  # invariant 7
    clock = FakeClock()
    pool = pool_of(clock, requests_per_minute=60, burst=1, max_concurrent=5)
    assert pool.reserve() is not None
    keys: list[object] = []
    waiter = threading.Thread(target=lambda: keys.append(pool.reserve()))
    waiter.start()
    eventually(lambda: pool.get_stats()["waiting"] == 1)
    clock.advance(0.99)
    assert not keys
    clock.advance(0.1)
    waiter.join(60)
    assert keys


def test_states_show_usage_and_binding_limit() -> None:
    clock = FakeClock()
    pool = pool_of(clock, requests_per_minute=60, burst=1, tokens_per_minute=500, max_concurrent=5)
    with pool.lease(tokens=100):
        state = pool.states()[0]
        assert state.used == {"requests per minute": (1, 60), "tokens per minute": (100, 500)}
        assert state.waits_for == "requests per minute"
        assert state.rate_limited_until == pytest.approx(clock.epoch() + 1, abs=0.1)
        assert not state.is_available
    assert pool.get_stats()["rate_limited"] == 1


# --- read from answers ----------------------------------------------------------------------------------------------


def test_headers_of_success_set_the_pace() -> None:
    clock = FakeClock()
    pool = pool_of(clock, max_concurrent=5)
    events: list[Any] = []
    pool.listen(events.append)
    with pool.lease() as lease:
        lease.observe(Response(200, x_ratelimit_limit_requests="60", x_ratelimit_remaining_requests="0"))
    assert pool.reserve_credential() is None
    clock.advance(1.1)
    assert pool.reserve_credential() is not None
    assert pool.states()[0].learned == {"": 60.0}
    assert pool.states()[0].keys_file_line == "requests_per_minute = 60"
    assert [event.requests_per_minute for event in events if isinstance(event, LimitLearned)] == [60.0]


def test_missing_remaining_header_is_not_zero() -> None:
    pool = pool_of(FakeClock())
    with pool.lease() as lease:
        lease.observe(Response(200, x_ratelimit_limit_tokens="-1", x_ratelimit_remaining_tokens="-1"))
    assert pool.reserve_credential() is not None


def test_headers_of_exception_set_the_pace() -> None:
    class Broken(Exception):
        response = Response(500, x_ratelimit_limit_requests="60", x_ratelimit_remaining_requests="0")

    pool = pool_of(FakeClock())
    with pytest.raises(Broken), pool.lease():
        raise Broken
    assert pool.reserve_credential() is None


def test_used_up_tokens_make_requests_wait() -> None:
    clock = FakeClock()
    pool = pool_of(clock)
    with pool.lease(tokens=10) as lease:
        lease.observe(Response(200, x_ratelimit_limit_tokens="600", x_ratelimit_remaining_tokens="0"))
    assert pool.reserve_credential() is None
    clock.advance(1.5)
    with pool.lease(tokens=10, timeout=0):
        pass


def test_current_item_observes_an_answer() -> None:
    from agentos.workflows.parallel import current_item

    pool = CredentialCoordinator([SECRETS[0]])

    def worker(item: str, key: str) -> None:
        current_item().observe(Response(200, x_ratelimit_limit_requests="6000", x_ratelimit_remaining_requests="5999"))

    ParallelCoordinator(1, pool, reporter=None).execute_parallel(["a"], worker)
    assert pool.states()[0].learned == {"": 6000.0}


# --- hints that lie -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "min_seconds", "max_seconds"),
    [
        (-5.0, 0.5, 2.0),
        (0.0, 0.5, 2.0),
        (math.nan, 0.0, 60.0),
        (3600.0, 3600.0, 3600.0),
        (10 * 86400.0, 86400.0, 86400.0),
        (math.inf, 0.0, 86400.0),
    ],
)
def test_hint_is_obeyed_up_to_the_reported_cap(hint: float, min_seconds: float, max_seconds: float) -> None:
    clock = FakeClock()
    pool = pool_of(clock)
    events: list[Any] = []
    pool.listen(events.append)
    with pytest.raises(RateLimited), pool.lease():
        raise RateLimited(retry_after=hint)
    until = pool.states()[0].rate_limited_until
    assert until is not None
    assert min_seconds - 0.01 <= until - clock.epoch() <= max_seconds + 0.1
    if 86400 < hint < math.inf:
        assert any(isinstance(event, CoolDownStarted) and event.hint == hint for event in events)


@pytest.mark.parametrize("hint", [3600.0, 86400.0])
def test_long_wait_is_announced_with_reason_and_end(hint: float) -> None:
    clock = FakeClock()
    pool = pool_of(clock)
    events: list[Any] = []
    coordinator = ParallelCoordinator(1, pool, reporter=events.append, clock=clock, grace_seconds=0.1)

    def worker(item: str, key: str) -> None:
        raise RateLimited(retry_after=hint)

    run = threading.Thread(target=lambda: coordinator.execute_parallel(["a"], worker))
    run.start()
    eventually(lambda: any(isinstance(event, PoolWaiting) for event in events))
    clock.advance(31)
    eventually(lambda: any(isinstance(event, Heartbeat) for event in events))
    heartbeat = next(event for event in events if isinstance(event, Heartbeat))
    assert heartbeat.waiting is not None
    assert heartbeat.waiting.reason == "rate_limited"
    assert heartbeat.waiting.usable_in == pytest.approx(hint - 31, abs=5)
    assert heartbeat.stats.eta is None or heartbeat.stats.eta > 0
    coordinator.request_shutdown()
    clock.advance(1)
    run.join(60)
    assert any(isinstance(event, RunEnded) for event in events)


# --- cool-downs and quarantine --------------------------------------------------------------------------------------


def test_overload_cools_the_provider_not_the_key() -> None:
    clock = FakeClock()
    keys = [
        Credential(secret, id=f"key-{n}", provider=provider)
        for n, (secret, provider) in enumerate(zip(SECRETS, ["a", "a", "b"], strict=True))
    ]
    pool = CredentialCoordinator(keys, clock=clock)
    with pytest.raises(Overloaded), pool.lease(prefer="key-0"):
        raise Overloaded(retry_after=5)
    states = {state.key_id: state.is_available for state in pool.states()}
    assert states == {"key-0": False, "key-1": False, "key-2": True}


def test_keys_of_one_group_cool_together() -> None:
    clock = FakeClock()
    keys = [Credential(secret, id=f"key-{n}", quota_group="team") for n, secret in enumerate(SECRETS)]
    pool = CredentialCoordinator(keys, clock=clock)
    with pytest.raises(RateLimited), pool.lease():
        raise RateLimited(retry_after=30)
    assert pool.get_stats()["rate_limited"] == 3


def test_dead_key_does_not_quarantine_another() -> None:  # invariant 5
    pool = pool_of(FakeClock(), 2)
    for requester in ("one", "other"):
        with pytest.raises(AuthFailed), pool.lease(requester, prefer="key-1"):
            raise AuthFailed("no")
        pool.clock.advance(6)  # type: ignore[attr-defined]
    assert pool.get_stats()["quarantined"] == 1
    assert pool.states()[1].is_available


def test_quota_cools_only_its_group_until_reset() -> None:
    clock = FakeClock()
    pool = pool_of(clock, 2)
    with pytest.raises(QuotaExhausted), pool.lease(prefer="key-1"):
        raise QuotaExhausted(until=clock.epoch() + 7200)
    assert pool.states()[0].rate_limited_until == pytest.approx(clock.epoch() + 7200, abs=1)
    assert pool.states()[1].is_available


# --- in a run -------------------------------------------------------------------------------------------------------


def test_item_above_every_limit_fails_and_others_finish() -> None:
    rules = Limits(tokens_per_minute=1000, max_concurrent=3)
    pool = CredentialCoordinator([Credential(SECRETS[0], limits=rules)])
    coordinator = ParallelCoordinator(2, pool, reporter=None)
    stats, results = coordinator.execute_parallel([10, 5000, 20], lambda item, key: item, tokens_func=lambda item: item)
    assert (stats.success_count, stats.failed, stats.stopped) == (2, 1, None)
    failed = next(result for result in results if not result.success)
    assert failed.item_id == "5000"
    assert failed.metadata["verdict"] == "permanent"
    assert "5000 tokens" in str(failed.error)


def test_eta_respects_the_limits() -> None:
    rules = Limits(requests_per_minute=6000, burst=1)
    pool = CredentialCoordinator([Credential(SECRETS[0], limits=rules)])
    etas: list[float | None] = []

    def note(event: Any) -> None:
        if type(event).__name__ == "ItemEnded":
            etas.append(event.stats.eta)

    ParallelCoordinator(2, pool, reporter=note).execute_parallel(range(5), lambda item, key: item)
    assert etas[0] is not None
    assert etas[0] >= 4 / 100
    assert etas[-1] == 0


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "many"])
def test_invalid_counts_are_refused(wrong: Any) -> None:
    pool = pool_of(FakeClock())
    with pytest.raises(ValueError, match="whole numbers"):
        pool.lease(tokens=wrong)
    with pool.lease() as lease, pytest.raises(ValueError, match="whole numbers"):
        lease.settle(requests=wrong)


def test_nested_lease_of_worker_is_counted() -> None:
    from agentos.workflows.parallel import current_item

    rules = Limits(requests_per_minute=100, tokens_per_minute=1000, burst=100)
    pool = CredentialCoordinator([Credential(SECRETS[0], limits=rules)])

    def worker(item: str, key: str) -> None:
        for _ in range(3):
            with current_item().lease(tokens=50):
                pass

    ParallelCoordinator(1, pool, reporter=None).execute_parallel(["a"], worker)
    assert pool.states()[0].used == {"requests per minute": (3, 100), "tokens per minute": (150, 1000)}


def test_refusal_of_removed_key_changes_nothing() -> None:
    pool = pool_of(FakeClock(), 2, max_concurrent=3)
    leases = [pool.lease(f"item-{n}", prefer="key-1") for n in range(3)]
    for lease in leases:
        lease.__enter__()
    pool.remove("key-1")
    for lease in leases:
        lease.__exit__(AuthFailed, AuthFailed("no"), None)
    assert pool.get_stats()["quarantined"] == 0


def test_simultaneous_overloads_count_once() -> None:
    clock = FakeClock()
    pool = pool_of(clock, max_concurrent=20)
    leases = [pool.lease() for _ in range(20)]
    for lease in leases:
        lease.__enter__()
    clock.advance(1)
    for lease in leases:
        lease.__exit__(Overloaded, Overloaded(), None)
        clock.advance(0.001)
    until = pool.states()[0].rate_limited_until
    assert until is not None
    assert until - clock.epoch() < 3


def test_day_limit_in_header_is_no_minute_limit() -> None:
    pool = CredentialCoordinator([Credential(SECRETS[0], provider="groq")], clock=FakeClock())
    with pool.lease() as lease:
        lease.observe(Response(200, x_ratelimit_limit_requests="14400", x_ratelimit_remaining_requests="14370"))
    assert pool.states()[0].learned == {}
    assert pool.reserve_credential() is not None
