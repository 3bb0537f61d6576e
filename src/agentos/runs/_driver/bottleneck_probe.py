"""BottleneckProbe: finds out what a run waits for at the moment."""

from __future__ import annotations

from agentos import events
from agentos.verdict import RATE_LIMITED

from .._parts.admission import Admission
from .._parts.run_parts import RunParts

# Seconds between two queries to the pool about the reason for waiting: a query per item would cost too much.
POOL_SECONDS = 0.5


class BottleneckProbe:
    """Called by the thread that processes the run's messages."""

    def __init__(self, parts: RunParts) -> None:
        self._scheduler = parts.scheduler
        self._admission = parts.admission
        self._pool = parts.pool
        self._progress = parts.progress
        self._now = parts.clock.now
        self._pool_due_at = 0.0

    def reason(self, requested: int) -> str | None:
        """Return what binds the run: a name of `agentos.events`, or None if it waits for its last items only.
        `requested`: items that the input was asked for and that have not come yet."""
        scheduler = self._scheduler
        if scheduler.running >= scheduler.max_workers:
            return events.WORKERS if scheduler.ready or not scheduler.is_source_ended else None
        if self._admission:
            return self._reason_of_pool(self._admission)
        if requested:
            return events.INPUT
        return events.PAUSES if scheduler.waiting() else None

    def _reason_of_pool(self, admission: Admission) -> str:
        if self._scheduler.sent_back:
            return events.LIMITS
        now, previous = self._now(), self._progress.bottleneck
        if previous in (events.KEYS, events.LIMITS) and now < self._pool_due_at:
            return previous
        self._pool_due_at = now + POOL_SECONDS
        assert self._pool is not None
        is_limited = self._pool.waiting_for(admission.scopes()[0]).reason == RATE_LIMITED
        return events.LIMITS if is_limited else events.KEYS
