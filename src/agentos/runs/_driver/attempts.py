"""Attempts: starts the attempts of a run, and applies the scheduler's decision when one has ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

from agentos import foreign_exceptions
from agentos.errors import ExecutorBroken, WorkerStartError
from agentos.events import AttemptAbandoned, AttemptEnded
from agentos.items.attempt import Attempt
from agentos.items.item import INTERRUPTED, Item
from agentos.items.results import RunningItem, WorkflowResult
from agentos.limits.cool_downs import hint_of, item_wait
from agentos.plurals import plural
from agentos.pool.store import LeaseHandle
from agentos.verdict import AUTH_FAILED, PERMANENT, RETRY_ON_OTHER_KEY, Verdict

from .._parts.messages import AttemptFailed, AttemptSucceeded, PauseOver
from .._parts.outcome import failed_result
from .._parts.run_parts import RunParts
from .._rules.scheduler import FAILED, UNFINISHED, Again, NoPool
from .shutdown import Shutdown
from .timeouts import AttemptTimeouts


class Attempts:
    """Called by the thread that processes the run's messages, except for `list_running`."""

    def __init__(
        self,
        parts: RunParts,
        shutdown: Shutdown,
        on_fatal: Callable[[BaseException], None],
        on_wait: Callable[[], None] | None,
    ) -> None:
        """`on_fatal`: called with an error that the run has to raise at its end. `on_wait`: called when an item begins
        to wait until a credential is usable."""
        self._options = parts.options
        self._running = parts.running
        self._context = parts.context
        self._scheduler = parts.scheduler
        self._workers = parts.workers
        self._recorder = parts.recorder
        self._timers = parts.timers
        self._now = parts.clock.now
        self._report = parts.report
        self._shutdown = shutdown
        self._on_fatal = on_fatal
        self._on_wait = on_wait
        self.timeouts = AttemptTimeouts(parts, self._on_abandoned)

    def start(self, item: Item, handle: LeaseHandle | None) -> None:
        """Start the next attempt at an item, with its live lease."""
        now = self._now()
        self._scheduler.start(item, now)
        attempt = self._context.make_attempt(item, handle, now)
        self._recorder.prepare(attempt)
        self._running[attempt] = None
        if self._options.timeout is not None:
            self.timeouts.watch(attempt)
        self._workers.start(attempt, self._scheduler.running)

    def list_running(self, max_count: int | None = None) -> list[RunningItem]:
        """Return the running attempts, or the `max_count` oldest of them. Called from any thread."""
        now = self._now()
        # The list is made in one step, which no other thread interrupts; the dict may change during an iteration.
        attempts = islice(list(self._running), max_count)
        return [RunningItem(a.id, a.attempt, a.credential_id, now - a.started_at) for a in attempts]

    def on_success(self, message: AttemptSucceeded) -> None:
        attempt = message.attempt
        if not self._remove(attempt):
            return
        item = attempt.item
        self._scheduler.succeed(item)
        result = WorkflowResult(
            item.id,
            True,
            None,
            attempt.ended_at - item.started_at,
            {} if attempt.usage is None else {"usage": attempt.usage},
            message.value,
            item.attempts,
            attempt.credential_id,
        )
        self._recorder.item_ended(item, attempt, result, message.encoded)

    def on_failure(self, message: AttemptFailed) -> None:
        attempt, exc = message.attempt, message.error
        if not self._remove(attempt):
            return
        if isinstance(exc, WorkerStartError):
            self._on_fatal(exc)
            self._scheduler.give_up()
            self._shutdown.drain("the worker cannot be started")
            return
        if isinstance(exc, ExecutorBroken):
            self._shutdown.drain(self._context.redact(foreign_exceptions.text(exc)))
        error = self.timeouts.error() if attempt.is_timed_out else exc
        self._fail(attempt, error, message.kind, message.verdict)

    def on_pause_over(self, _: PauseOver | None = None) -> None:
        """Make items ready whose pause is over, and set the timer for the next one."""
        at = self._scheduler.wake(self._now())
        if at is not None:
            self._timers.set("pause", at, PauseOver())

    def _remove(self, attempt: Attempt) -> bool:
        """Remove an attempt that has ended; return False if it was abandoned, and its outcome does not matter."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        return self._running.pop(attempt, False) is None

    def _on_abandoned(self, attempt: Attempt) -> None:
        abandoned = self.timeouts.abandoned
        self._report(AttemptAbandoned(attempt.id, self._options.timeout or 0.0, abandoned))
        self._fail(attempt, self.timeouts.error(), PERMANENT)
        if abandoned >= self._options.max_workers:
            self._shutdown.drain(f"{plural(abandoned, 'attempt')} did not end at the time-out: every worker is blocked")

    def _fail(self, attempt: Attempt, exc: BaseException, kind: str | None, verdict: Verdict | None = None) -> None:
        item, now, context = attempt.item, self._now(), self._context
        refused_by = attempt.credential_id if kind == AUTH_FAILED and context.is_proven(attempt) else None
        no_pool = None if context.pool is not None else NoPool(None if verdict is None else item_wait(verdict))
        usable_at = None if attempt.access_end is None else _usable_at(kind, verdict, now)
        jitter = random.random()  # noqa: S311
        decision = self._scheduler.fail_attempt(item, kind, now, jitter, refused_by, no_pool, usable_at)
        if decision is FAILED:
            self._recorder.item_ended(item, attempt, failed_result(attempt, exc, kind, context.redact, now), None)
            self._shutdown.stop_if_halted()
            return
        error = context.redact(foreign_exceptions.text(exc))
        self._recorder.attempt_ended(attempt, kind or INTERRUPTED, error)
        if decision is UNFINISHED:
            return
        assert isinstance(decision, Again)
        retry_in = 0.0 if decision.at is None else decision.at - now
        self._report(AttemptEnded(item.id, item.attempts, attempt.credential_id, kind or "", retry_in, error))
        if decision.at is not None:
            self.on_pause_over()
        if usable_at is not None and self._on_wait is not None:
            self._on_wait()


def _usable_at(kind: str | None, verdict: Verdict | None, now: float) -> float | None:
    """Return when a credential will be usable, as the gateway told the client; None if it did not."""
    hint = None if verdict is None or kind not in RETRY_ON_OTHER_KEY else hint_of(verdict)
    return None if hint is None else now + hint
