"""How far a run is, and when that is worth a line."""

from __future__ import annotations

import math

# Up to so many items, every single one is told.
SMALL_RUN = 100
# Rates from fewer items than this are noise.
LEAST_FOR_RATE = 3


def completion_rate(completed: int, total: int | None) -> float:
    return completed / total * 100 if total else 0.0


def seconds_to_go(
    completed: int,
    total: int | None,
    elapsed: float,
    recorded: int = 0,
    fastest: float | None = None,
    not_before: float = 0.0,
) -> float | None:
    """By the rate so far, but not faster than the limits allow.

    `recorded`: of those completed, how many had been before, and say nothing about the rate. `fastest`: items a second
    that the limits allow; `not_before`: seconds in which nothing can start.
    """
    if total is None:
        return None
    left = total - completed
    if not left:
        return 0.0
    by_limits = None if fastest is None and not not_before else not_before + (left / fastest if fastest else 0.0)
    done = completed - recorded
    if done < min(LEAST_FOR_RATE, total - recorded):
        return by_limits
    by_rate = left * elapsed / done if done else 0.0
    return by_rate if by_limits is None else max(by_rate, by_limits)


def duration(seconds: float) -> str:
    """For people."""
    if seconds == math.inf:
        return "for ever"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, hours = seconds / 60, seconds / 3600
    if minutes < 120:
        return f"{minutes:.1f} minutes"
    return f"{hours:.1f} hours" if hours < 48 else f"{hours / 24:.1f} days"


def is_worth_a_line(completed: int, total: int | None) -> bool:
    """Each item of a small run; about a hundred lines of a large one; ever fewer where the end is not known."""
    if total is not None:
        return total <= SMALL_RUN or completed == total or completed % -(-total // SMALL_RUN) == 0
    step = 1
    while completed >= SMALL_RUN * step:
        step *= 10
    return completed % step == 0
