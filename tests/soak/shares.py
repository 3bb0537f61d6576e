"""Shares of the time budget `AGENTOS_SOAK_MINUTES`. Chaos and the thousand kills are not part of it: together they take
about five minutes."""

from __future__ import annotations

import os


def seconds(share: float) -> float:
    """Return the seconds of a share (0 to 1) of the budget."""
    return 60.0 * float(os.environ.get("AGENTOS_SOAK_MINUTES", "5")) * share
