"""Reads waits, dates and times of day as answers spell them ("resets 3:50pm (Asia/Tokyo)"); computes resets of days."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any

from agentos.durations import parse_duration, parse_number
from agentos.limits.reset_times import time_zone

PACIFIC = "America/Los_Angeles"
# Hours from UTC, for abbreviations in messages and for machines without a zone database; an hour off in summer.
_FIXED_HOURS = {
    PACIFIC: -8, "pt": -8, "pst": -8, "pdt": -7, "mst": -7, "mdt": -6, "cst": -6, "cdt": -5, "est": -5, "edt": -4,
    "et": -5, "utc": 0, "gmt": 0, "z": 0, "bst": 1, "cet": 1, "cest": 2, "jst": 9,
}  # fmt: skip
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


@lru_cache(maxsize=1)
def _pattern() -> re.Pattern[str]:
    month = "|".join(_MONTHS)
    return re.compile(
        rf"""\b(?:resets?|again|access|available|retry|renews?|until|refresh(?:es)?)\b
        (?:\s+(?:will|limit|quota|your|is|be|again|after|on|at|by|until))*[\s:·(]*
        (?:(?P<iso>\d{{4}}-\d\d-\d\d)
          |(?P<slash>\d{{1,2}}/\d{{1,2}}(?:/\d{{4}})?)
          |(?P<month>{month})[a-z]*\.?\s+(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s+(?P<year>\d{{4}}))?
          |(?P<day2>\d{{1,2}})(?:st|nd|rd|th)?\s+(?P<month2>{month})[a-z]*\.?(?:,?\s+(?P<year2>\d{{4}}))?
          |(?P<weekday>{"|".join(_WEEKDAYS)})[a-z]*
          |(?P<tomorrow>tomorrow)
        )?
        [\s,T]*(?:at\s+)?
        (?:(?P<hour>\d{{1,2}})(?::(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.\d+)?)?)?(?![\d/]|-\d)\s*
           (?P<half>[ap]\.?m\b\.?)?)?
        \s*\(?(?P<zone>[A-Z][A-Za-z_]+(?:/[A-Za-z_+-]+)+|[A-Z]{{2,4}}\b|Z\b)?(?P<offset>[+-]\d{{1,2}}(?::?\d\d)?)?""",
        re.IGNORECASE | re.VERBOSE,
    )


def seconds_until_clock(text: str, now: float) -> float | None:
    """Return the seconds until the time of day or date that a message names, at least 0; None if it names none.

    A time without a zone is local time: commands that print one run on this machine.
    """
    for match in _pattern().finditer(text):
        try:
            instant = _instant(match, now)
        except (ValueError, OverflowError, OSError):
            continue  # 31 February, 25:99
        if instant is not None:
            return max(instant - now, 0.0)
    return None


def _instant(match: re.Match[str], now: float) -> float | None:
    """Return the epoch seconds of a match; None if it has neither a date nor a time. Raises ValueError or OverflowError
    for dates that do not exist."""
    part = match.groupdict()
    has_date = any(part[name] for name in ("iso", "slash", "month", "month2", "weekday", "tomorrow"))
    has_time = part["hour"] is not None and (part["minute"] is not None or part["half"] is not None)
    if not has_date and not has_time:
        return None
    zone = _zone_of(part["zone"], part["offset"])
    local_now = datetime.fromtimestamp(now, zone) if zone is not None else datetime.fromtimestamp(now)
    hour, minute = (int(part["hour"]), int(part["minute"] or 0)) if has_time else (0, 0)
    if part["half"] is not None:
        hour = hour % 12 + (12 if part["half"][0] in "pP" else 0)
    instant = local_now.replace(hour=hour, minute=minute, second=int(part["second"] or 0), microsecond=0, fold=0)
    instant = _on_date(instant, part)
    if not has_date and instant <= local_now:
        instant += timedelta(days=1)
    elif part["weekday"] and instant <= local_now:
        instant += timedelta(days=7)
    elif has_date and not _year_of(part) and not part["weekday"] and instant < local_now - timedelta(days=1):
        instant = instant.replace(year=instant.year + 1)
    return instant.timestamp()


def _on_date(instant: datetime, part: dict[str, str | None]) -> datetime:
    """Return an instant moved to the date of a match; a missing year is the current one."""
    if part["iso"]:
        year, month, day = (int(piece) for piece in part["iso"].split("-"))
        return instant.replace(year=year, month=month, day=day)
    if part["slash"]:
        first, second, *years = (int(piece) for piece in part["slash"].split("/"))
        month, day = (second, first) if first > 12 else (first, second)  # the American order, where it is possible
        return instant.replace(year=years[0] if years else instant.year, month=month, day=day)
    month_name = part["month"] or part["month2"]
    if month_name:
        month = _MONTHS.index(month_name[:3].lower()) + 1
        year = int(_year_of(part) or instant.year)
        return instant.replace(year=year, month=month, day=int(part["day"] or part["day2"] or 1))
    if part["weekday"]:
        days = (_WEEKDAYS.index(part["weekday"][:3].lower()) - instant.weekday()) % 7
        return instant + timedelta(days=days)
    return instant + timedelta(days=1) if part["tomorrow"] else instant


def _year_of(part: dict[str, str | None]) -> str | None:
    if part["iso"]:
        return part["iso"][:4]
    if part["slash"]:
        return part["slash"].split("/")[2] if part["slash"].count("/") == 2 else None
    return part["year"] or part["year2"]


def _zone_of(name: str | None, offset: str | None) -> tzinfo | None:
    """Return the zone of a match; None for local time, which also stands for an unknown zone."""
    if offset and (name is None or name.lower() in ("utc", "gmt")):
        digits = offset[1:].replace(":", "")
        hours, minutes = (int(digits), 0) if len(digits) <= 2 else (int(digits[:-2]), int(digits[-2:]))
        return timezone((-1 if offset[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))
    if name is None:
        return None
    if "/" in name:
        return _zone_or_fixed(name)
    if name.lower() in ("pt", "et"):
        return _zone_or_fixed(PACIFIC if name.lower() == "pt" else "America/New_York") or _fixed(name.lower())
    return _fixed(name.lower())


def _zone_or_fixed(name: str) -> tzinfo | None:
    """Return a zone by its name; a fixed offset from UTC on a machine without a zone database."""
    return time_zone(name) or _fixed(name)


def _fixed(name: str) -> tzinfo | None:
    hours = _FIXED_HOURS.get(name)
    return None if hours is None else timezone(timedelta(hours=hours))


def seconds_until_day(now: float, *, is_pacific: bool) -> float:
    """Return the seconds until midnight UTC, or until midnight in California, where Google's days begin."""
    local_now = datetime.fromtimestamp(now, (_zone_or_fixed(PACIFIC) if is_pacific else None) or UTC)
    tomorrow = (local_now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
    return tomorrow.timestamp() - now


def seconds_until_month(now: float) -> float:
    """Return the seconds until the first of the next month, 00:00 UTC."""
    today = datetime.fromtimestamp(now, UTC)
    year, month = (today.year + 1, 1) if today.month == 12 else (today.year, today.month + 1)
    return datetime(year, month, 1, tzinfo=UTC).timestamp() - now


# A number above these is an instant in seconds, or in milliseconds, and not a wait: no wait is thirty years long.
_MIN_EPOCH = 1e9
_MIN_EPOCH_MS = 1e11


def wait_of(value: Any, now: float) -> float | None:
    """Return seconds from `now`, at least 0, from seconds, a duration with units, an epoch, or a date; None for any
    other value."""
    wait = parse_number(value)
    if wait is not None:
        if wait > _MIN_EPOCH_MS:
            wait = wait / 1000 - now
        elif wait > _MIN_EPOCH:
            wait -= now
        return max(wait, 0.0)
    if isinstance(value, dict):  # Duration and Timestamp of protobuf as JSON objects
        whole = parse_number(value.get("seconds", 0))
        return None if whole is None else wait_of(whole + (parse_number(value.get("nanos")) or 0.0) / 1e9, now)
    if not isinstance(value, str):
        return None
    wait = parse_duration(value)
    if wait is not None:
        return wait
    instant = instant_of(value)
    return None if instant is None else max(instant - now, 0.0)


def instant_of(text: str) -> float | None:
    """Return epoch seconds from an RFC 3339 or an HTTP date; None for any other text."""
    if len(text) > 100:
        return None
    try:
        date = datetime.fromisoformat(text.strip())
    except ValueError:
        return http_date(text)
    try:
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


@lru_cache(maxsize=64)  # answers of one second have the same date
def http_date(text: str) -> float | None:
    """Return epoch seconds from an HTTP date; None for any other text."""
    from email.utils import parsedate_to_datetime  # slow to import

    try:
        date = parsedate_to_datetime(text)
        # HTTP dates are in UTC, also in the form without a zone.
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
