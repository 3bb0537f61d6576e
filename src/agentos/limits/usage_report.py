"""Usage of declared limits in a form that one process sends to another.

A door, because the pool passes reports between processes without reading them. Accounting itself is private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class UsageReport(NamedTuple):
    """Usage of one quota group. Ages instead of instants: the receiver may have another clock."""

    requests: Sequence[tuple[int, float]]  # (age in whole seconds, amount), the newest first
    tokens: Sequence[tuple[int, float]]
    bucket_level: float
    day_requests: float
    day_ends_in: float  # seconds
