"""Driver: handles the messages of one run; joins scheduler, pool, workers and ledger.

Everything that happens to a run is a message (see `_parts.messages`), and the mailbox calls one handler at a time.
After the last message the driver reads and starts as many items as it can. It never blocks: workers run on threads,
loops or processes, the pool delivers leases, a reader thread reads slow inputs, the ledger's thread writes, and
results wait in a queue.

Methods named `_on_…` are handlers. `attempt_ended` is called by the thread on which the attempt ended: the lease has
to be back in the pool, with the provider's answer, before the next item requests one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentos import foreign_exceptions
from agentos.bounds import Bound, bound_of_pool
from agentos.clock import Clock
from agentos.errors import BudgetExceeded
from agentos.events import PoolWaiting
from agentos.items.access import AttemptAccess
from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.items.results import RunningItem, WorkflowResult
from agentos.items.sources import Problem, ReadItem
from agentos.pool.lease_pool import LeasePool
from agentos.verdict import PERMANENT, Verdict
from agentos.workers.base import Workers

from .._parts import messages
from .._parts.messages import AttemptSucceeded
from .._parts.outcome import OutcomeClassifier, readable
from .._parts.run_parts import make_parts
from .._rules.run_options import Options
from ..run_snapshot import RunSnapshot
from .attempts import Attempts
from .bound_probe import BoundProbe
from .intake import Intake, Source
from .mailbox import Handlers, Mailbox
from .max_wait import MaxWait
from .parallel_probe import ParallelProbe
from .periodic import Periodic
from .shutdown import Shutdown
from .snapshot import take_snapshot

if TYPE_CHECKING:
    from agentos.ledger.record import RunRecord


class Driver:
    """One run. Other threads only post messages; handlers are called by one thread at a time."""

    def __init__(
        self,
        options: Options,
        source: Source,
        make_workers: Callable[[Callable[[Attempt, Any, BaseException | None], None]], Workers],
        pool: LeasePool | None,
        clock: Clock,
        on_finished: Callable[[], None],
        run_record: RunRecord | None = None,
        checkpoints: Path | None = None,
        access: AttemptAccess | None = None,
    ) -> None:
        """`on_finished`: called once by the thread that processes messages, before the end is in the result queue.
        `checkpoints`: the folder of the checkpoint folders of commands. `access`: the gateway of the attempts."""
        self.error: BaseException | None = None  # to be raised by the reader of the results after the last one
        self.unfinished_ids: list[str] = []
        self.unread_ids: Iterator[str] | None = None
        self._on_finished = on_finished
        self._source = source
        self._source_error: BaseException | None = None
        self._pool = pool
        self._access = access
        self._now = clock.now
        workers = make_workers(self.attempt_ended)
        self._classifier = OutcomeClassifier(options.classify, options.retry_on, clock)
        self._mailbox = Mailbox(f"agentos-run-{options.run_id}", workers, self._after_messages, self._on_error)
        self._post = self._mailbox.post
        parts = make_parts(options, source.total, workers, pool, clock, self._post, run_record, checkpoints, access)
        self._parts = parts
        self._context, self._recorder = parts.context, parts.recorder
        self._encode_result = parts.recorder.encode_result
        self._scheduler, self._admission, self._spending = parts.scheduler, parts.admission, parts.spending
        self.results, self.progress, self._report = parts.results, parts.progress, parts.report
        self._intake = Intake(source, parts.scheduler, parts.admission, self)
        self._shutdown = Shutdown(parts)
        self._max_wait: MaxWait | None = None
        if options.max_wait is not None and parts.admission is not None:
            self._max_wait = MaxWait(options.max_wait, parts, self._stop_waiting, self._stop_requests)
        on_wait = None if self._max_wait is None else self._max_wait.watch_pause
        self._attempts = Attempts(parts, self._shutdown, self._keep_error, on_wait)
        self._bound_probe = BoundProbe(parts)
        self._periodic = Periodic(parts, self._bound_probe, has_gateway=access is not None)
        self._parallel = ParallelProbe(parts)
        self._unlisten: Callable[[], None] = lambda: None
        self._mailbox.handlers.update(self._handlers())

    def _handlers(self) -> Handlers:
        attempts, shutdown = self._attempts, self._shutdown
        return {
            messages.RunStart: self._on_start,
            messages.ItemsRead: self._on_items_read,
            messages.RecordedItemsFound: self._on_recorded_items,
            messages.SourceEnded: lambda message: self.on_source_ended(message.error),
            messages.LeaseDelivered: self._on_lease,
            AttemptSucceeded: attempts.on_success,
            messages.AttemptFailed: attempts.on_failure,
            messages.TimeoutExpired: attempts.timeouts.on_expired,
            messages.TimeoutIgnored: attempts.timeouts.on_ignored,
            messages.ResultsTaken: _no_op,  # `_schedule` follows every message
            messages.ResultsRecorded: self._recorder.deliver,
            messages.RecordLost: self._on_record_lost,
            messages.StartsDue: self._periodic.on_starts_due,
            messages.UsageDue: self._periodic.on_usage_due,
            messages.LookDue: self._parallel.on_look_due,
            messages.PauseOver: attempts.on_pause_over,
            messages.RestOver: attempts.on_rest_over,
            messages.MaxWaitOver: _no_op if self._max_wait is None else self._max_wait.on_over,
            messages.StallDue: _no_op if self._max_wait is None else self._max_wait.on_stall_due,
            messages.HeartbeatDue: self._periodic.on_heartbeat,
            messages.StopRequested: lambda message: shutdown.stop(message.reason, message.signal),
            messages.KillRequested: lambda _: shutdown.kill(),
            messages.PoolEvent: self._on_pool_event,
        }

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._recorder.start(
            lambda results, size: self._post(messages.ResultsRecorded(results, size)),
            lambda error: self._post(messages.RecordLost(error)),
        )
        self._post(messages.RunStart())
        self._mailbox.start()

    def stop(self, reason: str, signal: int | None = None) -> None:
        """Start nothing new, ask running attempts to stop and give them the grace period. Safe in a signal handler."""
        self._post(messages.StopRequested(reason, signal))

    def kill(self) -> None:
        """End the run without waiting for running attempts."""
        self._post(messages.KillRequested())

    def join(self, timeout: float | None = None) -> None:
        """Wait until the run's own thread has ended, or for `timeout` seconds."""
        self._mailbox.join(timeout)

    def running(self, max_count: int | None = None) -> list[RunningItem]:
        """Return the running attempts, or the `max_count` oldest of them."""
        return self._attempts.list_running(max_count)

    def waiting(self) -> PoolWaiting | None:
        """Return why items wait for a credential although a worker is free; None if none does."""
        return self._bound_probe.open_waiting()

    def bound(self) -> Bound | None:
        """Return what binds the run now; None if it waits for its last items only."""
        return self._bound_probe.now_bound()

    def snapshot(self, max_running: int) -> RunSnapshot:
        """Return the state of the run and of its pool at one instant, with the oldest `max_running` attempts."""
        return take_snapshot(self._parts, self._bound_probe, max_running)

    def rests(self) -> dict[str, tuple[float, str]]:
        """Return the credentials that rest in this run: for how many seconds, and why."""
        return self._parts.breaker.rests(self._now())

    def items_read(self, items: list[ReadItem]) -> None:
        """Post items. Called by the thread that reads the input."""
        self._post(messages.ItemsRead(items))

    def items_recorded(self, succeeded: int, failed: int) -> None:
        """Post how many items have a recorded outcome. Called by the thread that looks items up in the ledger."""
        self._post(messages.RecordedItemsFound(succeeded, failed))

    def source_ended(self, error: BaseException | None) -> None:
        """Post the end of the input. Called by the thread that reads it."""
        self._post(messages.SourceEnded(error))

    def attempt_ended(self, attempt: Attempt, value: Any, exc: BaseException | None) -> None:
        """End the attempt's lease, together with what the exception means for the pool, and post the outcome."""
        attempt.ended_at = self._now()
        if self._access is not None:
            self._context.end_access(attempt)
        if attempt.meter is not None or attempt.usage is not None:
            exc = self._spending.outcome(attempt, exc)
        if exc is None:
            try:
                encoded = self._encode_result(value)
            except BaseException as unrecordable:  # the value may define its own conversion
                exc = unrecordable
            else:
                if attempt.lease_handle is not None:
                    self._context.end_lease(attempt, None, success=True)
                self._mailbox.post_and_process(AttemptSucceeded(attempt, value, encoded))
                return
        kind: str | None
        verdict: Verdict | None
        exc = readable(exc)
        try:
            kind, verdict = self._classifier(attempt, exc)
        except BaseException as broken:  # raised by the user's `classify`, or by the exception's class
            exc, kind, verdict = readable(broken), None, None
        self._context.end_lease(attempt, verdict)
        self._mailbox.post_and_process(messages.AttemptFailed(attempt, exc, kind, verdict))

    # --- after the last message -----------------------------------------------------------------------------------

    def _after_messages(self) -> None:
        self._schedule()
        if self._shutdown.is_killed or (self._scheduler.is_over() and not self._recorder.is_pending()):
            self._finish()

    def _on_error(self, error: BaseException) -> None:
        self.error = error
        self._scheduler.stop(f"internal error: {foreign_exceptions.type_name(error)}: {foreign_exceptions.text(error)}")
        self._finish()

    def _keep_error(self, error: BaseException) -> None:
        """Keep the first error that the run has to raise at its end."""
        self.error = self.error or error

    def _schedule(self) -> None:
        """Read items as far as there is room, and start, or request leases for, as many as workers are free."""
        scheduler, intake = self._scheduler, self._intake
        if scheduler.stopped is not None:
            return
        if self.results.is_full():
            self._bound_probe.note_slow_reader()
            return
        if self._recorder.is_full:
            self._bound_probe.note_slow_ledger()
            return
        while True:
            self._parallel.update()
            has_read = intake.read_if_due()
            has_started = scheduler.ready > 0 and self._start_ready()
            # A start may have made room to read more, for workers that are still free; and behind items that wait for
            # one scope there may be items of another scope that can start.
            if not has_started and not (has_read and intake.has_scopes):
                break
            if scheduler.running >= scheduler.max_workers or intake.requested:
                break
        self._bound_probe.update(intake.requested)

    def _start_ready(self) -> bool:
        scheduler, admission = self._scheduler, self._admission
        has_budget, has_started = self._spending.budget is not None, False
        for scope in tuple(scheduler.lanes):
            free = scheduler.max_workers - scheduler.running
            if admission is not None:
                free -= admission.open_by_scope.get(scope, 0)
            while free > 0 and scope in scheduler.lanes and scheduler.stopped is None:
                free -= 1
                if has_budget and not self._spending.admits_item():
                    if not scheduler.running:
                        self._bound_probe.note_stop()
                        self._shutdown.drain(self._spending.stop_reason())
                    return has_started
                item = scheduler.take(scope)
                if has_budget and (problem := self._spending.item_problem(item)) is not None:
                    self.reject(item, Problem(problem, BudgetExceeded.__name__), was_added=True)
                    continue
                handle = None if admission is None else admission.admit(item)
                if handle is not None or admission is None:
                    self._attempts.start(item, handle)
                    has_started = True
                    continue
                self._recorder.note_request(item, self._now())
                if self._max_wait is not None:
                    self._max_wait.watch(scope)
        return has_started

    def _stop_waiting(self, reason: str) -> None:
        """Drain a run in which nothing can start for too long: what binds it now is what it was bound by."""
        self._bound_probe.note_stop()
        self._shutdown.drain(reason)

    def _stop_requests(self, reason: str) -> None:
        """Stop a run whose running items cannot go on either: the gateway has no credential for their requests."""
        self._bound_probe.note_stop()
        self._shutdown.stop(reason)

    # --- items ----------------------------------------------------------------------------------------------------

    def _on_start(self, _: messages.RunStart) -> None:
        if self._pool is not None:
            self._unlisten = self._pool.listen(lambda event: self._post(messages.PoolEvent(event)))
        resumed = self._recorder.resumed_event(self._scheduler.total, retry_failed=self._parts.options.retry_failed)
        self.progress.start(resumed)
        if resumed is not None:
            self._report(resumed)
        self._periodic.start()
        self._parallel.start()
        if self._max_wait is not None:
            self._max_wait.start()

    def _on_items_read(self, message: messages.ItemsRead) -> None:
        self._intake.items_came(len(message.items))
        for item, problem in message.items:
            if problem is None and item.id in self._scheduler.unfinished:
                self.reject(item, Problem.repeated(item.id))
            elif problem is not None:
                self.reject(item, problem)
            else:
                self._scheduler.add(item)

    def reject(self, item: Item, problem: Problem, *, was_added: bool = False) -> None:
        """Fail an item that cannot be started. `was_added`: the scheduler knows it."""
        self._scheduler.reject(item.id if was_added else None)
        metadata = {"error_type": problem.error_type, "verdict": PERMANENT if was_added else None}
        result: WorkflowResult[Any] = WorkflowResult(
            item.id, False, self._context.redact(problem.text), metadata=metadata, attempts=0
        )
        if problem.is_unrecorded:
            self.progress.deliver(result)
        else:
            self._recorder.item_ended(item, None, result, None)
        self._shutdown.stop_if_halted()

    def _on_recorded_items(self, message: messages.RecordedItemsFound) -> None:
        self._scheduler.count_recorded(message.succeeded + message.failed)
        self.progress.add_recorded(message.succeeded, message.failed)
        self.results.put_fetch_recorded()

    def on_source_ended(self, error: BaseException | None) -> None:
        """Note that the input has ended; drain the run if it raised."""
        scheduler = self._scheduler
        scheduler.is_source_ended = True
        self._intake.requested = 0
        if error is not None:
            self._source_error = error
            text = f"the input failed: {foreign_exceptions.type_name(error)}: {foreign_exceptions.text(error)}"
            self._shutdown.drain(self._context.redact(text))
        elif scheduler.total is None:
            scheduler.total = self.progress.stats.total = scheduler.completed + len(scheduler.unfinished)

    def _on_lease(self, message: messages.LeaseDelivered) -> None:
        item, handle = message.item, message.handle
        admission, pool = self._admission, self._pool
        assert admission is not None
        assert pool is not None
        if not admission.is_requesting(item, handle):
            return
        has_worker = self._scheduler.free_workers() > 0 and self._spending.admits_item()
        if has_worker and admission.pick_up(item, handle):
            self._attempts.start(item, handle)
        elif handle.is_refused or not has_worker:
            # Refused; or several lanes have requested leases for one free worker and this one is late: the lease goes
            # back unused, and the item is the first of its lane.
            admission.withdraw(item)
            if handle.too_large is not None:
                problem = Problem(f"no limit is large enough: {handle.too_large}", "RequestTooLarge")
                self.reject(item, problem, was_added=True)
                return
            self._scheduler.put_back(item)
            if handle.is_refused and not self._parts.breaker.ignore_exclusions(item):
                self._parts.progress.bound_times.stop(bound_of_pool(pool.waiting_for(item.scope), 0.0))
                self._shutdown.drain(str(pool.no_usable(item.scope)))

    def _on_pool_event(self, message: messages.PoolEvent) -> None:
        if self._admission is not None:
            self._admission.forget_answers()
        self._report(message.event)

    # --- the end --------------------------------------------------------------------------------------------------

    def _on_record_lost(self, message: messages.RecordLost) -> None:
        self._recorder.mark_lost()
        self._keep_error(message.error)
        self._shutdown.stop(self._context.redact(str(message.error)))

    def _finish(self) -> None:
        try:
            self._unlisten()
            self._source.close()
            self._shutdown.release(self._attempts.timeouts.abandoned, has_access=self._access is not None)
            if self._scheduler.stopped is not None:
                self.unread_ids = self._source.unread_ids()
            self._shutdown.close_record(self._keep_error)
            self.unfinished_ids = self._collect_unfinished()
            self.progress.end()
            self._on_finished()
        except BaseException as error:
            self._keep_error(error)
        self.error = self.error or self._source_error
        self.results.put(None)
        self._mailbox.end()

    def _collect_unfinished(self) -> list[str]:
        """Return the ids of all items that were read and have not ended. Other threads may have posted results and
        items since the last message: no handler will be called with them after this one."""
        late_items: list[str] = []
        for message in self._mailbox.unprocessed():
            if isinstance(message, messages.ResultsRecorded):
                self._recorder.deliver(message)
            elif isinstance(message, messages.RecordedItemsFound):
                self._on_recorded_items(message)
            elif isinstance(message, messages.ItemsRead):
                late_items += [item.id for item, problem in message.items if problem is None]
        return [*self._scheduler.unfinished, *late_items, *self._recorder.unwritten_ids()]


def _no_op(_: messages.Message) -> None:
    """No-op: nothing is left to do about the message."""
