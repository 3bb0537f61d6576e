"""Drives one run: joins the rules of the run, the pool, the workers and the record.

Whatever happens is a fact: an item was read, a lease was granted, an attempt ended, a result is on record, an instant
came, somebody wants to stop. Facts are taken by whoever holds the role (see `_role`), one at a time; then every free
place is filled. Whatever may wait is done elsewhere: workers run on threads, loops or processes, leases are delivered
by the pool, slow inputs are read by a reader thread, results are written down by the ledger's thread and wait in the
outbox until they are taken.

Every fact has its method here, which makes this the longest module; whatever can be told apart lives beside it.
Methods named `_on_…` are facts and are called in the role. `attempt_ended` runs where the attempt ended, so that its
lease is back in the pool, with the provider's answer, before anybody else is asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentos import events
from agentos.clock import Clock, Timer
from agentos.errors import AttemptTimeout, ExecutorBroken, UnrecordableValue, WorkerStartError
from agentos.events import AttemptEnded, PoolWaiting, RunResumed, RunStopping, ThreadAbandoned
from agentos.items.attempt import Attempt
from agentos.items.item import INTERRUPTED, Item
from agentos.items.results import RunningItem, WorkflowResult
from agentos.items.sources import CollectionSource, Problem, ReadItem, StreamSource
from agentos.limits.backoff import item_wait
from agentos.pool.lease_pool import LeasePool
from agentos.pool.lease_states import REFUSED
from agentos.pool.store import LeaseHandle
from agentos.verdict import AUTH_FAILED, PERMANENT, RATE_LIMITED, Verdict
from agentos.workers.base import Workers

from ._admission import Admission
from ._attempt_context import RunContext
from ._mailbox import Fact, Role
from ._outcome import Judge, failed_result, text_of
from ._progress import Account
from ._result_queue import Outbox
from ._rules.scheduler import FAILED, UNFINISHED, Again, NoPool, Run
from .options import Options

if TYPE_CHECKING:  # only a run with a ledger needs them
    from agentos.ledger.record import RunRecord
    from agentos.ledger.recorded_results import RecordedResults
    from agentos.ledger.resume_filter import ResumeFilter

    from ._recorder import Recording

# How often a run in which nothing ends says that it is still there.
HEARTBEAT_SECONDS = 15.0
# How often the pool is asked what its waiters wait for.
BINDING_SECONDS = 0.5
# How often (seconds) attempts that are still running are put on record as started.
STARTS_SECONDS = 0.25
# With a ledger results come in whole batches, and the next batch should not have to wait until the last one was taken.
RECORDED_OUTBOX = 20_000


class Driver:
    def __init__(
        self,
        options: Options,
        source: CollectionSource | StreamSource | ResumeFilter,
        make_workers: Callable[[Callable[[Attempt, Any, BaseException | None], None]], Workers],
        pool: LeasePool | None,
        clock: Clock,
        on_finished: Callable[[Driver], None],
        record: RunRecord | None = None,
        recorded_results: RecordedResults | None = None,
        checkpoints: Path | None = None,
    ) -> None:
        self._options = options
        self.recorded_results = recorded_results  # what was on record before
        self._on_finished = on_finished  # called once, in the role, before the end is in the outbox
        self._source = source
        self._pool = pool
        self._clock = clock
        self._now = clock.now
        self._workers = make_workers(self.attempt_ended)
        self._judge = Judge(options.classify, options.retry_on, clock)
        self._context = RunContext(options.run_id, pool, record, checkpoints)
        # Its holder may touch everything below.
        self._role = Role(f"agentos-run-{options.run_id}", self._workers, self._settle, self._on_error)
        self._post = self._role.post
        self._run = Run(max_workers=options.max_workers, retries=options.retries, halt=options.halt, total=source.total)
        self._admission: Admission | None = None
        if pool is not None and options.admission:
            self._admission = Admission(pool, lambda item, record: self._post((self._on_lease, item, record)))
        self._attempts: dict[Attempt, None] = {}  # running, in the order of their start
        self._abandoned = 0
        self._requested = 0  # items asked of the source and not yet read
        self._low_water = options.max_workers // 2  # with so few items ready, more are read
        self._timers: dict[str, Timer] = {}  # the run's own, by what they are for
        self._unlisten: Callable[[], None] = lambda: None
        self._is_told = False  # running attempts have been told to stop
        self._is_killed = False  # nothing is waited for any more
        self._last_start = clock.now()
        self._ask_binding_at = 0.0
        self._source_error: BaseException | None = None
        size = options.max_workers if record is None else max(options.max_workers, RECORDED_OUTBOX)
        self.outbox = Outbox(size, lambda: self._post((self._on_room, None, None)))
        self.account = Account(
            options.run_id, self._run, pool, options.reporter, clock, self.outbox, is_recorded=record is not None
        )
        self._tell = self.account.tell
        self._recording = _recording(record, self._context, self.account)
        self.error: BaseException | None = None  # to be raised by the consumer after the last result
        self.unfinished_ids: list[str] = []
        self.unread_ids: Iterator[str] | None = None

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._recording is not None:
            self._recording.start(
                lambda results, size: self._post((self._on_recorded, results, size)),
                lambda error: self._post((self._on_record_lost, error, None)),
            )
        self._post((self._on_begin, None, None))
        self._role.start()

    def stop(self, reason: str, signal: int | None = None) -> None:
        """Nothing new starts; running attempts are told, and waited for as long as the grace lasts. Safe in a signal
        handler."""
        self._post((self._on_stop, reason, signal))

    def kill(self) -> None:
        """Ends the run at once."""
        self._post((self._on_kill, None, None))

    def join(self, timeout: float | None = None) -> None:
        self._role.join(timeout)

    def running(self, most: int | None = None) -> list[RunningItem]:
        """The attempts that are running, or so many of them, the oldest first."""
        now = self._now()
        # A copy in one step, which no other thread can interrupt; the dict itself may change while it is walked.
        attempts = islice(list(self._attempts), most)
        return [RunningItem(a.id, a.attempt, a.credential_id, now - a.started_at) for a in attempts]

    def waiting(self) -> PoolWaiting | None:
        """Why items wait for a credential although a worker is free; None when none does."""
        scopes = () if self._admission is None else self._admission.scopes()
        return self._pool.waiting_for(scopes[0]) if self._pool is not None and scopes else None

    def items_read(self, read: list[ReadItem]) -> None:
        """From the thread that reads the input, where that is not the role's holder."""
        self._post((self._on_read, read, None))

    def items_recorded(self, succeeded: int, failed: int) -> None:
        self._post((self._on_found, succeeded, failed))

    def source_ended(self, error: BaseException | None) -> None:
        self._post((self._on_source_ended, error, None))

    def attempt_ended(self, attempt: Attempt, value: Any, exc: BaseException | None) -> None:
        """The worker returned a value or raised. Ends the lease together with what the exception says."""
        attempt.ended_at = self._now()
        fact: Fact
        encoded = None
        if exc is None and self._recording is not None:
            try:
                encoded = self._recording.encode_result(value)
            except UnrecordableValue as unrecordable:
                exc = unrecordable
        if exc is None:
            if attempt.lease_handle is not None:
                self._context.end_lease(attempt, None, success=True)
            fact = (self._on_success, attempt, (value, encoded))
        else:
            try:
                kind, verdict = self._judge(attempt, exc)
            except Exception as broken:  # `classify` is the user's code
                exc, kind, verdict = broken, None, None
            self._context.end_lease(attempt, verdict)
            fact = (self._on_failure, attempt, (exc, kind, verdict))
        self._role.post_and_drive(fact)

    # --- what follows every fact ----------------------------------------------------------------------------------

    def _settle(self) -> None:
        self._fill()
        if self._is_killed or (self._run.is_over() and not (self._recording and self._recording.is_pending())):
            self._finish()

    def _on_error(self, error: BaseException) -> None:
        self.error = error
        self._run.stop(f"internal error: {error!r}")
        self._finish()

    def _fill(self) -> None:
        """Reads as far as there is room, and starts (or lets ask) whatever a worker is free for."""
        run = self._run
        if run.stopped is not None:
            return
        if self.outbox.is_full():
            self.account.note_bound(events.READER)
            return
        if self._recording is not None and self._recording.is_full():
            self.account.note_bound(events.LEDGER)
            return
        while True:
            has_read = False
            if not run.is_source_ended and not self._requested and run.ready <= self._low_water + self._blocked():
                has_read = self._read_more()
            has_started = run.ready > 0 and self._start_ready()
            # What started may have made room to read more, for workers that are still free; and behind items that wait
            # for one scope there may be others that need not wait.
            if not has_started and not (has_read and self._source.has_scopes):
                break
            if run.running >= run.max_workers or self._requested:
                break
        self.account.note_bound(self._what_binds())

    def _blocked(self) -> int:
        """How many ready items cannot start although a worker is free: their scope has to wait."""
        admission = self._admission
        if not admission or not self._source.has_scopes:
            return 0
        return sum(len(lane) for scope, lane in self._run.lanes.items() if admission.count(scope))

    def _read_more(self) -> bool:
        room = self._run.room(self._blocked())
        if room <= 0:
            return False
        if self._source.has_reader_thread:
            self._requested += room
            self._source.request(room, self)
            return False
        assert isinstance(self._source, CollectionSource)
        for item, problem in self._source.read(room):
            if problem is None:
                self._run.read(item)
            else:
                self._reject(item, problem)
        if self._source.is_ended:
            self._on_source_ended(self._source.error, None)
        return True

    def _start_ready(self) -> bool:
        run, admission = self._run, self._admission
        has_started = False
        for scope in tuple(run.lanes):
            free = run.max_workers - run.running - (admission.count(scope) if admission else 0)
            while free > 0 and scope in run.lanes and run.stopped is None:
                free -= 1
                item = run.take(scope)
                record = None if admission is None else admission.admit(item)
                if record is not None or admission is None:
                    self._start(item, record)
                    has_started = True
                    continue
                if self._recording is not None and item.waiting_since is None:
                    item.waiting_since = self._now()
                if self._options.max_wait is not None:
                    self._watch_wait(scope)
        return has_started

    def _what_binds(self) -> str | None:
        run = self._run
        if run.running >= run.max_workers:
            return events.WORKERS if run.ready or not run.is_source_ended else None
        if self._admission:
            return self._what_binds_admission(self._admission)
        if self._requested:
            return events.INPUT
        return events.PAUSES if run.waiting() else None

    def _what_binds_admission(self, admission: Admission) -> str:
        if self._run.sent_back:
            return events.LIMITS
        if self.account.bound_reason in (events.KEYS, events.LIMITS) and self._now() < self._ask_binding_at:
            return self.account.bound_reason  # asking the pool each time would cost too much
        self._ask_binding_at = self._now() + BINDING_SECONDS
        assert self._pool is not None
        is_limited = self._pool.waiting_for(admission.scopes()[0]).reason == RATE_LIMITED
        return events.LIMITS if is_limited else events.KEYS

    # --- starting -------------------------------------------------------------------------------------------------

    def _start(self, item: Item, record: LeaseHandle | None) -> None:
        now = self._last_start = self._now()
        self._run.started(item, now)
        attempt = self._context.make_attempt(item, record, now)
        if self._recording is not None:
            self._recording.prepare(attempt)
        self._attempts[attempt] = None
        if self._options.timeout is not None:
            self._set_timeout(attempt, self._options.timeout, self._on_timeout)
        self._workers.start(attempt, self._run.running)

    def _on_lease(self, item: Item, record: LeaseHandle) -> None:
        admission, pool = self._admission, self._pool
        assert admission is not None
        assert pool is not None
        if not admission.is_asking(item, record):
            return
        if record.state == REFUSED or self._run.free_workers() <= 0:
            # No credential can come; or several lanes have asked for the same place and this one comes too late: the
            # lease goes back unused, and the item is the first to ask again.
            admission.withdraw(item)
            if record.too_large is not None:
                self._reject(
                    item, Problem(f"no limit is large enough: {record.too_large}", "RequestTooLarge"), was_read=True
                )
                return
            self._run.put_back(item)
            if record.state == REFUSED:
                self._stop_soon(str(pool.no_usable(item.scope)))
        elif admission.pick_up(item, record):
            self._start(item, record)

    def _watch_wait(self, scope: str | None) -> None:
        """`max_wait`: stops at once if the provider's own figure is longer, else when the time has passed."""
        max_wait, pool, admission = self._options.max_wait, self._pool, self._admission
        assert max_wait is not None
        assert pool is not None
        assert admission is not None
        if not self._run.running and admission.scopes() == (scope,):
            waiting = pool.waiting_for(scope)
            if waiting.reason == RATE_LIMITED and waiting.usable_in is not None and waiting.usable_in > max_wait:
                usable_in = f"the next credential is usable in {waiting.usable_in:.0f} s"
                self._stop_soon(f"nothing can start within {max_wait:g} s: {usable_in}")
                return
        if "wait" not in self._timers:
            self._set_timer("wait", self._now() + max_wait, self._on_waited)

    # --- facts: items ---------------------------------------------------------------------------------------------

    def _on_begin(self, _: Any, __: Any) -> None:
        if self._pool is not None:
            self._unlisten = self._pool.listen(lambda event: self._post((self._on_told, event, None)))
        self.account.start()
        record = self._context.record
        if record is not None and record.launch > 1:
            self._tell(RunResumed(record.run_id, record.launch, *record.counts_before, self._options.retry_failed))
        self._set_timer("heartbeat", self._now() + HEARTBEAT_SECONDS, self._on_heartbeat)
        if record is not None:
            self._set_timer("starts", self._now() + STARTS_SECONDS, self._on_starts_due)

    def _on_read(self, read: list[ReadItem], _: Any) -> None:
        # A ResumeFilter may have read further ahead than it was asked to.
        self._requested = max(0, self._requested - len(read))
        for item, problem in read:
            if problem is None and item.id in self._run.unfinished:
                self._reject(item, Problem.repeated(item.id))
            elif problem is not None:
                self._reject(item, problem)
            else:
                self._run.read(item)

    def _reject(self, item: Item, problem: Problem, *, was_read: bool = False) -> None:
        self._run.rejected(item.id if was_read else None)
        metadata = {"error_type": problem.error_type, "verdict": PERMANENT if was_read else None}
        result = WorkflowResult(item.id, False, self._context.redact(problem.text), metadata=metadata, attempts=0)
        if problem.is_unrecorded:
            self.account.deliver(result)
        else:
            self._conclude(item, None, result, None)
        self._halt_if_reached()

    def _on_found(self, succeeded: int, failed: int) -> None:
        """Items of the input that had ended before this run began."""
        self._run.recorded(succeeded + failed)
        self.account.add_recorded(succeeded, failed)
        self.outbox.call_reader()

    def _on_source_ended(self, error: BaseException | None, _: Any) -> None:
        run = self._run
        run.is_source_ended = True
        self._requested = 0
        if error is not None:
            self._source_error = error
            self._stop_soon(self._context.redact(f"the input failed: {type(error).__name__}: {text_of(error)}"))
        elif run.total is None:
            run.total = self.account.stats.total = run.completed + len(run.unfinished)

    def _on_room(self, _: Any, __: Any) -> None:
        """Results have been taken: `_fill` follows every fact."""

    # --- facts: attempts ------------------------------------------------------------------------------------------

    def _on_success(self, attempt: Attempt, what: tuple[Any, str | None]) -> None:
        if not self._is_awaited(attempt):
            return
        item = attempt.item
        value, encoded = what
        self._run.succeeded(item)
        result = WorkflowResult(
            item.id,
            True,
            None,
            attempt.ended_at - item.started_at,
            {} if attempt.usage is None else {"usage": attempt.usage},
            value,
            item.attempts,
            attempt.credential_id,
        )
        self._conclude(item, attempt, result, encoded)

    def _conclude(self, item: Item, attempt: Attempt | None, result: WorkflowResult, encoded: str | None) -> None:
        """The item has its outcome. With a ledger it is told of only when that is on record."""
        if self._recording is not None:
            self._recording.item_ended(item, attempt, result, encoded)
            return
        if result.success and self._context.has_files:
            self._context.forget(result.item_id)
        self.account.deliver(result)

    def _on_failure(self, attempt: Attempt, how: tuple[BaseException, str | None, Verdict | None]) -> None:
        if not self._is_awaited(attempt):
            return
        exc, kind, verdict = how
        if isinstance(exc, WorkerStartError):
            self.error = self.error or exc
            self._run.give_up()
            self._stop_soon("the worker cannot be started")
        else:
            if isinstance(exc, ExecutorBroken):
                self._stop_soon(self._context.redact(text_of(exc)))
            self._failed(attempt, self._time_out_error() if attempt.is_timed_out else exc, kind, verdict)

    def _failed(self, attempt: Attempt, exc: BaseException, kind: str | None, verdict: Verdict | None = None) -> None:
        item, now, redact = attempt.item, self._now(), self._context.redact
        refused_by = attempt.credential_id if kind == AUTH_FAILED and self._context.is_proven(attempt) else None
        no_pool = None if self._pool is not None else NoPool(None if verdict is None else item_wait(verdict))
        decision = self._run.failed_attempt(item, kind, now, random.random(), refused_by, no_pool)  # noqa: S311
        if decision is FAILED:
            self._conclude(item, attempt, failed_result(attempt, exc, kind, redact, now), None)
            self._halt_if_reached()
            return
        error = redact(text_of(exc))
        if self._recording is not None:
            self._recording.attempt_ended(attempt, kind or INTERRUPTED, error)
        if decision is UNFINISHED:
            return
        assert isinstance(decision, Again)
        again_in = 0.0 if decision.at is None else decision.at - now
        self._tell(AttemptEnded(item.id, item.attempts, attempt.credential_id, kind or "", again_in, error))
        if decision.at is not None:
            self._on_pause_over(None, None)

    def _is_awaited(self, attempt: Attempt) -> bool:
        """False: it was given up before, and its end comes too late to matter."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        return self._attempts.pop(attempt, False) is None

    # --- facts: the record ----------------------------------------------------------------------------------------

    def _on_recorded(self, results: list[WorkflowResult], size: int) -> None:
        assert self._recording is not None
        self._recording.tell(results, size)

    def _on_record_lost(self, error: BaseException, _: Any) -> None:
        """Nothing can be written any more: so nothing new starts, and nothing that has ended since is told of."""
        assert self._recording is not None
        self._recording.is_lost = True
        self.error = self.error or error
        self._on_stop(self._context.redact(str(error)), None)

    def _on_starts_due(self, _: Any, __: Any) -> None:
        assert self._recording is not None
        self._recording.note_running(self._attempts)
        self._set_timer("starts", self._now() + STARTS_SECONDS, self._on_starts_due)

    # --- facts: instants ------------------------------------------------------------------------------------------

    def _set_timer(self, name: str, at: float, fact: Callable[[Any, Any], None]) -> None:
        before = self._timers.get(name)
        if before is not None:
            before.cancel()
        self._timers[name] = self._clock.call_at(at, lambda: self._post((fact, None, None)))

    def _set_timeout(self, attempt: Attempt, seconds: float, fact: Callable[[Any, Any], None]) -> None:
        attempt.timer = self._clock.call_at(self._now() + seconds, lambda: self._post((fact, attempt, None)))

    def _on_timeout(self, attempt: Attempt, _: Any) -> None:
        if attempt not in self._attempts:
            return
        if attempt.is_preparing:
            self._set_timeout(attempt, self._options.timeout or 0.0, self._on_timeout)
            return
        attempt.should_stop = True
        if not self._workers.can_kill:
            self._abandon(attempt)
            return
        attempt.is_timed_out = True
        self._workers.kill(attempt)
        # A task may ignore its cancellation; then it is left to itself, like a thread.
        self._set_timeout(attempt, self._options.grace_seconds, self._on_timeout_ignored)

    def _on_timeout_ignored(self, attempt: Attempt, _: Any) -> None:
        if attempt in self._attempts:
            self._abandon(attempt)

    def _abandon(self, attempt: Attempt) -> None:
        del self._attempts[attempt]
        attempt.ended_at = self._now()
        self._workers.abandon(attempt)
        self._abandoned += 1
        self._tell(ThreadAbandoned(attempt.id, self._options.timeout or 0.0, self._abandoned))
        self._failed(attempt, self._time_out_error(), PERMANENT)
        if self._abandoned >= self._options.max_workers:
            self._stop_soon(f"{self._abandoned} attempts did not end with their time-out: no worker is left to trust")

    def _time_out_error(self) -> AttemptTimeout:
        return AttemptTimeout(f"the attempt took longer than {self._options.timeout:g} s")

    def _on_pause_over(self, _: Any, __: Any) -> None:
        at = self._run.wake(self._now())
        if at is not None:
            self._set_timer("pause", at, self._on_pause_over)

    def _on_waited(self, _: Any, __: Any) -> None:
        max_wait = self._options.max_wait
        assert max_wait is not None
        del self._timers["wait"]
        if not self._admission:
            return
        now = self._now()
        if self._run.running:
            self._set_timer("wait", now + max_wait, self._on_waited)
        elif now - self._last_start >= max_wait:
            self._stop_soon(f"nothing could start within {max_wait:g} s")
        else:
            self._set_timer("wait", self._last_start + max_wait, self._on_waited)

    def _on_heartbeat(self, _: Any, __: Any) -> None:
        """Nothing has ended for a while: a person wants to know why, and until when."""
        self.account.heartbeat(self.waiting())
        self._set_timer("heartbeat", self._now() + HEARTBEAT_SECONDS, self._on_heartbeat)

    # --- facts: stopping ------------------------------------------------------------------------------------------

    def _halt_if_reached(self) -> None:
        run = self._run
        if run.stopped is not None or not run.is_halted():
            return
        assert run.halt is not None
        reason = f"halted: {run.failed} failed ({run.halt.text})"
        if run.halt.when == "now":
            self._on_stop(reason, None)
        else:
            self._stop_soon(reason)

    def _stop_soon(self, reason: str) -> None:
        """Nothing new starts; what runs may finish in its own time."""
        if self._run.stopped is None:
            self._run.stop(reason)
            self._tell(RunStopping(reason, None, self._run.running, None))
            self._withdraw_all()

    def _on_stop(self, reason: str, signal: int | None) -> None:
        if self._is_told:
            return
        self._is_told = True
        grace = self._options.grace_seconds
        self._run.stop(reason)
        self._withdraw_all()
        for attempt in self._attempts:
            attempt.should_stop = True
            self._workers.interrupt(attempt)
        if self._attempts:
            self._set_timer("grace", self._now() + grace, self._on_kill)
        self._tell(RunStopping(reason, signal, self._run.running, grace))  # last: whoever is told may hold us up

    def _on_kill(self, _: Any, __: Any) -> None:
        self._run.stop("interrupted")
        self._is_killed = True

    def _withdraw_all(self) -> None:
        if self._admission is not None:
            for item in self._admission.withdraw_all():
                self._run.put_back(item)

    def _on_told(self, event: Any, _: Any) -> None:
        """By the pool."""
        self._tell(event)

    # --- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        try:
            self._let_go()
            if self._run.stopped is not None:
                self.unread_ids = self._source.unread_ids()
            self._close_record()
            self.unfinished_ids = self._list_unfinished()
            self.account.end()
            self._on_finished(self)
        except BaseException as error:
            self.error = self.error or error
        self.error = self.error or self._source_error
        self.outbox.put(None)
        self._role.end()

    def _close_record(self) -> None:
        if self._recording is None:
            return
        try:
            self._recording.close(self._attempts, self._now(), self._run.stopped, at_once=self._is_killed)
        except BaseException as error:
            self.error = self.error or error
            self._run.stop(self._context.redact(str(error)))
        for fact, a, b in self._role.inbox.copy():  # what was written, or found, in the meantime
            if fact in (self._on_recorded, self._on_found):
                fact(a, b)

    def _list_unfinished(self) -> list[str]:
        unfinished = list(self._run.unfinished)
        for fact, read, _ in self._role.inbox.copy():
            if fact == self._on_read:
                unfinished += [item.id for item, problem in read if problem is None]
        if self._recording is not None:
            unfinished += self._recording.unwritten_ids()
        return unfinished

    def _let_go(self) -> None:
        self._unlisten()
        self._source.close()
        self._withdraw_all()
        for timer in self._timers.values():
            timer.cancel()
        for attempt in self._attempts:
            attempt.should_stop = True
            self._run.give_up()
        self._workers.close()
        if not self._attempts and not self._abandoned:  # else somebody may still be using its files
            self._context.close()


def _recording(record: RunRecord | None, context: RunContext, account: Account) -> Recording | None:
    if record is None:
        return None
    from ._recorder import Recording

    return Recording(record, context, account)
