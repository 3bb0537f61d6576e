"""BottleneckProbe: finds out what a run waits for at the moment, and notes it."""

from __future__ import annotations

from agentos import events
from agentos.verdict import RATE_LIMITED

from .._parts.run_parts import RunParts

# Seconds between two queries to the pool about the reason for waiting: a query per item would cost too much.
POOL_SECONDS = 0.5


class BottleneckProbe:
    """Called by the thread that processes the run's messages."""

    def __init__(self, parts: RunParts) -> None:
        self._scheduler = parts.scheduler
        self._admission = parts.admission
        self._pool = parts.pool
        self._spending = parts.spending
        self._bottleneck = parts.progress.bottleneck
        self._now = parts.clock.now
        self._pool_due_at = 0.0
        self._was_limited = False
        self._auto = parts.auto
        self._has_gateway = parts.context.access is not None

    def note(self, reason: str | None) -> None:
        """Note what binds the run from now on: a name of `agentos.events`, or None if it waits for its last items."""
        if reason != self._bottleneck.reason:
            self._bottleneck.note(reason, self._now(), None if self._auto is None else self._auto.bound)

    def update(self, requested: int) -> None:
        """Find out what binds the run, and note it. `requested`: items that the input was asked for and that have not
        come yet."""
        self.note(self._reason(requested))

    def _reason(self, requested: int) -> str | None:
        scheduler, admission = self._scheduler, self._admission
        if scheduler.running >= scheduler.max_workers:
            if self._has_gateway and self._is_limited(None):
                return events.LIMITS
            return events.WORKERS if scheduler.ready or not scheduler.is_source_ended else None
        if admission is not None and admission.open_by_scope:
            return self._reason_of_pool(next(iter(admission.open_by_scope)))
        if scheduler.ready and not self._spending.admits_item():
            return events.BUDGET
        if requested:
            return events.INPUT
        if scheduler.sent_back:
            return events.LIMITS
        return events.PAUSES if scheduler.waiting() else None

    def _reason_of_pool(self, scope: str | None) -> str:
        if self._scheduler.sent_back:
            return events.LIMITS
        previous = self._bottleneck.reason
        if previous in (events.KEYS, events.LIMITS) and self._now() < self._pool_due_at:
            return previous
        return events.LIMITS if self._is_limited(scope) else events.KEYS

    def _is_limited(self, scope: str | None) -> bool:
        """Return whether limits hold up requests of a scope, as the pool said at most POOL_SECONDS ago."""
        now = self._now()
        if now >= self._pool_due_at:
            self._pool_due_at = now + POOL_SECONDS
            assert self._pool is not None
            self._was_limited = self._pool.waiting_for(scope).reason == RATE_LIMITED
        return self._was_limited
