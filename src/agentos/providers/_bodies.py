"""Collects codes, messages and waits from the body of an answer, in the forms of all providers."""

from __future__ import annotations

import json
import re
from typing import Any

from agentos.durations import parse_number

from ._dates import wait_of

# Characters. A longer text is a document, not an error.
_MAX_TEXT = 1_000_000
_MAX_MESSAGE = 4000
# Levels of errors inside errors: of a gateway, around that of a provider, around a string of JSON.
_MAX_DEPTH = 6

_WAITS = ("retry_after", "retry_after_seconds", "retryAfter", "retryDelay", "resets_in_seconds", "quotaResetDelay")
_INSTANTS = ("resets_at", "resetsAt", "reset_at", "resetAt", "quotaResetTimeStamp")
# From the most specific: added by a gateway, reason, code, type, name of the status.
_CODES = (
    "error_code", "errorCode", "limit_source", "error_type", "errorType", "reason", "code", "Code", "type", "__type",
    "status",
)  # fmt: skip
_STATUSES = ("code", "status", "status_code", "statusCode", "raw_status_code")
_MESSAGES = ("message", "Message", "error_description", "detail", "error", "title", "msg", "description")
# Fields that contain an error, or details of it. The innermost error is the most specific and is read first.
_HOLDERS = (
    "error", "Error", "err", "response", "msg", "detail", "errors", "details", "metadata", "availability", "data",
    "responseBody",
)  # fmt: skip
# Types of events that are errors, and codes that say no more than that.
_FAILED_EVENTS = frozenset({"error", "response.failed", "response.error", "turn.failed", "session.error"})
_EMPTY_CODES = _FAILED_EVENTS | {"failed", "null", "none"}
_RPC_STATUSES = frozenset(
    {
        "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED", "CANCELLED", "UNKNOWN",
    }
)  # fmt: skip


class BodyFacts:
    """What a body states, before any conclusion."""

    __slots__ = ("codes", "headers", "is_google", "models", "quotas", "rejected", "status", "texts", "wait")

    def __init__(self) -> None:
        self.codes: list[str] = []  # the most specific first
        self.texts: list[str] = []
        self.status: int | None = None  # an HTTP status inside the body
        self.wait: float | None = None
        self.headers: dict[str, Any] = {}  # of the provider, which a gateway put into the body
        self.quotas: list[tuple[str, str]] = []  # ids and values of violated quotas
        self.models: set[str] = set()
        self.is_google = False
        self.rejected = False  # by the event of a subscription

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def read(body: Any, now: float, *, is_error: bool) -> BodyFacts | None:
    """Return the facts of an error's body; None if the body is no error. `is_error`: the status says already that it
    is one."""
    body = unfold(body, looks_for_error=not is_error)
    facts = BodyFacts()
    if isinstance(body, dict):
        if not is_error and not _is_error_object(body):
            return None
        _read_object(facts, body, now, 0)
    elif isinstance(body, str) and is_error and body:
        facts.texts.append(_plain(body))
    elif not is_error:
        return None
    return facts


def unfold(body: Any, *, looks_for_error: bool = False) -> Any:
    """Return the object in a body of bytes, JSON, server-sent events or a list; a text without one unchanged."""
    if isinstance(body, bytes | bytearray | memoryview):
        if looks_for_error and isinstance(body, bytes) and b"rror" not in body and b"rate_limit" not in body:
            return None
        body = bytes(body[:_MAX_TEXT]).decode("utf-8", "replace")
    if isinstance(body, str):
        body = body.strip()
        if len(body) > _MAX_TEXT or (looks_for_error and "rror" not in body and "rate_limit" not in body):
            return body[:_MAX_MESSAGE]
        if body[:1] in ("{", "["):
            body = from_json(body, body)
        elif body.startswith(("data:", "event:", ":")):
            body = _of_stream(body)
        elif body.startswith(("b'{", 'b"{')):  # the `repr` of bytes
            body = from_json(body[2:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'"), body)
    if isinstance(body, list | tuple):
        inner = [unfold(item) if isinstance(item, str | bytes) else item for item in body[:100]]
        objects = [item for item in inner if isinstance(item, dict)]
        return next((item for item in objects if _is_error_object(item)), objects[0] if objects else None)
    return body


def from_json(text: str, default: Any = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return default


def _of_stream(text: str) -> Any:
    """Return the last of server-sent events that is an error; the text if none is."""
    for line in reversed(text.splitlines()):
        if line.startswith("data:"):
            event = from_json(line[5:].strip())
            if isinstance(event, dict) and _is_error_object(event):
                return event
    return text


def _is_error_object(body: dict[Any, Any]) -> bool:
    if body.get("error") or isinstance(body.get("Error"), dict) or body.get("object") == "error":
        return True
    kind = body.get("type")
    if isinstance(kind, str) and (kind in _FAILED_EVENTS or kind == "rate_limit_event"):
        return True
    response = body.get("response")
    return isinstance(response, dict) and bool(response.get("error"))


def _read_object(facts: BodyFacts, body: dict[Any, Any], now: float, depth: int) -> None:
    if depth > _MAX_DEPTH:
        return
    info = body.get("rate_limit_info")
    if isinstance(info, dict):
        _read_plan_event(facts, info, now)
        return
    for holder in _HOLDERS:
        inner = body.get(holder)
        if isinstance(inner, str):
            inner = _json_in(inner)
        for error in inner[:20] if isinstance(inner, list) else (inner,):
            if isinstance(error, dict):
                _read_object(facts, error, now, depth + 1)
    _read_quotas(facts, body)
    _read_messages(facts, body, now, depth)
    _read_codes(facts, body)
    _read_waits(facts, body, now)
    for name in ("headers", "responseHeaders"):
        if isinstance(body.get(name), dict):
            facts.headers.update(body[name])


def _read_messages(facts: BodyFacts, body: dict[Any, Any], now: float, depth: int) -> None:
    for name in _MESSAGES:
        text = body.get(name)
        if isinstance(text, str) and text and text not in facts.texts:
            nested = _json_in(text)
            if isinstance(nested, dict):
                _read_object(facts, nested, now, depth + 1)
            else:
                facts.texts.append(_plain(text))
    raw = body.get("raw")  # the message of the provider behind a gateway
    if isinstance(raw, str) and raw:
        facts.texts.append(_plain(raw))


def _read_codes(facts: BodyFacts, body: dict[Any, Any]) -> None:
    for name in _CODES:
        code = body.get(name)
        if isinstance(code, str) and code and len(code) < 200:
            if code in _RPC_STATUSES:
                facts.is_google = facts.is_google or name == "status"
            if code.isdigit():
                continue
            if " " in code:
                facts.texts.append(code)  # a sentence in the field of a code
            elif code.lower() not in _EMPTY_CODES:
                facts.codes.append(code)
    if isinstance(body.get("name"), str) and body["name"].endswith("Error"):
        facts.codes.append(body["name"][:200])  # a class
    if isinstance(body.get("error"), str) and " " not in body["error"]:
        facts.codes.append(body["error"][:200])
    if body.get("object") == "error" and body.get("code") in ("1300", "3505", 1300, 3505):
        facts.codes.append("rate_limited" if str(body["code"]) == "1300" else "capacity_exceeded")
    for name in _STATUSES:
        status = parse_number(body.get(name))
        if status is not None and 400 <= status <= 599 and facts.status is None:
            facts.status = int(status)


def _read_waits(facts: BodyFacts, body: dict[Any, Any], now: float) -> None:
    if facts.wait is None:
        milliseconds = parse_number(body.get("retry_after_ms", body.get("retryDelayMs")))
        if milliseconds is not None:
            facts.wait = max(milliseconds / 1000, 0.0)
    for name in (*_WAITS, *_INSTANTS):
        if facts.wait is None and name in body:
            facts.wait = wait_of(body[name], now)


def _read_quotas(facts: BodyFacts, body: dict[Any, Any]) -> None:
    """Collect the violated quotas and their models from the details of Google's errors."""
    violations = body.get("violations")
    for violation in violations[:50] if isinstance(violations, list) else ():
        if isinstance(violation, dict):
            facts.is_google = True
            quota = violation.get("quotaId") or violation.get("quotaMetric") or violation.get("description")
            if isinstance(quota, str):
                facts.quotas.append((quota[:200], str(violation.get("quotaValue", ""))[:20]))
            dimensions = violation.get("quotaDimensions")
            if isinstance(dimensions, dict) and isinstance(dimensions.get("model"), str):
                facts.models.add(dimensions["model"])
    if isinstance(body.get("quota_limit"), str):  # metadata of an ErrorInfo
        facts.is_google = True
        facts.quotas.append((body["quota_limit"][:200], str(body.get("quota_limit_value", ""))[:20]))
    if isinstance(body.get("@type"), str) and "google" in body["@type"]:
        facts.is_google = True
        metadata = body.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("model"), str):
            facts.models.add(metadata["model"])


def _read_plan_event(facts: BodyFacts, info: dict[Any, Any], now: float) -> None:
    if info.get("status") != "rejected":
        return
    facts.rejected = True
    facts.codes.append("usage_limit_reached")
    _read_waits(facts, info, now)
    windows = info.get("unifiedWindows")
    windows = windows.values() if isinstance(windows, dict) else windows if isinstance(windows, list) else ()
    for window in windows:  # of several used-up windows, the one that resets last counts
        if isinstance(window, dict) and window.get("status") == "rejected":
            for name in (*_INSTANTS, "reset"):
                wait = wait_of(window.get(name), now)
                if wait is not None:
                    facts.wait = max(facts.wait or 0.0, wait)


def _json_in(text: str) -> Any:
    text = text.strip()
    return unfold(text) if text[:1] in ("{", "[") and len(text) < _MAX_TEXT else None


def _plain(text: str) -> str:
    """Return a text, cut to `_MAX_MESSAGE`; of an HTML page its title."""
    if "<" in text[:200] and re.search(r"<(?:!doctype|html|head|title|body|h1)\b", text[:500], re.IGNORECASE):
        titles = re.findall(r"<(?:title|h1)[^>]{0,100}>([^<]{1,200})", text[:20_000], re.IGNORECASE)
        return " ".join(title.strip() for title in titles[:2]) or "an HTML page"
    return text[:_MAX_MESSAGE]


def first_object(text: str) -> Any:
    """Return the JSON value at the beginning of a text; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
