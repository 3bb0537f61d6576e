"""Apply what answers state about windows: a provider's count of what was used, and windows that are not declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._window_table import CountedWindow, Taken, WindowTable
from ._windows import Rolling
from .declaration import EVERY_SCOPE, FIRST_USE, INPUT_TOKENS, OUTPUT_TOKENS, PLAN, ROLLING, TOKENS, Window

if TYPE_CHECKING:
    from agentos.verdict import WindowReport

# Kinds of windows that answers may add. Limits on all requests and all tokens that are not declared are learned.
REPORTED_KINDS = (INPUT_TOKENS, OUTPUT_TOKENS, PLAN)
# Windows of one group that answers may add. Beyond it the oldest one is dropped.
MAX_REPORTED = 64
# Amounts and seconds beyond these are not believed.
_AMOUNTS = 1e-6, 1e14
_SECONDS = 1.0, 400 * 86_400.0


def apply_reports(table: WindowTable, reports: Sequence[WindowReport], scope: str | None, sent_at: float,
                  taken: Taken | None, now: float) -> None:  # fmt: skip
    """Count what a provider has counted beyond a table, by an answer to a request of a scope."""
    for report in reports:
        fed = [each for each in table.set_of(scope).windows if _is_about(report, each)]
        if not fed and _adds_window(report):
            fed = [_add_window(table, report, scope)]
        for counted in fed:
            if sent_at >= counted.reported_at:
                counted.reported_at, counted.reported_by = sent_at, taken
                until = None if report.reset is None else now + min(report.reset, counted.counter.seconds)
                counted.counter.report(_used(report, counted), until, now)


def end_report(taken: Taken) -> bool:
    """Forget what a provider has reserved beyond a table for the output of a lease that ends: it is known now. Return
    whether that changes anything."""
    is_changed = False
    for counted in taken.windows:
        if counted.reported_by is taken and counted.kind in (TOKENS, OUTPUT_TOKENS):
            counted.reported_by = None
            if isinstance(counted.counter, Rolling):
                counted.counter.forget_others()
                is_changed = True
    return is_changed


def _adds_window(report: WindowReport) -> bool:
    return (
        report.of in REPORTED_KINDS
        and report.limit is not None
        and report.remaining is not None
        and _AMOUNTS[0] <= report.limit <= _AMOUNTS[1]
        and _SECONDS[0] <= report.seconds <= _SECONDS[1]
    )


def _add_window(table: WindowTable, report: WindowReport, scope: str | None) -> CountedWindow:
    """Return a window that no person has declared."""
    assert report.limit is not None
    is_plan = report.of == PLAN
    of_scope = EVERY_SCOPE if is_plan or not scope else scope
    window = Window(report.of, report.limit, report.seconds, FIRST_USE if is_plan else ROLLING, of_scope)
    known = [key for key, counted in table.windows.items() if counted.is_reported]
    if len(known) >= MAX_REPORTED:
        del table.windows[known[0]]
    counted = table.counted(window)
    counted.window, counted.is_reported = window, True
    counted.set_limit(table.limits)
    table.index()
    return counted


def _is_about(report: WindowReport, counted: CountedWindow) -> bool:
    """Return whether a report is about a window. The share of a plan is about every declared window of its length."""
    window = counted.window
    if report.of == PLAN:
        is_whole = window.scope == EVERY_SCOPE and not counted.is_reported
        return window.seconds == report.seconds and (window.of == PLAN or is_whole)
    return window.of == report.of and window.seconds == report.seconds


def _used(report: WindowReport, counted: CountedWindow) -> float:
    """Return how much of a window is used, by the provider's count."""
    amount = counted.in_units(counted.window.amount)
    if report.remaining is None:
        return 0.0
    if report.limit is None:  # only that nothing is left
        return amount if report.remaining <= 0 else 0.0
    used = max(0.0, report.limit - report.remaining)
    return used / report.limit * amount if report.of == PLAN else used
