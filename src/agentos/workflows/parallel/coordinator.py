"""ParallelCoordinator: runs a worker on every item, in parallel, over a pool of credentials."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agentos.clock import SYSTEM_CLOCK, Clock
from agentos.events import DryRun
from agentos.identifiers import sanitize_identifier
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.items.sources import CollectionSource, ItemMaker, StreamSource, source_of
from agentos.redaction.mask import MIN_REDACTED
from agentos.reporters import writers as reporters
from agentos.runs import signals as _signals
from agentos.runs._driver import Driver
from agentos.runs._rules.scheduler import Halt, parse_halt
from agentos.runs.options import (
    LONGEST_RUN_ID,
    Options,
    exception_types,
    ledger_path,
    new_run_id,
    seconds,
    whole_number,
)
from agentos.runs.streams import AsyncResultStream, ResultStream
from agentos.workers.base import EndedCall, Workers
from agentos.workers.command.command import Command
from agentos.workers.process.parent import ProcessWorkers
from agentos.workers.tasks import TaskWorkers
from agentos.workers.threads import ThreadWorkers

from .credential_coordinator import CredentialCoordinator

if TYPE_CHECKING:  # only a run with a ledger needs them, or a plan
    from agentos.ledger.record import RunRecord
    from agentos.ledger.recorded_results import RecordedResults
    from agentos.ledger.resume_filter import ResumeFilter
    from agentos.plans.plan import RunPlan

__all__ = ["ParallelCoordinator", "ProgressStats", "WorkflowResult"]

Worker: TypeAlias = Callable[[Any, Any], Any] | Callable[[Any, Any], Awaitable[Any]]

# A dry run of an input that does not tell its length shows so many ids.
DRY_RUN_IDS = 1000
# With a ledger, a run that was not given an id: the same call finds it again.
MAIN_RUN = "main"
_PRINTED: Any = object()  # the default reporter: made for each coordinator


class ParallelCoordinator:
    """Runs a worker on every item, `max_workers` at a time; an item starts only with a usable credential in hand.

    A coordinator may be made in any thread and used for many runs. Options, by how often they are needed:

    * `retries` (2): tries after a transient error. `retry_on`: exception types that count as transient.
      `timeout`: seconds an attempt may take. `halt`: when to give up (`"now,fail=1"`, `"soon,fail=10%"`).
      `workers`: `"threads"`, `"processes"` for workers that may crash or must be killed, or any
      `concurrent.futures.Executor`, which then carries out the attempts; with `send_secrets` also plain secrets are
      handed to it, and not only references to them.
    * `ledger`: the path of the run's durable record; the same call again, with the same `run_id`, runs what is left.
      `retry_failed`: then also what failed. `on_changed`: what to do with an item whose input is not the recorded one
      (`"refuse"`: it fails, or `"rerun"`).
    * `max_parallelism` (10): raises the cap on `max_workers`. `grace_seconds` (5): how long running attempts are waited
      for at a shutdown. `max_wait`: stop when nothing can start for so many seconds. `reporter`: who is told (`None`:
      nobody).
    * `classify`: from an exception to a `Verdict`, the name of one, or None for the usual reading. `admission="none"`:
      the worker gets None and leases by itself, with `current_item().lease()` or the pool's `call`.
    """

    DEFAULT_PARALLELISM = 3
    MAX_PARALLELISM = 10

    def __init__(
        self,
        max_workers: int | None = None,
        credential_coordinator: CredentialCoordinator | None = None,
        *,
        max_parallelism: int | None = None,
        workers: str | Executor = "threads",
        send_secrets: bool = False,
        admission: str = "lease",
        retries: int = 2,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
        classify: Callable[[BaseException], Any] | None = None,
        timeout: float | None = None,
        halt: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        retry_failed: bool = False,
        on_changed: str = "refuse",
        reporter: reporters.Reporter | None = _PRINTED,
        grace_seconds: float = 5.0,
        max_wait: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(workers, Executor) and workers not in ("threads", "processes"):
            raise ValueError(
                "workers must be 'threads', 'processes' or an Executor (of Dask: client.get_executor()), "
                f"not {workers!r}"
            )
        if send_secrets and not isinstance(workers, Executor):
            raise ValueError("send_secrets is for workers that are an Executor: no other would send them anywhere")
        if admission not in ("lease", "none"):
            raise ValueError(f"admission must be 'lease' or 'none', not {admission!r}")
        if admission == "none" and isinstance(workers, Executor):
            raise ValueError("admission='none' is for workers in this process: an executor has no pool to lease from")
        if credential_coordinator is not None and not isinstance(credential_coordinator, CredentialCoordinator):
            kind = type(credential_coordinator).__name__
            raise TypeError(f"credential_coordinator must be a CredentialCoordinator, not {kind}")
        self._reporter = reporters.PlainReporter() if reporter is _PRINTED else reporter
        if self._reporter is not None and (isinstance(self._reporter, type) or not callable(self._reporter)):
            raise ValueError(f"reporter must be None or something to call with events, not {reporter!r}")
        if credential_coordinator is not None and isinstance(self._reporter, reporters.TextReporter):
            self._reporter.redact_with(credential_coordinator.redact)
        self.max_workers = self._capped(max_workers, max_parallelism)
        self.credential_coordinator = credential_coordinator
        self._admission = admission
        self._workers = workers
        self._send_secrets = bool(send_secrets)
        self._retries = whole_number("retries", retries, 0)
        self._retry_on = exception_types(retry_on)
        if classify is not None and not callable(classify):
            raise ValueError(f"classify must be a function of an exception, not {classify!r}")
        self._classify = classify
        self._timeout = seconds("timeout", timeout)
        self._halt: Halt | None = parse_halt(str(halt)) if halt is not None else None
        if grace_seconds is None:
            raise ValueError("grace_seconds must be a number of seconds from 0; for no grace say 0")
        self._grace_seconds = seconds("grace_seconds", grace_seconds, least=0.0) or 0.0
        self._max_wait = seconds("max_wait", max_wait, least=0.0)
        if on_changed not in ("refuse", "rerun"):
            raise ValueError(f"on_changed must be 'refuse' or 'rerun', not {on_changed!r}")
        self._ledger = ledger_path(ledger)
        self._retry_failed = bool(retry_failed)
        self._rerun_changed = on_changed == "rerun"
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        self._lock = threading.Lock()  # guards the three below
        self._drivers: list[Driver] = []
        self._checkpoints: list[str] = []
        self._unread: list[Iterator[str]] = []
        self.partial_results: list[WorkflowResult] = []  # of the last run, if the input raised

    # --- running --------------------------------------------------------------------------------------------------

    def execute_parallel(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = str,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> tuple[ProgressStats, list[WorkflowResult]]:
        """Runs `worker_func(item, credential)` on every item; returns when all have ended or the run was stopped.

        The worker may be a plain or an `async def` function; async workers run on an event loop of their own, so this
        works inside a running loop too. `item_id_func` names each item: it may be called more than once per item.
        `retry_failed`: for this time, instead of what the coordinator was made with.
        """
        maker = self._maker(item_id_func, tokens_func, scope_func)
        driver = self._driver(items, worker_func, maker, dry_run, run_id, retry_failed, None)
        results: list[WorkflowResult] = []
        driver.outbox.collect(results)
        stream = self._watched(driver)
        try:
            for result in stream:
                results.append(result)  # noqa: PERF402 - only what was on record comes this way, beside the others
        except BaseException as error:  # also the KeyboardInterrupt of a second signal
            self._keep_partial(error, results)
            raise
        return stream.stats, results

    def stream(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = str,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> ResultStream:
        """The same, but yields each result as it ends, in constant memory. The run starts with this call."""
        maker = self._maker(item_id_func, tokens_func, scope_func)
        return self._watched(self._driver(items, worker_func, maker, dry_run, run_id, retry_failed, None))

    async def execute_parallel_async(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = str,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> tuple[ProgressStats, list[WorkflowResult]]:
        """`execute_parallel` for a running event loop. Async workers run on that loop, and so may use what belongs to
        it. Cancelling it is a shutdown with grace."""
        stream = self.astream(
            items,
            worker_func,
            item_id_func,
            dry_run,
            run_id=run_id,
            retry_failed=retry_failed,
            tokens_func=tokens_func,
            scope_func=scope_func,
        )
        results: list[WorkflowResult] = []
        try:
            async with stream:
                async for result in stream:
                    results.append(result)  # noqa: PERF401 - an async comprehension would lose them on an error
        except BaseException as error:  # also a cancellation
            results.extend(stream._rest)
            self._keep_partial(error, results)
            raise
        return stream.stats, results

    def astream(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = str,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> AsyncResultStream:
        """`stream` for a running event loop: `async with coordinator.astream(…) as results: async for …`."""
        maker = self._maker(item_id_func, tokens_func, scope_func)
        driver = self._driver(items, worker_func, maker, dry_run, run_id, retry_failed, asyncio.get_running_loop())
        stream = AsyncResultStream(driver, _signals.unwatch)
        _signals.watch(driver)
        driver.start()
        return stream

    def plan(
        self,
        items: int | Iterable[Any],
        *,
        item_seconds: float = 1.0,
        tokens: int = 0,
        tokens_func: Callable[[Any], int] | None = None,
    ) -> RunPlan:
        """How long a run would take, which limit would bind it, and what another key or a higher limit would change.

        The run is simulated with the pool's own rules; nothing is started and nothing is used up. `items` is their
        number, or a collection; `item_seconds` is how long one takes, and `tokens` (or `tokens_func`) what it reserves.
        """
        from agentos.plans import plan as planning
        from agentos.pool.simulation import Work

        whole_number("tokens", tokens, 0)
        if isinstance(items, int):
            if tokens_func is not None:
                raise ValueError("tokens_func needs the items themselves, not their number; for a number say tokens=")
            count = whole_number("items", items, 0)
            needs: tuple[int, ...] = (tokens,)
        elif tokens_func is not None:
            needs = tuple(whole_number("tokens_func", tokens_func(item), 0) for item in items)
            count = len(needs)
        else:
            count, needs = sum(1 for _ in items), (tokens,)
        if seconds("item_seconds", item_seconds) in (None, math.inf):
            raise ValueError(f"item_seconds must be a number of seconds, not {item_seconds!r}")
        pool = self.credential_coordinator
        credentials = pool.forecasts() if pool is not None and self._admission == "lease" else None
        return planning.make_plan(credentials, Work(count, self.max_workers, item_seconds, needs or (0,)))

    def request_shutdown(self) -> None:
        """What the first Ctrl-C does, from code: nothing new starts, running attempts are told. From any thread."""
        with self._lock:
            drivers = tuple(self._drivers)
        for driver in drivers:
            driver.stop("interrupted")

    def get_checkpoints(self) -> list[str]:
        """The ids of all items that the last run left unfinished: in flight, not started, and, if the input is a
        collection, not even read."""
        with self._lock:
            while self._unread:
                self._checkpoints.extend(self._unread[-1])
                self._unread.pop()
            return list(self._checkpoints)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _maker(
        self,
        item_id_func: Callable[[Any], str],
        tokens_func: Callable[[Any], int] | None,
        scope_func: Callable[[Any], str | None] | None,
    ) -> ItemMaker:
        if self._ledger is None:
            return ItemMaker(item_id_func, tokens_func, scope_func)
        from agentos.items.codec import encode_input

        pool = self.credential_coordinator
        if pool is None:
            return ItemMaker(item_id_func, tokens_func, scope_func, functools.partial(encode_input, redact=str))
        encode = functools.partial(encode_input, redact=pool.redact_value)
        return ItemMaker(item_id_func, tokens_func, scope_func, encode, pool.hides_secret, MIN_REDACTED)

    def _driver(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        maker: ItemMaker,
        dry_run: bool,
        run_id: str | None,
        retry_failed: bool | None,
        loop: asyncio.AbstractEventLoop | None,
    ) -> Driver:
        if not callable(worker_func):
            raise TypeError(f"worker_func must be a function of (item, credential), not {type(worker_func).__name__}")
        if isinstance(self._workers, Executor):
            self._check_executor(worker_func)
        if run_id is not None:
            run_id = sanitize_identifier(run_id)
            if len(run_id) > LONGEST_RUN_ID:
                raise ValueError(f"a run_id has at most {LONGEST_RUN_ID} characters, not {len(run_id)}")
        else:
            run_id = new_run_id() if self._ledger is None else MAIN_RUN
        retry_failed = self._retry_failed if retry_failed is None else bool(retry_failed)
        read_from = source_of(items, maker)
        source: CollectionSource | StreamSource | ResumeFilter = read_from
        shown = self._show(read_from, items, maker) if dry_run else None
        record = recorded_results = None
        if shown is not None:
            source = CollectionSource((), maker)  # nothing is left to do
        elif self._ledger is not None:
            record, recorded_results, source = self._open_ledger(self._ledger, run_id, read_from, maker, retry_failed)
        try:
            driver = Driver(
                self._options(run_id, quiet=dry_run, retry_failed=retry_failed),
                source,
                lambda ended: self._make_workers(worker_func, ended, loop, record),
                self.credential_coordinator,
                self._clock,
                self._finished,
                record,
                recorded_results,
                worker_func.folder / "checkpoints" if isinstance(worker_func, Command) and worker_func.folder else None,
            )
        except BaseException:
            if record is not None:
                record.abandon()
            raise
        if shown is not None:
            driver.account.stats.total = shown
        with self._lock:
            if not self._drivers:
                self._checkpoints, self._unread = [], []
            self._drivers.append(driver)
        return driver

    def _open_ledger(
        self,
        path: Path,
        run_id: str,
        source: CollectionSource | StreamSource,
        maker: ItemMaker,
        retry_failed: bool,
    ) -> tuple[RunRecord, RecordedResults, CollectionSource | StreamSource | ResumeFilter]:
        from agentos.ledger.record import RunRecord
        from agentos.ledger.recorded_results import RecordedResults
        from agentos.ledger.resume_filter import ResumeFilter

        redact = self.credential_coordinator.redact_value if self.credential_coordinator is not None else str
        record = RunRecord(path, run_id, self._clock, redact)
        recorded_results = RecordedResults(record)
        if not any(record.counts_before) and isinstance(source, CollectionSource):
            return record, recorded_results, source  # nothing can be on record, and no id comes twice
        resume_filter = ResumeFilter(
            source, maker, record, recorded_results, retry_failed=retry_failed, rerun_changed=self._rerun_changed
        )
        return record, recorded_results, resume_filter

    def _watched(self, driver: Driver) -> ResultStream:
        stream = ResultStream(driver, _signals.unwatch)
        _signals.watch(driver)
        driver.start()
        return stream

    def _options(self, run_id: str, *, quiet: bool, retry_failed: bool) -> Options:
        return Options(
            run_id=run_id,
            max_workers=self.max_workers,
            admission=self._admission == "lease",
            retries=self._retries,
            retry_on=self._retry_on,
            classify=self._classify,
            timeout=self._timeout,
            halt=self._halt,
            grace_seconds=self._grace_seconds,
            max_wait=self._max_wait,
            reporter=None if quiet else self._reporter,
            retry_failed=retry_failed,
        )

    def _check_executor(self, worker_func: Worker) -> None:
        """Whatever would fail every attempt is told before anything starts."""
        from agentos.workers.engines.executor import check_credentials

        if isinstance(worker_func, Command):
            raise TypeError(
                "a Command is run by this process and not by an executor: call it in a worker function, with subprocess"
            )
        check_credentials(self.credential_coordinator, send_secrets=self._send_secrets)

    def _make_workers(
        self,
        worker_func: Worker,
        ended: EndedCall,
        loop: asyncio.AbstractEventLoop | None,
        record: RunRecord | None,
    ) -> Workers:
        if isinstance(worker_func, Command):
            from agentos.workers.command.runner import CommandWorkers

            return CommandWorkers(worker_func, ended, self.credential_coordinator)
        if isinstance(self._workers, Executor):
            from agentos.workers.engines.executor import ExecutorWorkers

            pool = self.credential_coordinator
            return ExecutorWorkers(self._workers, worker_func, ended, pool, send_secrets=self._send_secrets)
        if self._workers == "processes":
            return ProcessWorkers(worker_func, ended, record.process_started if record is not None else None)
        if _is_async(worker_func):
            return TaskWorkers(worker_func, ended, loop)
        return ThreadWorkers(worker_func, ended)

    def _show(self, source: CollectionSource | StreamSource, items: Iterable[Any], maker: ItemMaker) -> int:
        """Tells what a run would do; returns the number of items."""
        shown: Iterable[Any] = items if source.total is not None else itertools.islice(items, DRY_RUN_IDS)
        ids = [maker.id_of(payload, number) for number, payload in enumerate(shown, start=1)]
        if self._reporter is not None:
            self._reporter(DryRun(source.total, ids))
        return len(ids)

    def _finished(self, driver: Driver) -> None:
        """On any thread."""
        with self._lock:
            if driver in self._drivers:
                self._drivers.remove(driver)
            self._checkpoints.extend(driver.unfinished_ids)
            if driver.unread_ids is not None:
                self._unread.append(driver.unread_ids)

    def _keep_partial(self, error: BaseException, results: list[WorkflowResult]) -> None:
        self.partial_results = results
        error.add_note(f"{len(results)} items had ended by then: see ParallelCoordinator.partial_results")

    def _capped(self, max_workers: int | None, max_parallelism: int | None) -> int:
        cap = self.MAX_PARALLELISM
        if max_parallelism is not None:
            cap = whole_number("max_parallelism", max_parallelism, 1)
        if max_workers is None:
            return min(self.DEFAULT_PARALLELISM, cap)
        if whole_number("max_workers", max_workers, 1) > cap:
            if self._reporter is not None:
                reporters.warn_capped(max_workers, cap, self._reporter)
            return cap
        return max_workers


def _is_async(worker_func: Any) -> bool:
    return inspect.iscoroutinefunction(worker_func) or inspect.iscoroutinefunction(type(worker_func).__call__)
