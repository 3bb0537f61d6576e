"""From an exception, a response or a command's output to a verdict: what the provider said.

Three doors to one set of rules (`_verdicts`), and a fourth for whatever object a worker shows. No SDK is imported:
everything is read by the attributes that SDKs share. None of them raises: what cannot be read says nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentos.durations import parse_number
from agentos.errors import Overloaded, QuotaExhausted, RateLimited, WorkerVerdict
from agentos.verdict import NO_VERDICT, RETRY_ON_OTHER_KEY, Verdict

from . import _bodies as bodies
from . import _command_output as output
from . import _evidence as rules
from . import _headers
from . import _sdk_objects as objects

__all__ = ["Verdict", "from_exception", "from_observed", "from_output", "from_response"]

# An SDK's own exception may wrap the transport's, which may wrap the system's; more than this is somebody else's story.
_MOST_CAUSES = 5
# Of a group's exceptions, so many are looked at.
_MOST_OF_GROUP = 100


def from_exception(exc: BaseException, *, provider: str | None = None, now: float | None = None) -> Verdict:
    """What an exception says about the provider; a verdict of kind None if nothing. `now` is epoch seconds.

    The outermost of an exception and its causes that says something is believed; of a group, the first that makes its
    item go on with another credential.
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
    """What an answer says; a verdict of kind None if it is not an error, with what it tells of limits all the same.

    `body` is an object, text or bytes: of an answer, or of an event inside a stream whose status was 200.
    """
    return _guarded(_from_response, (status, headers, body), _provider(provider), _instant(now))


def from_output(
    text: str | bytes, exit_status: int | None = None, *, provider: str | None = None, now: float | None = None
) -> Verdict:
    """What a command's output says: text, JSON or lines of JSON, as coding agents print them.

    Exit status 75 is a limit, whatever was printed; 0 is a success, unless the output is nothing but an agent's word
    that its limit is reached.
    """
    return _guarded(_from_output, (text, exit_status), _provider(provider), _instant(now))


def from_observed(response: Any, *, provider: str | None = None, now: float | None = None) -> Verdict:
    """What a response object of any HTTP library or SDK says. Reads nothing that has not arrived already."""
    return _guarded(objects.of_response, response, _provider(provider), _instant(now))


def _guarded(read: Callable[[Any, str, float], Verdict], thing: Any, provider: str, now: float) -> Verdict:
    """Objects of others may raise anything from anywhere, and an answer that breaks us must not break its run."""
    try:
        return read(thing, provider, now)
    except Exception:
        return NO_VERDICT


def _provider(name: str | None) -> str:
    return name.lower() if isinstance(name, str) else ""


def _instant(now: float | None) -> float:
    return now if now is not None and math.isfinite(now) else time.time()


def _from_response(answer: tuple[Any, Any, Any], provider: str, now: float) -> Verdict:
    status, told, body = answer
    if isinstance(status, bool) or not isinstance(status, int):
        status = None
    is_error = status is not None and status >= 400
    said = bodies.read(body, now, is_error=is_error) if body is not None else None
    return rules.judge(status, _headers.lower(told) if told else {}, said, provider, now)


def _from_output(printed: tuple[Any, Any], provider: str, now: float) -> Verdict:
    text, exit_status = printed
    return output.read(text, exit_status, provider, now)


def _from_exception(exc: BaseException, provider: str, now: float) -> Verdict:
    for one in _chain(exc):
        if isinstance(one, BaseExceptionGroup):
            verdict = _from_group(one, provider, now)
        elif isinstance(one, WorkerVerdict):
            verdict = _from_worker(one, now)
        elif type(one).__name__ == "CalledProcessError":
            verdict = _from_command(one, provider, now)
        else:
            verdict = objects.of_exception(one, provider, now)
        if verdict.kind is not None:
            return verdict
    return NO_VERDICT


def _chain(exc: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = exc
    for _ in range(_MOST_CAUSES):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


def _from_group(group: BaseExceptionGroup[Any], provider: str, now: float) -> Verdict:
    first = NO_VERDICT
    for leaf in _leaves(group, [_MOST_OF_GROUP]):
        verdict = _from_exception(leaf, provider, now)
        if verdict.kind in RETRY_ON_OTHER_KEY:
            return verdict
        if first.kind is None:
            first = verdict
    return first


def _leaves(group: BaseExceptionGroup[Any], left: list[int]) -> Iterator[BaseException]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one, left)
        elif left[0] > 0:
            left[0] -= 1
            yield one


def _from_worker(exc: WorkerVerdict, now: float) -> Verdict:
    wait = parse_number(exc.retry_after) if isinstance(exc, RateLimited | Overloaded) else None
    if isinstance(exc, QuotaExhausted) and (until := parse_number(exc.until)) is not None:
        wait = until - now
    return Verdict(exc.kind, None if wait is None else max(wait, 0.0), message=rules.one_line(str(exc)))


def _from_command(exc: BaseException, provider: str, now: float) -> Verdict:
    """`subprocess.CalledProcessError`: what the command printed, if that was kept."""
    printed = [objects.attribute(exc, name) for name in ("stdout", "stderr")]
    text = "\n".join(
        piece.decode("utf-8", "replace") if isinstance(piece, bytes) else piece
        for piece in printed
        if isinstance(piece, bytes | str)
    )
    return output.read(text, objects.attribute(exc, "returncode"), provider, now)
