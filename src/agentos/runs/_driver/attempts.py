"""Attempts: starts the attempts of a run, and applies the scheduler's decision when one has ended."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import islice

from agentos import foreign_exceptions
from agentos.bounds import BUDGET, COST, Bound
from agentos.errors import BudgetExceeded, ExecutorBroken, WorkerStartError
from agentos.events import AttemptAbandoned, AttemptEnded
from agentos.items.attempt import Attempt
from agentos.items.item import FAILED_ATTEMPT, Item
from agentos.items.results import RunningItem, WorkflowResult
from agentos.limits.cool_downs import hint_of, item_wait
from agentos.plurals import plural
from agentos.pool.lease_pool import LeasePool
from agentos.pool.store import LeaseHandle
from agentos.reporters.unusable_text import listed_text, out_of_use_text
from agentos.verdict import AUTH_FAILED, PERMANENT, RETRY_ON_OTHER_KEY, TRANSIENT, Verdict

from .._parts.messages import AttemptFailed, AttemptSucceeded, PauseOver, RestOver
from .._parts.outcome import failed_result, is_plain_failure
from .._parts.run_parts import RunParts
from .._rules.circuit_breaker import Advice
from .._rules.scheduler import FAILED, UNFINISHED, Again, NoPool
from .shutdown import Shutdown
from .timeouts import AttemptTimeouts

# Items of a run that are looked at to see whether all of them were refused.
MAX_LAST_ITEMS = 100


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
        self._auto = parts.auto
        self._running = parts.running
        self._context = parts.context
        self._scheduler = parts.scheduler
        self._breaker = parts.breaker
        self._spending = parts.spending if parts.spending.is_tracked else None
        self._bound_times = parts.progress.bound_times
        self._admission = parts.admission
        self._workers = parts.workers
        self._recorder = parts.recorder
        self._timers = parts.timers
        self._now = parts.clock.now
        self._report = parts.report
        self._shutdown = shutdown
        self._on_fatal = on_fatal
        self._followed_version = self._breaker.version
        self._on_wait = on_wait
        self.timeouts = AttemptTimeouts(parts, self._on_abandoned)

    def start(self, item: Item, handle: LeaseHandle | None) -> None:
        """Start the next attempt at an item, with its live lease."""
        now = self._now()
        self._scheduler.start(item, now)
        if self._spending is not None:
            self._spending.start(item)
        attempt = self._context.make_attempt(item, handle, now)
        self._recorder.prepare(attempt)
        self._running[attempt] = None
        if self._breaker.version and attempt.credential_id is not None:
            self._breaker.started(item, attempt.credential_id, now)
            self._follow_breaker()
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
        if self._spending is not None:
            self._spending.end(item, is_finished=True)
        self._scheduler.last_progress = attempt.ended_at
        if attempt.credential_id is not None:
            self._breaker.succeeded(item, attempt.credential_id, attempt.started_at, attempt.ended_at)
            if self._breaker.version != self._followed_version:
                self._follow_breaker()
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
            self._shutdown.drain(self._context.redact(foreign_exceptions.text(exc)))
            return
        if isinstance(exc, ExecutorBroken):
            self._shutdown.drain(self._context.redact(foreign_exceptions.text(exc)))
        elif isinstance(exc, BudgetExceeded) and exc.is_of_run:
            is_cost_unknown = self._spending is not None and self._spending.is_cost_unknown()
            self._bound_times.stop(Bound(COST if is_cost_unknown else BUDGET))
            self._shutdown.drain(str(exc))
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
        if abandoned >= (self._options.max_workers if self._auto is None else self._auto.bound.at_once):
            self._shutdown.drain(f"{plural(abandoned, 'attempt')} did not end at the time-out: every worker is blocked")

    def _fail(self, attempt: Attempt, exc: BaseException, kind: str | None, verdict: Verdict | None = None) -> None:
        item, now, context = attempt.item, self._now(), self._context
        kind, advice = self._consult_breaker(attempt, exc, kind, verdict)
        refused_by = attempt.credential_id if kind == AUTH_FAILED and self._has_worked(attempt) else None
        no_pool = None if context.pool is not None else NoPool(None if verdict is None else item_wait(verdict))
        usable_at = None if attempt.access_end is None else _usable_at(kind, verdict, now)
        jitter = random.random()  # noqa: S311
        decision = self._scheduler.fail_attempt(item, kind, now, jitter, refused_by, no_pool, advice, usable_at)
        self._follow_breaker()
        if self._spending is not None:
            self._spending.end(item, is_finished=decision is FAILED)
        if decision is FAILED:
            result = failed_result(attempt, exc, kind, context.redact, now)
            if advice is not None and advice.keys_tried > 1:
                result.metadata["keys_tried"] = advice.keys_tried
            self._recorder.item_ended(item, attempt, result, None)
            self._shutdown.stop_if_halted()
            return
        error = context.redact(foreign_exceptions.text(exc))
        self._recorder.attempt_ended(attempt, kind or FAILED_ATTEMPT, error)
        if decision is UNFINISHED:
            return
        assert isinstance(decision, Again)
        retry_in = 0.0 if decision.at is None else decision.at - now
        reason, keys_tried = ("", 0) if advice is None else (advice.reason, advice.keys_tried)
        self._report(
            AttemptEnded(item.id, item.attempts, attempt.credential_id, kind or "", retry_in, error, reason, keys_tried)
        )
        if decision.at is not None:
            self.on_pause_over()
        if usable_at is not None and self._on_wait is not None:
            self._on_wait()

    # --- the circuit breaker --------------------------------------------------------------------------------------

    def on_rest_over(self, _: RestOver) -> None:
        """Let items use credentials again whose rest is over."""
        self._breaker.version += 1
        self._follow_breaker()

    def _has_worked(self, attempt: Attempt) -> bool:
        credential_id = attempt.credential_id
        return credential_id is not None and self._breaker.has_worked(attempt.item.scope, credential_id)

    def _consult_breaker(
        self, attempt: Attempt, exc: BaseException, kind: str | None, verdict: Verdict | None
    ) -> tuple[str | None, Advice | None]:
        """Return the kind of a failed attempt, and the advice on its item if the failure is weak evidence against its
        credential."""
        item, credential_id, pool, now = attempt.item, attempt.credential_id, self._context.pool, self._now()
        if credential_id is None or pool is None:
            return kind, None
        if kind in RETRY_ON_OTHER_KEY and verdict is not None and verdict.is_printed:
            printed = verdict._replace(message=self._context.redact(verdict.message))
            jitter = random.random()  # noqa: S311
            advice = self._breaker.refused(item, credential_id, printed, attempt.started_at, now, jitter)
            if advice is not None:
                self._stop_if_given_up(item, pool)
                return kind, advice
            kind = TRANSIENT  # its texts were wrong before
        if not is_plain_failure(exc, kind, verdict):
            return kind, None
        return kind, self._breaker.failed(
            item, credential_id, attempt.started_at, pool.ids, now,
            usable=lambda: _usable_ids(pool, item.scope), is_timed_out=attempt.is_timed_out,
        )  # fmt: skip

    def _stop_if_given_up(self, item: Item, pool: LeasePool) -> None:
        """Stop the run if, by what commands printed, every credential of a scope is refused for good."""
        scheduler = self._scheduler
        is_read = scheduler.is_source_ended and len(scheduler.unfinished) <= MAX_LAST_ITEMS
        given_up = self._breaker.given_up(item.scope, scheduler.unfinished.values() if is_read else None)
        if not given_up:
            return
        serving = [state for state in pool.states() if not state.scopes or item.scope in state.scopes]
        out_of_use = {s.key_id: out_of_use_text(s.quarantined) for s in serving if s.quarantined is not None}
        if given_up.keys() | out_of_use >= {state.key_id for state in serving}:
            self._shutdown.drain(listed_text(out_of_use | given_up))

    def _follow_breaker(self) -> None:
        """Act on what the circuit breaker has decided: announce it, and request other credentials."""
        breaker = self._breaker
        if breaker.version == self._followed_version:
            return
        self._followed_version = breaker.version
        events, breaker.events = breaker.events, []
        for event in events:
            self._report(event)
        if self._admission is not None:
            self._admission.refresh()
        change_at = breaker.next_change(self._now())
        if change_at is not None:
            self._timers.set("rests", change_at, RestOver())


def _usable_ids(pool: LeasePool, scope: str | None) -> list[str]:
    """Return the credentials for a scope that are not out of use."""
    return [s.key_id for s in pool.states() if s.quarantined is None and (not s.scopes or scope in s.scopes)]


def _usable_at(kind: str | None, verdict: Verdict | None, now: float) -> float | None:
    """Return when a credential will be usable, as the gateway told the client; None if it did not."""
    hint = None if verdict is None or kind not in RETRY_ON_OTHER_KEY else hint_of(verdict)
    return None if hint is None else now + hint
