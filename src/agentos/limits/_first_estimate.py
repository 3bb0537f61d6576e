"""First estimate of a limit: from the requests admitted until the first refusal, and from the hint of that refusal."""

from __future__ import annotations

from typing import NamedTuple

# Seconds of the limit that a provider is assumed to have stored before the first request.
STORED_SECONDS = 1.0
# Hints are spread evenly over the time of one request. If the first one is shorter than this share of the estimated
# time, the estimate is too low; it is raised by up to MAX_HINT_FACTOR.
HINT_SHARE = 0.2
MAX_HINT_FACTOR = 2.5
# Share of the rate that an exact hint implies, for a provider that stores nothing.
EXACT_SHARE = 0.95
# Requests per second below which no provider goes: one a day.
MIN_RATE = 1.0 / 86_400.0


class FirstEstimate(NamedTuple):
    rate: float  # requests per second
    counted_rate: float  # by admitted requests alone, if the hint raised it; else 0
    is_exact: bool  # computed from an exact hint


def from_admissions(count: int, seconds: float, known_rate: float | None) -> float:
    """Return requests per second, from `count` requests admitted in `seconds`; a known rate takes precedence."""
    return known_rate or max(1, count) / (seconds + STORED_SECONDS)


def with_hint(counted_rate: float, hint: float, succeeded_at: float, now: float, *, has_store: bool) -> FirstEstimate:
    """Raise an estimate whose first refusal came with a hint of `hint` seconds."""
    by_hint = HINT_SHARE / hint
    is_raised = by_hint > counted_rate > MIN_RATE  # else nothing was counted
    rate = max(counted_rate, min(by_hint, MAX_HINT_FACTOR * counted_rate) if is_raised else by_hint)
    is_exact = not has_store and hint % 1.0 != 0.0
    if is_exact:  # nothing remained after one admission: the hint ends the time of one request
        rate = max(rate, EXACT_SHARE / (hint + (now - succeeded_at)))  # not 0 for a short hint
    return FirstEstimate(rate, counted_rate if is_raised else 0.0, is_exact)
