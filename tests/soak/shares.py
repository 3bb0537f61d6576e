"""How the time that `make soak` is told is shared out. Chaos and the thousand kills take their own time, about five
minutes together."""

from __future__ import annotations

import os


def seconds(share: float) -> float:
    return 60.0 * float(os.environ.get("AGENTOS_SOAK_MINUTES", "5")) * share
