"""Declared limits: when a request may be sent, and what it takes from the allowance.

A limit is met from two sides. The *bucket* spreads requests over the minute and lets a small burst through at once; the
exact *window* sees to it that no sixty seconds ever hold more than the limit, which a bucket alone does not (600 a
minute with a burst of 10 makes 610). Tokens have the window only: a single request may need most of a minute's worth.

Every limiter here answers the same question, `ready_at(amount, now)`: the instant from which so much more may be used,
0 for now. Several are checked first and taken from together: a request that is not sent uses nothing up.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

WINDOW_SECONDS = 60.0
# A provider sees our requests a little earlier or later than they were admitted. If the first of a burst comes late and
# the next one early, the provider's bucket has had less time to fill than ours; so ours starts to fill this much later.
JITTER_SECONDS = 0.05

# Names of the dimensions, for people.
REQUESTS_PER_MINUTE = "requests per minute"
TOKENS_PER_MINUTE = "tokens per minute"
REQUESTS_PER_DAY = "requests per day"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider allows one quota group. None means: not known, and so it is learned.

    `max_concurrent` is the number of leases at once per credential; all else is counted per quota group. `burst` is how
    many requests may be sent at once (None: one second's worth, at least one). `day_resets` is when the provider's day
    begins: a time and a zone, such as `"00:00 America/Los_Angeles"`.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    requests_per_day: int | None = None
    max_concurrent: int = 1
    burst: float | None = None
    day_resets: str = "00:00 UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.max_concurrent, int) or isinstance(self.max_concurrent, bool) or self.max_concurrent < 1:
            raise ValueError(f"max_concurrent must be a whole number from 1, not {self.max_concurrent!r}")
        for name in ("requests_per_minute", "tokens_per_minute", "requests_per_day", "burst"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 1e-9 < value < 1e15):
                raise ValueError(f"{name} must be a number above 0, or None for not known; not {value!r}")
        if self.requests_per_day is not None and self.requests_per_day != int(self.requests_per_day):
            raise ValueError(f"requests_per_day must be a whole number, not {self.requests_per_day!r}")
        for name in ("requests_per_day", "burst"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        if not isinstance(self.day_resets, str) or not _is_time_and_zone(self.day_resets):
            raise ValueError(f"day_resets must look like '00:00 UTC', not {self.day_resets!r}")

    @property
    def rate(self) -> float | None:
        """Requests per second."""
        return None if self.requests_per_minute is None else self.requests_per_minute / 60.0

    @property
    def is_paced(self) -> bool:
        return not (
            self.requests_per_minute is None and self.tokens_per_minute is None and self.requests_per_day is None
        )


def _is_time_and_zone(text: str) -> bool:
    time, _, zone = text.partition(" ")
    hours, _, minutes = time.partition(":")
    is_time = (
        len(time) == 5
        and time.isascii()
        and hours.isdecimal()
        and minutes.isdecimal()
        and int(hours) < 24
        and int(minutes) < 60
    )
    return is_time and len(zone.split()) == 1 and zone == zone.strip()


def strictest(one: Limits, other: Limits) -> Limits:
    """Of two declarations about the same allowance, the smaller figure of each dimension."""
    if not one.is_paced or not other.is_paced:
        return other if other.is_paced else one
    per_day = _smaller(one.requests_per_day, other.requests_per_day)
    return Limits(
        requests_per_minute=_smaller(one.requests_per_minute, other.requests_per_minute),
        tokens_per_minute=_smaller(one.tokens_per_minute, other.tokens_per_minute),
        requests_per_day=None if per_day is None else int(per_day),
        burst=_smaller(one.burst, other.burst),
        day_resets=one.day_resets if one.requests_per_day is not None else other.day_resets,
    )


def _smaller(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)


class Bucket:
    """Fills at `rate` a second up to `capacity`. What is taken beyond its content is debt, to be filled first."""

    __slots__ = ("_level", "_since", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._since = now  # when the level was this, and from when on it rises

    def level(self, now: float) -> float:
        level = self._level + self.rate * (now - self._since) if now > self._since else self._level
        return level if level < self.capacity else self.capacity

    def ready_at(self, amount: float, now: float) -> float:
        # More than fits in is let through a full bucket, as debt.
        missing = (amount if amount < self.capacity else self.capacity) - self._level
        if missing <= 0.0:
            return 0.0
        at = self._since + missing / self.rate
        return at if at > now else 0.0

    def take(self, amount: float, now: float) -> None:
        """A negative amount is given back."""
        level = self.level(now)
        self._since = now + JITTER_SECONDS if level >= self.capacity else max(now, self._since)
        self._level = min(self.capacity, level - amount)

    def change(self, now: float, *, rate: float | None = None, capacity: float | None = None,
               level: float | None = None) -> None:  # fmt: skip
        self._level = self.level(now) if level is None else level
        self._since = max(now, self._since) if level is None else now
        self.rate = self.rate if rate is None else rate
        self.capacity = self.capacity if capacity is None else capacity
        self._level = min(self._level, self.capacity)


class Entry:
    """So much was used at an instant, and so much more was found out later, which has entries of its own."""

    __slots__ = ("amount", "at", "more")

    def __init__(self, at: float, amount: float) -> None:
        self.at = at
        self.amount = amount
        self.more = 0.0


class Window:
    """At most `limit` within any sixty seconds, to the instant. Beyond it only by debt."""

    __slots__ = ("_entries", "limit", "total")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.total = 0.0
        self._entries: deque[Entry] = deque()

    def ready_at(self, amount: float, now: float) -> float:
        if self._entries and self._entries[0].at + WINDOW_SECONDS <= now:
            self._forget(now)
        excess = self.total + amount - self.limit
        if excess <= 0:
            return 0.0
        for entry in self._entries:
            excess -= entry.amount
            if excess <= 0:
                return entry.at + WINDOW_SECONDS
        # What fits at all fits when everything is gone; only rounding can say otherwise.
        return self._entries[-1].at + WINDOW_SECONDS if self._entries and amount <= self.limit else math.inf

    def next_exit(self) -> float:
        """When anything leaves the window: before that it cannot admit more than it does now."""
        return self._entries[0].at + WINDOW_SECONDS if self._entries else 0.0

    def take(self, amount: float, now: float) -> Entry:
        entry = Entry(now, amount)
        self._entries.append(entry)
        self.total += amount
        return entry

    def correct(self, entry: Entry, amount: float, now: float) -> None:
        """It was really `amount`. More than was taken counts from now on: that is when it was used at the latest."""
        self._forget(now)
        known = entry.amount + entry.more
        if amount > known:
            entry.more += amount - known
            self.take(amount - known, now)
        elif entry.at + WINDOW_SECONDS > now:
            less = min(known - amount, entry.amount)
            self.total -= less
            entry.amount -= less

    def history(self, now: float) -> list[tuple[int, float]]:
        """What is used: so many whole seconds ago so much, the newest first."""
        self._forget(now)
        used: dict[int, float] = {}
        for entry in reversed(self._entries):
            age = max(0, int(now - entry.at))
            used[age] = used.get(age, 0.0) + entry.amount
        return list(used.items())

    def hear(self, history: Sequence[tuple[int, float]], elapsed: float, now: float) -> None:
        """What another has known of, so long ago. Of several who tell the same, the most counts, once."""
        self._forget(now)
        left = [(now - age - elapsed, amount) for age, amount in history if age + elapsed < WINDOW_SECONDS]
        missing = sum(amount for _, amount in left) - self.total
        for at, amount in left:
            if missing > 0.0:
                self._entries.append(Entry(at, min(amount, missing)))
                self.total += min(amount, missing)
                missing -= amount
        self._entries = deque(sorted(self._entries, key=lambda entry: entry.at))

    def _forget(self, now: float) -> None:
        entries = self._entries
        while entries and entries[0].at + WINDOW_SECONDS <= now:
            self.total -= entries.popleft().amount
        if not entries:
            self.total = 0.0


class Day:
    """So many until the provider's day ends. `ends_after(now)` tells when that is."""

    __slots__ = ("_ends_after", "ends_at", "limit", "total")

    def __init__(self, limit: float, ends_after: Callable[[float], float]) -> None:
        self.limit = limit
        self.total = 0.0
        self.ends_at = 0.0
        self._ends_after = ends_after

    def ready_at(self, amount: float, now: float) -> float:
        self._turn(now)
        return 0.0 if self.total + amount <= self.limit else self.ends_at

    def take(self, amount: float, now: float) -> None:
        self._turn(now)
        self.total = max(0.0, self.total + amount)

    def change(self, limit: float, ends_after: Callable[[float], float], now: float) -> None:
        self._turn(now)
        self.limit, self._ends_after, self.ends_at = limit, ends_after, ends_after(now)

    def _turn(self, now: float) -> None:
        if now >= self.ends_at:
            self.total = 0.0
            self.ends_at = self._ends_after(now)


def _with_limit(window: Window | None, limit: float | None) -> Window | None:
    if window is None:
        return None if limit is None else Window(limit)
    window.limit = math.inf if limit is None else limit
    return window


class Taken(NamedTuple):
    """What one lease has taken."""

    requests: Entry | None
    tokens: Entry | None
    day_ends_at: float


class Told(NamedTuple):
    """What is used of an allowance; ages instead of instants, because another log may have another clock."""

    requests: Sequence[tuple[int, float]]
    tokens: Sequence[tuple[int, float]]
    level: float  # of the bucket
    day: float
    day_left: float  # seconds until the day ends


class Allowance:
    """The declared limits of one quota group, over all its credentials and scopes."""

    __slots__ = ("_bucket", "_day", "_requests", "_tokens", "full_until", "limits")

    def __init__(self, limits: Limits, ends_after: Callable[[float], float], now: float) -> None:
        self._bucket: Bucket | None = None
        self._requests: Window | None = None
        self._tokens: Window | None = None
        self._day: Day | None = None
        self.change(limits, ends_after, now)

    def change(self, limits: Limits, ends_after: Callable[[float], float], now: float) -> None:
        """Other figures. What was used is still used, and what leases took is still corrected where they took it: a
        window that is no limit any more goes on counting."""
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
            self._day.change(math.inf if limits.requests_per_day is None else limits.requests_per_day, ends_after, now)
        elif limits.requests_per_day is not None:
            self._day = Day(limits.requests_per_day, ends_after)
        self.full_until = 0.0  # for plain requests, which most are: until then it need not be worked out again

    def ready_at(self, requests: int, tokens: int, now: float) -> float:
        """From when on so much may be used; 0 for now."""
        is_plain = requests == 1 and not tokens
        if is_plain and now < self.full_until:
            return self.full_until
        at = 0.0
        if requests and self._bucket is not None and self._requests is not None:
            at = self._bucket.ready_at(requests, now)
            if (then := self._requests.ready_at(requests, now)) > at:
                at = then
        # A window that is in debt admits nothing, not even those who did not say what they need.
        if self._tokens is not None and (then := self._tokens.ready_at(tokens, now)) > at:
            at = then
        if requests and self._day is not None and (then := self._day.ready_at(requests, now)) > at:
            at = then
        if is_plain:
            self.full_until = at
        return at

    def binding(self, requests: int, tokens: int, now: float) -> tuple[float, str | None]:
        """The same, and the limit that decides it."""
        at = self.ready_at(requests, tokens, now)
        if not at:
            return 0.0, None
        if self._tokens is not None and self._tokens.ready_at(tokens, now) == at:
            return at, TOKENS_PER_MINUTE
        if self._day is not None and self._day.ready_at(requests, now) == at:
            return at, REQUESTS_PER_DAY
        return at, REQUESTS_PER_MINUTE

    def next_tokens_at(self, tokens: int, now: float) -> float:
        """If so many tokens do not fit: when more will than now. 0 if they do fit."""
        if self._tokens is None or not self._tokens.ready_at(tokens, now):
            return 0.0
        return self._tokens.next_exit()

    def token_room(self, now: float) -> float:
        """How many more tokens may be used now; below zero if it is in debt."""
        if self._tokens is None:
            return math.inf
        self._tokens.ready_at(0, now)
        return self._tokens.limit - self._tokens.total

    def too_large(self, requests: int, tokens: int) -> str | None:
        """Which limit so much exceeds by itself, so that waiting would be for nothing."""
        limits = self.limits
        if self._requests is not None and requests > self._requests.limit:
            return f"{requests} requests at once, more than {limits.requests_per_minute:g} per minute"
        if self._day is not None and requests > self._day.limit:
            return f"{requests} requests at once, more than {limits.requests_per_day:g} per day"
        if self._tokens is not None and tokens > self._tokens.limit:
            return f"{tokens} tokens at once, more than {limits.tokens_per_minute:g} per minute"
        return None

    def take(self, requests: int, tokens: int, now: float) -> Taken:
        self.full_until = 0.0
        if self._bucket is not None:
            self._bucket.take(requests, now)
        if self._day is not None:
            self._day.take(requests, now)
        return Taken(
            None if self._requests is None else self._requests.take(requests, now),
            None if self._tokens is None else self._tokens.take(tokens, now),
            0.0 if self._day is None else self._day.ends_at,
        )

    def use_day(self, requests: int, now: float) -> None:
        """So many were used before it was known here."""
        if self._day is not None:
            self._day.take(max(0.0, requests - self._day.total), now)

    def told(self, now: float) -> Told:
        """What is used, in words that another log understands."""
        return Told(
            [] if self._requests is None else self._requests.history(now),
            [] if self._tokens is None else self._tokens.history(now),
            0.0 if self._bucket is None else self._bucket.level(now),
            0.0 if self._day is None else self._day.total,
            0.0 if self._day is None else self._day.ends_at - now,
        )

    def hear(self, told: Told, elapsed: float, now: float) -> None:
        """So it was, so long ago, in a log that was lost."""
        self.full_until = 0.0
        if self._requests is not None and self._bucket is not None:
            self._requests.hear(told.requests, elapsed, now)
            level = told.level + self._bucket.rate * elapsed
            if level < self._bucket.level(now):
                self._bucket.change(now, level=level)
        if self._tokens is not None:
            self._tokens.hear(told.tokens, elapsed, now)
        if told.day_left > elapsed:
            self.use_day(int(told.day), now)

    def correct(self, taken: Taken, more_requests: int, requests: int, tokens: int, now: float) -> None:
        """It was really so much; `more_requests` than was taken."""
        self.full_until = 0.0
        if self._bucket is not None:
            self._bucket.take(more_requests, now)
        if self._day is not None and (more_requests > 0 or taken.day_ends_at == self._day.ends_at > now):
            self._day.take(more_requests, now)  # but nothing is given back to another day
        if self._requests is not None and taken.requests is not None:
            self._requests.correct(taken.requests, requests, now)
        if self._tokens is not None and taken.tokens is not None:
            self._tokens.correct(taken.tokens, tokens, now)

    def used(self, now: float) -> dict[str, tuple[float, float]]:
        """What is used of each limit now: (used, limit)."""
        used: dict[str, tuple[float, float]] = {}
        for name, window in ((REQUESTS_PER_MINUTE, self._requests), (TOKENS_PER_MINUTE, self._tokens)):
            if window is not None and window.limit < math.inf:
                window.ready_at(0, now)
                used[name] = (window.total, window.limit)
        if self._day is not None and self._day.limit < math.inf:
            self._day.ready_at(0, now)
            used[REQUESTS_PER_DAY] = (self._day.total, self._day.limit)
        return used
