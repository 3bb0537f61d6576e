"""RunSpending: what the items of a run spend, by the gateway's count or as workers report it, and its budget.

The rule of a budget is `costs.budget`; here are its amounts (money, tokens, money per item), the lock, and the texts.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentos.costs.amounts import money_text
from agentos.costs.budget import Budget, BudgetCounter
from agentos.errors import BudgetExceeded, ExecutorBroken, WorkerStartError
from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.items.results import ProgressStats, Spent
from agentos.money import money, units

from .._rules.run_options import UNKNOWN_BEFORE

if TYPE_CHECKING:
    from agentos.ledger.record import RunRecord


class RunSpending:
    """The spending of one run. Safe to use from any thread: the gateway's loop counts, the run's thread asks."""

    def __init__(
        self, budget: Budget | None, before: Spent, run_record: RunRecord | None, *, has_gateway: bool
    ) -> None:
        """`before`: by earlier launches. Raise `ValueError` if that is not known, and the budget is an amount of
        money."""
        if budget is not None and budget.has_money and before.cost is None:
            raise ValueError(UNKNOWN_BEFORE)
        self.budget = budget
        self.is_tracked = budget is not None or has_gateway  # by item; else only reports of workers are added up
        self._run_record = run_record if budget is not None else None
        money_limit = tokens = math.inf
        item_cost = item_tokens = 0.0
        if budget is not None:
            money_limit = math.inf if budget.money is None else budget.money
            tokens = math.inf if budget.tokens is None else budget.tokens
            item_cost, item_tokens = budget.item_cost, budget.item_tokens
        self._lock = threading.Lock()
        ended = before.ended
        self._money = BudgetCounter(
            money_limit, spent=before.cost or 0.0, ended=ended, ended_spent=before.ended_cost, estimate=item_cost
        )
        self._tokens = BudgetCounter(
            tokens, spent=before.tokens, ended=ended, ended_spent=before.ended_tokens, estimate=item_tokens
        )
        self._has_unknown_cost = before.cost is None
        # Cost of unfinished items, if each has a budget, in units: sums are exact.
        self._by_item = {item: units(cost) for item, cost in before.by_item.items()}
        self._over_budget = 0  # items that have ended and spent more than that
        self._max_item_units = 0  # of them
        self._unpriced: str | None = None  # why the cost of a request is not known, if that stops the run

    # --- the run's thread -----------------------------------------------------------------------------------------

    def admits_item(self) -> bool:
        """Return whether one more item may start."""
        if self.budget is None:
            return True
        with self._lock:
            return self._unpriced is None and self._money.admits_item() and self._tokens.admits_item()

    def is_cost_unknown(self) -> bool:
        """Return whether nothing starts because the cost of a request or an item is not known."""
        with self._lock:
            return self._unpriced is not None

    def start(self, item: Item) -> None:
        """Reserve what the item is expected to spend."""
        with self._lock:
            self._money.start(item.id)
            self._tokens.start(item.id)

    def end(self, item: Item, *, is_finished: bool) -> None:
        """Return what the item did not spend. `is_finished`: it has a result."""
        with self._lock:
            self._money.end(item.id, is_finished=is_finished)
            self._tokens.end(item.id, is_finished=is_finished)
            if is_finished:
                self._note_item_cost(self._by_item.pop(item.id, 0))

    def stop_reason(self) -> str:
        """Return why nothing new starts although no item runs."""
        with self._lock:
            return self._unpriced or self._reached_text()

    def item_problem(self, item: Item) -> str | None:
        """Return why an item cannot start: it has spent its own budget. None if it can."""
        if self.budget is None or self.budget.item is None:
            return None
        with self._lock:
            return self._item_text(item.id) if self._is_item_reached(item.id) else None

    def outcome(self, attempt: Attempt, exc: BaseException | None) -> BaseException | None:
        """Count what the worker of an ended attempt has reported; return the error that ended it: `BudgetExceeded` if a
        request was refused, or if it failed and its item has spent its own budget."""
        meter: AttemptMeter | None = attempt.meter
        if meter is None:
            if attempt.usage is not None:
                self.spend(attempt.id, int(attempt.usage["tokens"]), attempt.usage["cost"])
            return exc
        meter.count_reported()
        if isinstance(exc, WorkerStartError | ExecutorBroken):
            return exc
        if meter.refused is not None:
            return meter.refused
        if exc is not None and not attempt.should_stop and (problem := self.item_problem(attempt.item)) is not None:
            return BudgetExceeded(problem)
        if exc is None and self._is_unreported(attempt):
            with self._lock:
                self._unpriced = (
                    f"the item {attempt.id[:100]} has not reported what it spent: report it (agentos report usage, "
                    "report_usage), or use a gateway"
                )
        return exc

    def _is_unreported(self, attempt: Attempt) -> bool:
        budget, usage = self.budget, attempt.usage
        if budget is None or not budget.is_reported:
            return False
        if usage is None:
            return True
        return not usage["tokens"] if not budget.has_money else bool(usage["tokens"]) and not usage["cost"]

    # --- any thread -----------------------------------------------------------------------------------------------

    def update(self, stats: ProgressStats, items_to_come: int | None) -> None:
        """Set the figures of a run. `items_to_come`: that have neither started nor ended; None: not known."""
        if self.budget is not None:
            stats.budget, stats.budget_tokens = self.budget.money, self.budget.tokens
            stats.item_budget = self.budget.item
            stats.items_over_budget, stats.max_item_cost = self._over_budget, money(self._max_item_units)
        with self._lock:
            counter, stats.tokens = self._money, int(self._tokens.spent)
            is_known = not self._has_unknown_cost and (self.is_tracked or counter.spent > 0)
            if not self.is_tracked and not counter.spent:
                stats.tokens = 0  # those of earlier launches were reserved, and may not have been used
            stats.cost = counter.spent if is_known else None
            has_expected = is_known and self.is_tracked and items_to_come is not None and counter.expected_item() > 0
            stats.expected_cost = counter.expected_total(items_to_come or 0) if has_expected else None

    def spend(self, item_id: str, tokens: int, cost: float | None) -> None:
        """Count what an item has spent."""
        with self._lock:
            self._tokens.spend(item_id, tokens)
            self._money.spend(item_id, cost or 0.0)
            self._has_unknown_cost = self._has_unknown_cost or cost is None
            if self.budget is not None and self.budget.item is not None:
                self._by_item[item_id] = self._by_item.get(item_id, 0) + units(cost or 0.0)

    def refusal(self, item_id: str, model: str | None, cost: float | None) -> BudgetExceeded | None:
        """Return why an item must not send a request now; None if it may. `cost`: as expected; None: not known."""
        budget = self.budget
        if budget is None:
            return None
        with self._lock:
            if cost is None and budget.has_money:
                self._unpriced = self._unpriced or _unpriced_text(model)
                return BudgetExceeded(self._unpriced, is_of_run=True)
            if budget.is_hard and (self._money.is_reached or self._tokens.is_reached):
                return BudgetExceeded(self._reached_text(), is_of_run=True)
            if budget.item is not None and self._is_item_reached(item_id):
                return BudgetExceeded(self._item_text(item_id))
        return None

    def record(self, attempt: Attempt, on_durable: Callable[[], None]) -> None:
        """Record what the requests of an attempt have used; call `on_durable` when that is committed. Without a ledger
        or a budget nothing waits for the record: it is called at once."""
        if self._run_record is None:
            on_durable()
        else:
            self._run_record.usage_changed(attempt, on_durable)

    # --- with the lock --------------------------------------------------------------------------------------------

    def _note_item_cost(self, spent: int) -> None:
        if self.budget is not None and self.budget.item is not None and spent > units(self.budget.item):
            self._over_budget += 1
            self._max_item_units = max(self._max_item_units, spent)

    def _is_item_reached(self, item_id: str) -> bool:
        assert self.budget is not None
        assert self.budget.item is not None
        return self._by_item.get(item_id, 0) >= units(self.budget.item)

    def _item_text(self, item_id: str) -> str:
        assert self.budget is not None
        spent, limit = money(self._by_item.get(item_id, 0)), self.budget.item or 0.0
        return f"the item has spent {money_text(spent)} of its budget of {money_text(limit)}"

    def _reached_text(self) -> str:
        in_money, tokens = self._money, self._tokens
        if tokens.is_reached or not tokens.admits_item():
            text = f"the budget of {tokens.limit:,.0f} tokens is used up: {tokens.spent:,.0f} spent"
            rest = "" if tokens.is_reached else f", and an item uses about {tokens.expected_item():,.0f}"
        else:
            text = f"the budget of {money_text(in_money.limit)} is used up: {money_text(in_money.spent)} spent"
            rest = "" if in_money.is_reached else f", and an item costs about {money_text(in_money.expected_item())}"
        return text + rest


class AttemptMeter:
    """Watches what one attempt spends: a `RequestMeter` for the gateway, and the reports of the worker."""

    __slots__ = ("_attempt", "_cost", "_spending", "_tokens", "refused")

    def __init__(self, spending: RunSpending, attempt: Attempt) -> None:
        self._spending = spending
        self._attempt = attempt
        self.refused: BudgetExceeded | None = None  # why its first refused request was not sent
        self._cost = 0.0  # of the worker's reports, counted so far
        self._tokens = 0

    def refusal(self, model: str | None, cost: float | None, /) -> str | None:
        """Return why the next request must not be sent; None if it may."""
        refused = self._spending.refusal(self._attempt.id, model, cost)
        if refused is None:
            return None
        self.refused = self.refused or refused
        return str(refused)

    def record(self, on_durable: Callable[[], None], /) -> None:
        """Record the usage of the attempt; call `on_durable` when that is committed."""
        self._spending.record(self._attempt, on_durable)

    def spent(self, tokens: int, cost: float | None, /) -> None:
        """Count what a request has used."""
        self._spending.spend(self._attempt.id, tokens, cost)

    def count_reported(self) -> None:
        """Count what the worker has reported since the last call. No-op with a gateway, which counts by itself."""
        usage = self._attempt.usage
        if usage is None or self._attempt.context.access is not None:
            return
        tokens, cost = int(usage["tokens"]), usage["cost"]
        if (tokens, cost) != (self._tokens, self._cost):
            self._spending.spend(self._attempt.id, tokens - self._tokens, cost - self._cost)
            self._tokens, self._cost = tokens, cost

    def reported(self) -> None:
        """Count and record a report of a running worker. Raise `BudgetExceeded` if its item has spent its own
        budget."""
        self.count_reported()
        self._spending.record(self._attempt, lambda: None)
        if (problem := self._spending.item_problem(self._attempt.item)) is not None:
            raise BudgetExceeded(problem)


def _unpriced_text(model: str | None) -> str:
    if model is None:
        return "a request names no model, so that its price is not known: a run with a budget cannot send it"
    return (
        f'the price of the model {model[:100]} is not known: add [price."{model[:100]}"] with input and output (money '
        "per million tokens) to the keys file"
    )
