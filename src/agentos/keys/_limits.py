"""Reads limits and windows from the tables of a credential or of a quota group."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from agentos.limits.declaration import AUTO, EVERY_SCOPE, ROLLING, Limits, Window
from agentos.limits.reset_times import seconds_to_reset
from agentos.redaction.mask import MIN_REDACTED

from ._toml_table import Table

# Limits of a quota group. `max_concurrent` counts the leases of one credential.
GROUP_LIMITS = (
    "requests_per_minute", "tokens_per_minute", "input_tokens_per_minute", "output_tokens_per_minute",
    "requests_per_day", "tokens_per_day", "burst", "day_resets", "reserve",
)  # fmt: skip
LIMITS = (*GROUP_LIMITS, "max_concurrent")
WINDOWS = "window"
_WINDOW = ("of", "amount", "every", "resets", "scope")
_DAYS = ("requests_per_day", "tokens_per_day")


def credential_limits(credential: Table, day_resets: str | None) -> Limits:
    """Return the limits in a credential's table, in its sub-table `limits` and in its tables `window`. `day_resets`: of
    the provider, where the credential names none. The number of requests at once is learned if none is declared; but a
    credential without a secret, which is a profile folder, is used by one command at a time."""
    tables = [credential]
    if "limits" in credential.values:
        tables.append(credential.sub_table("limits"))
        tables[1].check_names((*LIMITS, WINDOWS), "limits")
    limits = _limits(tables, LIMITS, day_resets)
    is_declared = any("max_concurrent" in table.values for table in tables)
    return limits if is_declared or "secret" not in credential.values else replace(limits, max_concurrent=AUTO)


def group_limits(group: Table, day_resets: str | None) -> Limits:
    """Return the limits in the table of a quota group."""
    group.check_names((*GROUP_LIMITS, WINDOWS), "a group")
    return _limits([group], GROUP_LIMITS, day_resets)


def _limits(tables: list[Table], names: tuple[str, ...], day_resets: str | None) -> Limits:
    values: dict[str, Any] = {}
    for table in tables:
        for name in names:
            if name not in table.values:
                continue
            if name in values:
                table.fail(name, f"{name} is given twice: in the credential and in its limits")
            values[name] = table.day_resets() if name == "day_resets" else _limit(table, name)
    if day_resets is not None and any(name in values for name in _DAYS):
        values.setdefault("day_resets", day_resets)
    windows = [_window(window) for table in tables for window in table.tables(WINDOWS)]
    return Limits(**values, windows=tuple(windows))


def _limit(table: Table, name: str) -> float | str | None:
    if name == "max_concurrent" and table.values.get(name) == AUTO:
        return AUTO
    value = table.number(name, "a number, such as 60")
    try:
        Limits(**{name: value})  # type: ignore[arg-type]
    except ValueError as error:
        expected, _, actual = str(error).replace(", or None if it is not known;", ",").rpartition(" not ")
        expected = expected.rstrip(",;")
        table.fail(name, expected if len(actual) >= MIN_REDACTED else f"{expected}, not {actual}")
    return value


def _window(table: Table) -> Window:
    table.check_names(_WINDOW, "a window")
    of = table.required_text("of", '"tokens"')
    amount = table.number("amount", "a number, such as 1000000")
    if amount is None:
        table.fail(None, "amount is missing: write amount = 1000000")
    every: Any = table.values.get("every")
    if not isinstance(every, int | float) or isinstance(every, bool):
        every = table.required_text("every", '"5h"')
    resets, scope = table.text("resets") or ROLLING, table.text("scope") or EVERY_SCOPE
    try:
        window = Window(of, amount, every, resets, scope)
    except ValueError as error:
        text = str(error).rpartition(" not ")[0].rstrip(",;") or str(error)  # without the value
        name = text.partition(" ")[0]
        table.fail(name if name in _WINDOW else None, text)
    if window.calendar is not None:
        try:
            seconds_to_reset(window.calendar, time.time())
        except ValueError:
            table.fail("resets", "resets: this machine does not know the time zone")
    return window
