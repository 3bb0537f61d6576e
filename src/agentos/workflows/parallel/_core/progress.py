"""How far a run is, and when that is worth a line."""

from __future__ import annotations

# Up to so many items, every single one is told.
SMALL_RUN = 100
# Rates from fewer items than this are noise.
LEAST_FOR_RATE = 3


def completion_rate(completed: int, total: int | None) -> float:
    return completed / total * 100 if total else 0.0


def seconds_to_go(completed: int, total: int | None, elapsed: float, recorded: int = 0) -> float | None:
    """`recorded`: of those completed, how many had been before, and say nothing about the rate."""
    if total is None:
        return None
    done = completed - recorded
    if done < min(LEAST_FOR_RATE, total - recorded):
        return None
    return (total - completed) * elapsed / done if done else 0.0


def is_worth_a_line(completed: int, total: int | None) -> bool:
    """Each item of a small run; about a hundred lines of a large one; ever fewer where the end is not known."""
    if total is not None:
        return total <= SMALL_RUN or completed == total or completed % -(-total // SMALL_RUN) == 0
    step = 1
    while completed >= SMALL_RUN * step:
        step *= 10
    return completed % step == 0
