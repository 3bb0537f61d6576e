"""ParallelCoordinator: the facade of a run. It checks arguments; `agentos.runs` executes.

The modules that execute runs are imported by the first run: importing this one is quick. The overloads, for type
checkers only, make it longer than other modules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from agentos.clock import SYSTEM_CLOCK, Clock
from agentos.costs.budget import Budget
from agentos.costs.prices import Price, Prices
from agentos.items.access import AttemptAccess
from agentos.items.fields import default_id
from agentos.items.results import ProgressStats, WorkflowResult, sort_by_input
from agentos.plurals import plural
from agentos.reporters import writers as reporters
from agentos.runs import signals
from agentos.runs.active_runs import ActiveRuns
from agentos.runs.checks import check_worker
from agentos.runs.options import (
    auto_option,
    auto_workers,
    check_gateway,
    check_max_workers,
    check_on_changed,
    check_options,
    check_prices,
    check_run_id,
    check_workers,
    ledger_path,
    whole_number,
)
from agentos.runs.signatures import AsyncWorker, ItemT, PlainWorker, RunKeywords, ValueT, Worker

from .credential_coordinator import CredentialCoordinator

if TYPE_CHECKING:
    from agentos.plans.plan import RunPlan
    from agentos.providers.verdicts import Verdict
    from agentos.runs.options import Auto
    from agentos.runs.start import RunHandle, RunRequest
    from agentos.runs.streams import AsyncResultStream, ResultStream

__all__ = ["ParallelCoordinator", "ProgressStats", "WorkflowResult"]

_DEFAULT_REPORTER: Any = object()  # a new PlainReporter for each coordinator


class ParallelCoordinator:
    """Runs a worker on every item, `max_workers` at a time. An item starts only with a lease on a usable credential.

    `max_workers="auto"`: as many as the credentials admit at once; for a `Command` also as many as memory and cores
    allow, by what the first ones take; for functions without credentials, one per processor. A coordinator can be made
    in any thread and used for many runs. Options, the most common ones first:

    * `retries` (2): attempts after a transient error. `retry_on`: exception types that count as transient.
      `timeout`: seconds that an attempt may take. `halt`: stop after failures (`"now,fail=1"`, `"soon,fail=10%"`).
      `workers`: `"threads"`, `"processes"` for workers that may crash or must be killed, or any
      `concurrent.futures.Executor`, which executes the attempts. `send_secrets`: send plain secrets to the executor,
      too, and not only references to them.
    * `ledger`: path of the run's durable record. The same call with the same `run_id` runs the items that have not
      ended. `retry_failed`: and those that failed. `on_changed`: for an item whose input differs from the recorded one,
      `"refuse"` (it fails) or `"rerun"`.
    * `max_parallelism` (10): the cap on `max_workers`. `grace_seconds` (5): how long a shutdown waits for running
      attempts. `max_wait`: seconds without a possible start after which the run stops (with a gateway also
      seconds for which requests of running items wait without a usable credential). `reporter`: a function that is
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
        max_workers: int | Literal["auto"] | None = None,
        credential_coordinator: CredentialCoordinator | None = None,
        *,
        max_parallelism: int | None = None,
        workers: Literal["threads", "processes"] | Executor = "threads",
        send_secrets: bool = False,
        admission: Literal["lease", "none"] = "lease",
        retries: int = 2,
        retry_on: type[BaseException] | Iterable[type[BaseException]] = (),
        classify: Callable[[BaseException], Verdict | str | None] | None = None,
        timeout: float | None = None,
        halt: str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        retry_failed: bool = False,
        on_changed: Literal["refuse", "rerun"] = "refuse",
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
            raise TypeError(
                f"credential_coordinator must be a CredentialCoordinator, not {kind}: pass "
                'CredentialCoordinator([key, …]) or CredentialCoordinator.from_file("keys.toml")'
            )
        if reporter is _DEFAULT_REPORTER:
            reporter = reporters.PlainReporter()
        redact = None if credential_coordinator is None else credential_coordinator.redact
        self._reporter = reporters.check_reporter(reporter, redact)
        self.credential_coordinator = credential_coordinator
        auto = auto_option(max_parallelism) if max_workers == "auto" else None
        self.max_workers = self._worker_count(max_workers, max_parallelism, auto)
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
            auto=auto,
        )
        self._gateway = gateway
        self._prices = Prices(prices) if isinstance(gateway, bool) else getattr(gateway, "prices", Prices(prices))
        if gateway:
            check_prices(self._options.budget, self._prices)
        self._rerun_changed = check_on_changed(on_changed) == "rerun"
        self._ledger = ledger_path(ledger)
        self._retry_failed = bool(retry_failed)
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        self._runs = ActiveRuns()
        self.partial_results: list[WorkflowResult[Any]] = []  # of the last run, if the input raised

    # --- running --------------------------------------------------------------------------------------------------

    @overload
    def execute_parallel(
        self,
        items: Iterable[ItemT],
        worker_func: AsyncWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> tuple[ProgressStats, list[WorkflowResult[ValueT]]]: ...
    @overload
    def execute_parallel(
        self,
        items: Iterable[ItemT],
        worker_func: PlainWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> tuple[ProgressStats, list[WorkflowResult[ValueT]]]: ...
    def execute_parallel(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = default_id,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> tuple[ProgressStats, list[WorkflowResult[Any]]]:
        """Run `worker_func(item, credential)` on every item; block until all have ended or the run was stopped. Return
        the counts, and the results in the order of the input.

        The worker is a plain or an `async def` function. Async workers run on an event loop of their own, so this works
        inside a running loop, too. `item_id_func` names each item, and may be called more than once per item; without
        it, the id of a dict is its field `id`, if it has one, and that of any other item its text.
        `retry_failed`: overrides the coordinator's option for this run. If the input raises, so does this call, after
        the started items have ended; their results are in `partial_results`.
        """
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        read_ids: list[str] = []
        request = request._replace(dry_run=dry_run, read_ids=read_ids)
        results: list[WorkflowResult[Any]] = []
        stream = self._stream(request, results)
        try:
            for result in stream:
                results.append(result)  # noqa: PERF402 - a recorded result; the run appends new ones by itself
        except BaseException as error:  # also the KeyboardInterrupt of a second signal
            self._keep_partial(error, results, read_ids)
            raise
        sort_by_input(results, read_ids)
        return stream.stats, results

    @overload
    def stream(
        self,
        items: Iterable[ItemT],
        worker_func: AsyncWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> ResultStream[ValueT]: ...
    @overload
    def stream(
        self,
        items: Iterable[ItemT],
        worker_func: PlainWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> ResultStream[ValueT]: ...
    def stream(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = default_id,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> ResultStream[Any]:
        """Start a run and return an iterator that yields each result when its item ends, in the order in which the
        items end, and in constant memory."""
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        return self._stream(request._replace(dry_run=dry_run))

    @overload
    async def execute_parallel_async(
        self,
        items: Iterable[ItemT],
        worker_func: AsyncWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> tuple[ProgressStats, list[WorkflowResult[ValueT]]]: ...
    @overload
    async def execute_parallel_async(
        self,
        items: Iterable[ItemT],
        worker_func: PlainWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> tuple[ProgressStats, list[WorkflowResult[ValueT]]]: ...
    async def execute_parallel_async(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = default_id,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> tuple[ProgressStats, list[WorkflowResult[Any]]]:
        """Do the same as `execute_parallel` in a running event loop. Async workers run on that loop and can use objects
        that are bound to it. A cancellation is a shutdown with grace."""
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        read_ids: list[str] = []
        stream = self._astream(request._replace(dry_run=dry_run, read_ids=read_ids))
        results: list[WorkflowResult[Any]] = []
        try:
            async with stream:
                async for result in stream:
                    results.append(result)  # noqa: PERF401 - an async comprehension would lose them on an error
        except BaseException as error:  # also a cancellation
            results.extend(stream.leftover_results)
            self._keep_partial(error, results, read_ids)
            raise
        sort_by_input(results, read_ids)
        return stream.stats, results

    @overload
    def astream(
        self,
        items: Iterable[ItemT],
        worker_func: AsyncWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> AsyncResultStream[ValueT]: ...
    @overload
    def astream(
        self,
        items: Iterable[ItemT],
        worker_func: PlainWorker[ItemT, ValueT],
        item_id_func: Callable[[ItemT], str] = ...,
        dry_run: bool = ...,
        **options: Unpack[RunKeywords],
    ) -> AsyncResultStream[ValueT]: ...
    def astream(
        self,
        items: Iterable[Any],
        worker_func: Worker,
        item_id_func: Callable[[Any], str] = default_id,
        dry_run: bool = False,
        *,
        run_id: str | None = None,
        retry_failed: bool | None = None,
        tokens_func: Callable[[Any], int] | None = None,
        scope_func: Callable[[Any], str | None] | None = None,
    ) -> AsyncResultStream[Any]:
        """Do the same as `stream` in an event loop: `async with coordinator.astream(…) as results: async for …`."""
        request = self._request(items, worker_func, item_id_func, tokens_func, scope_func, run_id, retry_failed)
        return self._astream(request._replace(dry_run=dry_run))

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
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        scope: str | None = None,
    ) -> RunPlan:
        """Return how long a run would take, what binds it, and what another key or a higher limit would change.

        The run is simulated with the pool's own rules; nothing is started and nothing is used up. `items` is their
        number, or a collection; `item_seconds` is how long one takes, and `tokens` (or `tokens_func`) what it reserves;
        `input_tokens` and `output_tokens`: the same by direction. `requests_per_item`: how many requests an item makes,
        one after the other, in a run with a gateway. `item_cost`: the money that an item costs; `budget`: that the run
        may spend, by default that of the coordinator. `scope`: the model that the items use.
        """
        from agentos.runs.forecast import forecast

        pool = self.credential_coordinator if self._options.admission else None
        auto = self._options.auto
        if budget is None and self._options.budget is not None:
            budget = self._options.budget.money
        return forecast(
            items,
            pool,
            self.max_workers if auto is None or pool is None else None,
            at_most=None if auto is None else auto.bound,
            item_seconds=item_seconds,
            tokens=tokens,
            tokens_func=tokens_func,
            requests_per_item=requests_per_item,
            item_cost=item_cost,
            budget=budget,
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            scope=scope,
            starts_at=self._clock.epoch(),
        )

    def request_shutdown(self) -> None:
        """Stop all runs, as the first Ctrl-C does: start nothing new, ask running attempts to stop. From any thread."""
        self._runs.stop("interrupted")

    def get_checkpoints(self) -> list[str]:
        """Return the ids of all items that the last run left unfinished: in flight, not started and, if the input is a
        collection, not read."""
        return self._runs.unfinished_ids()

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
        from agentos.runs.start import RunRequest

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

    def _start(self, request: RunRequest, results: list[WorkflowResult[Any]] | None = None) -> RunHandle:
        runs = self._runs
        if self._gateway is True and not request.dry_run:
            from ._own_gateway import start_with_gateway

            return start_with_gateway(
                request, self._prices, on_start=runs.add, on_finished=runs.finished, collected=results
            )
        from agentos.runs.start import start_run

        if not isinstance(self._gateway, bool):
            request = request._replace(access=self._gateway)
        return start_run(request, on_start=runs.add, on_finished=runs.finished, collected=results)

    def _stream(self, request: RunRequest, results: list[WorkflowResult[Any]] | None = None) -> ResultStream[Any]:
        from agentos.runs.streams import ResultStream

        return ResultStream(self._start(request, results), signals.unwatch)

    def _astream(self, request: RunRequest) -> AsyncResultStream[Any]:
        import asyncio

        from agentos.runs.streams import AsyncResultStream

        request = request._replace(loop=asyncio.get_running_loop())
        return AsyncResultStream(self._start(request), signals.unwatch)

    def _worker_count(self, max_workers: int | str | None, max_parallelism: int | None, auto: Auto | None) -> int:
        if auto is not None:
            return auto_workers(self.credential_coordinator, auto.cap)
        requested = self.DEFAULT_PARALLELISM if max_workers is None else check_max_workers(max_workers)
        cap = self.MAX_PARALLELISM if max_parallelism is None else whole_number("max_parallelism", max_parallelism, 1)
        if max_workers is not None and requested > cap and self._reporter is not None:
            reporters.warn_capped(requested, cap, self._reporter)
        return min(requested, cap)

    def _keep_partial(self, error: BaseException, results: list[WorkflowResult[Any]], read_ids: list[str]) -> None:
        sort_by_input(results, read_ids)
        self.partial_results = results
        error.add_note(f"{plural(len(results), 'item')} ended before: see ParallelCoordinator.partial_results")
