"""Start runs: compose source, ledger, workers and driver. Used by `ParallelCoordinator` and by the result streams."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentos.bounds import Bound
from agentos.clock import Clock
from agentos.events import DryRun, PoolWaiting
from agentos.items.access import AttemptAccess
from agentos.items.results import ProgressStats, RunningItem, WorkflowResult
from agentos.items.sources import CollectionSource, ItemMaker, StreamSource, source_of
from agentos.pool.lease_pool import LeasePool
from agentos.redaction.mask import MIN_REDACTED
from agentos.workers.base import EndedCall, Workers
from agentos.workers.command.command import Command
from agentos.workers.process.parent import ProcessWorkers
from agentos.workers.tasks import TaskWorkers
from agentos.workers.threads import ThreadWorkers

from ._driver.driver import Driver
from ._driver.intake import Source
from ._rules.run_options import Options
from .run_snapshot import RunSnapshot
from .signatures import Worker

if TYPE_CHECKING:  # only a run with a ledger needs them
    from agentos.ledger.record import RunRecord
    from agentos.ledger.recorded_results import RecordedResults

# Ids that a dry run reports at most, if the length of the input is not known.
MAX_DRY_RUN_IDS = 1000


class RunRequest(NamedTuple):
    """What a run executes, and with which resources."""

    options: Options
    items: Iterable[Any]
    worker_func: Worker
    item_id_func: Callable[[Any], str]
    tokens_func: Callable[[Any], int] | None
    scope_func: Callable[[Any], str | None] | None
    workers: str | Executor
    send_secrets: bool
    pool: LeasePool | None
    ledger: Path | None
    rerun_changed: bool
    clock: Clock
    access: AttemptAccess | None = None  # the gateway of the attempts; None: each has a lease
    loop: asyncio.AbstractEventLoop | None = None  # for async workers; None: a loop of their own
    dry_run: bool = False
    read_ids: list[str] | None = None  # gets the ids of all items, in the order of the input


class RunHandle:
    """A run that was started: its state, its results, and how to stop it. From any thread."""

    def __init__(self, driver: Driver, run_id: str, recorded_results: RecordedResults | None) -> None:
        self._driver = driver
        self.run_id = run_id
        self.results = driver.results  # the queue that its one reader takes new results from
        self.recorded_results = recorded_results  # of earlier launches
        self.start = driver.start
        self.stop = driver.stop
        self.kill = driver.kill
        self.join = driver.join

    @property
    def stats(self) -> ProgressStats:
        """Return the counts of the run as they are now."""
        return self._driver.progress.refreshed_stats()

    @property
    def error(self) -> BaseException | None:
        """Return the error that the reader of the results raises after the last one."""
        return self._driver.error

    @property
    def unfinished_ids(self) -> list[str]:
        """Return, after the end, the items that were read and have not ended."""
        return self._driver.unfinished_ids

    @property
    def unread_ids(self) -> Iterator[str] | None:
        """Return, after the end, the items that were never read; None if all were, or if the input cannot tell."""
        return self._driver.unread_ids

    def running(self, max_count: int | None = None) -> list[RunningItem]:
        """Return the running attempts, or the `max_count` oldest of them."""
        return self._driver.running(max_count)

    def rests(self) -> dict[str, tuple[float, str]]:
        """Return the credentials that rest in this run: for how many seconds, and why."""
        return self._driver.rests()

    def bound(self) -> Bound | None:
        """Return what binds the run now; None if it waits for its last items only."""
        return self._driver.bound()

    def snapshot(self, max_running: int) -> RunSnapshot:
        """Return the state of the run and of its pool at one instant, with the oldest `max_running` attempts."""
        return self._driver.snapshot(max_running)

    def waiting(self) -> PoolWaiting | None:
        """Return why items wait for a credential; None if none does."""
        return self._driver.waiting()


def start_run(
    request: RunRequest,
    *,
    on_start: Callable[[RunHandle], None],
    on_finished: Callable[[RunHandle], None],
    collected: list[WorkflowResult[Any]] | None = None,
) -> RunHandle:
    """Start a run and return its handle.

    `on_start` is called on this thread before anything runs; `on_finished` on any thread, before the reader of the
    results sees their end. New results are appended to `collected`, if it is given, instead of being queued.
    """
    handle = _compose(request, lambda: on_finished(handle))
    if collected is not None:
        handle.results.collect(collected)
    on_start(handle)
    handle.start()
    return handle


def _compose(request: RunRequest, on_finished: Callable[[], None]) -> RunHandle:
    if request.pool is None and not isinstance(request.worker_func, Command):
        # Nothing but the cores bounds functions without credentials, and their number is known before the start.
        request = request._replace(options=request.options._replace(auto=None))
    maker = _item_maker(request)
    input_source = source_of(request.items, maker)
    source: Source = input_source
    dry_run_count = recorded_results = run_record = None
    if request.dry_run:
        dry_run_count = _report_dry_run(request, input_source.total, maker)
        source = CollectionSource((), maker)  # nothing is executed
    elif request.ledger is not None:
        run_record, recorded_results, source = _open_ledger(request, request.ledger, input_source, maker)
    try:
        driver = Driver(
            request.options._replace(reporter=None) if request.dry_run else request.options,
            source,
            lambda ended: _make_workers(request, ended, run_record),
            request.pool,
            request.clock,
            on_finished,
            run_record,
            _checkpoint_folder(request.worker_func),
            request.access,
        )
    except BaseException:
        if run_record is not None:
            run_record.abandon()
        raise
    if dry_run_count is not None:
        driver.progress.stats.total = dry_run_count
    return RunHandle(driver, request.options.run_id, recorded_results)


def _item_maker(request: RunRequest) -> ItemMaker:
    functions = request.item_id_func, request.tokens_func, request.scope_func
    read_ids = request.read_ids
    if request.ledger is None:
        return ItemMaker(*functions, read_ids=read_ids)
    from agentos.items.codec import encode_input

    pool = request.pool
    if pool is None:
        return ItemMaker(*functions, functools.partial(encode_input, redact=str), read_ids=read_ids)
    encode = functools.partial(encode_input, redact=pool.redact_value)
    return ItemMaker(*functions, encode, pool.hides_secret, MIN_REDACTED, read_ids)


def _report_dry_run(request: RunRequest, total: int | None, maker: ItemMaker) -> int:
    """Report the items that a run would execute; return their number."""
    items: Iterable[Any] = request.items if total is not None else itertools.islice(request.items, MAX_DRY_RUN_IDS)
    ids = [maker.id_of(payload, number) for number, payload in enumerate(items, start=1)]
    if request.options.reporter is not None:
        request.options.reporter(DryRun(total, ids))
    return len(ids)


def _open_ledger(
    request: RunRequest, path: Path, source: CollectionSource | StreamSource, maker: ItemMaker
) -> tuple[RunRecord, RecordedResults, Source]:
    from agentos.ledger.record import RunRecord
    from agentos.ledger.recorded_results import RecordedResults
    from agentos.ledger.resume_filter import ResumeFilter

    options = request.options
    redact = request.pool.redact_value if request.pool is not None else str
    run_record = RunRecord(path, options.run_id, request.clock, redact)
    recorded_results = RecordedResults(run_record)
    if not any(run_record.counts_before) and isinstance(source, CollectionSource):
        return run_record, recorded_results, source  # nothing is recorded, and no id comes twice
    resume_filter = ResumeFilter(
        source,
        maker,
        run_record,
        recorded_results,
        retry_failed=options.retry_failed,
        rerun_changed=request.rerun_changed,
    )
    return run_record, recorded_results, resume_filter


def _make_workers(request: RunRequest, ended: EndedCall, run_record: RunRecord | None) -> Workers:
    worker_func, pool = request.worker_func, request.pool
    if isinstance(worker_func, Command):
        from agentos.workers.command.runner import CommandWorkers

        return CommandWorkers(worker_func, ended, pool)
    if isinstance(request.workers, Executor):
        from agentos.workers.engines.executor import ExecutorWorkers

        return ExecutorWorkers(request.workers, worker_func, ended, pool, send_secrets=request.send_secrets)
    if request.workers == "processes":
        return ProcessWorkers(worker_func, ended, run_record.process_started if run_record is not None else None)
    if _is_async(worker_func):
        return TaskWorkers(worker_func, ended, request.loop)
    return ThreadWorkers(worker_func, ended)


def _checkpoint_folder(worker_func: Worker) -> Path | None:
    if isinstance(worker_func, Command) and worker_func.folder:
        return worker_func.folder / "checkpoints"
    return None


def _is_async(worker_func: Any) -> bool:
    return inspect.iscoroutinefunction(worker_func) or inspect.iscoroutinefunction(type(worker_func).__call__)
