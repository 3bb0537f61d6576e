"""`Budget`: what a run and its items may spend. `BudgetCounter`: whether one more item fits into one amount.

Pure: the run reports what starts, what is spent and what ends. An item is expected to spend the mean of the items that
have ended; before any has, what the caller estimates. A running item is expected to spend the rest of what was expected
when it started; what it spends beyond that counts when it is spent. Amounts are counted in units of `agentos.money`,
so that sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass

from agentos.money import money, units


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend. At the budget nothing new starts and running items finish. Raise `ValueError` for an amount
    that is not above 0, and if no amount is given."""

    money: float | None = None  # for the whole run, in the currency of the prices
    _: KW_ONLY
    tokens: int | None = None  # for the whole run: input and output, without what was read from a prompt cache
    item: float | None = None  # money for each item: one that wants more fails with `BudgetExceeded`
    is_hard: bool = False  # at the budget further requests of running items are refused, too: only with a gateway
    is_reported: bool = False  # workers report what they spend; else the gateway counts it
    item_cost: float = 0.0  # what an item is expected to cost until the first one has ended
    item_tokens: int = 0  # the same in tokens

    def __post_init__(self) -> None:
        for name in ("money", "tokens", "item"):
            amount = getattr(self, name)
            if amount is not None and not _is_amount(amount, is_zero_allowed=False):
                raise ValueError(f"{name} of a budget must be a number above 0, not {amount!r}")
        for name in ("item_cost", "item_tokens"):
            if not _is_amount(getattr(self, name), is_zero_allowed=True):
                raise ValueError(f"{name} of a budget must be a number from 0, not {getattr(self, name)!r}")
        if self.money is None and self.tokens is None and self.item is None:
            raise ValueError("a budget needs an amount: money, tokens or item")

    @property
    def has_money(self) -> bool:
        """Return whether money is counted, so that every model needs a price."""
        return self.money is not None or self.item is not None


def _is_amount(amount: object, *, is_zero_allowed: bool) -> bool:
    is_number = isinstance(amount, int | float) and not isinstance(amount, bool)
    return is_number and (amount >= 0 if is_zero_allowed else amount > 0) and amount < math.inf  # type: ignore[operator]


class BudgetCounter:
    """One amount that all items of a run share: money or tokens."""

    __slots__ = (
        "_earlier",
        "_ended",
        "_ended_units",
        "_estimate",
        "_limit_units",
        "_reserved",
        "_running",
        "_spent_units",
        "limit",
    )

    def __init__(
        self, limit: float, *, spent: float = 0.0, ended: int = 0, ended_spent: float = 0.0, estimate: float = 0.0
    ) -> None:
        """`spent`: by earlier launches of the run, of which `ended` items have ended that spent `ended_spent`.
        `estimate`: of one item, used until an item has ended."""
        self.limit = limit
        self._limit_units = units(limit) if limit < math.inf else math.inf
        self._spent_units = units(spent)
        self._ended = ended
        self._ended_units = units(ended_spent)
        self._estimate = units(estimate)
        self._running: dict[Hashable, tuple[int, int]] = {}  # item -> units spent by it, rest that is expected
        self._reserved = 0  # sum of these rests
        self._earlier: dict[Hashable, int] = {}  # spent by earlier attempts of items that go on later

    @property
    def spent(self) -> float:
        """Return what was spent."""
        return money(self._spent_units)

    def expected_item(self) -> float:
        """Return what one more item is expected to spend."""
        return money(self._expected_units())

    def _expected_units(self) -> int:
        # Rounded down: as many items fit as the mean says.
        return self._ended_units // self._ended if self._ended else self._estimate

    def admits_item(self) -> bool:
        """Return whether one more item may start: what was spent, the rest of what runs and its own amount fit. An item
        that is expected to spend nothing starts while the budget is not reached."""
        total = self._spent_units + self._reserved + self._expected_units()
        return total <= self._limit_units and not self.is_reached

    def expected_total(self, items: int) -> float:
        """Return what will be spent when `items` more have ended, in addition to those that run."""
        return money(self._spent_units + self._reserved + items * self._expected_units())

    @property
    def is_reached(self) -> bool:
        """Return whether as much was spent as the budget allows: a hard budget refuses further requests then."""
        return self._spent_units >= self._limit_units

    def start(self, item: Hashable) -> None:
        """Reserve what an item is expected to spend. Another attempt of a running item changes nothing."""
        if item not in self._running:
            expected = self._expected_units()
            self._running[item] = (self._earlier.pop(item, 0), expected)
            self._reserved += expected

    def spend(self, item: Hashable, amount: float) -> None:
        """Count what an item has spent, also if it is not running any more."""
        more = units(amount)
        self._spent_units += more
        if item in self._running:
            spent, rest = self._running[item]
            used = min(rest, more)
            self._running[item] = (spent + more, rest - used)
            self._reserved -= used
        elif self._ended:
            self._ended_units += more

    def end(self, item: Hashable, *, is_finished: bool) -> None:
        """Return the rest that an item did not spend. A finished item counts for the mean; one that was interrupted, or
        goes back to the queue, does not: the rest of its work is still to come."""
        if item not in self._running:
            return
        spent, rest = self._running.pop(item)
        self._reserved -= rest
        if is_finished:
            self._ended += 1
            self._ended_units += spent
        elif spent:
            self._earlier[item] = spent
