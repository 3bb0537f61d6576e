"""Rules: how providers enforce limits, one small class per kind, in virtual time.

`fits_at(now, amount)` returns the first instant from `now` on at which the amount fits (`math.inf`: never).
`admit(now, amount)` takes it, whether it fits or not: the provider asks all its rules before it takes from any.
`now` is an argument, in seconds since 1970. A rule in a provider's list is a pattern: every group of keys gets a copy.
"""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections import deque
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, Self
from zoneinfo import ZoneInfo

# In seconds, or parts of a request. Dates have steps of 0.2 microseconds, and a promised instant must hold.
TOLERANCE = 1e-6

Counts = Literal["requests", "tokens"]


class Rule:
    """Base class of all kinds."""

    # The unit of an amount.
    counts: Counts = "requests"
    # Shown in errors and in the provider's log.
    name: str = ""
    # The limit in rate-limit headers: per minute, except for daily quotas.
    stated_limit: float = 0.0
    # Whether rate-limit headers report it.
    has_headers: bool = True

    def fits_at(self, now: float, amount: float = 1) -> float:
        raise NotImplementedError

    def admit(self, now: float, amount: float = 1) -> None:
        raise NotImplementedError

    def give_back(self, now: float, amount: float, taken_at: float) -> None:
        """Return an amount that was taken at `taken_at`; a negative amount takes more."""

    def remaining(self, now: float) -> int:
        """Return the whole amount that fits now."""
        raise NotImplementedError

    def full_at(self, now: float) -> float:
        """Return the instant at which the limit is whole again without further requests."""
        raise NotImplementedError

    def fresh(self) -> Self:
        return copy.deepcopy(self)


class TokenBucket(Rule):
    """A bucket of `burst` that fills at `rate` per second."""

    def __init__(self, rate: float, burst: float, *, counts: Counts = "requests") -> None:
        self.rate = _positive("rate", rate)
        self.burst = _positive("burst", burst)
        self.counts = counts
        self.name = f"{counts} per minute"
        self.stated_limit = rate * 60
        self._level = float(burst)
        self._at = -math.inf

    def fits_at(self, now: float, amount: float = 1) -> float:
        if amount > self.burst:
            return math.inf
        missing = amount - self._level_at(now)
        return now if missing <= TOLERANCE * max(1.0, self.rate) else now + missing / self.rate

    def admit(self, now: float, amount: float = 1) -> None:
        # Debt is bounded: where refusals count, a client that keeps sending would otherwise never be admitted again.
        self._level = max(-self.burst, self._level_at(now) - amount)
        self._at = now

    def give_back(self, now: float, amount: float, taken_at: float) -> None:  # noqa: ARG002
        self.admit(now, -amount)
        self._level = min(self.burst, self._level)

    def remaining(self, now: float) -> int:
        return max(0, math.floor(self._level_at(now) + TOLERANCE))

    def full_at(self, now: float) -> float:
        return now + (self.burst - self._level_at(now)) / self.rate

    def _level_at(self, now: float) -> float:
        if self._at == -math.inf:
            return self.burst
        return min(self.burst, self._level + max(0.0, now - self._at) * self.rate)


class TokensPerMinute(TokenBucket):
    """Model tokens, as most providers count them: a minute's worth at once, then as the bucket refills."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit / 60, limit, counts="tokens")


class FixedWindow(Rule):
    """`limit` in each period, where periods begin at round dates: with 60 s, at each full minute."""

    def __init__(self, limit: float, period: float = 60.0, *, counts: Counts = "requests") -> None:
        self.limit = _positive("limit", limit)
        self.period = _positive("period", period)
        self.counts = counts
        self.name = _limit_name(counts, period)
        self.stated_limit = limit * 60 / period
        self._used = 0.0
        self._ends_at = -math.inf

    def fits_at(self, now: float, amount: float = 1) -> float:
        if amount > self.limit:
            return math.inf
        return now if self._used_at(now) + amount <= self.limit + TOLERANCE else self._ends_at

    def admit(self, now: float, amount: float = 1) -> None:
        self._used = self._used_at(now) + amount
        if self._ends_at <= now:
            self._ends_at = self._end_after(now)

    def give_back(self, now: float, amount: float, taken_at: float) -> None:
        if now < self._ends_at == self._end_after(taken_at):
            self._used -= amount

    def remaining(self, now: float) -> int:
        return max(0, math.floor(self.limit - self._used_at(now) + TOLERANCE))

    def full_at(self, now: float) -> float:
        return self._ends_at if self._used_at(now) else now

    def _used_at(self, now: float) -> float:
        return self._used if now + TOLERANCE < self._ends_at else 0.0

    def _end_after(self, now: float) -> float:
        return (math.floor((now + TOLERANCE) / self.period) + 1) * self.period


class PerSecondSlices(FixedWindow):
    """A limit per minute that is checked second by second: a sixtieth of it, and at least one, in each."""

    def __init__(self, per_minute: float) -> None:
        super().__init__(max(1, math.floor(per_minute / 60)), 1.0)
        self.name = "requests per minute"
        self.stated_limit = per_minute


class DailyQuota(FixedWindow):
    """`limit` a day. Days begin at a time in a zone: "00:00 UTC", "00:00 America/Los_Angeles"."""

    def __init__(self, limit: float, resets: str = "00:00 UTC", *, counts: Counts = "requests") -> None:
        super().__init__(limit, 86_400.0, counts=counts)
        time_of_day, _, zone = resets.partition(" ")
        hour, _, minute = time_of_day.partition(":")
        self._hour, self._minute = int(hour), int(minute)
        self._zone: tzinfo = UTC if zone in ("", "UTC") else ZoneInfo(zone)
        self.stated_limit = limit

    def _end_after(self, now: float) -> float:
        local = datetime.fromtimestamp(now + TOLERANCE, self._zone)
        reset = local.replace(hour=self._hour, minute=self._minute, second=0, microsecond=0)
        # One day later in local time: a day with a change of summer time has 23 or 25 hours.
        return (reset if reset > local else reset + timedelta(days=1)).timestamp()


class SlidingWindow(Rule):
    """`limit` in any period of `period` seconds, exactly."""

    def __init__(self, limit: float, period: float = 60.0, *, counts: Counts = "requests") -> None:
        self.limit = _positive("limit", limit)
        self.period = _positive("period", period)
        self.counts = counts
        self.name = _limit_name(counts, period)
        self.stated_limit = limit * 60 / period
        self._entries: deque[tuple[float, float]] = deque()  # instant and amount, in order
        self._used = 0.0

    def fits_at(self, now: float, amount: float = 1) -> float:
        if amount > self.limit:
            return math.inf
        self._drop_expired(now)
        excess = self._used + amount - self.limit
        expires_at = now
        for taken_at, taken_amount in self._entries:
            if excess <= TOLERANCE:
                break
            excess -= taken_amount
            expires_at = taken_at + self.period
        return expires_at

    def admit(self, now: float, amount: float = 1) -> None:
        self._drop_expired(now)
        self._entries.append((now, amount))
        self._used += amount

    def give_back(self, now: float, amount: float, taken_at: float) -> None:
        insort(self._entries, (taken_at, -amount))
        self._used -= amount
        self._drop_expired(now)

    def remaining(self, now: float) -> int:
        self._drop_expired(now)
        return max(0, math.floor(self.limit - self._used + TOLERANCE))

    def full_at(self, now: float) -> float:
        self._drop_expired(now)
        return self._entries[-1][0] + self.period if self._entries else now

    def _drop_expired(self, now: float) -> None:
        while self._entries and self._entries[0][0] + self.period <= now + TOLERANCE:
            self._used -= self._entries.popleft()[1]


class Concurrency(Rule):
    """`limit` requests at once. The end of a request is not known, so a refusal suggests a wait of `hint` seconds."""

    name = "concurrent requests"
    has_headers = False

    def __init__(self, limit: int, *, hint: float = 1.0) -> None:
        self.limit = _positive("limit", limit)
        self.stated_limit = limit
        self._hint = hint
        self._running = 0.0

    def fits_at(self, now: float, amount: float = 1) -> float:
        return now if self._running + amount <= self.limit else now + self._hint

    def admit(self, now: float, amount: float = 1) -> None:  # noqa: ARG002
        self._running += amount

    def give_back(self, now: float, amount: float, taken_at: float) -> None:  # noqa: ARG002
        self._running -= amount

    def remaining(self, now: float) -> int:  # noqa: ARG002
        return max(0, int(self.limit - self._running))

    def full_at(self, now: float) -> float:
        return now


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value!r}")
    return value


def _limit_name(counts: Counts, period: float) -> str:
    span = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}.get(period, f"{period:g} s")
    return f"{counts} per {span}"
