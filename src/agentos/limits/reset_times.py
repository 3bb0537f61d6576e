"""Reset times: when a provider's day begins, as a time of day in a time zone.

The one module of this package that is not pure: it reads the time zone database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo


def seconds_to_reset(day_resets: str, epoch: float) -> float:
    """Return the seconds from `epoch` to the next `"HH:MM Zone"`, above 0; raise ValueError for an unknown zone."""
    time, _, zone = day_resets.partition(" ")
    hours, _, minutes = time.partition(":")
    tz = time_zone(zone)
    if tz is None:
        raise ValueError(f"day_resets: this machine does not know the time zone {zone!r}")
    now = datetime.fromtimestamp(epoch, tz)
    reset = now.replace(hour=int(hours), minute=int(minutes), second=0, microsecond=0)
    # By the calendar, not by 24 hours: two days of a year are longer or shorter.
    while reset.timestamp() <= epoch:
        reset = (reset.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=tz)
    return reset.timestamp() - epoch


def time_zone(name: str) -> tzinfo | None:
    """Return a zone by its name in the zone database; None if the database has no such zone, or is missing."""
    if name == "UTC":
        return UTC  # needs no time zone database
    import zoneinfo  # slow to import, and rarely needed

    try:
        return zoneinfo.ZoneInfo(name)
    except Exception:  # unknown, no valid name, a damaged database: the types differ, the meaning does not
        return None
