"""Budget: whether one more item fits, by facts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.costs.budget import BudgetCounter


def test_estimate_counts_until_an_item_has_ended() -> None:
    budget = BudgetCounter(1.0, estimate=0.4)
    for item in ("a", "b"):
        assert budget.admits_item()
        budget.start(item)
    assert not budget.admits_item()  # 0.8 is expected of those that run


def test_mean_of_ended_items_replaces_the_estimate() -> None:
    budget = BudgetCounter(1.0, estimate=0.6)
    budget.start("a")
    budget.spend("a", 0.1)
    budget.end("a", is_finished=True)
    assert budget.expected_item() == 0.1
    started = 0
    while budget.admits_item():
        budget.start(started)
        started += 1
    assert started == 9


def test_running_item_reserves_the_rest_of_its_amount() -> None:
    budget = BudgetCounter(1.0, estimate=0.5)
    budget.start("a")
    budget.spend("a", 0.3)
    assert budget.admits_item()  # 0.3 spent, 0.2 expected of a, 0.5 of the next
    budget.spend("a", 0.3)
    assert not budget.admits_item()  # 0.6 spent by a, which is more than expected


def test_interrupted_item_returns_its_rest_and_changes_no_mean() -> None:
    budget = BudgetCounter(1.0, estimate=0.8)
    budget.start("a")
    budget.spend("a", 0.2)
    budget.end("a", is_finished=False)
    assert budget.expected_item() == 0.8
    assert budget.admits_item()


def test_mean_counts_all_attempts_of_an_item() -> None:
    budget = BudgetCounter(10.0)
    for is_finished in (False, True):
        budget.start("a")
        budget.spend("a", 1.0)
        budget.end("a", is_finished=is_finished)
    assert budget.expected_item() == 2.0


def test_spending_of_earlier_launches_counts() -> None:
    assert not BudgetCounter(1.0, spent=1.0, ended=4).admits_item()
    assert BudgetCounter(1.0, spent=0.4, ended=4, ended_spent=0.4).expected_item() == 0.1


def test_unfinished_items_of_earlier_launches_change_no_mean() -> None:
    budget = BudgetCounter(10.0, spent=8.0, ended=1, ended_spent=1.0)
    assert budget.expected_item() == 1.0
    assert budget.admits_item()


def test_late_spending_of_an_ended_item_counts() -> None:
    budget = BudgetCounter(1.0)
    budget.start("a")
    budget.end("a", is_finished=True)
    budget.spend("a", 1.0)
    assert budget.is_reached
    assert budget.expected_item() == 1.0


def test_free_items_start_until_the_budget_is_reached() -> None:
    budget = BudgetCounter(1.0)
    assert budget.admits_item()
    budget.spend("elsewhere", 1.0)
    assert not budget.admits_item()


@given(
    st.floats(0.1, 100),
    st.floats(0, 10),
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 10), st.booleans()), max_size=60),
)
def test_only_running_items_spend_beyond_the_budget(
    limit: float, estimate: float, events: list[tuple[int, float, bool]]
) -> None:  # invariant 40
    budget = BudgetCounter(limit, estimate=estimate)
    running: set[int] = set()
    at_limit: set[int] | None = None  # items that were running when the budget was reached
    for number, (item, amount, ends) in enumerate(events):
        if item not in running:
            if not budget.admits_item():
                continue
            assert at_limit is None
            assert budget.spent + budget.expected_item() <= limit
            running.add(item)
            budget.start(item)
        budget.spend(item, amount)
        if budget.is_reached and at_limit is None:
            at_limit = set(running)
        if ends:
            running.remove(item)
            budget.end(item, is_finished=number % 3 > 0)
    for item in running:
        budget.end(item, is_finished=True)
    assert budget._reserved == 0


@pytest.mark.parametrize(("cost", "limit", "items"), [(0.01, 1.0, 100), (0.07, 0.7, 10), (0.1, 0.3, 3), (7, 49, 7)])
@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_as_many_items_start_as_the_budget_pays(cost: float, limit: float, items: int, at_once: int) -> None:
    budget, running, started = BudgetCounter(limit, estimate=cost), [], 0
    while budget.admits_item() or running:
        if budget.admits_item() and len(running) < at_once:
            started += 1
            budget.start(started)
            running.append(started)
        else:
            item = running.pop(0)
            budget.spend(item, cost / 3)
            budget.spend(item, cost - cost / 3)
            budget.end(item, is_finished=True)
    assert started == items
    assert budget.spent == limit
