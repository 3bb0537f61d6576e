"""How the commands that look say things: plain aligned text, with nothing in it that would move the cursor."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from .writers import shown

ELLIPSIS = "…"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def say(text: str, *, err: bool = False) -> None:
    """What the terminal cannot show, and what is no text at all, becomes an escape."""
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def say_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def shortened(text: str, most: int) -> str:
    return shown(text if len(text) <= most else text[: most - 1] + ELLIPSIS)


def typed(item_id: str) -> str | None:
    """As an argument in a shell; None if it cannot be typed."""
    if not item_id.isprintable() or len(item_id) > 200:
        return None
    return f"-- {shlex.quote(item_id)}" if item_id.startswith("-") else shlex.quote(item_id)


def when(epoch: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(epoch))


def size(count: float) -> str:
    for unit in _UNITS:
        if count < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def table(rows: Iterable[Sequence[str]], *, right: frozenset[int] = frozenset(), indent: str = "") -> list[str]:
    """Lines with aligned columns, those of `right` to the right."""
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
