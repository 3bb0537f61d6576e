"""Budget: an amount of money or tokens that a run may spend, and whether one more item fits into it.

Pure: the run reports what starts, what is spent and what ends. An item is expected to spend the mean of the items that
have ended; before any has, what the caller estimates. A running item is expected to spend the rest of what was expected
when it started; what it spends beyond that counts when it is spent.
"""

from __future__ import annotations

from collections.abc import Hashable


class Budget:
    """One amount that all items of a run share."""

    __slots__ = ("_ended", "_ended_amount", "_estimate", "_reserved", "_running", "limit", "spent")

    def __init__(self, limit: float, *, spent: float = 0.0, ended: int = 0, estimate: float = 0.0) -> None:
        """`spent`: by earlier launches of the run, of which `ended` items have ended. `estimate`: of one item, used
        until an item has ended."""
        self.limit = limit
        self.spent = spent
        self._ended = ended
        self._ended_amount = spent if ended else 0.0
        self._estimate = estimate
        self._running: dict[Hashable, tuple[float, float]] = {}  # item -> (spent by it, rest that is expected)
        self._reserved = 0.0  # sum of these rests

    def expected_item(self) -> float:
        """Return what one more item is expected to spend."""
        return self._ended_amount / self._ended if self._ended else self._estimate

    def admits_item(self) -> bool:
        """Return whether one more item may start: what was spent, the rest of what runs and its own amount fit. An item
        that is expected to spend nothing starts while the budget is not reached."""
        expected = self.expected_item()
        total = self.spent + self._reserved + expected
        return total <= self.limit and self.spent < self.limit

    @property
    def is_reached(self) -> bool:
        """Return whether as much was spent as the budget allows: a hard budget refuses further requests then."""
        return self.spent >= self.limit

    def start(self, item: Hashable) -> None:
        """Reserve what an item is expected to spend. Another attempt of a running item changes nothing."""
        if item not in self._running:
            expected = self.expected_item()
            self._running[item] = (0.0, expected)
            self._reserved += expected

    def spend(self, item: Hashable, amount: float) -> None:
        """Count what an item has spent, also if it is not running any more."""
        self.spent += amount
        if item in self._running:
            spent, rest = self._running[item]
            used = min(rest, amount)
            self._running[item] = (spent + amount, rest - used)
            self._reserved -= used
        elif self._ended:
            self._ended_amount += amount

    def end(self, item: Hashable, *, is_finished: bool) -> None:
        """Return the rest that an item did not spend. A finished item counts for the mean; one that was interrupted, or
        goes back to the queue, does not: the rest of its work is still to come."""
        if item not in self._running:
            return
        spent, rest = self._running.pop(item)
        self._reserved -= rest
        if not self._running:
            self._reserved = 0.0  # without the rounding errors
        if is_finished:
            self._ended += 1
            self._ended_amount += spent
