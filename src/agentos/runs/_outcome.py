"""What a failed attempt means: for its item, for the pool, and as a result."""

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


class Judge:
    """Turns the exception that ended an attempt into the kind of its end, and the verdict for the pool."""

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
        """The kind: of a verdict, WORKER_DIED, INTERRUPTED, or None for what says nothing about a provider."""
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
            return PERMANENT, NO_VERDICT  # nobody had told it to stop
        verdict = self._classified(original)
        if verdict is None:
            read_there = exc.verdict if isinstance(exc, WorkerError | CommandFailed) else None  # with all of its causes
            provider = attempt.provider
            verdict = read_there or verdicts.from_exception(exc, provider=provider, now=self._clock.epoch())
        if verdict.kind is None and isinstance(original, (CommandFailed, *self._retry_on)):
            return TRANSIENT, verdict
        return verdict.kind, verdict

    def _classified(self, exc: BaseException) -> Verdict | None:
        said = self._classify(exc) if self._classify is not None else None
        if said is None or isinstance(said, Verdict):
            return said
        if said in VERDICT_KINDS:
            return Verdict(said, message=text_of(exc))
        raise TypeError(f"classify must return a Verdict, one of {sorted(VERDICT_KINDS)} or None, not {said!r}")


def failed_result(
    attempt: Attempt, exc: BaseException, kind: str | None, redact: Callable[[str], str], now: float
) -> WorkflowResult:
    metadata: dict[str, Any]
    if isinstance(exc, CommandFailed):  # no line of Python has a part in it
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
    error = redact(text_of(exc)) or name
    return WorkflowResult(item.id, False, error, duration, metadata, None, item.attempts, attempt.credential_id)


def text_of(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception as error:  # an exception is somebody's code, too
        return f"{type(exc).__name__}, whose text failed: {type(error).__name__}"


def _original(exc: BaseException) -> BaseException:
    """Of an exception from a worker process: the one that was raised there, if it could travel."""
    return exc.original if isinstance(exc, WorkerError) and exc.original is not None else exc
