"""Parse and format durations: "7m12s" or "2 hours" to seconds, and seconds to a text such as "2.5 hours".

`parse_number` stands here because amounts in headers and error bodies are read by the same rule.
"""

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
_COUNT = r"(?:\d+(?:\.\d+)?|an?(?=\s)|one(?=\s))"
_AMOUNT = rf"{_COUNT}\s*{_UNIT}"
# Regular expression, to be matched without regard to case: "7m12s", "2 hours", "1 day, 3 hours and 5 minutes".
DURATION = rf"{_AMOUNT}(?:(?:\s*,)?\s*(?:and\s+)?{_AMOUNT})*"


def parse_number(value: Any) -> float | None:
    """Return a finite number from a number or from its spelling in HTTP; None for anything else."""
    try:
        if isinstance(value, str):
            if "_" in value:  # float() accepts "1_000", HTTP does not
                return None
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return None
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


@lru_cache(maxsize=512)  # most headers repeat a few values
def parse_duration(text: str) -> float | None:
    """Return seconds from a text that consists of a duration with units; None for any other text."""
    is_duration = len(text) < 100 and re.fullmatch(rf"\s*{DURATION}\s*", text, re.IGNORECASE)
    return sum_amounts(text) if is_duration else None


def sum_amounts(text: str) -> float | None:
    """Return the sum in seconds of all amounts with a unit in a text; None if it is not finite."""
    total = 0.0
    for spelled_count, unit in re.findall(rf"({_COUNT})\s*({_UNIT})", text, re.IGNORECASE):
        count = 1.0 if spelled_count[0] in "aAoO" else parse_number(spelled_count)
        if count is None:
            return None
        total += count * _unit_seconds(unit.lower())
    return total if math.isfinite(total) else None


def _unit_seconds(unit: str) -> float:
    if unit in _SECONDS:
        return _SECONDS[unit]
    return _SECONDS["ms"] if unit.startswith(("milli", "msec")) else _SECONDS[unit[0]]


def format_duration(seconds: float | None) -> str:
    """Return a duration for people, in the largest unit of which it has at least two; "" for None."""
    if seconds is None:
        return ""
    if seconds == math.inf:
        return "forever"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:
        return f"{minutes:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"
