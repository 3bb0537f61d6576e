"""Plans of runs whose keys have windows of every kind, beside the run itself in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.events import RunEnded
from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Limits,
    ParallelCoordinator,
    QuotaExhausted,
    RunPlan,
    Window,
)
from tests.support.virtual_runs import Outcome, VirtualRun, run_all

HOUR, DAY = 3600.0, 86_400.0


def pool_of(clock: FakeClock, count: int, limits: Limits, **more: Any) -> CredentialCoordinator:
    keys = [Credential(f"sk-window-{n}", id=f"key-{n}", limits=limits, **more) for n in range(count)]
    return CredentialCoordinator(keys, clock=clock)


def plan_of(pool: CredentialCoordinator, clock: FakeClock, items: int, workers: int | str = 8, **more: Any) -> RunPlan:
    cap = None if workers == "auto" else 1000
    coordinator = ParallelCoordinator(workers, pool, max_parallelism=cap, reporter=None, clock=clock)
    return coordinator.plan(items, **{"item_seconds": 2.0, **more})


def run_in_virtual_time(pool: CredentialCoordinator, clock: FakeClock, items: int, tokens: int) -> tuple[float, str]:
    """Carry the run out, with the real driver and the real pool; return its seconds and what bound it."""
    began = clock.now()
    names = [f"item-{number}" for number in range(items)]
    run = VirtualRun(names, lambda _: Outcome(2.0), pool, clock, workers=8, tokens=tokens)
    run_all(clock, run, seconds=40 * DAY)
    assert len(run.results) == items
    (ended,) = run.events_of(RunEnded)
    return max(start.at for start in run.starts) + 2.0 - began, ended.bound_by


WINDOWS = {
    "requests per minute": Limits(requests_per_minute=30, burst=2, max_concurrent=4),
    "tokens per minute": Limits(tokens_per_minute=3_000, max_concurrent=4),
    "input tokens per minute": Limits(input_tokens_per_minute=3_000, max_concurrent=4),
    "output tokens per minute": Limits(output_tokens_per_minute=3_000, max_concurrent=4),
    "requests per 5 hours": Limits(windows=(Window("requests", 50, "5h", "first-use"),), max_concurrent=4),
    "tokens per 5 hours": Limits(windows=(Window("tokens", 6_000, "5h"),), max_concurrent=4),
    "requests per week": Limits(windows=(Window("requests", 90, "7d", "mon 00:00 UTC"),), max_concurrent=4),
    "requests per day": Limits(requests_per_day=60, max_concurrent=4),
    "requests per hour": Limits(windows=(Window("requests", 60, "1h"),), reserve=0.5, max_concurrent=4),
    "max_concurrent": Limits(max_concurrent=2),
    "slow start": Limits(max_concurrent=64),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_plan_is_within_five_percent_of_the_run(name: str) -> None:
    clock = FakeClock()
    pool = pool_of(clock, 2, WINDOWS[name])
    plan = plan_of(pool, clock, 200, tokens=100)
    seconds, bound_by = run_in_virtual_time(pool, clock, 200, 100)
    assert plan.seconds == pytest.approx(seconds, rel=0.05)
    if name not in ("slow start", "max_concurrent"):
        assert plan.bound_by.startswith(f"{name} on all 2 keys")
    assert plan.bound_by.partition(";")[0] == bound_by.partition(";")[0]


@pytest.mark.parametrize("name", WINDOWS)
def test_plan_in_the_middle_of_windows_counts_their_usage(name: str) -> None:
    """Usage leaves a window at its own instants: a plan must not count it as used now, nor forget it."""
    clock = FakeClock()
    pool = pool_of(clock, 2, WINDOWS[name])
    run_in_virtual_time(pool, clock, 70, 100)
    clock.advance(33.0)
    plan = plan_of(pool, clock, 150, tokens=100)
    seconds, _ = run_in_virtual_time(pool, clock, 150, 100)
    assert plan.seconds == pytest.approx(seconds, rel=0.05)


def test_plan_of_five_hour_windows_takes_whole_windows() -> None:
    clock = FakeClock()
    limits = Limits(windows=(Window("requests", 100, "5h", "first-use"),), max_concurrent=10)
    plan = plan_of(pool_of(clock, 1, limits), clock, 250, workers=10)
    assert plan.seconds == pytest.approx(2 * 5 * HOUR, rel=0.02)
    assert plan.changes["twice the requests per 5 hours"] == pytest.approx(5 * HOUR, rel=0.02)


def test_window_that_binds_late_is_not_extrapolated_over() -> None:
    """For ten minutes the same number of items starts in each."""
    clock = FakeClock()
    limits = Limits(windows=(Window("requests", 600, "5h", "first-use"),), requests_per_minute=60, max_concurrent=10)
    plan = plan_of(pool_of(clock, 1, limits), clock, 1_500, workers=10)
    assert plan.seconds == pytest.approx(2 * 5 * HOUR + 300.0, rel=0.02)


def test_cost_window_binds_a_plan() -> None:
    clock = FakeClock()
    limits = Limits(windows=(Window("cost", 1.0, "1h"),), max_concurrent=10)
    plan = plan_of(pool_of(clock, 1, limits), clock, 300, workers=10, item_cost=0.01)
    assert plan.seconds == pytest.approx(2 * HOUR, rel=0.02)
    assert plan.bound_by == "cost per hour on key-0 (1)"
    assert plan.cost == pytest.approx(3.0)


def test_direction_of_tokens_decides_which_window_binds() -> None:
    clock = FakeClock()
    limits = Limits(input_tokens_per_minute=10_000, output_tokens_per_minute=1_000, max_concurrent=10)
    pool = pool_of(clock, 1, limits)
    by_output = plan_of(pool, clock, 100, input_tokens=500, output_tokens=100)
    by_input = plan_of(pool, clock, 100, input_tokens=5_000, output_tokens=100)
    assert by_output.bound_by == "output tokens per minute on key-0 (1,000)"
    assert by_input.bound_by == "input tokens per minute on key-0 (10,000)"
    assert by_output.seconds == pytest.approx(9 * 60, rel=0.05)


def test_window_of_a_scope_counts_items_of_that_scope_only() -> None:
    clock = FakeClock()
    limits = Limits(windows=(Window("requests", 10, "1h", scope="*opus*"),), max_concurrent=10)
    pool = pool_of(clock, 1, limits)
    assert plan_of(pool, clock, 30, scope="haiku").seconds < 60
    opus = plan_of(pool, clock, 30, scope="claude-opus")
    assert opus.seconds == pytest.approx(2 * HOUR, rel=0.02)
    assert opus.bound_by == "requests per hour for *opus* on key-0 (10)"


def test_group_shares_windows_and_their_usage() -> None:
    clock = FakeClock()
    limits = Limits(windows=(Window("requests", 100, "5h", "first-use"),), max_concurrent=10)
    pool = pool_of(clock, 2, limits, quota_group="team")
    for _ in range(40):
        with pool.lease():
            pass
    clock.advance(HOUR)
    plan = plan_of(pool, clock, 100)
    assert plan.seconds == pytest.approx(4 * HOUR, rel=0.02)
    assert plan.bound_by == "requests per 5 hours on team (100)"


def test_automatic_workers_follow_each_what_if() -> None:
    """Before, the number of workers stayed as it was, and so no change would have helped."""
    clock = FakeClock()
    plan = plan_of(pool_of(clock, 2, Limits(max_concurrent=4)), clock, 400, workers="auto")
    assert plan.workers == 8
    assert plan.bound_by == "max_concurrent: 8 requests at once on 2 keys, all in use"
    assert plan.changes["one more credential"] == pytest.approx(plan.seconds * 2 / 3, rel=0.06)
    assert plan.changes["twice max_concurrent"] == pytest.approx(plan.seconds / 2, rel=0.06)
    assert "up to 8 items at once" in str(plan)


def test_unmet_learned_concurrency_grows_in_a_plan() -> None:
    clock = FakeClock()
    pool = pool_of(clock, 1, Limits(max_concurrent="auto"))
    plan = plan_of(pool, clock, 2_000, workers="auto", item_seconds=10.0)
    assert plan.workers > 100
    assert plan.seconds < 2_000 * 10.0 / 4 / 5


def test_quota_that_is_out_delays_a_plan_and_is_named() -> None:
    clock = FakeClock()
    pool = pool_of(clock, 1, Limits(max_concurrent=4))
    with pytest.raises(QuotaExhausted), pool.lease():
        raise QuotaExhausted(until=clock.epoch() + 7_200)
    plan = plan_of(pool, clock, 4)
    assert plan.seconds == pytest.approx(7_202, rel=0.01)
    assert plan.bound_by == "the used-up quota of key-0"


def test_plan_says_when_the_run_is_done() -> None:
    clock = FakeClock()
    plan = plan_of(pool_of(clock, 1, Limits(max_concurrent=1)), clock, 100, item_seconds=36.0)
    assert plan.starts_at == clock.epoch()
    assert plan.ends_at == pytest.approx(clock.epoch() + 3_600, rel=1e-6)
    assert ", done by " in str(plan).splitlines()[0]


@pytest.mark.parametrize("windows", [(), (Window("requests", 100_000, "5h"),), (Window("requests", 400, "1h"),)])
def test_reduced_what_ifs_equal_whole_ones(windows: tuple[Window, ...]) -> None:
    """Of equal credentials a part is simulated; of others all are."""
    clock = FakeClock()
    limits = Limits(requests_per_minute=60, burst=2, max_concurrent=4, windows=windows)
    equal = pool_of(clock, 10, limits)
    plan = plan_of(equal, clock, 30_000, workers=100)
    with equal.lease():  # makes one unlike the others
        pass
    whole = plan_of(equal, clock, 30_000, workers=100)
    assert plan.changes.keys() == whole.changes.keys()
    for change, seconds in plan.changes.items():
        assert seconds == pytest.approx(whole.changes[change], rel=0.05)
