"""Enforce the declared limits of one quota group: when a request may be sent, and what it uses.

All windows that count a request are checked first and charged together: a request that is not sent uses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from ._periods import CalendarPeriod, FirstUsePeriod, Period
from ._windows import MAX_EXACT_SECONDS, Bucket, Entry, PacedRolling, Rolling, SlottedRolling
from .amounts import Detail, amount_of
from .declaration import (
    EVERY_SCOPE,
    FIRST_USE,
    REQUESTS,
    ROLLING,
    TOKENS,
    WINDOW_SECONDS,
    Calendar,
    Limits,
    Window,
)
from .usage_state import FIRST_USE_END, LeaseShare, UsageRow, UsageState

# Seconds from which a window is a long one, whose quota is worth using before it resets.
LONG_SECONDS = 3_600.0
# Windows that are declared no more and go on counting, for the case that they are declared again.
MAX_UNDECLARED = 32
# Scopes whose windows are remembered; then all are found again.
MAX_SETS = 256

Counter: TypeAlias = Rolling | CalendarPeriod | FirstUsePeriod


class Taken(NamedTuple):
    """What one lease took from each window."""

    windows: tuple[CountedWindow, ...]
    entries: Sequence[Entry]


class CountedWindow:
    """A declared window with its usage."""

    __slots__ = ("counter", "is_reported", "kind", "limit", "name", "window")

    def __init__(self, window: Window, counter: Counter) -> None:
        self.window = window
        self.counter = counter
        self.kind = window.of
        self.name = window.name
        self.is_reported = False  # by answers, and not declared

    @property
    def row_key(self) -> tuple[str, str | None, float]:
        """The first fields of its usage rows."""
        window = self.window
        kind = window.of if window.key[3] == ROLLING else f"{window.of} {window.key[3]}"
        return kind, None if window.scope == EVERY_SCOPE else window.scope, window.seconds

    def counts(self, scope: str | None) -> bool:
        """Return whether requests of a scope count. Of a request that names none the model is unknown: it counts."""
        pattern = self.window.scope
        return pattern == EVERY_SCOPE or scope is None or scope == pattern or fnmatchcase(scope, pattern)


class _WindowSet:
    """The windows that count the requests of one scope."""

    __slots__ = ("details", "plain_until", "requests", "tokens", "version", "windows")

    def __init__(self, windows: Sequence[CountedWindow]) -> None:
        # In this order in `windows`, too.
        self.requests = tuple(each.counter for each in windows if each.kind == REQUESTS)
        self.tokens = tuple(each.counter for each in windows if each.kind == TOKENS)
        self.details = tuple((each.kind, each.counter) for each in windows if each.kind not in (REQUESTS, TOKENS))
        kinds = {REQUESTS: 0, TOKENS: 1}
        self.windows = tuple(sorted(windows, key=lambda each: kinds.get(each.kind, 2)))
        # The result for one request without tokens, the usual case: valid in one version of the usage.
        self.plain_until = 0.0
        self.version = -1


class RateLimiter:
    """The declared limits of one quota group, over all its credentials and scopes."""

    __slots__ = ("_base", "_calendar", "_is_scoped", "_sets", "_version", "_windows", "has_first_use", "limits")

    def __init__(self, limits: Limits, calendar: Calendar, now: float) -> None:
        self._windows: dict[tuple[str, str, float, str], CountedWindow] = {}
        self._version = 0
        self.change(limits, calendar, now)

    def change(self, limits: Limits, calendar: Calendar, now: float) -> None:
        """Replace the limits. Usage remains counted, and live leases are corrected in the windows that they took from:
        a window that limits no longer goes on counting."""
        self.limits = limits
        self._calendar = calendar
        declared = {window.key: window for window in limits.all_windows()}
        for key, counted in tuple(self._windows.items()):
            if key not in declared and not counted.is_reported:
                counted.counter.limit = math.inf
                if isinstance(counted.counter, PacedRolling):
                    counted.counter.spread(None, None, now)
        for window in declared.values():
            self._declare(window, now)
            self._absorb(window, declared, now)
        self._forget_oldest()
        self._index()

    def _absorb(self, window: Window, declared: Collection[tuple[str, str, float, str]], now: float) -> None:
        """Let a calendar window continue those that begin at another time and are declared no more: usage counts."""
        counter = self._windows[window.key].counter
        if isinstance(counter, CalendarPeriod):
            for key, other in tuple(self._windows.items()):
                if key[:3] == window.key[:3] and key not in declared and isinstance(other.counter, CalendarPeriod):
                    counter.absorb(other.counter, now)
                    del self._windows[key]

    def _declare(self, window: Window, now: float) -> CountedWindow:
        counted = self._windows.get(window.key)
        if counted is None:
            counted = self._windows[window.key] = CountedWindow(window, self._counter(window))
        counted.window, counted.is_reported = window, False
        counted.counter.limit = amount = self.limits.usable(window)
        if isinstance(counted.counter, PacedRolling):
            rate = amount / window.seconds
            if (declared := self.limits.rate) is not None and window.key == _PER_MINUTE.key:
                rate = min(rate, declared)  # less than one request per minute
            counted.counter.spread(rate, self.limits.burst, now)
        return counted

    def _counter(self, window: Window) -> Counter:
        """Return the counter of a window without usage."""
        spec, seconds = window.calendar, window.seconds
        if spec is not None:
            return CalendarPeriod(math.inf, seconds, lambda now: self._calendar(spec, now))
        if window.resets == FIRST_USE:
            return FirstUsePeriod(math.inf, seconds)
        if seconds > MAX_EXACT_SECONDS:
            return SlottedRolling(math.inf, seconds)
        return PacedRolling(math.inf, seconds) if window.of == REQUESTS else Rolling(math.inf, seconds)

    def _forget_oldest(self) -> None:
        """Drop the windows that were declared first, of too many that are declared no more. Not by their usage: a
        restored limiter must drop the same ones."""
        undeclared = [key for key, counted in self._windows.items() if counted.counter.limit == math.inf]
        for key in undeclared[:-MAX_UNDECLARED]:
            del self._windows[key]

    def _index(self) -> None:
        """Find the windows of each scope again."""
        windows = tuple(self._windows.values())
        self._is_scoped = any(counted.window.scope != EVERY_SCOPE for counted in windows)
        self.has_first_use = any(isinstance(counted.counter, FirstUsePeriod) for counted in windows)
        self._base = _WindowSet([counted for counted in windows if counted.window.scope == EVERY_SCOPE])
        self._sets: dict[str | None, _WindowSet] = {}
        self._version += 1

    def _set_of(self, scope: str | None) -> _WindowSet:
        windows = self._sets.get(scope)
        if windows is None:
            if len(self._sets) >= MAX_SETS:
                self._sets.clear()
            counting = [counted for counted in self._windows.values() if counted.counts(scope)]
            windows = self._sets[scope] = _WindowSet(counting)
        return windows

    # --- asking ---------------------------------------------------------------------------------------------------

    def ready_at(
        self, requests: int, tokens: int, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> float:
        """Return the instant from which the amount may be used; 0 for now."""
        windows = self._set_of(scope) if self._is_scoped else self._base
        if requests == 1 and not tokens and detail is None:
            return self._plain_until(windows, now)
        return self._ready_at(windows, requests, tokens, detail, now)

    def full_until(self, now: float) -> float:
        """Return the instant until which no request of any scope is admitted; 0 if some may be."""
        return self._plain_until(self._base, now)

    def _plain_until(self, windows: _WindowSet, now: float) -> float:
        if windows.version == self._version and (not windows.plain_until or now < windows.plain_until):
            return windows.plain_until  # usage has not grown: what was admitted still is
        windows.plain_until = self._ready_at(windows, 1, 0, None, now)
        windows.version = self._version
        return windows.plain_until

    def _ready_at(self, windows: _WindowSet, requests: int, tokens: int, detail: Detail | None, now: float) -> float:
        at = 0.0
        if requests:
            for counter in windows.requests:
                if (next_at := counter.ready_at(requests, now)) > at:
                    at = next_at
        # A window in debt admits nothing, not even a request that reserves no tokens.
        for counter in windows.tokens:
            if (next_at := counter.ready_at(tokens, now)) > at:
                at = next_at
        for kind, counter in windows.details:
            if (next_at := counter.ready_at(amount_of(kind, requests, tokens, detail), now)) > at:
                at = next_at
        return at

    def binding(
        self, requests: int, tokens: int, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> tuple[float, str | None]:
        """Return the same instant, and the name of the limit that decides it."""
        at, name = 0.0, None
        for counted in self._set_of(scope).windows:
            if counted.kind != REQUESTS or requests:
                next_at = counted.counter.ready_at(amount_of(counted.kind, requests, tokens, detail), now)
                if next_at > at:
                    at, name = next_at, counted.name
        return at, name

    def next_room_at(
        self, scope: str | None, tokens: int, detail: Detail | None, now: float, other_scope: str | None = None
    ) -> float:
        """Return the instant from which more tokens or money fit than now; 0 if the amounts fit already. Only windows
        count that requests of `other_scope` use, too."""
        others = self._set_of(other_scope).windows
        exits = []
        for counted in self._set_of(scope).windows:
            if counted.kind != REQUESTS and counted in others:
                amount = amount_of(counted.kind, 1, tokens, detail)
                if counted.counter.ready_at(amount, now):
                    exits.append(counted.counter.next_exit())
        return min(exits, default=0.0)

    def token_room(self, scope: str | None, now: float) -> float:
        """Return the number of tokens that may be used now; negative in debt, infinite without a limit."""
        room = math.inf
        for counter in self._set_of(scope).tokens:
            counter.ready_at(0, now)
            room = min(room, counter.limit - counter.total)
        return room

    def too_large(
        self, requests: int, tokens: int, scope: str | None = None, detail: Detail | None = None
    ) -> str | None:
        """Return a sentence about the limit that the amount alone exceeds; None if it can be admitted."""
        for counted in self._set_of(scope).windows:
            amount = amount_of(counted.kind, requests, tokens, detail)
            if amount > counted.counter.limit:
                noun, _, length = counted.name.partition(" per ")
                return f"{amount:.10g} {noun} at once, more than {counted.counter.limit:.10g} per {length}"
        return None

    # --- using ----------------------------------------------------------------------------------------------------

    def take(
        self, requests: int, tokens: int, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> Taken:
        self._version += 1
        windows = self._set_of(scope) if self._is_scoped else self._base
        entries = [counter.take(requests, now) for counter in windows.requests]
        for counter in windows.tokens:
            entries.append(counter.take(tokens, now))
        for kind, counter in windows.details:
            entries.append(counter.take(amount_of(kind, requests, tokens, detail), now))
        return Taken(windows.windows, entries)

    def correct(
        self, taken: Taken, before: tuple[int, int, Detail | None], after: tuple[int, int, Detail | None], now: float,
        scope: str | None = None,
    ) -> None:  # fmt: skip
        """Replace what a lease took (`before`: requests, tokens, detail) by what it used. Where nothing was counted,
        because no limit existed then, only the excess counts."""
        self._version += 1
        for counted, entry in zip(*taken, strict=True):
            amount = amount_of(counted.kind, *after)
            more = amount - amount_of(counted.kind, *before)
            if more:
                counted.counter.correct(entry, amount, more, now)
        windows = self._set_of(scope) if self._is_scoped else self._base
        if windows.windows is not taken.windows:
            for counted in windows.windows:
                more = amount_of(counted.kind, *after) - amount_of(counted.kind, *before)
                if more > 0 and counted not in taken.windows:
                    counted.counter.take(more, now)

    def confirm(self, taken: Taken, now: float) -> None:
        """Note that the request of a lease has succeeded: periods that begin with their first use have begun."""
        for counted, entry in zip(*taken, strict=True):
            if isinstance(counted.counter, FirstUsePeriod):
                counted.counter.confirm(entry, now)

    def use(
        self, requests: int, tokens: int, at: float, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> None:
        """Count usage of an instant in the past that no lease stands for."""
        self._version += 1
        for counted in self._set_of(scope).windows:
            amount, counter = amount_of(counted.kind, requests, tokens, detail), counted.counter
            if not amount:
                continue
            if isinstance(counter, CalendarPeriod | FirstUsePeriod):
                if counter.includes(at, now):
                    counter.take(amount, now)
            elif at + counter.seconds > now:
                counter.restore(at, amount)
                if isinstance(counter, PacedRolling) and counter.bucket is not None:
                    counter.bucket.take(amount, now)

    def use_before(self, used: Sequence[tuple[str, float]], now: float) -> None:
        """Raise the usage of windows, by name, to at least these amounts: used before counting started here."""
        self._version += 1
        by_name = {counted.name: counted.counter for counted in self._windows.values()}
        for name, amount in used:
            counter = by_name.get(name)
            if counter is not None and amount > counter.total:
                counter.take(amount - counter.total, now)

    def recalculate_days(self, now: float) -> None:
        """Find the ends of calendar periods again, after a step of the wall clock. Usage remains counted."""
        self._version += 1
        for counted in self._windows.values():
            if isinstance(counted.counter, CalendarPeriod):
                counted.counter.recalculate(now)

    def usage(self, now: float) -> dict[str, tuple[float, float]]:
        """Return (used, limit) by the name of each limit."""
        usage: dict[str, tuple[float, float]] = {}
        for counted in self._windows.values():
            if counted.counter.limit < math.inf:
                counted.counter.ready_at(0, now)
                usage[counted.name] = (counted.counter.total, counted.counter.limit)
        return usage

    def resets_at(self, now: float) -> float:
        """Return when the first window of at least LONG_SECONDS resets of which something is left; infinite if none
        does. What is left of a rolling window does not expire."""
        ends = []
        for counted in self._windows.values():
            counter = counted.counter
            if isinstance(counter, Period) and counter.seconds >= LONG_SECONDS and counter.limit < math.inf:
                counter.ready_at(0, now)
                if counter.total < counter.limit and counter.ends_at > now:
                    ends.append(counter.ends_at)
        return min(ends, default=math.inf)

    @property
    def bucket(self) -> Bucket | None:
        """The token bucket of the limit on requests per minute."""
        per_minute = self._windows.get(_PER_MINUTE.key)
        return per_minute.counter.bucket if per_minute and isinstance(per_minute.counter, PacedRolling) else None

    # --- storing and restoring ------------------------------------------------------------------------------------

    def state(self, live: Collection[Taken], now: float) -> UsageState:
        """Return the usage for storage, without what the live leases with these entries occupy."""
        rows: list[UsageRow] = []
        occupied = {entry for taken in live for entry in taken.entries}
        for counted in self._windows.values():
            if not counted.is_reported:
                rows += _rows(counted, occupied, self.limits, now)
        return UsageState(rows, None if self.bucket is None else self.bucket.state())

    def restore(self, state: UsageState, now: float) -> None:
        """Set the usage that `state` returned. Limits that are not declared any more go on counting."""
        ends = {row[:3]: row.start for row in state.rows if row.kind.endswith(FIRST_USE_END)}
        for row in sorted(state.rows, key=lambda row: row.start):
            if not row.kind.endswith(FIRST_USE_END):
                counter = self._restored(row.kind, row.scope, row.seconds).counter
                if isinstance(counter, FirstUsePeriod):
                    end_kind = row.kind.replace(FIRST_USE, FIRST_USE_END)
                    counter.restore(row.start, ends.get((end_kind, row.scope, row.seconds)), row.amount, now)
                elif isinstance(counter, CalendarPeriod):
                    counter.restore(row.start, row.amount, now)
                elif row.start + counter.seconds > now:
                    counter.restore(row.start, row.amount)
        for counted in self._windows.values():
            bucket = counted.counter.bucket if isinstance(counted.counter, PacedRolling) else None
            if bucket is not None and bucket is not self.bucket:
                bucket.restore(0.0, now)  # its level was not stored
            elif bucket is not None and state.bucket is not None:
                bucket.restore(*state.bucket)
        self._index()

    def _restored(self, kind: str, scope: str | None, seconds: float) -> CountedWindow:
        """Return the window of a stored row; make one that only counts if there is none."""
        of, _, resets = kind.partition(" ")
        if not seconds:
            window = Window(of, 1, "day", self.limits.day_resets, scope or EVERY_SCOPE)
        elif resets.startswith("month "):
            window = Window(of, 1, "month", resets.removeprefix("month "), scope or EVERY_SCOPE)
        else:
            window = Window(of, 1, seconds, resets or ROLLING, scope or EVERY_SCOPE)
        counted = self._windows.get(window.key)
        if counted is None:
            counted = self._windows[window.key] = CountedWindow(window, self._counter(window))
        return counted

    def occupied_by(self, taken: Taken) -> list[LeaseShare]:
        """Return what a live lease occupies, for storage."""
        return [
            LeaseShare(*_stored_key(counted, self.limits), entry.amount, entry.more, entry.at)
            for counted, entry in zip(*taken, strict=True)
            if not counted.is_reported
        ]

    def restore_lease(self, shares: Sequence[LeaseShare], at: float) -> Taken:
        """Occupy again what a live lease occupied that was granted at an instant."""
        windows, entries = [], []
        for share in shares:
            counted = self._restored(*share[:3])
            if isinstance(counted.counter, Rolling):
                entry = counted.counter.restore(at, share.amount)
                entry.more = share.more
            else:  # its rows include it
                entry = Entry(share.period, share.amount)
            windows.append(counted)
            entries.append(entry)
        self._index()
        return Taken(tuple(windows), entries)


_PER_MINUTE = Window(REQUESTS, 1, WINDOW_SECONDS)


def _stored_key(counted: CountedWindow, limits: Limits) -> tuple[str, str | None, float]:
    """Return the first fields of the rows of a window. Those of a day that begins at `day_resets` are those of the
    first journals."""
    kind, scope, seconds = counted.row_key
    is_day = isinstance(counted.counter, CalendarPeriod) and counted.window.calendar == limits.day_resets
    return (counted.kind, scope, 0.0) if is_day else (kind, scope, seconds)


def _rows(counted: CountedWindow, occupied: Collection[Entry], limits: Limits, now: float) -> list[UsageRow]:
    key, counter = _stored_key(counted, limits), counted.counter
    if isinstance(counter, Rolling):
        amounts = counter.used_by_others(occupied, now) or {now: 0.0}  # an empty window counts, too
        return [UsageRow(*key, at, amount) for at, amount in amounts.items()]
    counter.ready_at(0, now)
    if isinstance(counter, CalendarPeriod):
        return [UsageRow(*key, counter.ends_at, counter.total)]
    if not counter.ends_at:
        return []
    rows = [UsageRow(*key, counter.began_at, counter.total)]
    if counter.is_confirmed:
        rows.append(UsageRow(key[0].replace(FIRST_USE, FIRST_USE_END), *key[1:], counter.ends_at, 0.0))
    return rows
