"""A provider's day is a day of its calendar."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from agentos.limits.reset_times import seconds_to_reset

PACIFIC = ZoneInfo("America/Los_Angeles")


def at(*when: int, tz: ZoneInfo = PACIFIC) -> float:
    return datetime(*when, tzinfo=tz).timestamp()  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("now", "hours"),
    [
        (at(2026, 11, 15, 12), 12),
        (at(2026, 11, 15, 0), 24),  # at the reset itself, to the next
        (at(2026, 11, 1, 0), 25),  # clocks go back on this day
        (at(2026, 3, 8, 0), 23),  # and forward on this one
    ],
)
def test_midnight_comes_by_the_calendar_of_its_zone(now: float, hours: float) -> None:
    assert seconds_to_reset("00:00 America/Los_Angeles", now) == pytest.approx(hours * 3600)


def test_a_day_may_begin_at_any_time() -> None:
    assert seconds_to_reset("08:30 UTC", at(2026, 1, 1, 9, tz=ZoneInfo("UTC"))) == pytest.approx(23.5 * 3600)


def test_an_hour_that_a_day_does_not_have_is_found_all_the_same() -> None:
    assert 0 < seconds_to_reset("02:30 America/Los_Angeles", at(2026, 3, 8, 1)) <= 25 * 3600


def test_a_zone_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="'Nowhere/Land'"):
        seconds_to_reset("00:00 Nowhere/Land", 0.0)
