"""PoolClock: the clock of a shared pool, which its owner reads."""

from __future__ import annotations

from collections.abc import Callable

from agentos.clock import boot_time, wall_time
from agentos.limits.reset_times import seconds_to_reset


class PoolClock:
    """Seconds since 1970 as of `start`, from there on by the boot clock: a step of the wall clock changes nothing."""

    def __init__(self, start: float, *, elapsed_clock: Callable[[], float] = boot_time,
                 wall_clock: Callable[[], float] = wall_time) -> None:  # fmt: skip
        self._elapsed_clock = elapsed_clock
        self._wall_clock = wall_clock
        self.offset = start - elapsed_clock()

    def now(self) -> float:
        return self._elapsed_clock() + self.offset

    def wall_ahead(self) -> float:
        """Return by how much the wall clock is ahead of this one."""
        return self._wall_clock() - self.now()

    def ends_after(self, resets: str, now: float) -> float:
        """Return the end of a calendar window (`Window.calendar`) by an instant of this clock. Raises `ValueError` for
        an unknown zone."""
        return now + seconds_to_reset(resets, now + self.wall_ahead())
