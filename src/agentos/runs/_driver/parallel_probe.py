"""ParallelProbe: looks at the machine and the pool from time to time, if the number of items at once is not fixed."""

from __future__ import annotations

import time

from .._parts.messages import LookDue
from .._parts.run_parts import RunParts

# Seconds between two looks. Longer if a look takes long, so that looks take at most 1/COST_SHARE of the time.
LOOK_SECONDS = 0.5
COST_SHARE = 30.0


class ParallelProbe:
    """Called by the thread that processes the run's messages. No-op in a run with a fixed number of workers."""

    def __init__(self, parts: RunParts) -> None:
        self._auto = parts.auto
        self._scheduler = parts.scheduler
        self._workers = parts.workers
        self._pool = parts.pool
        self._timers = parts.timers
        self._now = parts.clock.now

    def start(self) -> None:
        """Set the timer for the first look."""
        if self._auto is not None:
            self._timers.set("look", self._now() + LOOK_SECONDS, LookDue())

    def update(self) -> None:
        """Apply the number of items at once that is in force now."""
        if self._auto is not None:
            self._scheduler.max_workers = self._auto.limit(self._scheduler.running)

    def on_look_due(self, message: LookDue) -> None:
        """Look, decide the number anew, and set the timer for the next look."""
        assert self._auto is not None
        began = time.perf_counter()
        admitted = None if self._pool is None else self._pool.admitted()
        is_waiting = self._pool is not None and self._pool.waiters() > 0
        self._auto.look(self._workers.machine_use(), self._scheduler.running, admitted=admitted, is_waiting=is_waiting)
        cost = time.perf_counter() - began
        self._timers.set("look", self._now() + max(LOOK_SECONDS, COST_SHARE * cost), message)
