"""How things are written on a terminal: tables, durations, and text of others."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they need, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def duration(seconds: float) -> str:
    """In the two largest units that matter: `0.4 s`, `12 s`, `3 min 20 s`, `5 h 10 min`, `2 d 3 h`."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    left = round(seconds)
    for size, unit, smaller_size, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            rest = left % size // smaller_size
            return f"{left // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{left} s"


def one_line(text: str, most: int) -> str:
    """Text of others, so that it can neither break a table nor command a terminal."""
    plain = "".join(char if char.isprintable() else " " for char in text).strip()
    return plain if len(plain) <= most else plain[: most - 1] + "…"
