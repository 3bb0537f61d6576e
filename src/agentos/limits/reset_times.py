"""Reset times: when a provider's day, week or month begins, as a time of day in a time zone.

The one module of this package that is not pure: it reads the time zone database.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, tzinfo

_MONTH = "month"
_DAYS_OF_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


def seconds_to_reset(resets: str, epoch: float) -> float:
    """Return the seconds from `epoch` to the next reset, above 0. `resets` is `"HH:MM Zone"` for every day, with a day
    of the week before it (`"mon HH:MM Zone"`) for every week, with `month` before it for the first day of every month.
    Raise ValueError for an unknown zone."""
    period, time, zone = _parts(resets)
    hours, _, minutes = time.partition(":")
    tz = time_zone(zone)
    if tz is None:
        raise ValueError(f"day_resets: this machine does not know the time zone {zone!r}")
    day = datetime.fromtimestamp(epoch, tz).date()
    # By the calendar, not by 24 hours: two days of a year are longer or shorter. From the day before: a reset that
    # falls into a skipped hour comes later than it says, maybe on the next day.
    day = _first_day(period, day - timedelta(days=1))
    while True:
        # `fold` is 0: of an hour that comes twice the first one counts, and only that.
        reset = datetime(day.year, day.month, day.day, int(hours), int(minutes), tzinfo=tz)
        if reset.timestamp() > epoch:
            return reset.timestamp() - epoch
        day = _first_day(period, day + timedelta(days=1))


def _parts(resets: str) -> tuple[str, str, str]:
    """Return the period (`month`, a day of the week, or empty for a day), the time and the zone."""
    first, _, rest = resets.partition(" ")
    if first != _MONTH and first not in _DAYS_OF_WEEK:
        return "", first, rest
    time, _, zone = rest.partition(" ")
    return first, time, zone


def _first_day(period: str, day: date) -> date:
    """Return the first day from `day` on at which a period begins."""
    if period == _MONTH:
        if day.day == 1:
            return day
        return date(day.year + day.month // 12, day.month % 12 + 1, 1)
    if period:
        return day + timedelta(days=(_DAYS_OF_WEEK.index(period) - day.weekday()) % 7)
    return day


def time_zone(name: str) -> tzinfo | None:
    """Return a zone by its name in the zone database; None if the database has no such zone, or is missing."""
    if name == "UTC":
        return UTC  # needs no time zone database
    import zoneinfo  # slow to import, and rarely needed

    try:
        return zoneinfo.ZoneInfo(name)
    except Exception:  # unknown, no valid name, a damaged database: the types differ, the meaning does not
        return None
