"""From an exception or a response to a verdict: what the provider said.

No SDK is imported: exceptions and responses are read by the attributes that SDKs share. This is the plain reading, by
status and `Retry-After`; a status alone is not always enough, and what bodies and other headers say is still to come.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from ._core.events import (
    AUTH_FAILED,
    NOTHING_SAID,
    OVERLOADED,
    PERMANENT,
    QUOTA_EXHAUSTED,
    RATE_LIMITED,
    TRANSIENT,
    Verdict,
)
from .errors import Overloaded, QuotaExhausted, RateLimited, WorkerVerdict

__all__ = ["Verdict", "from_exception", "from_observed", "from_response"]

_BY_STATUS = {
    401: AUTH_FAILED,
    402: QUOTA_EXHAUSTED,
    408: TRANSIENT,
    425: TRANSIENT,
    429: RATE_LIMITED,
    503: OVERLOADED,
    529: OVERLOADED,
}
# An SDK's own exception may wrap the transport's, which may wrap the system's; more than this is somebody else's story.
_MOST_CAUSES = 5


def from_exception(exc: BaseException, *, provider: str | None = None, now: float | None = None) -> Verdict:
    """What an exception says about the provider; a verdict of kind None if nothing. `now` is epoch seconds."""
    now = time.time() if now is None else now
    seen: BaseException | None = exc
    for _ in range(_MOST_CAUSES):
        if seen is None:
            break
        verdict = _from_one(seen, provider, now)
        if verdict.kind is not None:
            return verdict
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return NOTHING_SAID


def from_response(
    status: int | None,
    headers: Mapping[str, str] | None = None,
    body: Any = None,  # noqa: ARG001 - part of the contract; not read yet
    *,
    provider: str | None = None,  # noqa: ARG001 - likewise
    now: float | None = None,
) -> Verdict:
    """What an answer says; a verdict of kind None if it is not an error. `now` is epoch seconds."""
    now = time.time() if now is None else now
    if status is None or status < 400:
        return NOTHING_SAID
    kind = _BY_STATUS.get(status) or (TRANSIENT if status >= 500 else PERMANENT)
    return Verdict(kind, retry_after=_retry_after(headers or {}, now), message=f"HTTP {status}")


def from_observed(response: Any, *, now: float | None = None) -> Verdict:
    """What a response object of any HTTP library or SDK says."""
    status, headers = _status_and_headers(response)
    return from_response(status, headers, now=now)


def _from_one(exc: BaseException, provider: str | None, now: float) -> Verdict:
    if isinstance(exc, WorkerVerdict):
        wait = exc.retry_after if isinstance(exc, RateLimited | Overloaded) else None
        if isinstance(exc, QuotaExhausted) and exc.until is not None:
            wait = exc.until - now
        return Verdict(exc.kind, retry_after=wait, message=str(exc))
    status, headers = _status_and_headers(exc)
    if status is not None:
        return from_response(status, headers, provider=provider, now=now)
    if isinstance(exc, ConnectionError | TimeoutError):
        return Verdict(TRANSIENT, message=str(exc))
    return NOTHING_SAID


def _status_and_headers(thing: Any) -> tuple[int | None, Mapping[str, str]]:
    """The HTTP status and headers of an exception or a response, wherever its library keeps them."""
    response = _attribute(thing, "response")
    for holder in (thing, response):
        for name in ("status_code", "status", "code"):
            status = _attribute(holder, name)
            if isinstance(status, int) and not isinstance(status, bool) and 100 <= status <= 599:
                headers = _attribute(response, "headers") or _attribute(thing, "headers")
                return status, headers if hasattr(headers, "items") else {}
    return None, {}


def _attribute(thing: Any, name: str) -> Any:
    """None also where reading it fails: some SDKs raise from a property, and that must not hide the real error."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def _retry_after(headers: Mapping[str, str], now: float) -> float | None:
    try:
        lower = {str(name).lower(): str(value).strip() for name, value in headers.items()}
    except Exception:  # not a mapping after all: it says nothing
        return None
    milliseconds = _number(lower.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = lower.get("retry-after")
    if text is None:
        return None
    seconds = _number(text)
    if seconds is not None:
        return seconds
    until = _date(text)
    if until is None:
        return None
    # The server's own clock, where it tells it, makes ours irrelevant.
    server_now = _date(lower.get("date", ""))
    return until - (now if server_now is None else server_now)


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace("_", "?"))  # Python's own spelling of numbers is not HTTP's
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
        # HTTP dates are in Greenwich time, also in the form that does not say so.
        return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
