"""The windows of one quota group, and which of them count the requests of a scope."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from ._periods import CalendarPeriod, FirstUsePeriod
from ._windows import MAX_EXACT_SECONDS, Bucket, Entry, PacedRolling, Rolling, SlottedRolling
from .amounts import POSITIONS, from_units, in_units
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

# Windows that are declared no more and go on counting, for the case that they are declared again.
MAX_UNDECLARED = 32
# Scopes whose windows are remembered; then all are found again.
MAX_SETS = 256
# The window that `Limits.requests_per_minute` declares.
PER_MINUTE = Window(REQUESTS, 1, WINDOW_SECONDS)

Counter: TypeAlias = Rolling | CalendarPeriod | FirstUsePeriod
WindowKey: TypeAlias = tuple[str, str, float, str]


class Taken(NamedTuple):
    """What one lease took from each window."""

    windows: tuple[CountedWindow, ...]
    entries: Sequence[Entry]


class CountedWindow:
    """A declared window with its usage."""

    __slots__ = (
        "counter",
        "is_first_use",
        "is_reported",
        "kind",
        "name",
        "position",
        "reported_at",
        "reported_by",
        "window",
    )

    def __init__(self, window: Window, counter: Counter) -> None:
        self.window = window
        self.counter = counter
        self.kind = window.of
        self.is_first_use = isinstance(counter, FirstUsePeriod)
        self.position = POSITIONS[window.of]  # in what `amounts_of` returns
        self.name = window.name
        self.is_reported = False  # by answers, and not declared
        self.reported_at = -math.inf  # when the request was sent whose answer was read last
        self.reported_by: Taken | None = None  # its lease

    @property
    def row_key(self) -> tuple[str, str | None, float]:
        """The first fields of its usage rows."""
        window = self.window
        kind = window.of if window.key[3] == ROLLING else f"{window.of} {window.key[3]}"
        return kind, None if window.scope == EVERY_SCOPE else window.scope, window.seconds

    def set_limit(self, limits: Limits) -> float:
        """Apply the amount that limits leave of it; return that as the window counts it."""
        self.counter.limit = in_units(self.kind, limits.usable(self.window))
        return self.counter.limit

    def in_units(self, amount: float) -> float:
        """Return an amount as it counts it."""
        return in_units(self.kind, amount)

    def declared(self, amount: float) -> float:
        """Return an amount that it has counted as people declare it."""
        return from_units(self.kind, amount)

    def counts(self, scope: str | None) -> bool:
        """Return whether requests of a scope count. Of a request that names none the model is unknown: it counts."""
        pattern = self.window.scope
        return pattern == EVERY_SCOPE or scope is None or scope == pattern or fnmatchcase(scope, pattern)


class WindowSet:
    """The windows that count the requests of one scope."""

    __slots__ = ("details", "plain_until", "requests", "tokens", "version", "windows")

    def __init__(self, windows: Sequence[CountedWindow]) -> None:
        # In this order in `windows`, too.
        ordered = sorted(windows, key=lambda each: min(each.position, 2))
        self.requests = tuple(each.counter for each in ordered if each.kind == REQUESTS)
        self.tokens = tuple(each.counter for each in ordered if each.kind == TOKENS)
        self.details = tuple((each.position, each.counter) for each in ordered if each.position >= 2)
        self.windows = tuple(ordered)
        # The result for one request without tokens, the usual case: valid in one version of the usage.
        self.plain_until = 0.0
        self.version = -1


class WindowTable:
    """All windows of a quota group: declared, declared no more, and reported by answers."""

    __slots__ = (
        "_calendar",
        "_sets",
        "_version",
        "base",
        "has_first_use",
        "is_scoped",
        "limits",
        "looks_at_ends",
        "windows",
    )

    def __init__(self, limits: Limits, calendar: Calendar, now: float) -> None:
        self.windows: dict[WindowKey, CountedWindow] = {}
        self._version = 0
        self.looks_at_ends = False  # the end of a lease changes a window
        self.change(limits, calendar, now)

    def change(self, limits: Limits, calendar: Calendar, now: float) -> None:
        """Replace the limits. Usage remains counted, and live leases are corrected in the windows that they took from:
        a window that limits no longer goes on counting."""
        self.limits = limits
        self._calendar = calendar
        declared = {window.key: window for window in limits.all_windows()}
        for key, counted in tuple(self.windows.items()):
            if counted.is_reported:
                counted.set_limit(limits)
            elif key not in declared:
                counted.counter.limit = math.inf
                if isinstance(counted.counter, PacedRolling):
                    counted.counter.spread(None, None, now)
        for window in declared.values():
            self.declare(window, now)
            self._absorb(window, declared, now)
        self._forget_oldest()
        self.index()

    def _absorb(self, window: Window, declared: Collection[WindowKey], now: float) -> None:
        """Let a calendar window continue those that begin at another time and are declared no more: usage counts."""
        counter = self.windows[window.key].counter
        if isinstance(counter, CalendarPeriod):
            for key, other in tuple(self.windows.items()):
                if key[:3] == window.key[:3] and key not in declared and isinstance(other.counter, CalendarPeriod):
                    counter.absorb(other.counter, now)
                    del self.windows[key]

    def declare(self, window: Window, now: float) -> CountedWindow:
        counted = self.windows.get(window.key)
        if counted is None:
            counted = self.windows[window.key] = CountedWindow(window, self.make_counter(window))
        counted.window, counted.is_reported = window, False
        amount = counted.set_limit(self.limits)
        if isinstance(counted.counter, PacedRolling):
            rate = amount / window.seconds
            if (declared := self.limits.rate) is not None and window.key == PER_MINUTE.key:
                rate = min(rate, declared)  # less than one request per minute
            counted.counter.spread(rate, self.limits.burst, now)
        return counted

    def make_counter(self, window: Window) -> Counter:
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
        undeclared = [key for key, counted in self.windows.items() if counted.counter.limit == math.inf]
        for key in undeclared[:-MAX_UNDECLARED]:
            del self.windows[key]

    def index(self) -> None:
        """Find the windows of each scope again."""
        windows = tuple(self.windows.values())
        self.is_scoped = any(counted.window.scope != EVERY_SCOPE for counted in windows)
        self.has_first_use = any(isinstance(counted.counter, FirstUsePeriod) for counted in windows)
        self.looks_at_ends = self.looks_at_ends or self.has_first_use
        self.base = WindowSet([counted for counted in windows if counted.window.scope == EVERY_SCOPE])
        self._sets: dict[str | None, WindowSet] = {}
        self._version += 1

    def set_of(self, scope: str | None) -> WindowSet:
        """Return the windows that count requests of a scope. `base` has them, unless `is_scoped`."""
        if not self.is_scoped:
            return self.base
        windows = self._sets.get(scope)
        if windows is None:
            if len(self._sets) >= MAX_SETS:
                self._sets.clear()
            counting = [counted for counted in self.windows.values() if counted.counts(scope)]
            windows = self._sets[scope] = WindowSet(counting)
        return windows

    @property
    def bucket(self) -> Bucket | None:
        """The token bucket of the limit on requests per minute."""
        per_minute = self.windows.get(PER_MINUTE.key)
        return per_minute.counter.bucket if per_minute and isinstance(per_minute.counter, PacedRolling) else None

    def counted(self, window: Window) -> CountedWindow:
        """Return a window; make one that only counts if there is none."""
        counted = self.windows.get(window.key)
        if counted is None:
            counted = self.windows[window.key] = CountedWindow(window, self.make_counter(window))
        return counted
