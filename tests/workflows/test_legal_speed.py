"""Real requests over HTTP, checked against the log of the simulated provider. `benchmarks` measure the speed."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import httpx
import pytest

from agentos.testing import Concurrency, SimulatedProvider, SlidingWindow, TokenBucket
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator, current_item
from tests.conftest import BUSY

KEYS = [f"sk-speed-test-{number}" for number in range(4)]
RATE, BURST = 40.0, 20
MAX_CONCURRENT = 3


def run(provider: SimulatedProvider, pool: CredentialCoordinator, items: int, *, observe: bool = False) -> Any:
    local = threading.local()
    clients: list[httpx.Client] = []

    def worker(item: int, key: str) -> None:
        client = getattr(local, "client", None)
        if client is None:
            client = local.client = httpx.Client()
            clients.append(client)
        response = client.post(f"{provider.base_url}/v1/work", headers={"Authorization": f"Bearer {key}"}, json={})
        if observe:
            current_item().observe(response)
        response.raise_for_status()

    try:
        return ParallelCoordinator(16, pool, max_parallelism=16, reporter=None).execute_parallel(range(items), worker)
    finally:
        for client in clients:
            client.close()


def pool_of(limits: Limits, **options: Any) -> CredentialCoordinator:
    return CredentialCoordinator([Credential(key, limits=limits, **options) for key in KEYS])


def assert_within(provider: SimulatedProvider, key: str) -> None:
    """Fail if more requests arrived in any interval than burst and rate allow, plus the requests in flight: a busy
    machine may delay each of those for any time."""
    times = sorted(entry.at for entry in provider.log if entry.key == key)
    for (first, earlier), (last, later) in itertools.combinations(enumerate(times), 2):
        assert last - first + 1 <= MAX_CONCURRENT + BURST + RATE * (later - earlier) + 0.01


def test_declared_limits_hold_in_the_providers_log() -> None:  # invariants 1, 2
    with SimulatedProvider(KEYS, limits=[], latency=0.01) as provider:  # no limits: it only logs
        limits = Limits(requests_per_minute=RATE * 60, burst=BURST, max_concurrent=MAX_CONCURRENT)
        stats, _ = run(provider, pool_of(limits), 280)
        assert stats.success_count == 280
        for key in KEYS:
            assert_within(provider, key)


def test_limit_of_a_group_holds_over_its_keys() -> None:  # invariant 3
    rules = [SlidingWindow(30, 60.0)]
    with SimulatedProvider(KEYS, limits=rules, groups=dict.fromkeys(KEYS, "team"), latency=0.005) as provider:
        pool = pool_of(Limits(requests_per_minute=30, burst=30, max_concurrent=3), quota_group="team")
        stats, _ = run(provider, pool, 30)
        assert stats.success_count == 30
        assert provider.limited == 0
        assert pool.get_available_count() == 0


@pytest.mark.parametrize(("headers", "retry_after"), [("on", "seconds"), ("off", "seconds"), ("off", None)])
def test_undeclared_limits_cost_few_refusals_and_no_item(headers: str, retry_after: str | None) -> None:
    rules = [TokenBucket(RATE, BURST), Concurrency(4)]
    with SimulatedProvider(KEYS, limits=rules, latency=0.01, headers=headers, retry_after=retry_after) as provider:
        stats, _ = run(provider, pool_of(Limits(max_concurrent=4)), 280, observe=headers == "on")
        assert stats.success_count == 280
        assert provider.limited <= (20 if headers == "on" else 60)


def test_dead_key_and_empty_account_fail_no_item() -> None:  # invariant 5
    rules = [TokenBucket(RATE, BURST)]
    with SimulatedProvider(KEYS, limits=rules, latency=0.01, dead=KEYS[:1], out_of_quota=KEYS[1:2]) as provider:
        pool = pool_of(Limits(requests_per_minute=RATE * 60, burst=BURST, max_concurrent=4))
        stats, _ = run(provider, pool, 60)
        assert stats.success_count == 60
        assert provider.counts[KEYS[0]].get(401, 0) <= 4
        assert provider.counts[KEYS[1]].get(429, 0) <= 4


def test_plan_predicts_the_measured_duration() -> None:
    limits = Limits(requests_per_minute=RATE * 60, burst=BURST, max_concurrent=4)
    with SimulatedProvider(KEYS, limits=[TokenBucket(RATE, BURST)], latency=0.01) as provider:
        pool = pool_of(limits)
        plan = ParallelCoordinator(16, pool, max_parallelism=16, reporter=None).plan(320, item_seconds=0.02)
        run(provider, pool, 320)
        times = [entry.at for entry in provider.log if entry.status == 200]
        assert plan.bound_by.startswith("requests per minute on ")
        assert 0.9 * plan.seconds <= max(times) - min(times) <= plan.seconds + BUSY
