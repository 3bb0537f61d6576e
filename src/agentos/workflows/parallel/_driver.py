"""Drives one run: joins the rules of the run, the pool and the workers.

One thread decides everything. It takes facts from its inbox one at a time (an item was read, a lease was granted, an
attempt ended, an instant came, somebody wants to stop) and then fills every free place. Whatever may wait is done
elsewhere: workers run on threads, loops or processes of their own, leases are delivered by the pool, slow inputs are
read by a reader thread, results wait in the outbox until they are taken.

Methods named `_on_…` are facts and run on that thread. `attempt_ended` runs where the attempt ended, so that its lease
is back in the pool, with the provider's answer, before anybody else is asked.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any, NamedTuple

from ._attempt import Attempt, Workspace
from ._clock import Clock, Timer
from ._core import bound
from ._core.events import (
    AUTH_FAILED,
    PERMANENT,
    RATE_LIMITED,
    ROTATING,
    AttemptEnded,
    ItemEnded,
    RunEnded,
    RunStarted,
    RunStopping,
    ThreadAbandoned,
)
from ._core.records import LIVE, REFUSED, LeaseRecord
from ._core.run import FAILED, UNFINISHED, Again, Halt, Item, Run
from ._items import CollectionSource, StreamSource
from ._judge import Judge, failed_result
from ._workers.base import Workers
from .credential_coordinator import CredentialCoordinator
from .errors import AttemptTimeout, WorkerStartError
from .results import ProgressStats, WorkflowResult

# Results that may wait to be taken before the run slows down.
LEAST_OUTBOX = 64


class Options(NamedTuple):
    """How a run is to be carried out; see ParallelCoordinator."""

    run_id: str
    max_workers: int
    retries: int
    retry_on: tuple[type[BaseException], ...]
    classify: Callable[[BaseException], Any] | None
    timeout: float | None
    halt: Halt | None
    grace_seconds: float
    max_wait: float | None
    reporter: Callable[[Any], None] | None


class Driver:
    def __init__(
        self,
        options: Options,
        source: CollectionSource | StreamSource,
        make_workers: Callable[[Callable[[Attempt, Any, BaseException | None], None]], Workers],
        pool: CredentialCoordinator | None,
        clock: Clock,
        *,
        admission: bool = True,
    ) -> None:
        """`admission`: an item starts only with a lease in hand; else its worker leases by itself."""
        self._options = options
        self._source = source
        self._pool = pool
        self._store = pool._store if pool is not None and admission else None
        self._clock = clock
        self._workers = make_workers(self.attempt_ended)
        self._judge = Judge(options.classify, options.retry_on, clock)
        self._workspace = Workspace()
        self._inbox: SimpleQueue[tuple[Callable[[Any, Any], None], Any, Any]] = SimpleQueue()
        self._run = Run(max_workers=options.max_workers, retries=options.retries, halt=options.halt, total=source.total)
        self._asking: dict[Item, LeaseRecord] = {}
        self._asking_by_scope: dict[str | None, int] = {}
        self._attempts: dict[Attempt, None] = {}  # running, in the order of their start
        self._abandoned = 0
        self._requested = 0  # items asked of the source and not yet read
        self._pause_timer: Timer | None = None
        self._wait_timer: Timer | None = None
        self._grace_timer: Timer | None = None
        self._is_told = False  # running attempts have been told to stop
        self._is_killed = False  # nothing is waited for any more
        self._last_start = clock.now()
        self._bound = bound.Bound(self._last_start)
        self._reporter = options.reporter
        self._source_error: BaseException | None = None
        self._outbox_size = max(LEAST_OUTBOX, options.max_workers)
        self._is_held_up = False  # by a full outbox; read by the consumer
        self.stats = ProgressStats(total=source.total, start_time=clock.epoch())
        self.outbox: SimpleQueue[WorkflowResult | None] = SimpleQueue()  # None: the end
        self.on_result: Callable[[], None] | None = None  # told of each entry, for consumers that cannot block
        self.taken = 0  # results taken; only the consumer writes it
        self._put = 0
        self.error: BaseException | None = None  # to be raised by the consumer after the last result
        self.unfinished_ids: list[str] = []
        self.unread_ids: Iterator[str] | None = None
        self._thread = threading.Thread(target=self._drive, name=f"agentos-run-{options.run_id}", daemon=True)

    # --- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self, reason: str, signal: int | None = None) -> None:
        """Nothing new starts; running attempts are told, and waited for as long as the grace lasts."""
        self._inbox.put((self._on_stop, reason, signal))

    def kill(self) -> None:
        """Ends the run at once."""
        self._inbox.put((self._on_kill, None, None))

    def join(self, timeout: float | None = None) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def took_one(self) -> None:
        """The consumer has taken a result."""
        self.taken += 1
        # The driver sets the flag and then looks at the count; we change the count and then look at the flag.
        if self._is_held_up and self._put - self.taken <= self._outbox_size // 2:
            self._is_held_up = False
            self._inbox.put((self._on_nothing, None, None))

    def item_read(self, item: Item, problem: str | None) -> None:
        """From the source: on the run's own thread for a collection, on the reader's for a stream."""
        if self._source.total is not None:
            self._on_read(item, problem)
        else:
            self._inbox.put((self._on_read, item, problem))

    def source_ended(self, error: BaseException | None) -> None:
        if self._source.total is not None:
            self._on_source_ended(error, None)
        else:
            self._inbox.put((self._on_source_ended, error, None))

    def attempt_ended(self, attempt: Attempt, value: Any, exc: BaseException | None) -> None:
        """The worker returned a value or raised. Ends the lease together with what the exception says."""
        attempt.ended_at = self._clock.now()
        record, store = attempt.record, self._store
        if exc is None:
            if record is not None and store is not None:
                if attempt.usage is not None:
                    store.settle(record, *_actuals(attempt.usage))
                store.end(record, None, success=True)
            self._inbox.put((self._on_success, attempt, value))
            return
        try:
            kind, verdict = self._judge(attempt, exc)
        except Exception as broken:  # `classify` is the user's code
            exc, kind, verdict = broken, None, None
        if record is not None and store is not None:
            if attempt.usage is not None:
                store.settle(record, *_actuals(attempt.usage))
            assert self._pool is not None
            store.end(record, self._pool._with_default_wait(verdict) if kind in ROTATING else None)
        self._inbox.put((self._on_failure, attempt, (exc, kind)))

    # --- the loop -------------------------------------------------------------------------------------------------

    def _drive(self) -> None:
        unlisten = self._pool.listen(self._on_pool_event) if self._pool is not None else None
        try:
            self._tell_start()
            take = self._inbox.get
            is_empty = self._inbox.empty
            while True:
                self._fill()
                if self._is_killed or self._run.is_over():
                    break
                fact, a, b = take()
                fact(a, b)
                while not is_empty():
                    fact, a, b = take()
                    fact(a, b)
        except BaseException as error:
            self.error = error
            self._run.stop(f"internal error: {error!r}")
        finally:
            if unlisten is not None:
                unlisten()
            self._finish()

    def _fill(self) -> None:
        """Reads as far as there is room, and starts or asks for whatever a worker is free for."""
        run = self._run
        if run.stopped is not None or self._is_outbox_full():
            return
        while True:
            if self._requested == 0 and (room := run.room()) > 0:
                self._requested += room
                self._source.request(room, self)
            started = False
            for scope in tuple(run.lanes):
                while scope in run.lanes and self._asking_by_scope.get(scope, 0) < run.free_workers():
                    started = self._ask_or_start(run.take(scope)) or started
            if not started or self._source.total is None or run.free_workers() <= 0:
                break
        self._bound.note(self._what_binds(), self._clock.now())

    def _is_outbox_full(self) -> bool:
        if self._put - self.taken < self._outbox_size:
            return False
        self._is_held_up = True
        if self._put - self.taken <= self._outbox_size // 2:  # taken in between: nobody will tell us
            self._is_held_up = False
            return False
        self._bound.note(bound.READER, self._clock.now())
        return True

    def _what_binds(self) -> str | None:
        run = self._run
        if self._asking and run.free_workers() > 0:
            return bound.LIMITS if run.sent_back else bound.KEYS
        if run.free_workers() <= 0:
            return bound.WORKERS if run.ready else None
        if self._requested and not run.is_source_ended:
            return bound.INPUT
        return bound.PAUSES if run.waiting() else None

    # --- starting -------------------------------------------------------------------------------------------------

    def _ask_or_start(self, item: Item) -> bool:
        """True if it started at once."""
        store = self._store
        if store is None:
            self._start(item, None)
            return True
        assert self._pool is not None
        record = LeaseRecord(item.id, 1, item.tokens, item.scope)
        if self._pool._request_now(record):
            self._start(item, record)
            return True
        record.deliver = lambda: self._inbox.put((self._on_lease, item, record))
        self._asking[item] = record
        self._asking_by_scope[item.scope] = self._asking_by_scope.get(item.scope, 0) + 1
        if store.request(record, True, item.is_sent_back) or record.state == REFUSED:
            self._on_lease(item, record)
        elif self._options.max_wait is not None:
            self._watch_wait(item.scope)
        return False

    def _on_lease(self, item: Item, record: LeaseRecord) -> None:
        store = self._store
        assert store is not None
        assert self._pool is not None
        if self._asking.get(item) is not record:
            store.withdraw(record)  # it stopped asking in the meantime
            return
        if record.state == REFUSED:
            self._stop_asking(item)
            self._stop_soon(str(self._pool._no_usable(item.scope)))
        elif self._run.free_workers() <= 0:
            # Several lanes asked for the same place. The lease goes back unused; the item is the first to ask again.
            self._stop_asking(item)
        elif record.state == LIVE and store.confirm(record):
            self._asking_ended(item)
            self._start(item, record)

    def _stop_asking(self, item: Item) -> None:
        record = self._asking_ended(item)
        assert self._store is not None
        self._store.withdraw(record)
        self._run.put_back(item)

    def _asking_ended(self, item: Item) -> LeaseRecord:
        self._asking_by_scope[item.scope] -= 1
        if not self._asking_by_scope[item.scope]:
            del self._asking_by_scope[item.scope]
        return self._asking.pop(item)

    def _start(self, item: Item, record: LeaseRecord | None) -> None:
        now = self._last_start = self._clock.now()
        self._run.started(item, now)
        pool = self._pool
        credential = pool._key_of(record) if pool is not None and record is not None else None
        attempt = Attempt(item, self._options.run_id, pool, record, credential, self._workspace)
        attempt.started_at = now
        self._attempts[attempt] = None
        if self._options.timeout is not None:
            self._set_timer(attempt, now + self._options.timeout, self._on_timeout)
        self._workers.start(attempt, self._run.running)

    def _set_timer(self, attempt: Attempt, at: float, fact: Callable[[Any, Any], None]) -> None:
        attempt.timer = self._clock.call_at(at, lambda: self._inbox.put((fact, attempt, None)))

    # --- facts: items ---------------------------------------------------------------------------------------------

    def _on_read(self, item: Item, problem: str | None) -> None:
        self._requested -= 1
        if problem is None and item.id in self._run.unfinished:
            problem = f"another item has the id {item.id!r} and is still running: an id names one item"
        if problem is None:
            self._run.read(item)
            return
        twin = self._run.unfinished.get(item.id)
        self._run.unfinished[item.id] = item
        self._run.rejected(item)
        if twin is not None:
            self._run.unfinished[item.id] = twin
        self._deliver(WorkflowResult(item.id, False, problem, metadata={"error_type": "ValueError"}, attempts=0))

    def _on_source_ended(self, error: BaseException | None, _: Any) -> None:
        run = self._run
        run.is_source_ended = True
        self._requested = 0
        if error is not None:
            self._source_error = error
            self._stop_soon(f"the input failed: {error!r}")
        elif run.total is None:
            run.total = self.stats.total = run.completed + len(run.unfinished)

    # --- facts: attempts ------------------------------------------------------------------------------------------

    def _on_success(self, attempt: Attempt, value: Any) -> None:
        if not self._is_awaited(attempt):
            return
        item = attempt.item
        self._run.succeeded(item)
        self._workspace.forget(item.id)
        self._deliver(
            WorkflowResult(
                item.id,
                True,
                None,
                attempt.ended_at - (item.started_at or attempt.started_at),
                {"usage": attempt.usage} if attempt.usage is not None else {},
                value,
                item.attempts,
                attempt.credential_id,
            )
        )

    def _on_failure(self, attempt: Attempt, how: tuple[BaseException, str | None]) -> None:
        if not self._is_awaited(attempt):
            return
        exc, kind = how
        if isinstance(exc, WorkerStartError):
            self.error = exc
            self._run.give_up(attempt.item)
            self._stop_soon("worker processes cannot be started")
            return
        if attempt.is_timed_out:
            exc = self._time_out_error()
        self._failed(attempt, exc, kind)

    def _failed(self, attempt: Attempt, exc: BaseException, kind: str | None) -> None:
        item, run = attempt.item, self._run
        refused_by = attempt.credential_id if kind == AUTH_FAILED and self._is_proven(attempt.credential_id) else None
        now = self._clock.now()
        decision = run.failed_attempt(item, kind, now, random.random(), refused_by)  # noqa: S311
        if decision is UNFINISHED:
            return
        redact = self._pool.redact if self._pool is not None else _unchanged
        if decision is FAILED:
            self._deliver(failed_result(attempt, exc, kind, redact, now))
            if run.stopped is None and run.is_halted():
                assert run.halt is not None
                self._halt(run.halt)
            return
        assert isinstance(decision, Again)
        again_in = 0.0 if decision.at is None else decision.at - now
        self._tell(AttemptEnded(item.id, item.attempts, attempt.credential_id, kind or "", again_in, redact(str(exc))))
        if decision.at is not None:
            self._on_pause_over(None, None)

    def _is_awaited(self, attempt: Attempt) -> bool:
        """False: it was given up before, and its end comes too late to matter."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        if attempt not in self._attempts:
            return False
        del self._attempts[attempt]
        return True

    def _is_proven(self, credential_id: str | None) -> bool:
        return self._store is not None and credential_id is not None and self._store.is_proven(credential_id)

    # --- facts: instants ------------------------------------------------------------------------------------------

    def _on_timeout(self, attempt: Attempt, _: Any) -> None:
        if attempt not in self._attempts:
            return
        if attempt.is_preparing:
            self._set_timer(attempt, self._clock.now() + (self._options.timeout or 0.0), self._on_timeout)
            return
        attempt.should_stop = True
        attempt.is_timed_out = True
        if not self._workers.can_kill:
            self._abandon(attempt)
            return
        self._workers.kill(attempt)
        # A task may ignore its cancellation; then it is left to itself, like a thread.
        self._set_timer(attempt, self._clock.now() + self._options.grace_seconds, self._on_timeout_ignored)

    def _on_timeout_ignored(self, attempt: Attempt, _: Any) -> None:
        if attempt in self._attempts:
            self._abandon(attempt)

    def _abandon(self, attempt: Attempt) -> None:
        del self._attempts[attempt]
        self._workers.abandon(attempt)
        self._abandoned += 1
        timeout = self._options.timeout or 0.0
        self._tell(ThreadAbandoned(attempt.id, timeout, self._abandoned))
        self._failed(attempt, self._time_out_error(), PERMANENT)
        if self._abandoned >= self._options.max_workers:
            self._stop_soon(f"{self._abandoned} attempts did not end with their time-out: no worker is left to trust")

    def _time_out_error(self) -> AttemptTimeout:
        return AttemptTimeout(f"the attempt took longer than {self._options.timeout:g} s")

    def _on_pause_over(self, _: Any, __: Any) -> None:
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        at = self._run.wake(self._clock.now())
        if at is not None:
            self._pause_timer = self._clock.call_at(at, lambda: self._inbox.put((self._on_pause_over, None, None)))

    def _watch_wait(self, scope: str | None) -> None:
        """`max_wait`: stops at once when the provider's own figure is longer, else when the time has passed."""
        max_wait, store = self._options.max_wait, self._store
        assert max_wait is not None
        assert store is not None
        if not self._run.running and len(self._asking_by_scope) == 1:
            waiting = store.waiting_for(scope)
            if waiting.reason == RATE_LIMITED and (waiting.usable_in or 0) > max_wait:
                self._stop_soon(f"nothing can start within {max_wait:g} s: the next credential is usable in "
                                f"{waiting.usable_in:.0f} s")  # fmt: skip
                return
        if self._wait_timer is None:
            at = self._clock.now() + max_wait
            self._wait_timer = self._clock.call_at(at, lambda: self._inbox.put((self._on_waited, None, None)))

    def _on_waited(self, _: Any, __: Any) -> None:
        self._wait_timer = None
        max_wait = self._options.max_wait
        assert max_wait is not None
        if not self._asking:
            return
        since = self._clock.now() - self._last_start
        if since >= max_wait and not self._run.running:
            self._stop_soon(f"nothing could start within {max_wait:g} s")
        else:
            at = self._clock.now() + max(0.01, max_wait - since)
            self._wait_timer = self._clock.call_at(at, lambda: self._inbox.put((self._on_waited, None, None)))

    # --- facts: stopping ------------------------------------------------------------------------------------------

    def _halt(self, halt: Halt) -> None:
        reason = f"halted: {self._run.failed} failed ({halt.text})"
        if halt.when == "now":
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
        self._tell(RunStopping(reason, signal, self._run.running, grace))
        self._withdraw_all()
        for attempt in self._attempts:
            attempt.should_stop = True
            self._workers.interrupt(attempt)
        if self._attempts:
            at = self._clock.now() + grace
            self._grace_timer = self._clock.call_at(at, lambda: self._inbox.put((self._on_kill, None, None)))

    def _on_kill(self, _: Any, __: Any) -> None:
        self._run.stop("interrupted")
        self._is_killed = True

    def _withdraw_all(self) -> None:
        for item in reversed(tuple(self._asking)):
            self._stop_asking(item)

    def _on_nothing(self, _: Any, __: Any) -> None:
        """There is room again: `_fill` follows every fact."""

    # --- telling --------------------------------------------------------------------------------------------------

    def _on_pool_event(self, event: Any) -> None:
        """From the pool, on any thread."""
        self._inbox.put((self._on_told, event, None))

    def _on_told(self, event: Any, _: Any) -> None:
        self._tell(event)

    def _tell(self, event: Any) -> None:
        if self._reporter is None:
            return
        try:
            self._reporter(event)
        except Exception as error:  # a broken pipe must not end the run
            self._reporter = None
            sys.stderr.write(f"agentos: the reporter failed and is not used any more: {error!r}\n")

    def _tell_start(self) -> None:
        credentials = len(self._pool._secrets) if self._pool is not None else None
        self._tell(RunStarted(self._options.run_id, self._run.total, self._options.max_workers, credentials))

    def _deliver(self, result: WorkflowResult) -> None:
        stats, run = self.stats, self._run
        stats.completed += 1
        if result.success:
            stats.success_count += 1
        else:
            stats.failed += 1
        stats.running = run.running
        stats.waiting = run.waiting()
        stats.rate_limited = run.sent_back
        self._put += 1
        self.outbox.put(result)
        if self.on_result is not None:
            self.on_result()
        if self._reporter is not None:
            self._tell(ItemEnded(result, stats))

    # --- the end --------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        run, stats = self._run, self.stats
        try:
            self._source.close()
            self._withdraw_all()
            for attempt in self._attempts:
                attempt.should_stop = True
                run.give_up(attempt.item)
            for timer in (self._pause_timer, self._wait_timer, self._grace_timer):
                if timer is not None:
                    timer.cancel()
            self._workers.close()
            if not self._attempts and not self._abandoned:
                self._workspace.close()
            self.unfinished_ids = list(run.unfinished)
            if run.stopped is not None:
                self.unread_ids = self._source.unread_ids()
            self._bound.note(None, self._clock.now())
            stats.end_time = self._clock.epoch()
            stats.stopped = run.stopped
            stats.running = 0
            stats.waiting = len(run.unfinished)
            self._tell(RunEnded(stats, self._count_unfinished(), self._bound_text()))
        except BaseException as error:
            self.error = self.error or error
        if self.error is None and self._source_error is not None:
            self.error = self._source_error
        self.outbox.put(None)
        if self.on_result is not None:
            self.on_result()

    def _count_unfinished(self) -> int | None:
        if self._run.stopped is None:
            return 0
        return None if self._run.total is None else self._run.total - self._run.completed

    def _bound_text(self) -> str:
        credentials = len(self._pool._secrets) if self._pool is not None else None
        return self._bound.text(self._options.max_workers, credentials)


def _actuals(usage: dict[str, float]) -> tuple[int | None, int | None]:
    """What a worker reported; what it left at zero was not reported, and stays as it was reserved."""
    return int(usage["requests"]) or None, int(usage["tokens"]) or None


def _unchanged(text: str) -> str:
    return text
