"""Count money exactly: as whole billionths of the currency.

Sums of fractions such as 0.01 have rounding errors, by which the last request that fits into a limit would not. Whole
numbers have none: as floats up to nine million of the currency.
"""

from __future__ import annotations

UNITS_PER_MONEY = 1_000_000_000


def units(amount: float) -> int:
    """Return an amount in units."""
    return round(amount * UNITS_PER_MONEY)


def money(units: float) -> float:
    """Return the amount of a number of units."""
    return units / UNITS_PER_MONEY
