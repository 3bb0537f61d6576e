"""Token bucket and windows of time: rolling, and in periods that begin with their first use or by the calendar.

Each answers `ready_at(amount, now)`: the instant from which the amount may be used, 0 for now. A limit on requests per
minute needs two of them. The bucket spreads requests over the minute and admits a small burst. The exact window
guarantees that no sixty seconds hold more than the limit, which a bucket alone does not (600 a minute with a burst of
10 makes 610). Tokens have a window only: a single request may need most of a minute's worth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection

# Seconds by which a full bucket starts to refill late. Requests reach the provider with jitter: if the first of a burst
# arrives late and the next one early, the provider's bucket has had less time to fill than ours.
JITTER_SECONDS = 0.05
# Seconds by which usage counts longer than its window, and their greatest share of it. A request reaches the provider
# later than it was granted, above all the first one on a connection: if a later one is faster, the provider sees both
# in one window. Requests are spread by a bucket, which allows for that; tokens are not.
ARRIVAL_JITTER_SECONDS = 0.25
MAX_JITTER_SHARE = 0.025
# Usage is stored in slots of this many seconds: a minute has 600 of them at most, however many requests it had.
SLOT_SECONDS = 0.1
# A rolling window of more than MAX_EXACT_SECONDS keeps its usage in slots of 1/SLOTS of its length: usage counts up to
# that much longer than it must, never shorter.
MAX_EXACT_SECONDS = 60.0
SLOTS = 500
# Seconds in which a bucket fills the largest debt that it records. Usage is reported by workers and commands, which may
# report anything; and no provider has served more in the last minute than its limit of a minute.
MAX_DEBT_SECONDS = 60.0


class Bucket:
    """Fills at `rate` per second up to `capacity`. Taking more than it holds is debt, which is filled first: at most
    what the bucket holds or fills in MAX_DEBT_SECONDS."""

    __slots__ = ("_jitter", "_level", "_since", "capacity", "rate")

    def __init__(self, rate: float, capacity: float, now: float, *, jitter: float = JITTER_SECONDS) -> None:
        self.rate = rate
        self.capacity = capacity
        self._jitter = jitter
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
        self._since = now + self._jitter if level >= self.capacity else max(now, self._since)
        lowest = min(level, -max(self.capacity, self.rate * MAX_DEBT_SECONDS))
        self._level = min(self.capacity, max(level - amount, lowest))

    def state(self) -> tuple[float, float]:
        """Return the level, and the instant from which it rises."""
        return self._level, self._since

    def restore(self, level: float, since: float) -> None:
        """Set what `state` returned."""
        self._level, self._since = min(self.capacity, level), since

    def change(self, now: float, *, rate: float | None = None, capacity: float | None = None,
               level: float | None = None, jitter: float | None = None) -> None:  # fmt: skip
        self._jitter = self._jitter if jitter is None else jitter
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


class Rolling:
    """Admits at most `limit` within any `seconds` and a moment for jitter. Only corrections exceed it, as debt.

    Usage of others is what a provider has counted and this window has not: each report replaces the one before.
    """

    __slots__ = ("_entries", "_others", "_others_until", "_span", "limit", "seconds", "total")

    def __init__(self, limit: float, seconds: float = 60.0) -> None:
        self.limit = limit
        self.seconds = seconds
        self._span = seconds + min(ARRIVAL_JITTER_SECONDS, seconds * MAX_JITTER_SHARE)
        self.total = 0.0  # with that of others
        self._entries: deque[Entry] = deque()
        self._others = 0.0
        self._others_until = 0.0

    def ready_at(self, amount: float, now: float) -> float:
        entries = self._entries
        if entries and entries[0].at + self._span <= now:
            self._drop_expired(now)
        excess = self.total + amount - self.limit
        return 0.0 if excess <= 0 else self._room_at(amount, now)

    def _room_at(self, amount: float, now: float) -> float:
        """Return the instant at which enough usage has expired for an amount."""
        if self._others and self._others_until <= now:
            self._set_others(0.0, now)
        excess = self.total + amount - self.limit
        if excess <= 0:
            return 0.0
        others = self._others
        for entry in self._entries:
            end = entry.at + self._span
            if others and self._others_until <= end:
                excess, others = excess - others, 0.0
                if excess <= 0:
                    return self._others_until
            excess -= entry.amount
            if excess <= 0:
                return end
        if others and excess <= others:
            return self._others_until
        # An amount within the limit fits when the window is empty: only rounding errors lead here.
        return max(self.next_exit(), now) if amount <= self.limit else math.inf

    def next_exit(self) -> float:
        """Return the instant at which the oldest entry expires, 0 if there is none; until then no more fits."""
        ends = [self._entries[0].at + self._span] if self._entries else []
        return min((*ends, self._others_until) if self._others else ends, default=0.0)

    def take(self, amount: float, now: float) -> Entry:
        entry = Entry(now, amount)
        self._entries.append(entry)
        self.total += amount
        return entry

    def correct(self, entry: Entry, amount: float, _more: float, now: float) -> None:
        """Replace the amount of an entry. An excess counts from now on, the latest instant at which it was used."""
        self._drop_expired(now)
        counted = entry.amount + entry.more
        if amount > counted:
            entry.more += amount - counted
            self.take(amount - counted, now)
        else:
            self._give_back(entry, min(counted - amount, entry.amount), now)

    def _give_back(self, entry: Entry, surplus: float, now: float) -> None:
        if entry.at + self._span > now:
            self.total -= surplus
            entry.amount -= surplus

    def report(self, used: float, until: float | None, now: float) -> None:
        """Count what a provider has counted beyond this window, until it resets."""
        self._drop_expired(now)
        self._set_others(max(0.0, used - (self.total - self._others)), now + self.seconds if until is None else until)

    def forget_others(self) -> None:
        """Forget what a provider has reported."""
        self._set_others(0.0, 0.0)

    def _set_others(self, amount: float, until: float) -> None:
        self.total += amount - self._others
        self._others, self._others_until = amount, until

    def used_by_others(self, live: Collection[Entry], now: float) -> dict[float, float]:
        """Return amounts by instant, without the entries in `live`. Instants are rounded up to SLOT_SECONDS, so that
        a restored window forgets nothing early."""
        self._drop_expired(now)
        amounts: dict[float, float] = {}
        for entry in self._entries:
            if entry.amount and entry not in live:
                slot = math.ceil(entry.at / SLOT_SECONDS) * SLOT_SECONDS
                amounts[slot] = amounts.get(slot, 0.0) + entry.amount
        if self._others and self._others_until > now:
            at = self._others_until - self.seconds
            amounts[at] = amounts.get(at, 0.0) + self._others
        return amounts

    def restore(self, at: float, amount: float) -> Entry:
        """Add an entry of any instant."""
        entry = Entry(at, amount)
        self._insert(entry)
        return entry

    def _insert(self, entry: Entry) -> None:
        self.total += entry.amount
        if self._entries and self._entries[-1].at > entry.at:
            self._entries = deque(sorted((*self._entries, entry), key=lambda other: other.at))
        else:
            self._entries.append(entry)

    def _drop_expired(self, now: float) -> None:
        entries = self._entries
        while entries and entries[0].at + self._span <= now:
            self.total -= entries.popleft().amount
        if not entries:
            self.total = self._others


class PacedRolling(Rolling):
    """A rolling window of requests with a token bucket, which spreads them."""

    __slots__ = ("bucket",)

    def __init__(self, limit: float, seconds: float) -> None:
        super().__init__(limit, seconds)
        self._span = seconds  # its bucket allows for jitter
        self.bucket: Bucket | None = None

    def ready_at(self, amount: float, now: float) -> float:
        at = Rolling.ready_at(self, amount, now)
        if self.bucket is None:
            return at
        bucket_at = self.bucket.ready_at(amount, now)
        return bucket_at if bucket_at > at else at

    def take(self, amount: float, now: float) -> Entry:
        if self.bucket is not None:
            self.bucket.take(amount, now)
        entry = Entry(now, amount)
        self._entries.append(entry)
        self.total += amount
        return entry

    def correct(self, entry: Entry, amount: float, more: float, now: float) -> None:
        bucket, self.bucket = self.bucket, None  # `take` would charge it
        super().correct(entry, amount, more, now)
        self.bucket = bucket
        if bucket is not None:
            bucket.take(more, now)

    def spread(self, rate: float | None, burst: float | None, now: float) -> None:
        """Set the rate per second at which the bucket fills; None: no bucket. `burst`: its capacity (None: one second's
        worth)."""
        if rate is None:
            self.bucket = None
            return
        capacity = max(1.0, burst if burst is not None else rate)
        if self.bucket is None:
            self.bucket = Bucket(rate, capacity, now)
        else:
            self.bucket.change(now, rate=rate, capacity=capacity, level=self.bucket.level(now))


class _SlotEntry(Entry):
    """The part of one lease in a slot."""

    __slots__ = ("slot",)

    def __init__(self, at: float, amount: float, slot: _Slot) -> None:
        super().__init__(at, amount)
        self.slot = slot


class _Slot(Entry):
    """Usage of a part of a window: all of it counts as of the last instant, `at`."""

    __slots__ = ("since",)

    def __init__(self, at: float, amount: float) -> None:
        super().__init__(at, amount)
        self.since = at


class SlottedRolling(Rolling):
    """A rolling window of bounded size: usage within 1/SLOTS of its length counts as of the last instant of it."""

    __slots__ = ("_width",)

    def __init__(self, limit: float, seconds: float) -> None:
        super().__init__(limit, seconds)
        self._width = seconds / SLOTS

    def take(self, amount: float, now: float) -> Entry:
        last = self._entries[-1] if self._entries else None
        if isinstance(last, _Slot) and last.at <= now < last.since + self._width:
            last.at = now
            last.amount += amount
        else:
            last = _Slot(now, amount)
            self._entries.append(last)
        self.total += amount
        return _SlotEntry(now, amount, last)

    def _give_back(self, entry: Entry, surplus: float, now: float) -> None:
        assert isinstance(entry, _SlotEntry)
        if entry.slot.at + self._span > now:
            self.total -= surplus
            entry.amount -= surplus
            entry.slot.amount -= surplus

    def used_by_others(self, live: Collection[Entry], now: float) -> dict[float, float]:
        occupied: dict[_Slot, float] = {}
        for entry in live:
            if isinstance(entry, _SlotEntry):
                occupied[entry.slot] = occupied.get(entry.slot, 0.0) + entry.amount
        self._drop_expired(now)
        amounts: dict[float, float] = {}
        for slot in self._entries:
            assert isinstance(slot, _Slot)
            amount = slot.amount - occupied.get(slot, 0.0)
            if amount > 0:
                amounts[slot.at] = amounts.get(slot.at, 0.0) + amount
        if self._others and self._others_until > now:
            at = self._others_until - self.seconds
            amounts[at] = amounts.get(at, 0.0) + self._others
        return amounts

    def restore(self, at: float, amount: float) -> Entry:
        slot = _Slot(at, amount)
        self._insert(slot)
        return _SlotEntry(at, amount, slot)
