"""RunProgress: counts the results of a run, passes them to the result queue and reports events."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from agentos.bounds import Bound, BoundTimes
from agentos.clock import Clock
from agentos.events import Heartbeat, ItemEnded, PoolWaiting, RunEnded, RunResumed, RunStarted
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.pool.lease_pool import LeasePool
from agentos.reporters.bound_text import bound_text

from .._rules.auto_parallel import AutoParallel
from .._rules.scheduler import Scheduler
from .result_queue import ResultQueue
from .spending import RunSpending

# Seconds between two questions to the pool how fast its limits allow the run to go.
LIMITS_SECONDS = 1.0


class RunProgress:
    """Called by the thread that processes the run's messages, except for `refreshed_stats`."""

    def __init__(
        self,
        run_id: str,
        scheduler: Scheduler,
        pool: LeasePool | None,
        reporter: Callable[[Any], None] | None,
        clock: Clock,
        results: ResultQueue,
        spending: RunSpending,
        *,
        is_recorded: bool = False,
        has_gateway: bool = False,
        auto: AutoParallel | None = None,
    ) -> None:
        """`has_gateway`: limits count requests of which an item makes any number, so they bound no number of items."""
        self.run_id = run_id
        self._scheduler = scheduler
        self._pool = pool
        self._reporter = reporter
        self._clock = clock
        self._results = results
        self._spending = spending
        self._is_recorded = is_recorded
        self._has_gateway = has_gateway
        self._auto = auto
        self.bound_times = BoundTimes(clock.now())
        self._reported_completed = 0
        self._limits_due_at = 0.0
        self.stats = ProgressStats(total=scheduler.total, start_time=clock.epoch())

    def start(self, resumed: RunResumed | None) -> None:
        """Report that the run has started. `resumed`: the event of a run that continues an earlier launch."""
        workers = self._scheduler.max_workers if self._auto is None else self._auto.bound.at_once
        recorded = 0
        if resumed is not None and resumed.selected is None:
            recorded = resumed.succeeded + (0 if resumed.retry_failed else resumed.failed)
        is_auto = self._auto is not None
        self.report(RunStarted(self.run_id, self._scheduler.total, workers, self._credentials(), recorded, is_auto))

    def report(self, event: Any) -> None:
        """Call the reporter. One that raises is not called again: a broken pipe must not end the run."""
        if self._reporter is None:
            return
        try:
            self._reporter(event)
        except Exception as error:
            self._reporter = None
            if sys.stderr is not None:
                sys.stderr.write(f"agentos: the reporter failed and is not used any more: {error!r}\n")

    def deliver(self, result: WorkflowResult[Any]) -> None:
        """Count a result, queue it for the reader and report it."""
        stats = self.stats
        stats.completed += 1
        if result.success:
            stats.success_count += 1
        else:
            stats.failed += 1
        self._results.put(result)
        if self._reporter is not None:
            self.report(ItemEnded(result, self.refreshed_stats()))

    def deliver_all(self, results: list[WorkflowResult[Any]], size: int) -> None:
        """Deliver results that the ledger has committed; `size`: the characters that it wrote for them."""
        self._results.note_size(len(results), size)
        if self._reporter is not None:
            for result in results:
                self.deliver(result)
            return
        succeeded = sum([result.success for result in results])
        self.stats.completed += len(results)
        self.stats.success_count += succeeded
        self.stats.failed += len(results) - succeeded
        self._results.put_all(results)

    def add_recorded(self, succeeded: int, failed: int) -> None:
        """Count items that had ended before this launch."""
        stats = self.stats
        stats.completed += succeeded + failed
        stats.recorded += succeeded + failed
        stats.recorded_failed += failed
        stats.success_count += succeeded
        stats.failed += failed

    def refreshed_stats(self) -> ProgressStats:
        """Return the counts after updating those that change too often to be kept. Called from any thread."""
        stats, scheduler = self.stats, self._scheduler
        stats.running = scheduler.running
        stats.waiting = len(scheduler.unfinished) - scheduler.running
        stats.rate_limited = scheduler.sent_back
        stats.at_once = None if self._auto is None else self._auto.bound
        to_come = None if scheduler.total is None else scheduler.total - scheduler.completed - scheduler.running
        self._spending.update(stats, to_come)
        if self._pool is not None and self._clock.now() >= self._limits_due_at:
            self._limits_due_at = self._clock.now() + LIMITS_SECONDS
            stats.fastest, stats.not_before = self._pool.fastest()
            if self._has_gateway:
                stats.fastest = None
        return stats

    def heartbeat(self, waiting: PoolWaiting | None, bound: Bound | None) -> None:
        """Report that the run goes on, if no item has ended since the last heartbeat."""
        if self.stats.completed == self._reported_completed:
            bound_by = None if bound is None else bound_text(bound, self._clock.epoch())
            self.report(Heartbeat(self.refreshed_stats(), waiting, bound_by))
        self._reported_completed = self.stats.completed

    def end(self) -> None:
        """Complete the counts and report that the run has ended."""
        scheduler, stats = self._scheduler, self.refreshed_stats()
        stats.end_time = self._clock.epoch()
        stats.stopped = scheduler.stopped
        self.bound_times.note(None, self._clock.now(), stats.end_time)
        unfinished: int | None = 0
        if scheduler.stopped is not None:
            unfinished = None if scheduler.total is None else scheduler.total - stats.completed
        longest = self.bound_times.longest()
        bound_by = None if longest is None else bound_text(longest, stats.end_time, is_over=True)
        self.report(RunEnded(stats, unfinished, bound_by, self._is_recorded))

    def _credentials(self) -> int | None:
        return None if self._pool is None else self._pool.size
