"""Reset times follow the calendar of a time zone."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from agentos.limits.reset_times import seconds_to_reset

PACIFIC = ZoneInfo("America/Los_Angeles")


def epoch_of(*parts: int, tz: ZoneInfo = PACIFIC) -> float:
    return datetime(*parts, tzinfo=tz).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("now", "hours"),
    [
        (epoch_of(2026, 11, 15, 12), 12),
        (epoch_of(2026, 11, 15, 0), 24),  # at the reset: until the next one
        (epoch_of(2026, 11, 1, 0), 25),  # clocks go back on this day
        (epoch_of(2026, 3, 8, 0), 23),  # and forward on this one
    ],
)
def test_reset_follows_the_calendar_of_its_zone(now: float, hours: float) -> None:
    assert seconds_to_reset("00:00 America/Los_Angeles", now) == pytest.approx(hours * 3600)


def test_day_may_begin_at_any_time() -> None:
    assert seconds_to_reset("08:30 UTC", epoch_of(2026, 1, 1, 9, tz=ZoneInfo("UTC"))) == pytest.approx(23.5 * 3600)


def test_reset_in_a_skipped_hour_is_found() -> None:
    assert 0 < seconds_to_reset("02:30 America/Los_Angeles", epoch_of(2026, 3, 8, 1)) <= 25 * 3600


def test_unknown_zone_is_named_in_the_error() -> None:
    with pytest.raises(ValueError, match="'Nowhere/Land'"):
        seconds_to_reset("00:00 Nowhere/Land", 0.0)
