"""Classify failed attempts: what the exception means for the item and for the pool, and the result it leads to."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

from agentos.clock import Clock
from agentos.errors import CommandFailed, ExecutorBroken, Interrupted, WorkerDied, WorkerError
from agentos.items.attempt import Attempt
from agentos.items.item import INTERRUPTED, WORKER_DIED
from agentos.items.results import WorkflowResult
from agentos.providers import verdicts
from agentos.verdict import NO_VERDICT, PERMANENT, TRANSIENT, VERDICT_KINDS, Verdict


class OutcomeClassifier:
    """Maps the exception that ended an attempt to the kind of its end, and to the verdict for the pool."""

    def __init__(
        self,
        classify: Callable[[BaseException], Any] | None,
        retry_on: tuple[type[BaseException], ...],
        clock: Clock,
    ) -> None:
        self._classify = classify
        self._retry_on = retry_on
        self._clock = clock

    def __call__(self, attempt: Attempt, exc: BaseException) -> tuple[str | None, Verdict]:
        """Return kind and verdict. The kind is that of the verdict, WORKER_DIED, INTERRUPTED, or None for an exception
        that no provider caused. Raise what the user's `classify` raises, and TypeError for a wrong return value."""
        original = _original(exc)
        if attempt.is_timed_out:
            return TRANSIENT, NO_VERDICT
        if isinstance(exc, ExecutorBroken):
            return INTERRUPTED, NO_VERDICT
        if isinstance(original, Interrupted | WorkerDied | asyncio.CancelledError) and attempt.should_stop:
            return INTERRUPTED, NO_VERDICT
        if isinstance(original, WorkerDied):
            return WORKER_DIED, NO_VERDICT
        if isinstance(original, Interrupted):
            return PERMANENT, NO_VERDICT  # the run had not asked it to stop
        verdict = self._classified(original)
        if verdict is None:
            # A worker process has read the exception with all of its causes, of which only the text is sent here.
            remote_verdict = exc.verdict if isinstance(exc, WorkerError | CommandFailed) else None
            verdict = remote_verdict or verdicts.from_exception(exc, provider=attempt.provider, now=self._clock.epoch())
        if verdict.kind is None and isinstance(original, (CommandFailed, *self._retry_on)):
            return TRANSIENT, verdict
        return verdict.kind, verdict

    def _classified(self, exc: BaseException) -> Verdict | None:
        answer = self._classify(exc) if self._classify is not None else None
        if answer is None or isinstance(answer, Verdict):
            return answer
        if answer in VERDICT_KINDS:
            return Verdict(answer, message=error_text(exc))
        raise TypeError(f"classify must return a Verdict, one of {sorted(VERDICT_KINDS)} or None, not {answer!r}")


def failed_result(
    attempt: Attempt, exc: BaseException, kind: str | None, redact: Callable[[str], str], now: float
) -> WorkflowResult:
    """Return the result of an item whose last attempt failed."""
    metadata: dict[str, Any]
    if isinstance(exc, CommandFailed):  # a traceback would show no line of the user's code
        name = type(exc).__name__
        metadata = {"error_type": name, "verdict": exc.verdict.kind, **exc.details}
    else:
        name = exc.type_name if isinstance(exc, WorkerError) else type(exc).__name__
        trace = exc.trace if isinstance(exc, WorkerError) else "".join(traceback.format_exception(exc))
        metadata = {"error_type": name, "verdict": kind, "traceback": redact(trace)}
    if attempt.usage is not None:
        metadata["usage"] = attempt.usage
    item = attempt.item
    duration = (attempt.ended_at or now) - item.started_at
    error = redact(error_text(exc)) or name
    return WorkflowResult(item.id, False, error, duration, metadata, None, item.attempts, attempt.credential_id)


def error_text(exc: BaseException) -> str:
    """Return the text of an exception, also if its `__str__`, which is a user's code, raises."""
    try:
        return str(exc)
    except Exception as error:
        return f"{type(exc).__name__}, str() raised {type(error).__name__}"


def _original(exc: BaseException) -> BaseException:
    """Return the exception that was raised in a worker process, if it could be pickled; else `exc` itself."""
    return exc.original if isinstance(exc, WorkerError) and exc.original is not None else exc
