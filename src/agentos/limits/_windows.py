"""What keeps a limit. All answer the same question, `ready_at(amount, now)`: the instant from which so much more may be
used, 0 for now.

A limit is met from two sides. The *bucket* spreads requests over the minute and lets a small burst through at once; the
exact *window* sees to it that no sixty seconds ever hold more than the limit, which a bucket alone does not (600 a
minute with a burst of 10 makes 610). Tokens have the window only: a single request may need most of a minute's worth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from .declaration import WINDOW_SECONDS

# A provider sees our requests a little earlier or later than they were admitted. If the first of a burst comes late and
# the next one early, the provider's bucket has had less time to fill than ours; so ours starts to fill this much later.
JITTER_SECONDS = 0.05


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

    def merge(self, history: Sequence[tuple[int, float]], elapsed: float, now: float) -> None:
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
