"""Windows whose whole usage is forgotten at once: they begin with their first use, or by the calendar.

A provider counts a request when it arrives, up to ARRIVAL_SECONDS after its grant here. So what is taken shortly before
the end of a period may belong to the next one, and counts in both; not if it is known to have arrived before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ._windows import Entry

# Seconds between the grant of a lease and the arrival of its request at the provider, at most.
ARRIVAL_SECONDS = 2.0


class Period:
    """Admits at most `limit` until the period ends, at `ends_at`."""

    __slots__ = ("_late_at", "_late_entries", "began_at", "ends_at", "late", "limit", "others", "seconds", "total")

    def __init__(self, limit: float, seconds: float) -> None:
        self.limit = limit
        self.seconds = seconds
        self.total = 0.0
        self.ends_at = 0.0  # 0: no period has begun
        self.began_at = 0.0  # identifies the period
        self.others = 0.0  # the part of `total` that a provider has counted, and this window has not
        self.late = 0.0  # taken so late that it may count in the next period
        self._late_at = math.inf  # the instant of the first
        self._late_entries: dict[Entry, float] = {}  # what each took of it

    def ready_at(self, amount: float, now: float) -> float:
        if now >= self.ends_at:
            self._end(now)
        return 0.0 if self.total + amount <= self.limit else self.ends_at if amount <= self.limit else math.inf

    def next_exit(self) -> float:
        """Return the instant at which the period ends."""
        return self.ends_at

    def take(self, amount: float, now: float) -> Entry:
        if now >= self.ends_at:
            self._end(now)
        self._use(now)
        entry = Entry(self.began_at, amount)
        self.total += amount
        if now >= self._late_from():  # also a request that uses nothing may begin a period
            self._count_late(entry, amount, now)
        return entry

    def _count_late(self, entry: Entry, amount: float, now: float) -> None:
        self.late += amount
        self._late_at = min(self._late_at, now)
        self._late_entries[entry] = self._late_entries.get(entry, 0.0) + amount

    def correct(self, entry: Entry, _amount: float, more: float, now: float) -> None:
        """Add `more` to what an entry has used. Nothing is given back to another period."""
        if now >= self.ends_at:
            self._end(now)
        if more > 0 or (entry.at == self.began_at and self.ends_at > now):
            if more > 0:
                self._use(now)
            self.total = max(0.0, self.total + more)
            if more >= 0 and now >= self._late_from():
                self._count_late(entry, more, now)

    def report(self, used: float, _until: float | None, now: float) -> None:
        """Count what a provider has counted beyond this window."""
        if now >= self.ends_at:
            self._end(now)
        if used > 0:
            self._use(now)
        own = self.total - self.others
        self.others = max(0.0, used - own)
        self.total = own + self.others

    def _end(self, now: float) -> None:
        """Forget the usage of a period that has ended, but for what was taken late."""
        if now >= self.ends_at + self.seconds + ARRIVAL_SECONDS:  # the next period would have ended, too
            self._forget_late()
        self.total, self.others = self.late, 0.0
        self._begin(now)
        self._forget_late()

    def _forget_late(self) -> None:
        self.late, self._late_at, self._late_entries = 0.0, math.inf, {}

    def _begin(self, now: float) -> None:
        """Begin the next period."""
        raise NotImplementedError

    def _use(self, now: float) -> None:
        """Note that a request uses the present period. No-op for one of the calendar."""

    def _late_from(self) -> float:
        raise NotImplementedError


class CalendarPeriod(Period):
    """A provider's day, week or month, which ends at `ends_after(now)`."""

    __slots__ = ("_ends_after",)

    def __init__(self, limit: float, seconds: float, ends_after: Callable[[float], float]) -> None:
        super().__init__(limit, seconds)
        self._ends_after = ends_after

    def _begin(self, now: float) -> None:
        self.ends_at = self.began_at = self._ends_after(now)

    def _late_from(self) -> float:
        return self.ends_at - ARRIVAL_SECONDS

    def absorb(self, other: Period, now: float) -> None:
        """Count at least what another window has counted in its present period."""
        self.ready_at(0.0, now)
        other.ready_at(0.0, now)
        self.total = max(self.total, other.total)

    def recalculate(self, now: float) -> None:
        """Find the end of the present period again. Usage remains counted."""
        self.ready_at(0.0, now)
        self._begin(now)

    def restore(self, ends_at: float, amount: float, now: float) -> None:
        """Continue a period that was stored."""
        if ends_at > now:
            self.total, self.ends_at, self.began_at = amount, ends_at, ends_at
            self.late = amount if now >= self._late_from() else 0.0

    def includes(self, at: float, now: float) -> bool:
        """Return whether an instant lies in the present period."""
        self.ready_at(0.0, now)
        return at > self.ends_at - self.seconds or self.ends_at > now + 2 * self.seconds  # its end is not known


class FirstUsePeriod(Period):
    """A period of `seconds` that begins with its first request.

    The provider's period begins when a request arrives there. A request that was granted may never have been sent, so
    its end is a bound: until a request has succeeded, every further one prolongs the period; the first success decides.
    """

    __slots__ = ("is_confirmed",)

    def __init__(self, limit: float, seconds: float) -> None:
        super().__init__(limit, seconds)
        self.is_confirmed = False

    def _begin(self, now: float) -> None:
        self.is_confirmed = False
        self.began_at = min(now, self._late_at)
        # What was taken late may have begun it, at the end of the last one at the latest.
        self.ends_at = self.ends_at + self.seconds + ARRIVAL_SECONDS if self._late_at < math.inf else 0.0

    def _use(self, now: float) -> None:
        if not self.ends_at:
            self.began_at = now
        if not self.is_confirmed:
            self.ends_at = now + self.seconds + ARRIVAL_SECONDS

    def _late_from(self) -> float:
        return self.began_at + self.seconds - ARRIVAL_SECONDS

    def confirm(self, entry: Entry, now: float) -> None:
        """Note that the request of an entry has arrived: the provider's period has begun, now at the latest. If that
        cannot have ended yet, the request does not count in the next one."""
        if entry.at != self.began_at or now >= self.ends_at:
            return
        if now <= self.began_at + self.seconds:
            self.late -= self._late_entries.pop(entry, 0.0)
            if not self._late_entries:
                self._forget_late()
        if not self.is_confirmed:
            self.is_confirmed = True
            self.ends_at = now + self.seconds

    def report(self, used: float, until: float | None, now: float) -> None:
        super().report(used, until, now)
        if until is not None and until > now:
            self.ends_at, self.is_confirmed = until, True

    def restore(
        self, began_at: float, ends_at: float, is_confirmed: bool, amount: float, late: float, now: float
    ) -> None:
        """Continue a period that was stored."""
        if ends_at > now:
            self.total, self.began_at, self.ends_at, self.is_confirmed = amount, began_at, ends_at, is_confirmed
            if now >= self._late_from():
                self.late, self._late_at = late, self._late_from()
                self._late_entries = {Entry(0.0, late): late}  # of leases that have ended, or may not be told apart

    def includes(self, at: float, now: float) -> bool:
        """Return whether an instant lies in the present period, or in one that would go on."""
        self.ready_at(0.0, now)
        return at + self.seconds > now
