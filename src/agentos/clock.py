"""Read clocks and run timers: the one place that does either.

`Clock` is the interface; `testing.FakeClock` is the other implementation. Durations are measured on the boot clock,
which no step of the wall clock can disturb, and which also passes while the machine is suspended: providers do not
sleep. The wall clock is for display and for dates.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Protocol

# Longest single wait of the timer thread, in seconds: the system measures waits on a clock that stands still while the
# machine is suspended, so a timer is late by at most this after a suspend.
MAX_WAIT = 2.0
# Seconds by which the timer thread wakes up late before that counts as a pause of the program: less is a busy machine.
MIN_PAUSE = 0.25

# Returns seconds that also pass while the machine is suspended, where the system has such a clock.
boot_time: Callable[[], float] = time.monotonic
if hasattr(time, "CLOCK_BOOTTIME"):
    boot_time = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
wall_time = time.time


@cache
def boot_id() -> str:
    """Return the identity of this start of the machine; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class Timer:
    """A call that is due at an instant, unless it is cancelled."""

    __slots__ = ("at", "call")

    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at = at
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Clock(Protocol):
    def now(self) -> float:
        """Return seconds that never step."""

    def epoch(self) -> float:
        """Return seconds since 1970, for display and for the dates that providers send."""

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        """Call once, soon after `at`, on another thread. `call` must be short and must not block."""

    def paused(self) -> float:
        """Return the seconds in which this program did not run although timers waited: it, or the machine, was
        suspended. A limit for the time of work is prolonged by what was added to them since the work began."""


class SystemClock:
    """Real time. One daemon thread serves all timers of the process; it starts with the first of them."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)  # a forked child has neither timer thread nor timers

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())  # guards all below
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._prune_at = 64
        self._thread: threading.Thread | None = None
        self._paused = 0.0

    now = staticmethod(boot_time)
    epoch = staticmethod(wall_time)

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        timer = Timer(at, call)
        with self._changed:
            heapq.heappush(self._timers, (at, next(self._numbers), timer))
            if len(self._timers) > self._prune_at:
                self._prune()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentos-clock", daemon=True)
                self._thread.start()
            elif self._timers[0][2] is timer:
                self._changed.notify()
        return timer

    def paused(self) -> float:
        return self._paused

    def _prune(self) -> None:
        """Drop cancelled timers, which would otherwise accumulate until their instant."""
        self._timers = [entry for entry in self._timers if entry[2].call is not None]
        heapq.heapify(self._timers)
        self._prune_at = max(64, 2 * len(self._timers))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._timers or self._timers[0][0] > self.now():
                    self._wait(min(self._timers[0][0] - self.now(), MAX_WAIT) if self._timers else None)
                call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
            del call  # else the call and everything it refers to lives until the next one

    def _wait(self, seconds: float | None) -> None:
        """Wait until a timer may be due, and count by how much the program has overslept."""
        end = math.inf if seconds is None else self.now() + seconds
        self._changed.wait(seconds)
        late = self.now() - end
        if late >= MIN_PAUSE:
            self._paused += late


SYSTEM_CLOCK = SystemClock()
