"""Reads the verdict of a provider from an exception, a response, the output of a command, or a response object.

All four use the same rules (`_evidence`). No SDK is imported: objects are read by the attributes that SDKs share. No
function raises: the result for an object that cannot be read is `NO_VERDICT`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentos.durations import parse_number
from agentos.errors import Overloaded, QuotaExhausted, RateLimited, WorkerVerdict
from agentos.foreign_exceptions import attribute, text
from agentos.verdict import NO_VERDICT, RETRY_ON_OTHER_KEY, Verdict

from . import _bodies as bodies
from . import _command_output as command_output
from . import _evidence as evidence
from . import _sdk_objects as sdk_objects
from ._headers import lower

__all__ = ["Verdict", "from_exception", "from_observed", "from_output", "from_response"]

# Exceptions of a chain that are read: an SDK's wraps the HTTP library's, which wraps one of Python.
_MAX_CAUSES = 5
# Exceptions of a group that are read.
_MAX_OF_GROUP = 100


def from_exception(exc: BaseException, *, provider: str | None = None, now: float | None = None) -> Verdict:
    """Return the verdict in an exception; of kind None if it is not about a provider. `now` is epoch seconds.

    Of an exception and its causes, the outermost with a verdict counts; of a group, the first that makes its item
    continue with another credential.
    """
    return _guarded(_from_exception, exc, _provider(provider), _instant(now))


def from_response(
    status: int | None,
    headers: Mapping[str, str] | None = None,
    body: Any = None,
    *,
    provider: str | None = None,
    now: float | None = None,
) -> Verdict:
    """Return the verdict of an answer; of kind None, with the limits that the headers report, if it is no error.

    `body` is an object, text or bytes: of an answer, or of an event inside a stream whose status was 200.
    """
    return _guarded(_from_response, (status, headers, body), _provider(provider), _instant(now))


def from_output(
    text: str | bytes, exit_status: int | None = None, *, provider: str | None = None, now: float | None = None
) -> Verdict:
    """Return the verdict in the output of a command: text, JSON or lines of JSON, as coding agents print them.

    Exit status 75 is a limit with any output; 0 is a success, unless the output ends in the failure of a known agent
    or is nothing but the JSON of an error. `is_loose` is set if the verdict was read from free text.
    """
    return _guarded(_from_output, (text, exit_status), _provider(provider), _instant(now))


def from_observed(response: Any, *, provider: str | None = None, now: float | None = None) -> Verdict:
    """Return the verdict of a response object of an HTTP library or SDK. Reads no body that has not arrived already."""
    return _guarded(sdk_objects.of_response, response, _provider(provider), _instant(now))


def _guarded(read: Callable[[Any, str, float], Verdict], thing: Any, provider: str, now: float) -> Verdict:
    """Return `NO_VERDICT` if reading raises: properties of foreign objects may, and that must not stop a run."""
    try:
        return read(thing, provider, now)
    except BaseException:
        return NO_VERDICT


def _provider(name: str | None) -> str:
    return name.lower() if isinstance(name, str) else ""


def _instant(now: float | None) -> float:
    return now if now is not None and math.isfinite(now) else time.time()


def _from_response(answer: tuple[Any, Any, Any], provider: str, now: float) -> Verdict:
    status, headers, body = answer
    if isinstance(status, bool) or not isinstance(status, int):
        status = None
    is_error = status is not None and status >= 400
    facts = bodies.read(body, now, is_error=is_error) if body is not None else None
    return evidence.judge(status, lower(headers) if headers else {}, facts, provider, now)


def _from_output(printed: tuple[Any, Any], provider: str, now: float) -> Verdict:
    text, exit_status = printed
    return command_output.read(text, exit_status, provider, now)


def _from_exception(exc: BaseException, provider: str, now: float) -> Verdict:
    for cause in _chain(exc):
        if isinstance(cause, BaseExceptionGroup):
            verdict = _from_group(cause, provider, now)
        elif isinstance(cause, WorkerVerdict):
            verdict = _from_worker(cause, now)
        elif type(cause).__name__ == "CalledProcessError":
            verdict = _from_command(cause, provider, now)
        else:
            verdict = sdk_objects.of_exception(cause, provider, now)
        if verdict.kind is not None:
            return verdict
    return NO_VERDICT


def _chain(exc: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = exc
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _from_group(group: BaseExceptionGroup[Any], provider: str, now: float) -> Verdict:
    first = NO_VERDICT
    for leaf in itertools.islice(_leaves(group), _MAX_OF_GROUP):
        verdict = _from_exception(leaf, provider, now)
        if verdict.kind in RETRY_ON_OTHER_KEY:
            return verdict
        if first.kind is None:
            first = verdict
    return first


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from _leaves(exc)
        else:
            yield exc


def _from_worker(exc: WorkerVerdict, now: float) -> Verdict:
    wait = parse_number(exc.retry_after) if isinstance(exc, RateLimited | Overloaded) else None
    if isinstance(exc, QuotaExhausted) and (until := parse_number(exc.until)) is not None:
        wait = until - now
    return Verdict(exc.kind, None if wait is None else max(wait, 0.0), message=evidence.one_line(text(exc)))


def _from_command(exc: BaseException, provider: str, now: float) -> Verdict:
    """Return the verdict in the output of a `subprocess.CalledProcessError`."""
    printed = [attribute(exc, name) for name in ("stdout", "stderr")]
    output = "\n".join(
        piece.decode("utf-8", "replace") if isinstance(piece, bytes) else piece
        for piece in printed
        if isinstance(piece, bytes | str)
    )
    return command_output.read(output, attribute(exc, "returncode"), provider, now)
