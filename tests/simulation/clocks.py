"""Clocks of the simulated processes and of the pool in memory; both follow the virtual time of the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentos.clock import Timer

if TYPE_CHECKING:
    from .process import Process
    from .world import World


class ProcessClock:
    """Monotonic clock of one process, with an offset of its own."""

    def __init__(self, process: Process, offset: float) -> None:
        self._process = process
        self._offset = offset

    def now(self) -> float:
        return self._process.world.now + self._offset

    def epoch(self) -> float:
        return self._process.world.now + self._process.world.epoch

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        timer = Timer(at, call)

        def due() -> None:
            if timer.call is not None:
                timer.call()

        self._process.call_later(max(0.0, at - self.now()), "timer", due)
        return timer


class PoolClock:
    """Clock of the pool in memory."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        """Return Unix time: the oracle counts days by it."""
        return self.epoch()

    def epoch(self) -> float:
        return self._world.now + self._world.epoch

    def call_at(self, at: float, call: Callable[[], None]) -> Any:
        timer = Timer(at, call)

        def due() -> None:
            if timer.call is not None:
                timer.call()

        self._world.schedule(at - self._world.epoch, "the pool's timer", due)
        return timer
