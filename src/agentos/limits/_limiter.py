"""Enforce the declared limits of one quota group: when a request may be sent, and what it uses.

All windows are checked first and charged together: a request that is not sent uses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

from ._windows import Bucket, Day, Entry, Window
from .declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, WINDOW_SECONDS, Limits
from .usage_state import REQUESTS, TOKENS, LeaseUsage, UsageRow, UsageState

# Seconds of a day, where only the end of the provider's day is known.
DAY_SECONDS = 86_400.0


def _with_limit(window: Window | None, limit: float | None) -> Window | None:
    if window is None:
        return None if limit is None else Window(limit)
    window.limit = math.inf if limit is None else limit
    return window


class UsageEntries(NamedTuple):
    """What one lease took from each window; None where no window existed."""

    requests: Entry | None
    tokens: Entry | None
    day_ends_at: float


class RateLimiter:
    """The declared limits of one quota group, over all its credentials and scopes."""

    __slots__ = ("_bucket", "_day", "_requests", "_tokens", "full_until", "limits")

    def __init__(self, limits: Limits, day_ends_after: Callable[[float], float], now: float) -> None:
        self._bucket: Bucket | None = None
        self._requests: Window | None = None
        self._tokens: Window | None = None
        self._day: Day | None = None
        self.change(limits, day_ends_after, now)

    def change(self, limits: Limits, day_ends_after: Callable[[float], float], now: float) -> None:
        """Replace the limits. Usage remains counted, and live leases are corrected in the windows that they took from:
        a window that limits no longer goes on counting."""
        self.limits = limits
        rate, per_minute = limits.rate, limits.requests_per_minute
        if rate is None:
            self._bucket = None
        else:
            capacity = max(1.0, limits.burst if limits.burst is not None else rate)
            if self._bucket is None:
                self._bucket = Bucket(rate, capacity, now)
            else:
                self._bucket.change(now, rate=rate, capacity=capacity, level=self._bucket.level(now))
        self._requests = _with_limit(self._requests, None if per_minute is None else max(1.0, per_minute))
        self._tokens = _with_limit(self._tokens, limits.tokens_per_minute)
        if self._day is not None:
            self._day.change(
                math.inf if limits.requests_per_day is None else limits.requests_per_day, day_ends_after, now
            )
        elif limits.requests_per_day is not None:
            self._day = Day(limits.requests_per_day, day_ends_after)
        self.full_until = 0.0  # cached result for one request without tokens, the usual case

    def ready_at(self, requests: int, tokens: int, now: float) -> float:
        """Return the instant from which the amount may be used; 0 for now."""
        is_plain = requests == 1 and not tokens
        if is_plain and now < self.full_until:
            return self.full_until
        at = 0.0
        if requests and self._bucket is not None and self._requests is not None:
            at = self._bucket.ready_at(requests, now)
            if (next_at := self._requests.ready_at(requests, now)) > at:
                at = next_at
        # A window in debt admits nothing, not even a request that reserves no tokens.
        if self._tokens is not None and (next_at := self._tokens.ready_at(tokens, now)) > at:
            at = next_at
        if requests and self._day is not None and (next_at := self._day.ready_at(requests, now)) > at:
            at = next_at
        if is_plain:
            self.full_until = at
        return at

    def binding(self, requests: int, tokens: int, now: float) -> tuple[float, str | None]:
        """Return the same instant, and the name of the limit that decides it."""
        at = self.ready_at(requests, tokens, now)
        if not at:
            return 0.0, None
        if self._tokens is not None and self._tokens.ready_at(tokens, now) == at:
            return at, TOKENS_PER_MINUTE
        if self._day is not None and self._day.ready_at(requests, now) == at:
            return at, REQUESTS_PER_DAY
        return at, REQUESTS_PER_MINUTE

    def next_tokens_at(self, tokens: int, now: float) -> float:
        """Return the instant from which more tokens fit than now; 0 if `tokens` fit already."""
        if self._tokens is None or not self._tokens.ready_at(tokens, now):
            return 0.0
        return self._tokens.next_exit()

    def token_room(self, now: float) -> float:
        """Return the number of tokens that may be used now; negative in debt, infinite without a limit."""
        if self._tokens is None:
            return math.inf
        self._tokens.ready_at(0, now)
        return self._tokens.limit - self._tokens.total

    def too_large(self, requests: int, tokens: int) -> str | None:
        """Return a sentence about the limit that the amount alone exceeds; None if it can be admitted."""
        limits = self.limits
        if self._requests is not None and requests > self._requests.limit:
            return f"{requests} requests at once, more than {limits.requests_per_minute:g} per minute"
        if self._day is not None and requests > self._day.limit:
            return f"{requests} requests at once, more than {limits.requests_per_day:g} per day"
        if self._tokens is not None and tokens > self._tokens.limit:
            return f"{tokens} tokens at once, more than {limits.tokens_per_minute:g} per minute"
        return None

    def take(self, requests: int, tokens: int, now: float) -> UsageEntries:
        self.full_until = 0.0
        if self._bucket is not None:
            self._bucket.take(requests, now)
        if self._day is not None:
            self._day.take(requests, now)
        return UsageEntries(
            None if self._requests is None else self._requests.take(requests, now),
            None if self._tokens is None else self._tokens.take(tokens, now),
            0.0 if self._day is None else self._day.ends_at,
        )

    def use_day(self, requests: int, now: float) -> None:
        """Raise today's usage to at least `requests`, as used before counting started here."""
        if self._day is not None:
            self._day.take(max(0.0, requests - self._day.total), now)

    def state(self, live: Collection[UsageEntries], now: float) -> UsageState:
        """Return the usage for storage, without what the live leases with these entries occupy."""
        rows = []
        occupied = {entry for entries in live for entry in (entries.requests, entries.tokens) if entry is not None}
        for kind, window in ((REQUESTS, self._requests), (TOKENS, self._tokens)):
            if window is not None:
                amounts = window.used_by_others(occupied, now) or {now: 0.0}  # an empty window counts, too
                rows += [UsageRow(kind, None, WINDOW_SECONDS, at, amount) for at, amount in amounts.items()]
        if self._day is not None:
            self._day.ready_at(0, now)
            rows.append(UsageRow(REQUESTS, None, 0.0, self._day.ends_at, self._day.total))
        return UsageState(rows, None if self._bucket is None else self._bucket.state())

    def restore(self, state: UsageState, day_ends_after: Callable[[float], float], now: float) -> None:
        """Set the usage that `state` returned. Limits that are not declared any more go on counting."""
        self.full_until = 0.0
        if state.bucket is not None and self._bucket is not None:
            self._bucket.restore(*state.bucket)
        for row in sorted(state.rows, key=lambda row: row.start):
            if not row.seconds:
                self._restore_day(row, day_ends_after, now)
            elif row.start + WINDOW_SECONDS > now:
                self._window(row.kind).restore(Entry(row.start, row.amount))

    def _window(self, kind: str) -> Window:
        """Return the window of a kind; make one that only counts if there is none."""
        if kind == REQUESTS:
            self._requests = self._requests or Window(math.inf)
            return self._requests
        self._tokens = self._tokens or Window(math.inf)
        return self._tokens

    def _restore_day(self, row: UsageRow, day_ends_after: Callable[[float], float], now: float) -> None:
        if row.start > now:
            self._day = self._day or Day(math.inf, day_ends_after)
            self._day.ready_at(0, now)
            self._day.total, self._day.ends_at = row.amount, row.start

    def occupied_by(self, entries: UsageEntries) -> LeaseUsage:
        """Return what a live lease occupies, for storage."""
        requests, tokens = entries.requests, entries.tokens
        return LeaseUsage(
            None if requests is None else requests.amount,
            None if tokens is None else tokens.amount,
            entries.day_ends_at,
            0.0 if requests is None else requests.more,
            0.0 if tokens is None else tokens.more,
        )

    def restore_lease(self, usage: LeaseUsage, at: float) -> UsageEntries:
        """Occupy again what a live lease occupied that was granted at an instant."""
        self.full_until = 0.0
        entries = []
        for kind, amount, more in (
            (REQUESTS, usage.requests, usage.more_requests),
            (TOKENS, usage.tokens, usage.more_tokens),
        ):
            entry = None if amount is None else Entry(at, amount)
            if entry is not None:
                entry.more = more
                self._window(kind).restore(entry)
            entries.append(entry)
        return UsageEntries(entries[0], entries[1], usage.day_ends_at)

    def use(self, requests: int, tokens: int, at: float, now: float) -> None:
        """Count usage of an instant in the past that no lease stands for."""
        self.full_until = 0.0
        for window, amount in ((self._requests, requests), (self._tokens, tokens)):
            if window is not None and amount and at + WINDOW_SECONDS > now:
                window.restore(Entry(at, amount))
        if self._bucket is not None and at + WINDOW_SECONDS > now:
            self._bucket.take(requests, now)
        if self._day is not None and self._is_today(at, now):
            self._day.take(requests, now)

    def _is_today(self, at: float, now: float) -> bool:
        assert self._day is not None
        self._day.ready_at(0, now)
        ends_at = self._day.ends_at
        return at > ends_at - DAY_SECONDS or ends_at > now + 2 * DAY_SECONDS  # its end is not known: it has not ended

    def recalculate_day(self, now: float) -> None:
        """Find the end of the provider's day again, after a step of the wall clock. Usage remains counted."""
        if self._day is not None:
            self.full_until = 0.0
            self._day.recalculate(now)

    def correct(
        self, entries: UsageEntries, more_requests: int, more_tokens: int, requests: int, tokens: int, now: float
    ) -> None:
        """Replace what a lease took by what it used: `requests` and `tokens`, which are `more_…` than it took. Where
        nothing was counted, because no limit existed then, only the excess counts."""
        self.full_until = 0.0
        if self._bucket is not None:
            self._bucket.take(more_requests, now)
        if self._day is not None and (more_requests > 0 or entries.day_ends_at == self._day.ends_at > now):
            self._day.take(more_requests, now)  # nothing is given back to another day
        if self._requests is not None and entries.requests is not None:
            self._requests.correct(entries.requests, requests, now)
        elif self._requests is not None and more_requests > 0:
            self._requests.take(more_requests, now)
        if self._tokens is not None and entries.tokens is not None:
            self._tokens.correct(entries.tokens, tokens, now)
        elif self._tokens is not None and more_tokens > 0:
            self._tokens.take(more_tokens, now)

    def usage(self, now: float) -> dict[str, tuple[float, float]]:
        """Return (used, limit) by the name of each limit."""
        usage: dict[str, tuple[float, float]] = {}
        for name, window in ((REQUESTS_PER_MINUTE, self._requests), (TOKENS_PER_MINUTE, self._tokens)):
            if window is not None and window.limit < math.inf:
                window.ready_at(0, now)
                usage[name] = (window.total, window.limit)
        if self._day is not None and self._day.limit < math.inf:
            self._day.ready_at(0, now)
            usage[REQUESTS_PER_DAY] = (self._day.total, self._day.limit)
        return usage
