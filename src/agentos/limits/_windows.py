"""Token bucket, sliding window and calendar day.

Each answers `ready_at(amount, now)`: the instant from which the amount may be used, 0 for now. A limit per minute needs
two of them. The bucket spreads requests over the minute and admits a small burst. The exact window guarantees that no
sixty seconds hold more than the limit, which a bucket alone does not (600 a minute with a burst of 10 makes 610).
Tokens have a window only: a single request may need most of a minute's worth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection

from .declaration import WINDOW_SECONDS

# Seconds by which a full bucket starts to refill late. Requests reach the provider with jitter: if the first of a burst
# arrives late and the next one early, the provider's bucket has had less time to fill than ours.
JITTER_SECONDS = 0.05
# Usage is stored in slots of this many seconds: a minute has 600 of them at most, however many requests it had.
SLOT_SECONDS = 0.1
# Seconds in which a bucket fills the largest debt that it records. Usage is reported by workers and commands, which may
# report anything; and no provider has served more in the last minute than its limit of a minute.
MAX_DEBT_SECONDS = 60.0


class Bucket:
    """Fills at `rate` per second up to `capacity`. Taking more than it holds is debt, which is filled first: at most
    what the bucket holds or fills in MAX_DEBT_SECONDS."""

    __slots__ = ("_level", "_since", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float) -> None:
        self.rate = rate
        self.capacity = capacity
        self._level = capacity
        self._since = now  # the instant of that level, from which it rises

    def level(self, now: float) -> float:
        level = self._level + self.rate * (now - self._since) if now > self._since else self._level
        return level if level < self.capacity else self.capacity

    def ready_at(self, amount: float, now: float) -> float:
        # A full bucket admits more than its capacity, as debt.
        missing = (amount if amount < self.capacity else self.capacity) - self._level
        if missing <= 0.0:
            return 0.0
        at = self._since + missing / self.rate
        return at if at > now else 0.0

    def take(self, amount: float, now: float) -> None:
        """Take an amount; a negative one is given back."""
        level = self.level(now)
        self._since = now + JITTER_SECONDS if level >= self.capacity else max(now, self._since)
        lowest = min(level, -max(self.capacity, self.rate * MAX_DEBT_SECONDS))
        self._level = min(self.capacity, max(level - amount, lowest))

    def state(self) -> tuple[float, float]:
        """Return the level, and the instant from which it rises."""
        return self._level, self._since

    def restore(self, level: float, since: float) -> None:
        """Set what `state` returned."""
        self._level, self._since = min(self.capacity, level), since

    def change(self, now: float, *, rate: float | None = None, capacity: float | None = None,
               level: float | None = None) -> None:  # fmt: skip
        self._level = self.level(now) if level is None else level
        self._since = max(now, self._since) if level is None else now
        self.rate = self.rate if rate is None else rate
        self.capacity = self.capacity if capacity is None else capacity
        self._level = min(self._level, self.capacity)


class Entry:
    """An amount used at an instant. Usage reported later (`more`) has entries of its own."""

    __slots__ = ("amount", "at", "more")

    def __init__(self, at: float, amount: float) -> None:
        self.at = at
        self.amount = amount
        self.more = 0.0


class Window:
    """Admits at most `limit` within any sixty seconds, exactly. Only corrections exceed it, as debt."""

    __slots__ = ("_entries", "limit", "total")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.total = 0.0
        self._entries: deque[Entry] = deque()

    def ready_at(self, amount: float, now: float) -> float:
        if self._entries and self._entries[0].at + WINDOW_SECONDS <= now:
            self._drop_expired(now)
        excess = self.total + amount - self.limit
        if excess <= 0:
            return 0.0
        for entry in self._entries:
            excess -= entry.amount
            if excess <= 0:
                return entry.at + WINDOW_SECONDS
        # An amount within the limit fits when the window is empty: only rounding errors lead here.
        return self._entries[-1].at + WINDOW_SECONDS if self._entries and amount <= self.limit else math.inf

    def next_exit(self) -> float:
        """Return the instant at which the oldest entry expires, 0 if there is none; until then no more fits."""
        return self._entries[0].at + WINDOW_SECONDS if self._entries else 0.0

    def take(self, amount: float, now: float) -> Entry:
        entry = Entry(now, amount)
        self._entries.append(entry)
        self.total += amount
        return entry

    def correct(self, entry: Entry, amount: float, now: float) -> None:
        """Replace the amount of an entry. An excess counts from now on, the latest instant at which it was used."""
        self._drop_expired(now)
        counted = entry.amount + entry.more
        if amount > counted:
            entry.more += amount - counted
            self.take(amount - counted, now)
        elif entry.at + WINDOW_SECONDS > now:
            surplus = min(counted - amount, entry.amount)
            self.total -= surplus
            entry.amount -= surplus

    def used_by_others(self, live: Collection[Entry], now: float) -> dict[float, float]:
        """Return amounts by instant, without the entries in `live`. Instants are rounded up to SLOT_SECONDS, so that
        a restored window forgets nothing early."""
        self._drop_expired(now)
        amounts: dict[float, float] = {}
        for entry in self._entries:
            if entry.amount and entry not in live:
                slot = math.ceil(entry.at / SLOT_SECONDS) * SLOT_SECONDS
                amounts[slot] = amounts.get(slot, 0.0) + entry.amount
        return amounts

    def restore(self, entry: Entry) -> None:
        """Add an entry of any instant."""
        self.total += entry.amount
        if self._entries and self._entries[-1].at > entry.at:
            self._entries = deque(sorted((*self._entries, entry), key=lambda other: other.at))
        else:
            self._entries.append(entry)

    def _drop_expired(self, now: float) -> None:
        entries = self._entries
        while entries and entries[0].at + WINDOW_SECONDS <= now:
            self.total -= entries.popleft().amount
        if not entries:
            self.total = 0.0


class Day:
    """Admits at most `limit` until the provider's day ends, at `ends_after(now)`."""

    __slots__ = ("_ends_after", "ends_at", "limit", "total")

    def __init__(self, limit: float, ends_after: Callable[[float], float]) -> None:
        self.limit = limit
        self.total = 0.0
        self.ends_at = 0.0
        self._ends_after = ends_after

    def ready_at(self, amount: float, now: float) -> float:
        self._start_new_day(now)
        return 0.0 if self.total + amount <= self.limit else self.ends_at

    def take(self, amount: float, now: float) -> None:
        self._start_new_day(now)
        self.total = max(0.0, self.total + amount)

    def change(self, limit: float, ends_after: Callable[[float], float], now: float) -> None:
        self._start_new_day(now)
        self.limit, self._ends_after, self.ends_at = limit, ends_after, ends_after(now)

    def recalculate(self, now: float) -> None:
        """Find the end of the present day again."""
        self._start_new_day(now)
        self.ends_at = self._ends_after(now)

    def _start_new_day(self, now: float) -> None:
        """Reset the usage if the day has ended."""
        if now >= self.ends_at:
            self.total = 0.0
            self.ends_at = self._ends_after(now)
