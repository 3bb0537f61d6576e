"""Numbers, durations and instants, as headers, bodies and messages spell them."""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3,
    "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0,
}  # fmt: skip
_UNIT = (
    r"(?:milliseconds?|msecs?|ms|[uµμ]s|ns|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d|weeks?|w)"
    r"(?![a-zµμ])"
)
_AMOUNT = rf"(?:\d+(?:\.\d+)?|an?(?=\s)|one(?=\s))\s*{_UNIT}"
# One or more amounts: "7m12s", "2 hours", "1 day, 3 hours and 5 minutes".
DURATION = rf"{_AMOUNT}(?:(?:\s*,)?\s*(?:and\s+)?{_AMOUNT})*"


def number(value: Any) -> float | None:
    """A finite number, from a number or from HTTP's spelling of one."""
    try:
        if isinstance(value, str):
            if "_" in value:  # Python's own spelling of numbers is not HTTP's
                return None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return None
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


@lru_cache(maxsize=512)  # resets of one second, of a minute: the same few come again and again
def duration(text: str) -> float | None:
    """Seconds, from a text that is nothing but a duration with units."""
    is_duration = len(text) < 100 and re.fullmatch(rf"\s*{DURATION}\s*", text, re.IGNORECASE)
    return sum_of(text) if is_duration else None


def sum_of(text: str) -> float | None:
    """Seconds, from all amounts in a text."""
    total = 0.0
    for amount, unit in re.findall(rf"(\d+(?:\.\d+)?|an?(?=\s)|one(?=\s))\s*({_UNIT})", text, re.IGNORECASE):
        one = 1.0 if amount[0] in "aAoO" else number(amount)
        if one is None:
            return None
        total += one * _unit(unit.lower())
    return total if math.isfinite(total) else None


def _unit(name: str) -> float:
    if name in _SECONDS:
        return _SECONDS[name]
    return _SECONDS["ms"] if name.startswith(("milli", "msec")) else _SECONDS[name[0]]
