"""ParallelCoordinator: the facade of a run. It checks arguments; `agentos.runs` executes."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any

from agentos.clock import SYSTEM_CLOCK, Clock
from agentos.costs.budget import Budget
from agentos.costs.prices import Price, Prices
from agentos.items.access import AttemptAccess
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.plurals import plural
from agentos.reporters import writers as reporters
from agentos.runs import signals
from agentos.runs.options import (
    check_gateway,
    check_on_changed,
    check_options,
    check_prices,
    check_run_id,
    check_workers,
    ledger_path,
    seconds,
    whole_number,
)
from agentos.runs.start import RunHandle, RunRequest, Worker, check_worker, start_run
from agentos.runs.streams import AsyncResultStream, ResultStream

from .credential_coordinator import CredentialCoordinator

if TYPE_CHECKING:  # only a plan needs it
    from agentos.plans.plan import RunPlan

__all__ = ["ParallelCoordinator", "ProgressStats", "WorkflowResult"]

_DEFAULT_REPORTER: Any = object()  # a new PlainReporter for each coordinator


class ParallelCoordinator:
    """Runs a worker on every item, `max_workers` at a time. An item starts only with a lease on a usable credential.

    A coordinator can be made in any thread and used for many runs. Options, the most common ones first:

    * `retries` (2): attempts after a transient error. `retry_on`: exception types that count as transient.
      `timeout`: seconds that an attempt may take. `halt`: stop after failures (`"now,fail=1"`, `"soon,fail=10%"`).
      `workers`: `"threads"`, `"processes"` for workers that may crash or must be killed, or any
      `concurrent.futures.Executor`, which executes the attempts. `send_secrets`: send plain secrets to the executor,
      too, and not only references to them.
    * `ledger`: path of the run's durable record. The same call with the same `run_id` runs the items that have not
      ended. `retry_failed`: and those that failed. `on_changed`: for an item whose input differs from the recorded one,
      `"refuse"` (it fails) or `"rerun"`.
    * `max_parallelism` (10): the cap on `max_workers`. `grace_seconds` (5): how long a shutdown waits for running
      attempts. `max_wait`: seconds without a possible start after which the run stops. `reporter`: a function that is
      called with each event; None for no reports.
    * `classify`: a function from an exception to a `Verdict`, the name of one, or None for the usual reading.
      `admission="none"`: the worker gets None and leases by itself, with `current_item().lease()` or the pool's `call`.
    * `gateway`: True, or a `Gateway` that was started. Requests of the workers then go to `current_item().gateway_url`,
      which leases a credential for each of them; the worker gets a client token in place of a key, and items hold no
      lease. Needs the extra `[gateway]`.
    * `budget`: what the runs may spend, a `Budget` or an amount of money. At the budget nothing new starts and running
      items finish. The gateway counts what items spend, or the workers report it (`current_item().report_usage`).
      `prices`: a `Price` by model or pattern, for models without a published one (extra `[prices]`).
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
        reporter: reporters.Reporter | None = _DEFAULT_REPORTER,
        grace_seconds: float = 5.0,
        max_wait: float | None = None,
        clock: Clock | None = None,
        gateway: bool | AttemptAccess = False,
        budget: Budget | float | None = None,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        check_workers(workers, send_secrets=send_secrets, admission=admission)
        check_gateway(gateway, workers, admission=admission, has_credentials=credential_coordinator is not None)
        if credential_coordinator is not None and not isinstance(credential_coordinator, CredentialCoordinator):
            kind = type(credential_coordinator).__name__
            raise TypeError(f"credential_coordinator must be a CredentialCoordinator, not {kind}")
        self._reporter = _make_reporter(reporter, credential_coordinator)
        self.max_workers = self._capped(max_workers, max_parallelism)
        self.credential_coordinator = credential_coordinator
        self._workers = workers
        self._send_secrets = bool(send_secrets)
        self._options = check_options(
            max_workers=self.max_workers,
            admission=admission,
            retries=retries,
            retry_on=retry_on,
            classify=classify,
            timeout=timeout,
            halt=halt,
            grace_seconds=grace_seconds,
            max_wait=max_wait,
            has_credentials=credential_coordinator is not None,
            reporter=self._reporter,
            budget=budget,
            has_gateway=bool(gateway),
        )
        self._gateway = gateway
        self._prices = Prices(prices) if isinstance(gateway, bool) else getattr(gateway, "prices", Prices(prices))
        if gateway:
            check_prices(self._options.budget, self._prices)
        self._rerun_changed = check_on_changed(on_changed) == "rerun"
        self._ledger = ledger_path(ledger)
        self._retry_failed = bool(retry_failed)
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        self._lock = threading.Lock()  # guards the three below
        self._runs: list[RunHandle] = []  # that have started and not finished
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
        """Run `worker_func(item, credential)` on every item; block until all have ended or the run was stopped.

        The worker is a plain or an `async def` function. Async workers run on an event loop of their own, so this works
        inside a running loop, too. `item_id_func` names each item, and may be called more than once per item.
        `retry_failed`: overrides the coordinator's option for this run. If the input raises, so does this call, after
        the started items have ended; their results are in `partial_results`.
        """
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        results: list[WorkflowResult] = []
        stream = ResultStream(self._start(request._replace(dry_run=dry_run), results), signals.unwatch)
        try:
            for result in stream:
                results.append(result)  # noqa: PERF402 - a recorded result; the run appends new ones by itself
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
        """Start a run and return an iterator that yields each result when its item ends, in constant memory."""
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        return ResultStream(self._start(request._replace(dry_run=dry_run)), signals.unwatch)

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
        """Do the same as `execute_parallel` in a running event loop. Async workers run on that loop and can use objects
        that are bound to it. A cancellation is a shutdown with grace."""
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
            results.extend(stream.leftover_results)
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
        """Do the same as `stream` in an event loop: `async with coordinator.astream(…) as results: async for …`."""
        loop = asyncio.get_running_loop()
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        return AsyncResultStream(self._start(request._replace(dry_run=dry_run, loop=loop)), signals.unwatch)

    def plan(
        self,
        items: int | Iterable[Any],
        *,
        item_seconds: float = 1.0,
        tokens: int = 0,
        tokens_func: Callable[[Any], int] | None = None,
        requests_per_item: float = 1.0,
        item_cost: float | None = None,
        budget: float | None = None,
    ) -> RunPlan:
        """Return how long a run would take, which limit binds it, and what another key or a higher limit would change.

        The run is simulated with the pool's own rules; nothing is started and nothing is used up. `items` is their
        number, or a collection; `item_seconds` is how long one takes, and `tokens` (or `tokens_func`) what it reserves.
        `requests_per_item`: how many requests an item makes, one after the other, in a run with a gateway. `item_cost`:
        the money that an item costs; `budget`: that the run may spend, by default that of the coordinator.
        """
        from agentos.plans import plan as planning
        from agentos.pool.simulation import Work

        whole_number("tokens", tokens, 0)
        if isinstance(items, int):
            if tokens_func is not None:
                raise ValueError("tokens_func needs the items themselves, not their number; for a number pass tokens=")
            count = whole_number("items", items, 0)
            needs: tuple[int, ...] = (tokens,)
        elif tokens_func is not None:
            needs = tuple(whole_number("tokens_func", tokens_func(item), 0) for item in items)
            count = len(needs)
        else:
            count, needs = sum(1 for _ in items), (tokens,)
        if seconds("item_seconds", item_seconds) in (None, math.inf):
            raise ValueError(f"item_seconds must be a number of seconds, not {item_seconds!r}")
        if not isinstance(requests_per_item, int | float) or not 1 <= requests_per_item < math.inf:
            raise ValueError(f"requests_per_item must be a number from 1, not {requests_per_item!r}")
        pool = self.credential_coordinator
        credentials = pool.forecasts() if pool is not None and self._options.admission else None
        work = Work(count, self.max_workers, item_seconds, needs or (0,))
        if budget is None and self._options.budget is not None:
            budget = self._options.budget.money
        return planning.with_cost(planning.make_plan(credentials, work, requests_per_item), item_cost, budget)

    def request_shutdown(self) -> None:
        """Stop all runs, as the first Ctrl-C does: start nothing new, ask running attempts to stop. From any thread."""
        with self._lock:
            runs = tuple(self._runs)
        for run in runs:
            run.stop("interrupted")

    def get_checkpoints(self) -> list[str]:
        """Return the ids of all items that the last run left unfinished: in flight, not started and, if the input is a
        collection, not read."""
        with self._lock:
            while self._unread:
                self._checkpoints.extend(self._unread[-1])
                self._unread.pop()
            return list(self._checkpoints)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _request(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str],
        tokens_func: Callable[[Any], int] | None,
        scope_func: Callable[[Any], str | None] | None,
        run_id: str | None,
        retry_failed: bool | None,
    ) -> RunRequest:
        pool = self.credential_coordinator
        has_gateway = bool(self._gateway)
        check_worker(worker_func, self._workers, pool, send_secrets=self._send_secrets, has_gateway=has_gateway)
        options = self._options._replace(
            run_id=check_run_id(run_id, has_ledger=self._ledger is not None),
            retry_failed=self._retry_failed if retry_failed is None else bool(retry_failed),
        )
        return RunRequest(
            options=options,
            items=items,
            worker_func=worker_func,
            item_id_func=item_id_func,
            tokens_func=tokens_func,
            scope_func=scope_func,
            workers=self._workers,
            send_secrets=self._send_secrets,
            pool=pool,
            ledger=self._ledger,
            rerun_changed=self._rerun_changed,
            clock=self._clock,
        )

    def _start(self, request: RunRequest, results: list[WorkflowResult] | None = None) -> RunHandle:
        if self._gateway and not request.dry_run:
            return self._start_with_gateway(request, results)
        return start_run(request, on_start=self._on_start, on_finished=self._on_finished, collected=results)

    def _start_with_gateway(self, request: RunRequest, results: list[WorkflowResult] | None) -> RunHandle:
        """Start a run with the coordinator's gateway, or with a gateway of its own that is closed with it."""
        if not isinstance(self._gateway, bool):
            request = request._replace(access=self._gateway)
            return start_run(request, on_start=self._on_start, on_finished=self._on_finished, collected=results)
        from agentos.gateway.gateway import Gateway

        assert request.pool is not None
        gateway = Gateway(request.pool, prices=self._prices)
        gateway.start()

        def on_finished(run: RunHandle) -> None:
            self._on_finished(run)
            gateway.stop()

        try:
            request = request._replace(access=gateway)
            return start_run(request, on_start=self._on_start, on_finished=on_finished, collected=results)
        except BaseException:
            gateway.stop()
            raise

    def _on_start(self, run: RunHandle) -> None:
        with self._lock:
            if not self._runs:
                self._checkpoints, self._unread = [], []
            self._runs.append(run)
        signals.watch(run)

    def _on_finished(self, run: RunHandle) -> None:
        """Keep the ids of unfinished items. Called on any thread."""
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)
            self._checkpoints.extend(run.unfinished_ids)
            if run.unread_ids is not None:
                self._unread.append(run.unread_ids)

    def _keep_partial(self, error: BaseException, results: list[WorkflowResult]) -> None:
        self.partial_results = results
        error.add_note(f"{plural(len(results), 'item')} ended before: see ParallelCoordinator.partial_results")

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


def _make_reporter(
    reporter: reporters.Reporter | None, pool: CredentialCoordinator | None
) -> reporters.Reporter | None:
    """Return the reporter to use, without the pool's secrets in its texts; raise ValueError if it is not callable."""
    result = reporters.PlainReporter() if reporter is _DEFAULT_REPORTER else reporter
    if result is not None and (isinstance(result, type) or not callable(result)):
        raise ValueError(f"reporter must be None or a callable that takes an event, not {reporter!r}")
    if pool is not None and isinstance(result, reporters.TextReporter):
        result.redact_with(pool.redact)
    return result
