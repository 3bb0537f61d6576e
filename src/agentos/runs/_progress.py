"""What a run tells about itself: its counts, its results on their way out, its events, and what bound it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from agentos.clock import Clock
from agentos.events import ItemEnded, PoolWaiting, RunEnded, RunStarted, StillRunning
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.pool.lease_pool import LeasePool

from ._result_queue import Outbox
from ._rules.bottleneck import Bound
from ._rules.scheduler import Run

# How often (seconds) the pool is asked how fast its limits allow a run to go.
LIMITS_SECONDS = 1.0


class Account:
    """Only the holder of the run's role calls it, but for `refreshed_stats`."""

    def __init__(
        self,
        run_id: str,
        run: Run,
        pool: LeasePool | None,
        reporter: Callable[[Any], None] | None,
        clock: Clock,
        outbox: Outbox,
        *,
        is_recorded: bool = False,
    ) -> None:
        self.run_id = run_id
        self._run = run
        self._pool = pool
        self._reporter = reporter
        self._clock = clock
        self._outbox = outbox
        self._is_recorded = is_recorded
        self._bound = Bound(clock.now())
        self._told_completed = 0
        self._ask_limits_at = 0.0
        self.stats = ProgressStats(total=run.total, start_time=clock.epoch())

    def start(self) -> None:
        self.tell(RunStarted(self.run_id, self._run.total, self._run.max_workers, self._credentials()))

    def tell(self, event: Any) -> None:
        if self._reporter is None:
            return
        try:
            self._reporter(event)
        except Exception as error:  # a broken pipe must not end the run
            self._reporter = None
            if sys.stderr is not None:
                sys.stderr.write(f"agentos: the reporter failed and is not used any more: {error!r}\n")

    def deliver(self, result: WorkflowResult) -> None:
        stats = self.stats
        stats.completed += 1
        if result.success:
            stats.success_count += 1
        else:
            stats.failed += 1
        self._outbox.put(result)
        if self._reporter is not None:
            self.tell(ItemEnded(result, self.refreshed_stats()))

    def deliver_all(self, results: list[WorkflowResult], size: int) -> None:
        """`size`: the characters of what is on record of them."""
        self._outbox.note_size(len(results), size)
        if self._reporter is not None:
            for result in results:
                self.deliver(result)
            return
        succeeded = sum([result.success for result in results])
        self.stats.completed += len(results)
        self.stats.success_count += succeeded
        self.stats.failed += len(results) - succeeded
        self._outbox.put_all(results)

    def add_recorded(self, succeeded: int, failed: int) -> None:
        """Items that had ended before this run began."""
        stats = self.stats
        stats.completed += succeeded + failed
        stats.recorded += succeeded + failed
        stats.success_count += succeeded
        stats.failed += failed

    def refreshed_stats(self) -> ProgressStats:
        """From any thread: with the counts that change too often to be written down each time."""
        stats, run = self.stats, self._run
        stats.running = run.running
        stats.waiting = len(run.unfinished) - run.running
        stats.rate_limited = run.sent_back
        if self._pool is not None and self._clock.now() >= self._ask_limits_at:
            self._ask_limits_at = self._clock.now() + LIMITS_SECONDS
            stats.fastest, stats.not_before = self._pool.fastest()
        return stats

    def heartbeat(self, waiting: PoolWaiting | None) -> None:
        """Tells where the run stands, if nothing has ended since the last time."""
        if self.stats.completed == self._told_completed:
            self.tell(StillRunning(self.refreshed_stats(), waiting))
        self._told_completed = self.stats.completed

    @property
    def bound_reason(self) -> str | None:
        return self._bound.reason

    def note_bound(self, reason: str | None) -> None:
        """What the run waits for, from now on."""
        if reason != self._bound.reason:
            self._bound.note(reason, self._clock.now())

    def end(self) -> None:
        run, stats = self._run, self.refreshed_stats()
        stats.end_time = self._clock.epoch()
        stats.stopped = run.stopped
        self._bound.note(None, self._clock.now())
        unfinished = 0 if run.stopped is None else None if run.total is None else run.total - stats.completed
        bound_by = self._bound.text(run.max_workers, self._credentials())
        self.tell(RunEnded(stats, unfinished, bound_by, self._is_recorded))

    def _credentials(self) -> int | None:
        return None if self._pool is None else self._pool.size
