"""Formats texts for people: escapes, shortens and aligns them, and spells sizes and dates.

No result moves the cursor of a terminal.
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterable, Sequence
from datetime import date

ELLIPSIS = "…"
# Ids and errors come from users and providers: control characters could move the cursor or begin a line.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
# Bidirectional controls: could make an id or an error look like another one.
_ESCAPES |= {code: f"\\u{code:04x}" for code in (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
# Characters of an error's first line that are printed.
MAX_FIRST_LINE = 300
# A longer item id is not offered as an argument to copy.
MAX_ARGUMENT = 200


def escape_controls(text: str) -> str:
    """Return a text with its control characters, also those of bidirectional text, as escapes."""
    return text.translate(_ESCAPES)


def first_line(text: str | None) -> str:
    """Return the first line of an error, cut to `MAX_FIRST_LINE` and escaped; "" if there is none."""
    lines = (text or "").strip().splitlines()
    return escape_controls(lines[0][:MAX_FIRST_LINE]) if lines else ""


def shorten(text: str, max_length: int) -> str:
    """Return at most `max_length` characters of a text, escaped."""
    return escape_controls(text if len(text) <= max_length else text[: max_length - 1] + ELLIPSIS)


def shell_argument(item_id: str) -> str | None:
    """Return an id as an argument for a shell; None if a person could not type it."""
    if not item_id.isprintable() or len(item_id) > MAX_ARGUMENT:
        return None
    return f"-- {shlex.quote(item_id)}" if item_id.startswith("-") else shlex.quote(item_id)


def local_time(epoch: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch))


def clock_time(epoch: float, now: float, *, has_date: bool = False) -> str:
    """Return an instant as people say it: `14:03:20`, `03:40 tomorrow`, `22:15 on Nov 20`; seconds within an hour.
    `has_date`: always with the date, for a text that is read on another day."""
    then, today = time.localtime(epoch), time.localtime(now)
    days = math.inf if has_date else date(*then[:3]).toordinal() - date(*today[:3]).toordinal()
    if not days:
        return time.strftime("%H:%M:%S" if epoch - now < 3600 else "%H:%M", then)
    if days == 1:
        return time.strftime("%H:%M tomorrow", then)
    return time.strftime("%H:%M on %b %d" if then[0] == today[0] else "%H:%M on %b %d %Y", then)


def size(count: float) -> str:
    """Return a number of bytes with its unit."""
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def table(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "") -> list[str]:
    """Return lines with aligned columns; `right` holds the numbers of right-aligned ones."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return lines
