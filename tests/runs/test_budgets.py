"""Budgets of runs and items: what starts, what stops, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from agentos.bounds import BUDGET, Bound
from agentos.workflows.parallel import (
    Budget,
    Credential,
    CredentialCoordinator,
    Ledger,
    Limits,
    ParallelCoordinator,
    Price,
    Window,
    current_item,
)
from tests.conftest import eventually
from tests.support.fake_access import FakeAccess

from .coordinators import KEYS, by_id, quiet

ITEMS = [f"item-{number:02}" for number in range(20)]


def reporting(cost: float = 1.0, tokens: int = 10) -> Any:
    """Return a worker that reports what it spent."""

    def worker(item: str, _: Any) -> str:
        current_item().report_usage(tokens=tokens, cost=cost)
        return item

    return worker


def make_pool() -> CredentialCoordinator:
    return CredentialCoordinator(KEYS[:1], reporter=lambda _: None)


# --- windows of cost --------------------------------------------------------------------------------------------------


def test_reported_cost_counts_in_windows() -> None:
    windows = (Window("cost", 100, "1h"), Window("tokens", 1_000, "1h"))
    pool = CredentialCoordinator([Credential(KEYS[0], limits=Limits(windows=windows))], reporter=lambda _: None)
    stats, _ = quiet(1, pool).execute_parallel(ITEMS, reporting(0.07))
    (state,) = pool.states()
    assert state.used == {"cost per hour": (1.4, 100), "tokens per hour": (200, 1_000)}
    assert stats.cost == 1.4


def test_spent_window_of_cost_stops_a_run() -> None:
    """A cost that is reported after the request is debt: one item passes the limit, and none starts after it."""
    limits = Limits(windows=(Window("cost", 0.21, "1h"),))
    pool = CredentialCoordinator([Credential(KEYS[0], limits=limits)], reporter=lambda _: None)
    stats, results = quiet(1, pool, max_wait=0.0).execute_parallel(ITEMS, reporting(0.1))
    assert len(results) == 3
    assert "the next credential is usable in 60.0 minutes" in (stats.stopped or "")


# --- the budget of a run ----------------------------------------------------------------------------------------------


def test_nothing_starts_beyond_the_budget() -> None:
    coordinator = quiet(1, budget=Budget(5, is_reported=True))
    stats, results = coordinator.execute_parallel(ITEMS, reporting())
    assert len(results) == 5
    assert (stats.cost, stats.tokens, stats.budget) == (5.0, 50, 5)
    assert stats.stopped is not None
    assert "the budget of 5.00 is used up: 5.00 spent" in stats.stopped
    assert coordinator.get_checkpoints() == ITEMS[5:]


def test_items_that_run_are_expected_to_cost_the_mean() -> None:
    """Four items start before a cost is known; later ones only if all that run fits."""
    running, most = 0, 0
    lock = threading.Lock()

    def worker(_item: str, _: Any) -> None:
        nonlocal running, most
        with lock:
            running += 1
            if spent():
                most = max(most, running)
        current_item().report_usage(cost=1.0)
        with lock:
            running -= 1

    def spent() -> float:
        return coordinator._runs._runs[0].stats.cost or 0.0

    coordinator = quiet(4, budget=Budget(9, is_reported=True))
    stats, _ = coordinator.execute_parallel(ITEMS, worker)
    assert stats.cost == 9.0
    assert most <= 4


def test_estimate_bounds_the_first_items() -> None:
    gate = threading.Event()
    coordinator = quiet(4, budget=Budget(1.0, item_cost=0.4, is_reported=True))

    def worker(_item: str, _: Any) -> None:
        gate.wait(30)
        current_item().report_usage(cost=0.4)

    with coordinator.stream(ITEMS, worker) as results:
        eventually(lambda: results.stats.running == 2)
        eventually(lambda: results.bound() == Bound(BUDGET))
        gate.set()
        assert len(list(results)) == 2


def test_token_budget_stops_the_run() -> None:
    stats, results = quiet(1, budget=Budget(tokens=30, is_reported=True)).execute_parallel(ITEMS, reporting())
    assert len(results) == 3
    assert stats.stopped is not None
    assert "30 tokens" in stats.stopped


def test_retry_starts_only_within_the_budget() -> None:
    def worker(_item: str, _: Any) -> None:
        current_item().report_usage(cost=1.0)
        raise ConnectionError("reset")

    stats, results = quiet(1, retries=5, budget=Budget(2, is_reported=True)).execute_parallel(["a"], worker)
    assert stats.cost == 2.0
    assert not results  # unfinished


def test_resume_counts_what_earlier_launches_spent(tmp_path: Path) -> None:
    def run(money: float) -> tuple[Any, int]:
        coordinator = quiet(1, ledger=tmp_path / "ledger.db", budget=Budget(money, is_reported=True))
        stats, results = coordinator.execute_parallel(ITEMS, reporting())
        return stats, len(results)

    assert run(5)[1] == 5
    stats, ended = run(5)
    assert (stats.cost, ended) == (5.0, 5)
    assert "used up" in stats.stopped
    stats, ended = run(8)
    assert (stats.cost, ended) == (8.0, 8)
    stats, ended = run(100)
    assert (stats.cost, ended, stats.stopped) == (20.0, 20, None)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.spent()[:3] == (20.0, 200, 20)


def test_resume_expects_what_ended_items_have_spent(tmp_path: Path) -> None:
    """The item that was unfinished spent most: it must not raise what each further item is expected to spend."""

    def worker(item: str, _: Any) -> None:
        current_item().report_usage(tokens=10, cost=1.0)
        if item == "b" and len(results) == 0:
            raise ConnectionError("reset")

    results: list[Any] = []
    for money, count in ((6, 1), (7, 2)):
        coordinator = quiet(1, ledger=tmp_path / "ledger.db", retries=9, budget=Budget(money, is_reported=True))
        stats, results = coordinator.execute_parallel(["a", "b"], worker)
        assert len(results) == count
    assert stats.cost == 7.0


def test_spent_by_ended_items_is_told_apart(tmp_path: Path) -> None:
    def worker(item: str, _: Any) -> None:
        current_item().report_usage(tokens=10, cost=1.0)
        if item == "b":
            raise ConnectionError("reset")

    coordinator = quiet(1, ledger=tmp_path / "ledger.db", retries=9, budget=Budget(6, is_reported=True))
    coordinator.execute_parallel(["a", "b"], worker)
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        spent = ledger.spent()
    assert (spent.cost, spent.ended, spent.item_cost) == (6.0, 1, 1.0)
    assert (spent.tokens, spent.ended_tokens) == (60, 10)


def test_run_that_stays_within_its_budget_ends_normally() -> None:
    stats, results = quiet(2, budget=Budget(20, is_reported=True)).execute_parallel(ITEMS, reporting())
    assert (len(results), stats.stopped, stats.expected_cost) == (20, None, 20.0)


# --- the budget of an item --------------------------------------------------------------------------------------------


def test_item_at_its_budget_fails_with_budget_exceeded() -> None:
    calls = []

    def worker(item: str, _: Any) -> None:
        for _ in range(10):
            calls.append(item)
            current_item().report_usage(cost=0.1 if item == "cheap" else 0.3)
            if item == "cheap":
                return

    budget = Budget(item=0.5, is_reported=True)
    results = by_id(quiet(1, budget=budget).execute_parallel(["dear", "cheap"], worker)[1])
    assert results["cheap"].success
    assert results["dear"].metadata["error_type"] == "BudgetExceeded"
    assert results["dear"].error == "the item has spent 0.60 of its budget of 0.50"
    assert (calls.count("dear"), results["dear"].attempts) == (2, 1)


def test_item_budget_counts_earlier_launches(tmp_path: Path) -> None:
    def run() -> dict[str, Any]:
        budget = Budget(item=0.5, is_reported=True)
        coordinator = quiet(1, ledger=tmp_path / "ledger.db", budget=budget, retry_failed=True)
        return by_id(coordinator.execute_parallel(["a"], reporting(0.6))[1])

    assert run()["a"].metadata["error_type"] == "BudgetExceeded"
    again = run()["a"]
    assert again.metadata["error_type"] == "BudgetExceeded"
    assert again.attempts == 0  # it was not started again


# --- with a gateway ---------------------------------------------------------------------------------------------------


@pytest.fixture
def access() -> FakeAccess:
    return FakeAccess()


def asking(access: FakeAccess, cost: float | None = 1.0, count: int = 1) -> Any:
    """Return a worker that sends requests, as the gateway would let it, and fails if one is refused."""

    def worker(item: str, token: Any) -> str:
        for _ in range(count):
            meter = access.meters[token]
            assert meter is not None
            refusal = meter.refusal("a-model", cost)
            if refusal is not None:
                raise RuntimeError(f"402 {refusal}")
            access.use(token, requests=1, output_tokens=5, cost=cost or 0.0)
        return item

    return worker


def test_soft_budget_lets_running_items_finish(access: FakeAccess) -> None:
    coordinator = quiet(1, make_pool(), gateway=access, budget=3.5)
    stats, results = coordinator.execute_parallel(ITEMS, asking(access, count=2))
    assert [result.success for result in results] == [True]  # the second would cost 2 of the 1.5 that are left
    assert stats.cost == 2.0


def test_hard_budget_leaves_refused_items_unfinished(access: FakeAccess) -> None:
    coordinator = quiet(1, make_pool(), gateway=access, budget=Budget(3, is_hard=True), retries=2)
    stats, results = coordinator.execute_parallel(ITEMS, asking(access, count=5))
    assert (stats.cost, results, stats.failed) == (3.0, [], 0)
    assert "used up" in (stats.stopped or "")
    assert coordinator.get_checkpoints() == ITEMS


def test_item_budget_refuses_further_requests(access: FakeAccess) -> None:
    coordinator = quiet(2, make_pool(), gateway=access, budget=Budget(item=2.0), retries=2)
    stats, results = coordinator.execute_parallel(["a", "b"], asking(access, count=5))
    assert {result.metadata["error_type"] for result in results} == {"BudgetExceeded"}
    assert (stats.cost, len(access.tokens)) == (4.0, 2)


def test_unknown_price_stops_the_run_before_a_request(access: FakeAccess) -> None:
    coordinator = quiet(1, make_pool(), gateway=access, budget=100)
    stats, results = coordinator.execute_parallel(ITEMS, asking(access, cost=None))
    assert (results, stats.cost, len(access.tokens)) == ([], 0.0, 1)
    assert 'add [price."a-model"]' in (stats.stopped or "")


@pytest.mark.parametrize(
    ("budget", "cost", "bound_by"),
    [
        (100, None, "the budget: what a request or an item has cost is not known"),
        (Budget(3, is_hard=True), 1.0, "the budget: the next item may cost more than is left"),
    ],
)
def test_refused_request_that_ends_a_run_names_the_budget(
    access: FakeAccess, budget: Any, cost: float | None, bound_by: str
) -> None:
    """Its worker is busy until then: that did not end the run."""
    events: list[Any] = []
    coordinator = ParallelCoordinator(1, make_pool(), gateway=access, budget=budget, reporter=events.append)
    coordinator.execute_parallel(ITEMS, asking(access, cost=cost, count=5))
    assert events[-1].bound_by == bound_by


def test_refusal_that_a_worker_hides_is_no_success(access: FakeAccess) -> None:
    def worker(_item: str, token: Any) -> str:
        try:
            asking(access, count=2)("", token)
        except RuntimeError:
            return "made up"
        return "answered"

    coordinator = quiet(1, make_pool(), gateway=access, budget=Budget(1, is_hard=True))
    assert coordinator.execute_parallel(["a"], worker)[1] == []


# --- refused before the start -----------------------------------------------------------------------------------------


def test_success_without_a_report_stops_the_run() -> None:
    stats, results = quiet(1, budget=Budget(5, is_reported=True)).execute_parallel(ITEMS, lambda item, _: item)
    assert len(results) == 1
    assert "has not reported what it spent" in (stats.stopped or "")


def test_run_stopped_by_a_missing_report_is_bound_by_it() -> None:
    events: list[Any] = []
    coordinator = ParallelCoordinator(1, budget=Budget(5, is_reported=True), reporter=events.append)
    coordinator.execute_parallel(ITEMS, lambda item, _: item)
    assert events[-1].bound_by == "the budget: what a request or an item has cost is not known"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"budget": 5}, "nothing counts what the items spend"),
        ({"budget": Budget(5, is_hard=True, is_reported=True)}, "only a gateway can refuse"),
    ],
)
def test_budget_without_a_source_of_usage_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        quiet(1, **options)


def test_budget_without_any_price_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentos.costs.prices.has_published_prices", lambda: False)
    with pytest.raises(ValueError, match="needs the prices of models"):
        quiet(1, make_pool(), gateway=True, budget=5)
    quiet(1, make_pool(), gateway=True, budget=5, prices={"a-model": Price(1, 2)})
    quiet(1, make_pool(), gateway=True, budget=Budget(tokens=5))


@pytest.mark.parametrize("amounts", [{}, {"money": 0}, {"tokens": -1}, {"item": float("nan")}, {"money": "20"}])
def test_wrong_amount_is_refused(amounts: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="budget"):
        Budget(**amounts)


def test_spending_of_a_run_without_a_budget_is_counted(access: FakeAccess) -> None:
    assert quiet(1).execute_parallel(ITEMS[:3], reporting())[0].cost == 3.0
    assert quiet(1).execute_parallel(ITEMS[:3], lambda *_: None)[0].cost is None
    stats, _ = quiet(1, make_pool(), gateway=access).execute_parallel(ITEMS[:3], asking(access))
    assert (stats.cost, stats.tokens, stats.expected_cost) == (3.0, 15, 3.0)
