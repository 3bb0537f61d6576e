"""The figures of a run: share of completed items, and time to go."""

from __future__ import annotations

import pytest

from agentos.items.results import ProgressStats, completion_rate, seconds_to_go

START = 1_700_000_000.0  # epoch seconds


def test_completion_rate_is_in_percent() -> None:
    assert completion_rate(1, 4) == 25.0
    assert completion_rate(4, 4) == 100.0
    assert completion_rate(0, 4) == 0.0
    assert completion_rate(0, 0) == 0.0
    assert completion_rate(7, None) == 0.0


@pytest.mark.parametrize(
    ("completed", "total", "seconds"),
    [
        (0, 10, None),
        (2, 10, None),  # too few for a rate
        (3, 10, 70.0),
        (5, 10, 30.0),
        (10, 10, 0.0),
        (1, 2, None),
        (2, 2, 0.0),
        (1, 1, 0.0),
        (0, 0, 0.0),
        (50, None, None),
    ],
)
def test_seconds_to_go_follow_the_rate_so_far(completed: int, total: int | None, seconds: float | None) -> None:
    assert seconds_to_go(completed, total, 30.0) == seconds


def test_progress_stats_agree_with_each_other() -> None:
    stats = ProgressStats(10, 5, 1, 4, START, START + 30)
    assert (stats.elapsed, stats.completion_rate, stats.eta) == (30.0, 50.0, 30.0)
    assert ProgressStats(None, 5, 1, 4, START, START + 30).eta is None
    assert ProgressStats(10, 0, 0, 0, START, START + 30).eta is None
