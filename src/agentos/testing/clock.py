"""Time for tests: a clock that is advanced by hand, and the time line of a simulated provider."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

from agentos.clock import Clock, Timer


class FakeClock:
    """A clock that stands still until `advance`: `CredentialCoordinator(keys, clock=clock)`, `clock.advance(60)`."""

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()  # guards all below
        self._elapsed = 0.0
        self._epoch = epoch
        self._paused = 0.0
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return 1000.0 + self._elapsed

    def epoch(self) -> float:
        return self._epoch + self._elapsed

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        timer = Timer(at, call)
        with self._lock:
            heapq.heappush(self._timers, (at, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Advance time, stopping at each timer on the way. Timers are called on this thread, at their instants."""
        end = self.now() + seconds
        while (call := self._next_call(end)) is not None:
            call()
        with self._lock:
            self._elapsed = end - 1000.0

    def pause(self, seconds: float) -> None:
        """Let time pass as it does while the program is suspended: timers that are due are called by the next
        `advance`, and time limits of attempts are prolonged."""
        with self._lock:
            self._elapsed += seconds
            self._paused += seconds

    def paused(self) -> float:
        return self._paused

    def _next_call(self, end: float) -> Callable[[], None] | None:
        with self._lock:
            while self._timers and self._timers[0][0] <= end:
                at, _, timer = heapq.heappop(self._timers)
                if timer.call is not None:
                    self._elapsed = max(self._elapsed, at - 1000.0)
                    return timer.call
        return None


class TimeLine:
    """Instants of a provider: its start, and the date of each instant.

    With a `FakeClock` (or any `Clock`), dates come from it. With a plain callable, or with explicit instants, instants
    are seconds since 1970 themselves, so that a day and a minute begin at 0. With neither: real time.
    """

    def __init__(self, clock: Clock | Callable[[], float] | None) -> None:
        self._now: Callable[[], float] = time.monotonic
        self._offset: float | None = None  # from an instant to its date; None until the first instant
        self._started_at: float | None = None
        if clock is not None:
            self._now, self._offset = (clock, 0.0) if callable(clock) else (clock.now, clock.epoch() - clock.now())
            self._started_at = self._now()

    def read(self, now: float | None = None) -> float:
        """Return `now`, or the clock's instant. The first instant that is read is the start."""
        if self._offset is None:
            self._offset = time.time() - time.monotonic() if now is None else 0.0
        instant = self._now() if now is None else now
        if self._started_at is None:
            self._started_at = instant
        return instant

    def date(self, instant: float) -> float:
        """Return an instant as seconds since 1970."""
        return instant + (self._offset or 0.0)

    def since_start(self, instant: float) -> float:
        return instant - (instant if self._started_at is None else self._started_at)
