"""Plans: a run simulated in virtual time predicts the duration and the bottleneck of the real one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import LeaseRecord
from agentos.pool.simulation import Simulation, Work, simulate
from agentos.pool.states import CredentialForecast
from agentos.pool.states import forecast as forecast_of
from agentos.testing import FakeClock
from agentos.verdict import QUOTA_EXHAUSTED, RATE_LIMITED, Verdict
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator, RateLimited


def coordinator(workers: int, *limits: Limits, clock: FakeClock | None = None, **options: Any) -> ParallelCoordinator:
    keys = [Credential(f"sk-plan-secret-{n}", id=f"key-{n}", **options, limits=rules) for n, rules in enumerate(limits)]
    pool = CredentialCoordinator(keys, clock=clock or FakeClock())
    return ParallelCoordinator(workers, pool, max_parallelism=1000, reporter=None)


def test_plan_bound_by_requests_per_minute() -> None:
    rules = Limits(requests_per_minute=600, burst=10, max_concurrent=4)
    plan = coordinator(32, *[rules] * 8).plan(1600, item_seconds=0.02)
    assert plan.seconds == pytest.approx(19.0, rel=0.01)
    assert plan.bound_by == "requests per minute on all 8 keys (4,800 together)"
    assert sum(plan.requests.values()) == 1600
    assert all(share > 0.99 for share in plan.utilisation.values())
    assert plan.changes["one more credential"] == pytest.approx(19.0 * 8 / 9, rel=0.02)
    assert plan.changes["twice the requests per minute"] == pytest.approx(19.0 / 2, rel=0.05)


def test_plan_bound_by_workers() -> None:
    plan = coordinator(5, Limits(max_concurrent=50)).plan(100, item_seconds=1.0)
    assert plan.seconds == pytest.approx(20.0, rel=0.1)
    assert plan.bound_by == "5 workers, not the keys"
    assert plan.changes["twice the workers"] < 0.6 * plan.seconds


def test_plan_bound_by_credentials_in_use() -> None:
    plan = coordinator(20, Limits(max_concurrent=2)).plan(100, item_seconds=1.0)
    assert plan.seconds == pytest.approx(50.0, rel=0.1)
    assert "max_concurrent" in plan.bound_by
    assert plan.changes["one more credential"] < 0.6 * plan.seconds


def test_plan_bound_by_tokens_per_minute() -> None:
    plan = coordinator(10, Limits(tokens_per_minute=1000, max_concurrent=10)).plan(50, item_seconds=0.1, tokens=100)
    assert plan.seconds == pytest.approx(240, rel=0.05)
    assert plan.bound_by == "tokens per minute on key-0 (1,000)"


def test_plan_counts_requests_of_each_item() -> None:
    """Ten requests of 0.1 s and ten tokens each: limits count requests, and the plan items."""
    rules = Limits(requests_per_minute=600, burst=10, tokens_per_minute=1_000_000, max_concurrent=10)
    plan = coordinator(10, rules).plan(60, item_seconds=1.0, tokens=100, requests_per_item=10)
    assert plan.seconds == pytest.approx(59.0, rel=0.02)
    assert (plan.items, sum(plan.requests.values())) == (60, 600)
    assert plan.bound_by == "requests per minute on key-0 (600)"


def test_plan_counts_tokens_of_each_item() -> None:
    planner = coordinator(10, Limits(tokens_per_minute=1000, max_concurrent=10))
    plan = planner.plan([100, 900, 1000], item_seconds=0.1, tokens_func=lambda item: item)
    assert plan.seconds == pytest.approx(60.1, rel=0.01)


def test_plan_with_daily_limit_takes_days() -> None:
    plan = coordinator(3, Limits(requests_per_day=100, max_concurrent=3)).plan(250, item_seconds=1.0)
    assert plan.seconds == pytest.approx((16 + 24) * 3600, rel=0.01)  # the fake clock starts at eight in the morning
    assert plan.bound_by == "requests per day on key-0 (100)"
    assert "40.0 hours" in str(plan)


def test_keys_of_one_group_share_their_capacity() -> None:
    rules = Limits(requests_per_minute=60, burst=1)
    one_group = coordinator(9, rules, rules, quota_group="team").plan(60, item_seconds=0.1)
    two_groups = coordinator(9, rules, rules).plan(60, item_seconds=0.1)
    assert one_group.seconds == pytest.approx(2 * two_groups.seconds, rel=0.05)


def test_plan_includes_cooldowns() -> None:
    clock = FakeClock()
    planner = coordinator(4, Limits(max_concurrent=4), clock=clock)
    pool = planner.credential_coordinator
    assert pool is not None
    with pytest.raises(RateLimited), pool.lease():
        raise RateLimited(retry_after=100)
    assert planner.plan(1, item_seconds=1).seconds == pytest.approx(101)


def test_plan_without_usable_credential_never_ends() -> None:
    planner = coordinator(4, Limits())
    assert planner.credential_coordinator is not None
    planner.credential_coordinator.quarantine("key-0", "tested")
    plan = planner.plan(10)
    assert plan.seconds == math.inf
    assert plan.bound_by == "the lack of a usable key"
    assert "forever" in str(plan)


@pytest.mark.parametrize("items", [0, [], range(0)])
def test_plan_of_no_items_takes_no_time(items: Any) -> None:
    plan = coordinator(4, Limits()).plan(items)
    assert plan.seconds == 0
    assert plan.changes == {}


def test_plan_without_pool_is_bound_by_workers() -> None:
    plan = ParallelCoordinator(3, reporter=None).plan(["a", "b", "c", "d"], item_seconds=2)
    assert plan.seconds == 4
    assert plan.bound_by == "3 workers"


@pytest.mark.parametrize(
    "arguments",
    [{"items": -1}, {"items": True}, {"items": 5, "item_seconds": 0}, {"items": 5, "item_seconds": math.nan}],
)
def test_plan_with_wrong_argument_raises(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        coordinator(3, Limits()).plan(arguments.pop("items"), **arguments)


def test_plan_uses_no_quota() -> None:
    planner = coordinator(3, Limits(requests_per_minute=1, burst=1))
    planner.plan(100)
    assert planner.credential_coordinator is not None
    assert planner.credential_coordinator.reserve_credential() is not None


def test_plan_text_names_bottleneck_and_changes() -> None:
    text = str(coordinator(3, Limits(requests_per_minute=60)).plan(100, item_seconds=0.5))
    assert text.splitlines()[0].startswith("100 items: about ")
    assert "Bound by: requests per minute" in text
    assert "key-0: 100 requests" in text
    assert "With one more credential" in text


@pytest.mark.parametrize("workers", [7, 60])
@pytest.mark.parametrize("item_seconds", [0.7, 3.0, 90.0])
@pytest.mark.parametrize(
    "limits",
    [
        Limits(max_concurrent=4),
        Limits(requests_per_minute=30, max_concurrent=4),
        Limits(tokens_per_minute=9_000, max_concurrent=9),
        Limits(requests_per_minute=40, burst=15, tokens_per_minute=20_000, max_concurrent=20),
    ],
)
def test_extrapolated_plan_equals_full_simulation(limits: Limits, item_seconds: float, workers: int) -> None:
    credentials = [
        CredentialForecast(f"key-{number}", f"key-{number}", None, frozenset(), limits) for number in range(5)
    ]
    work = Work(6_000, workers, item_seconds, (300,))
    pool = Allocator()
    for forecast in credentials:
        pool.add(forecast.id, forecast.group, None, forecast.scopes, limits, 0.0)
    full = Simulation(pool, work)
    full.run()
    outcome = simulate(credentials, work)
    assert outcome.seconds == pytest.approx(full.ended_at, rel=0.02)
    assert sum(outcome.requests.values()) == 6_000
    longest = full.bound_times.longest()
    assert outcome.bound is not None
    assert longest is not None
    assert outcome.bound[:2] == longest[:2]


def test_plan_has_cost_and_what_the_budget_is_enough_for() -> None:
    runs = coordinator(5, Limits(max_concurrent=50))
    plan = runs.plan(100, item_cost=0.25, budget=10)
    assert plan.cost == 25.0
    assert "  Cost: about 25.00 (0.25 per item); the budget is 10.00, enough for about 40 items" in str(plan)
    assert "  Cost: about 25.00 (0.25 per item)" in str(runs.plan(100, item_cost=0.25))
    assert "  Cost: not known; the budget is 10.00" in str(runs.plan(100, budget=10))
    assert "Cost" not in str(runs.plan(100))
    with pytest.raises(ValueError, match="item_cost"):
        runs.plan(100, item_cost=-1)


def test_plan_without_scope_uses_limits_learned_for_a_model() -> None:
    clock = FakeClock()
    pool = CredentialCoordinator([Credential("sk-scoped-1", id="good", limits=Limits(max_concurrent=4))], clock=clock)
    handle = pool.make_handle(None, 1, 0, "model-a")
    assert pool.request_now(handle)
    pool.observed(handle, Verdict(RATE_LIMITED, limit_requests=180))
    pool.end(handle, None, True)
    plan = ParallelCoordinator(4, pool, clock=clock, reporter=None).plan(1_000, item_seconds=0.5)
    assert plan.unknown == ()
    assert plan.seconds == pytest.approx(333, rel=0.05)


def test_key_without_quota_for_its_model_gets_no_items() -> None:
    clock = FakeClock()
    keys = [Credential(f"sk-quota-{n}", id=f"key-{n}", limits=Limits(max_concurrent=4)) for n in range(2)]
    pool = CredentialCoordinator(keys, clock=clock)
    handle = pool.make_handle(None, 1, 0, "model-a", None, None, "key-0")
    assert pool.request_now(handle)
    pool.end(handle, Verdict(QUOTA_EXHAUSTED, 3_600.0))
    assert ParallelCoordinator(4, pool, clock=clock).plan(7, item_seconds=2).requests == {"key-0": 0, "key-1": 7}


def test_change_that_changes_nothing_is_not_offered() -> None:
    pool = CredentialCoordinator([Credential("sk-auto-1", id="a", limits=Limits(max_concurrent=4))])
    plan = ParallelCoordinator(20, pool, reporter=None).plan(3, item_seconds=2)
    assert list(plan.changes) == ["one more credential"]
    assert str(ParallelCoordinator(2, pool, reporter=None).plan(0, item_seconds=2)) == "0 items: nothing to do"


def test_plan_uses_a_learned_limit_that_another_process_adopted() -> None:
    """Items behind a gateway lease without a model; their requests name one, for which the limit was learned."""
    allocator = Allocator()
    allocator.add("a", "a", None, frozenset(), Limits(max_concurrent=4), 0.0)
    pace = allocator.credentials["a"].group.pace
    for scope in (None, None, "model"):
        record = LeaseRecord(scope=scope)
        assert allocator.request(record, 0.0)
        allocator.lease_end.end(record, 0.0, None)
    pace.start_with("model", 2.0, 0.0)
    assert pace.learned_limits() == {"model": 120.0}
    assert pace.newly_learned("model") is None  # announced by the process that learned it
    assert forecast_of(allocator.credentials["a"], 0.0).learned == 120.0
