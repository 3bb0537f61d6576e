"""Enforce the declared limits of one quota group: when a request may be sent, and what it uses.

All windows are checked first and charged together: a request that is not sent uses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ._windows import Bucket, Day, Entry, Window
from .declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, Limits
from .usage_report import UsageReport


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

    def report(self, now: float) -> UsageReport:
        """Return the usage at `now` for another process."""
        return UsageReport(
            [] if self._requests is None else self._requests.history(now),
            [] if self._tokens is None else self._tokens.history(now),
            0.0 if self._bucket is None else self._bucket.level(now),
            0.0 if self._day is None else self._day.total,
            0.0 if self._day is None else self._day.ends_at - now,
        )

    def merge(self, report: UsageReport, elapsed: float, now: float) -> None:
        """Count the usage of a report that was made `elapsed` seconds ago. Usage known to both counts once."""
        self.full_until = 0.0
        if self._requests is not None and self._bucket is not None:
            self._requests.merge(report.requests, elapsed, now)
            level = report.bucket_level + self._bucket.rate * elapsed
            if level < self._bucket.level(now):
                self._bucket.change(now, level=level)
        if self._tokens is not None:
            self._tokens.merge(report.tokens, elapsed, now)
        if report.day_ends_in > elapsed:
            self.use_day(int(report.day_requests), now)

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
