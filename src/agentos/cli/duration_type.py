"""The type of options that are durations. A module of its own: `agentos report` starts inside every command and loads
little."""

from __future__ import annotations

from typing import Any

import click

from agentos.durations import parse_duration, parse_number


class Duration(click.ParamType[Any]):
    """A duration: a number with a unit (`5s`, `2m`, `12h`, `7d`), or a plain number of seconds."""

    name = "DURATION"

    def __init__(self, *, may_be_zero: bool = True) -> None:
        self._may_be_zero = may_be_zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = parse_number(value)
        if seconds is None and isinstance(value, str):
            seconds = parse_duration(value)
        if seconds is None or seconds < 0:
            self.fail(f"{value!r} is not a duration: write 30s, 5m, 12h, 7d, or a number of seconds", param, ctx)
        if not seconds and not self._may_be_zero:
            self.fail("the duration must be above 0", param, ctx)
        return seconds
