"""Usage of the limits of one quota group in a form that can be stored and restored.

A door, because the journal of a shared pool stores usage without reading it. Accounting itself is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Kinds of a usage row.
REQUESTS = "requests"
TOKENS = "tokens"


class UsageRow(NamedTuple):
    """An amount that was used in a window."""

    kind: str  # REQUESTS or TOKENS
    scope: str | None  # None: all scopes
    seconds: float  # length of the window; 0: a calendar day, which ends at `start`
    start: float  # instant of use
    amount: float


class UsageState(NamedTuple):
    """What is used of the declared limits of one quota group. Instants are those of the pool's clock."""

    rows: Sequence[UsageRow]  # without the usage of leases that are live
    bucket: tuple[float, float] | None  # level, and the instant from which it rises


class LeaseUsage(NamedTuple):
    """What a live lease occupies in the sliding windows; None where no window existed when it was granted."""

    requests: float | None
    tokens: float | None
    day_ends_at: float
    more_requests: float  # counted in entries of their own, because they were used later
    more_tokens: float
