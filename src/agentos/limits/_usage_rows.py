"""Turn the usage of windows into rows that can be stored, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ._periods import CalendarPeriod, FirstUsePeriod
from ._window_table import CountedWindow, Taken, WindowTable
from ._windows import Entry, PacedRolling, Rolling
from .declaration import EVERY_SCOPE, FIRST_USE, ROLLING, Limits, Window
from .usage_state import FIRST_USE_END, FIRST_USE_OPEN, LeaseShare, UsageRow, UsageState


def usage_state(table: WindowTable, live: Collection[Taken], now: float, *, with_reported: bool = False) -> UsageState:
    """Return the usage for storage, without what the live leases with these entries occupy. `with_reported`: also of
    windows that are known from answers only."""
    rows: list[UsageRow] = []
    occupied = {entry for taken in live for entry in taken.entries}
    for counted in table.windows.values():
        if with_reported or not counted.is_reported:
            rows += _rows(counted, occupied, table.limits, now)
    return UsageState(rows, None if table.bucket is None else table.bucket.state())


def restore_usage(table: WindowTable, state: UsageState, now: float) -> None:
    """Set the usage that `usage_state` returned. Limits that are not declared any more go on counting."""
    ends = {row[:3]: row for row in state.rows if row.kind.endswith((FIRST_USE_END, FIRST_USE_OPEN))}
    for row in sorted(state.rows, key=lambda row: row.start):
        if row[:3] not in ends:
            counted = table.counted(_window_of(row.kind, row.scope, row.seconds, table.limits))
            counter, amount = counted.counter, counted.in_units(row.amount)
            if isinstance(counter, FirstUsePeriod):
                confirmed = ends.get((row.kind.replace(FIRST_USE, FIRST_USE_END), *row[1:3]))
                end = confirmed or ends[row.kind.replace(FIRST_USE, FIRST_USE_OPEN), row.scope, row.seconds]
                late = counted.in_units(end.amount)
                counter.restore(row.start, end.start, confirmed is not None, amount, late, now)
            elif isinstance(counter, CalendarPeriod):
                counter.restore(row.start, amount, now)
            elif row.start + counter.seconds > now:
                counter.restore(row.start, amount)
    for counted in table.windows.values():
        bucket = counted.counter.bucket if isinstance(counted.counter, PacedRolling) else None
        if bucket is not None and bucket is not table.bucket:
            bucket.restore(0.0, now)  # its level was not stored
        elif bucket is not None and state.bucket is not None:
            bucket.restore(*state.bucket)
    table.index()


def lease_shares(table: WindowTable, taken: Taken) -> list[LeaseShare]:
    """Return what a live lease occupies, for storage."""
    return [
        LeaseShare(
            *_stored_key(counted, table.limits), counted.declared(entry.amount), counted.declared(entry.more), entry.at
        )
        for counted, entry in zip(*taken, strict=True)
        if not counted.is_reported
    ]


def restore_lease(table: WindowTable, shares: Sequence[LeaseShare], at: float) -> Taken:
    """Occupy again what a live lease occupied that was granted at an instant."""
    windows, entries = [], []
    for share in shares:
        counted = table.counted(_window_of(*share[:3], table.limits))
        if isinstance(counted.counter, Rolling):
            entry = counted.counter.restore(max(at, share.period), counted.in_units(share.amount))
            entry.more = counted.in_units(share.more)
        else:  # its rows include it
            entry = Entry(share.period, counted.in_units(share.amount))
        windows.append(counted)
        entries.append(entry)
    table.index()
    return Taken(tuple(windows), entries)


def _window_of(kind: str, scope: str | None, seconds: float, limits: Limits) -> Window:
    """Return the window of a stored row, of any amount."""
    of, _, resets = kind.partition(" ")
    if not seconds:
        return Window(of, 1, "day", limits.day_resets, scope or EVERY_SCOPE)
    if resets.startswith("month "):
        return Window(of, 1, "month", resets.removeprefix("month "), scope or EVERY_SCOPE)
    return Window(of, 1, seconds, resets or ROLLING, scope or EVERY_SCOPE)


def _stored_key(counted: CountedWindow, limits: Limits) -> tuple[str, str | None, float]:
    """Return the first fields of the rows of a window. Those of a day that begins at `day_resets` are those of the
    first journals."""
    kind, scope, seconds = counted.row_key
    is_day = isinstance(counted.counter, CalendarPeriod) and counted.window.calendar == limits.day_resets
    return (counted.kind, scope, 0.0) if is_day else (kind, scope, seconds)


def _rows(counted: CountedWindow, occupied: Collection[Entry], limits: Limits, now: float) -> list[UsageRow]:
    key, counter = _stored_key(counted, limits), counted.counter
    if isinstance(counter, Rolling):
        amounts = counter.used_by_others(occupied, now) or {now: 0.0}  # an empty window goes on to count
        return [UsageRow(*key, at, counted.declared(amount)) for at, amount in amounts.items()]
    counter.ready_at(0, now)
    if isinstance(counter, CalendarPeriod):
        return [UsageRow(*key, counter.ends_at, counted.declared(counter.total))]
    end_kind = key[0].replace(FIRST_USE, FIRST_USE_END if counter.is_confirmed else FIRST_USE_OPEN)
    return [
        UsageRow(*key, counter.began_at, counted.declared(counter.total)),
        UsageRow(end_kind, *key[1:], counter.ends_at, counted.declared(counter.late)),
    ]
