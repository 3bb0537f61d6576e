"""Usage of the limits of one quota group in a form that can be stored and restored.

A door, because the journal of a shared pool stores usage without reading it. Accounting itself is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What follows the kind in a row of a window that is not rolling: its `resets`. A first-use window has a second row, of
# one of these kinds, with its end: the first one if it is known to have begun. The amount there is what may count in
# the next period, too.
FIRST_USE_END = "first-use-end"
FIRST_USE_OPEN = "first-use-open"


class UsageRow(NamedTuple):
    """An amount that was used in a window."""

    kind: str  # what the window counts; then, if it is not rolling, a space and when it resets
    scope: str | None  # None: all scopes
    seconds: float  # length of the window; 0: a day of the calendar that begins at `day_resets`
    start: float  # instant of use; of a first-use window its beginning, of a calendar one its end
    amount: float


class UsageState(NamedTuple):
    """What is used of the declared limits of one quota group. Instants are those of the pool's clock."""

    rows: Sequence[UsageRow]  # without the usage of leases that are live, in rolling windows
    bucket: tuple[float, float] | None  # of the limit per minute: level, and the instant from which it rises


class LeaseShare(NamedTuple):
    """What a live lease occupies of one window. The first three fields are those of `UsageRow`."""

    kind: str
    scope: str | None
    seconds: float
    amount: float
    more: float  # counted in entries of their own, because they were used later
    period: float  # the period in which it was taken; of a rolling window the instant from which it counts
