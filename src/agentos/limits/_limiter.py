"""Enforce the declared limits of one quota group: when a request may be sent, and what it uses.

All windows that count a request are checked first and charged together: a request that is not sent uses nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from . import _reports, _usage_rows
from ._periods import CalendarPeriod, FirstUsePeriod, Period
from ._window_table import Taken, WindowSet, WindowTable
from ._windows import Entry, PacedRolling, Rolling
from .amounts import NO_BINDING, Binding, Detail, amount_of, amounts_of
from .declaration import REQUESTS, Calendar, Limits
from .usage_state import LeaseShare, UsageState

if TYPE_CHECKING:
    from agentos.verdict import WindowReport

# Seconds from which a window is a long one, whose quota is worth using before it resets.
LONG_SECONDS = 3_600.0
# Seconds by which the first request of a process may reach the provider late: it imports a client and connects. A
# journal does not tell which usage was dated later by it: a restored owner may count that much longer.
FIRST_ARRIVAL_SECONDS = 1.0
# Entries before the first answer that are dated again by it; earlier ones count FIRST_ARRIVAL_SECONDS longer.
MAX_EARLY = 1_000


class RateLimiter(WindowTable):
    """The declared limits of one quota group, over all its credentials and scopes."""

    __slots__ = ("_early", "_has_reports")

    def __init__(self, limits: Limits, calendar: Calendar, now: float) -> None:
        self._has_reports = False
        self._early: deque[Entry] | None = deque(maxlen=MAX_EARLY)  # None: a request has been answered
        super().__init__(limits, calendar, now)
        self.looks_at_ends = True

    # --- asking ---------------------------------------------------------------------------------------------------

    def ready_at(
        self, requests: int, tokens: int, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> float:
        """Return the instant from which the amount may be used; 0 for now."""
        return self.ready_in(self.set_of(scope), requests, tokens, detail, now)

    def full_until(self, now: float) -> float:
        """Return the instant until which no request of any scope is admitted; 0 if some may be."""
        return self.ready_in(self.base, 1, 0, None, now)

    def ready_in(self, windows: WindowSet, requests: int, tokens: int, detail: Detail | None, now: float) -> float:
        """`ready_at` for a scope whose windows are known."""
        is_plain = requests == 1 and not tokens and detail is None
        # If usage has not grown since, what was admitted still is.
        if is_plain and windows.version == self._version and (not windows.plain_until or now < windows.plain_until):
            return windows.plain_until
        at = 0.0
        if requests:
            for counter in windows.requests:
                if (next_at := counter.ready_at(requests, now)) > at:
                    at = next_at
        # A window in debt admits nothing, not even a request that reserves no tokens.
        for counter in windows.tokens:
            if (next_at := counter.ready_at(tokens, now)) > at:
                at = next_at
        if windows.details:
            amounts = amounts_of(requests, tokens, detail)
            for position, counter in windows.details:
                if (next_at := counter.ready_at(amounts[position], now)) > at:
                    at = next_at
        if is_plain:
            windows.plain_until, windows.version = at, self._version
        return at

    def binding(
        self, requests: int, tokens: int, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> Binding:
        """Return the same instant, and the limit that decides it."""
        binding = NO_BINDING
        for counted in self.set_of(scope).windows:
            if counted.kind != REQUESTS or requests:
                next_at = counted.counter.ready_at(amount_of(counted.kind, requests, tokens, detail), now)
                if next_at > binding.at:
                    binding = Binding(next_at, counted.name, counted.declared(counted.counter.limit))
        return binding

    def next_room_at(
        self, scope: str | None, tokens: int, detail: Detail | None, now: float, other_scope: str | None = None
    ) -> float:
        """Return the instant from which more tokens or money fit than now; 0 if the amounts fit already. Only windows
        count that requests of `other_scope` use, too."""
        others = self.set_of(other_scope).windows
        exits = []
        for counted in self.set_of(scope).windows:
            if counted.kind != REQUESTS and counted in others:
                amount = amount_of(counted.kind, 1, tokens, detail)
                if counted.counter.ready_at(amount, now):
                    exits.append(counted.counter.next_exit())
        return min(exits, default=0.0)

    def token_room(self, scope: str | None, now: float) -> float:
        """Return the number of tokens that may be used now; negative in debt, infinite without a limit."""
        room = math.inf
        for counter in self.set_of(scope).tokens:
            counter.ready_at(0, now)
            room = min(room, counter.limit - counter.total)
        return room

    def too_large(
        self, requests: int, tokens: int, scope: str | None = None, detail: Detail | None = None
    ) -> str | None:
        """Return a sentence about the limit that the amount alone exceeds; None if it can be admitted."""
        for counted in self.set_of(scope).windows:
            amount = amount_of(counted.kind, requests, tokens, detail)
            if amount > (limit := counted.counter.limit):
                noun, _, length = counted.name.partition(" per ")
                amount, limit = counted.declared(amount), counted.declared(limit)
                return f"{amount:.10g} {noun} at once, more than {limit:.10g} per {length}"
        return None

    # --- using ----------------------------------------------------------------------------------------------------

    def take(
        self, requests: int, tokens: int, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> Taken:
        self._version += 1
        windows = self.set_of(scope) if self.is_scoped else self.base
        # Loops, because comprehensions take longer for one or no window.
        entries: list[Entry] = []
        for counter in windows.requests:
            entries.append(counter.take(requests, now))  # noqa: PERF401
        for counter in windows.tokens:
            entries.append(counter.take(tokens, now))  # noqa: PERF401
        if windows.details:
            amounts = amounts_of(requests, tokens, detail)
            for position, counter in windows.details:
                entries.append(counter.take(amounts[position], now))
        taken = Taken(windows.windows, entries)
        if self._early is not None:
            self._date_early(taken, self._early)
        return taken

    @staticmethod
    def _date_early(taken: Taken, early: deque[Entry]) -> None:
        """Count tokens and money that are taken before the first answer of the group as used later.

        The provider would count a first request that arrives late in one window with requests that are granted when it
        has left the window here."""
        for counted, entry in zip(*taken, strict=True):
            if type(counted.counter) is Rolling:  # buckets and slots allow for more jitter
                entry.at += FIRST_ARRIVAL_SECONDS
                early.append(entry)

    def correct(
        self, taken: Taken, before: tuple[int, int, Detail | None], after: tuple[int, int, Detail | None], now: float,
        scope: str | None = None,
    ) -> None:  # fmt: skip
        """Replace what a lease took (`before`: requests, tokens, detail) by what it used. Where nothing was counted,
        because no limit existed then, only the excess counts."""
        self._version += 1
        if self._early is not None and any(after[:2]):  # its answer is known
            self._end_early(self._early, now)
        old, new = amounts_of(*before), amounts_of(*after)
        for counted, entry in zip(*taken, strict=True):
            amount = new[counted.position]
            more = amount - old[counted.position]
            if more:
                counted.counter.correct(entry, amount, more, now)
        windows = self.set_of(scope) if self.is_scoped else self.base
        if windows.windows is not taken.windows:
            for counted in windows.windows:
                more = new[counted.position] - old[counted.position]
                if more > 0 and counted not in taken.windows:
                    counted.counter.take(more, now)

    def _end_early(self, early: Collection[Entry], now: float) -> None:
        """Note that a first request of the group has arrived: no usage counts from later than now."""
        for entry in early:
            entry.at = min(entry.at, now)
        self._early = None
        self.looks_at_ends = self.has_first_use or self._has_reports

    def confirm(self, taken: Taken, now: float) -> None:
        """Note that the request of a lease has succeeded: periods that begin with their first use have begun."""
        if self._early is not None:
            self._end_early(self._early, now)
        windows, entries = taken
        for index, counted in enumerate(windows):
            if counted.is_first_use:
                counted.counter.confirm(entries[index], now)  # type: ignore[union-attr]

    def use(
        self, requests: int, tokens: int, at: float, now: float, scope: str | None = None, detail: Detail | None = None
    ) -> None:
        """Count usage of an instant in the past that no lease stands for."""
        self._version += 1
        for counted in self.set_of(scope).windows:
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
        by_name = {counted.name: counted for counted in self.windows.values()}
        for name, amount in used:
            counted = by_name.get(name)
            if counted is not None and (more := counted.in_units(amount) - counted.counter.total) > 0:
                counted.counter.take(more, now)

    def recalculate_days(self, now: float) -> None:
        """Find the ends of calendar periods again, after a step of the wall clock. Usage remains counted."""
        self._version += 1
        for counted in self.windows.values():
            if isinstance(counted.counter, CalendarPeriod):
                counted.counter.recalculate(now)

    def usage(self, now: float) -> dict[str, tuple[float, float]]:
        """Return (used, limit) by the name of each limit."""
        usage: dict[str, tuple[float, float]] = {}
        for counted in self.windows.values():
            if counted.counter.limit < math.inf:
                counted.counter.ready_at(0, now)
                used = counted.declared(counted.counter.total)
                usage[counted.name] = (used, counted.declared(counted.counter.limit))
        return usage

    def end(self, taken: Taken, has_arrived: bool, now: float) -> None:
        """Note the end of a lease, if `looks_at_ends`. `has_arrived`: the provider has had its request."""
        if self._has_reports and _reports.end_report(taken):
            self._version += 1
        if has_arrived:
            self.confirm(taken, now)

    def report(
        self, reports: Sequence[WindowReport], scope: str | None, sent_at: float, taken: Taken | None, now: float
    ) -> None:
        """Count what a provider has counted, by an answer to a request of a scope."""
        self._version += 1
        self._has_reports = self.looks_at_ends = True
        _reports.apply_reports(self, reports, scope, sent_at, taken, now)

    def resets_at(self, now: float) -> float:
        """Return when the first window of at least LONG_SECONDS resets of which something is left; infinite if none
        does. What is left of a rolling window does not expire."""
        ends = []
        for counted in self.windows.values():
            counter = counted.counter
            if isinstance(counter, Period) and counter.seconds >= LONG_SECONDS and counter.limit < math.inf:
                counter.ready_at(0, now)
                if counter.total < counter.limit and counter.ends_at > now:
                    ends.append(counter.ends_at)
        return min(ends, default=math.inf)

    # --- storing and restoring: see `_usage_rows` -----------------------------------------------------------------

    def state(self, live: Collection[Taken], now: float) -> UsageState:
        return _usage_rows.usage_state(self, live, now)

    def restore(self, state: UsageState, now: float) -> None:
        _usage_rows.restore_usage(self, state, now)

    def occupied_by(self, taken: Taken) -> list[LeaseShare]:
        return _usage_rows.lease_shares(self, taken)

    def restore_lease(self, shares: Sequence[LeaseShare], at: float) -> Taken:
        return _usage_rows.restore_lease(self, shares, at)
