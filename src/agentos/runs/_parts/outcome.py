"""Classify failed attempts: what the exception means for the item and for the pool, and the result it leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from agentos import foreign_exceptions
from agentos.clock import Clock
from agentos.errors import BudgetExceeded, CommandFailed, ExecutorBroken, Interrupted, WorkerDied, WorkerError
from agentos.items.attempt import Attempt
from agentos.items.item import INTERRUPTED, WORKER_DIED
from agentos.items.results import WorkflowResult
from agentos.providers import verdicts
from agentos.verdict import NO_VERDICT, PERMANENT, RETRY_ON_OTHER_KEY, TRANSIENT, VERDICT_KINDS, Verdict, WindowReport

_WITH_VERDICT = (WorkerError, CommandFailed)
# Fields of a verdict that are texts. The others are numbers.
_VERDICT_TEXTS = frozenset({"kind", "window", "scope", "message"})


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
        original = readable(_original(exc))
        if isinstance(original, BudgetExceeded):
            return INTERRUPTED if original.is_of_run else PERMANENT, NO_VERDICT
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
        end = attempt.access_end
        if end is not None and end.verdict is not None:
            return end.verdict.kind, end.verdict  # whatever the client made of it
        verdict = self._classified(original)
        if verdict is None:
            # A worker process has read the exception with all of its causes, of which only the text is sent here.
            remote = foreign_exceptions.attribute(exc, "verdict") if isinstance(exc, _WITH_VERDICT) else None
            if isinstance(remote, Verdict):
                verdict = remote
            else:
                verdict = verdicts.from_exception(exc, provider=attempt.provider, now=self._clock.epoch())
            _check(verdict)
        if end is not None and verdict.kind in RETRY_ON_OTHER_KEY:
            return TRANSIENT, NO_VERDICT  # the attempt has no key: the failure is the item's own
        if verdict.kind is None and isinstance(original, (CommandFailed, *self._retry_on)):
            return TRANSIENT, verdict
        return verdict.kind, verdict

    def _classified(self, exc: BaseException) -> Verdict | None:
        answer = self._classify(exc) if self._classify is not None else None
        if answer is None:
            return None
        if isinstance(answer, Verdict):
            _check(answer)
            return answer
        if answer in VERDICT_KINDS:
            return Verdict(answer, message=foreign_exceptions.text(exc))
        raise TypeError(f"classify must return a Verdict, one of {sorted(VERDICT_KINDS)} or None, not {answer!r}")


def failed_result(
    attempt: Attempt, exc: BaseException, kind: str | None, redact: Callable[[str], str], now: float
) -> WorkflowResult[Any]:
    """Return the result of an item whose last attempt failed."""
    metadata = _metadata(exc, kind, redact)
    if attempt.usage is not None:
        metadata["usage"] = attempt.usage
    item = attempt.item
    duration = (attempt.ended_at or now) - item.started_at
    error = redact(foreign_exceptions.text(exc)) or metadata["error_type"]
    return WorkflowResult(item.id, False, error, duration, metadata, None, item.attempts, attempt.credential_id)


def is_plain_failure(exc: BaseException, kind: str | None, verdict: Verdict | None) -> bool:
    """Return whether a failed attempt says nothing about its cause, which may be its credential.

    A failure says something if the worker gave a verdict, or if the command could not be started or reported that the
    item is at fault."""
    if isinstance(exc, CommandFailed):
        return exc.exit_status is not None and (kind == TRANSIENT or (kind == PERMANENT and exc.verdict.is_printed))
    return kind is None or (kind == TRANSIENT and (verdict is None or verdict.kind is None))


def readable(exc: BaseException) -> BaseException:
    """Return the exception; a `WorkerError` that describes it if `isinstance()` of it could raise."""
    if not foreign_exceptions.has_own_lookup(exc):
        return exc
    name, trace = foreign_exceptions.type_name(exc), foreign_exceptions.trace(exc)
    return WorkerError(foreign_exceptions.text(exc), type_name=name, trace=trace, verdict=NO_VERDICT, original=None)


def _metadata(exc: BaseException, kind: str | None, redact: Callable[[str], str]) -> dict[str, Any]:
    try:
        if isinstance(exc, CommandFailed):  # a traceback would show no line of the user's code
            metadata = {"error_type": type(exc).__name__, "verdict": exc.verdict.kind, **exc.details}
            from agentos.items import codec  # other runs without a ledger do not need it

            codec.encode(metadata, "metadata")  # raises for what the ledger could not record
            return metadata
        if isinstance(exc, WorkerError):
            return {"error_type": str(exc.type_name), "verdict": kind, "traceback": redact(exc.trace)}
    except BaseException:  # noqa: S110 - an exception that is only derived from ours is described like any other
        pass
    name, trace = foreign_exceptions.type_name(exc), foreign_exceptions.trace(exc)
    return {"error_type": name, "verdict": kind, "traceback": redact(trace)}


def _original(exc: BaseException) -> BaseException:
    """Return the exception that was raised in a worker process, if it could be pickled; else `exc` itself."""
    original = foreign_exceptions.attribute(exc, "original") if isinstance(exc, WorkerError) else None
    return original if original is not None else exc


def _check(verdict: Any) -> None:
    """Raise `TypeError` for a verdict that the pool could not apply: it comes from a user's code."""
    if verdict.kind is not None and verdict.kind not in VERDICT_KINDS:
        raise TypeError(f"the kind of a verdict is one of {sorted(VERDICT_KINDS)} or None, not {verdict.kind!r}")
    if not isinstance(verdict.windows, tuple) or not all(map(_is_report, verdict.windows)):
        raise TypeError("the field windows of a verdict is a tuple of WindowReport")
    for name, value in verdict._replace(windows=None)._asdict().items():
        expected: Any = str if name in _VERDICT_TEXTS else int | float
        if value is not None and not isinstance(value, expected):
            raise TypeError(f"the field {name} of a verdict has the wrong type, {type(value).__name__}")


def _is_report(report: Any) -> bool:
    if not isinstance(report, WindowReport) or not isinstance(report.of, str):
        return False
    is_length = isinstance(report.seconds, int | float)
    return is_length and all(value is None or isinstance(value, int | float) for value in report[2:])
