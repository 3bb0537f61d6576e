"""How providers enforce limits: one small class per kind, in virtual time.

Each kind answers two questions. `fits_at(now, amount)` is the first instant from `now` on at which so much would fit
(`math.inf`: never), and `admit(now, amount)` takes it, whether it fits or not: the provider asks all its rules before
it takes from any. `now` is always given, in seconds since 1970. A rule in a provider's list is a pattern: every group
of keys gets a fresh copy.
"""

from __future__ import annotations

import copy
import math
from bisect import insort
from collections import deque
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, Self
from zoneinfo import ZoneInfo

# Seconds, or parts of a request: dates have steps of 0.2 microseconds, and an instant that was promised must hold.
TOLERANCE = 1e-6

Counts = Literal["requests", "tokens"]


class Rule:
    """What all kinds share."""

    # What an amount is an amount of.
    counts: Counts = "requests"
    # Shown in errors and in the provider's log.
    name: str = ""
    # How much the rate-limit headers say is allowed: per minute, except for daily quotas.
    stated_limit: float = 0.0
    # Whether headers have anything to say about it.
    has_headers: bool = True

    def fits_at(self, now: float, amount: float = 1) -> float:
        raise NotImplementedError

    def admit(self, now: float, amount: float = 1) -> None:
        raise NotImplementedError

    def give_back(self, now: float, amount: float, taken_at: float) -> None:
        """Corrects what was taken at an instant; a negative amount takes more."""

    def remaining(self, now: float) -> int:
        """How much would fit now, in whole numbers."""
        raise NotImplementedError

    def full_at(self, now: float) -> float:
        """When everything is there again, if nobody asks for anything."""
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
        # Debt has a bottom, or a client that hammers a provider that counts refusals would be out for ever.
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
    """Model tokens, as most providers count them: a minute's worth at once, then as they come back."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit / 60, limit, counts="tokens")


class FixedWindow(Rule):
    """`limit` in each period, where periods begin at round dates: with 60 s, at each full minute."""

    def __init__(self, limit: float, period: float = 60.0, *, counts: Counts = "requests") -> None:
        self.limit = _positive("limit", limit)
        self.period = _positive("period", period)
        self.counts = counts
        self.name = _named(counts, period)
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
    """A limit per minute that is really checked second by second: a sixtieth of it, and at least one, in each."""

    def __init__(self, per_minute: float) -> None:
        super().__init__(max(1, math.floor(per_minute / 60)), 1.0)
        self.name = "requests per minute"
        self.stated_limit = per_minute


class DailyQuota(FixedWindow):
    """`limit` a day, where days begin at a time of day somewhere: "00:00 UTC", "00:00 America/Los_Angeles"."""

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
        # A day later by the clock on the wall there, whatever daylight saving does in between.
        return (reset if reset > local else reset + timedelta(days=1)).timestamp()


class SlidingWindow(Rule):
    """`limit` in any stretch of `period` seconds, exactly."""

    def __init__(self, limit: float, period: float = 60.0, *, counts: Counts = "requests") -> None:
        self.limit = _positive("limit", limit)
        self.period = _positive("period", period)
        self.counts = counts
        self.name = _named(counts, period)
        self.stated_limit = limit * 60 / period
        self._taken: deque[tuple[float, float]] = deque()  # when and how much, in order
        self._used = 0.0

    def fits_at(self, now: float, amount: float = 1) -> float:
        if amount > self.limit:
            return math.inf
        self._forget(now)
        excess = self._used + amount - self.limit
        leaves_at = now
        for taken_at, taken in self._taken:
            if excess <= TOLERANCE:
                break
            excess -= taken
            leaves_at = taken_at + self.period
        return leaves_at

    def admit(self, now: float, amount: float = 1) -> None:
        self._forget(now)
        self._taken.append((now, amount))
        self._used += amount

    def give_back(self, now: float, amount: float, taken_at: float) -> None:
        insort(self._taken, (taken_at, -amount))
        self._used -= amount
        self._forget(now)

    def remaining(self, now: float) -> int:
        self._forget(now)
        return max(0, math.floor(self.limit - self._used + TOLERANCE))

    def full_at(self, now: float) -> float:
        self._forget(now)
        return self._taken[-1][0] + self.period if self._taken else now

    def _forget(self, now: float) -> None:
        while self._taken and self._taken[0][0] + self.period <= now + TOLERANCE:
            self._used -= self._taken.popleft()[1]


class Concurrency(Rule):
    """`limit` requests at once. When one will end is not known, so a refusal suggests to wait for `hint` seconds."""

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


def _named(counts: Counts, period: float) -> str:
    span = {1.0: "second", 60.0: "minute", 3600.0: "hour", 86_400.0: "day"}.get(period, f"{period:g} s")
    return f"{counts} per {span}"
