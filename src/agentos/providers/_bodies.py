"""What the body of an answer says: codes, sentences, waits; whatever its provider's form is."""

from __future__ import annotations

import json
import re
from typing import Any

from agentos.durations import parse_number

from ._dates import wait_of

# A longer text is a document, not an error.
_MOST_TEXT = 1_000_000
_MOST_MESSAGE = 4000
# Errors inside errors: a gateway's, around a provider's, around a string of JSON.
_MOST_DEPTH = 6

_WAITS = ("retry_after", "retry_after_seconds", "retryAfter", "retryDelay", "resets_in_seconds", "quotaResetDelay")
_INSTANTS = ("resets_at", "resetsAt", "reset_at", "resetAt", "quotaResetTimeStamp")
# Ordered by how much they tell: what a gateway adds, the reason, the code, the type, the status' name.
_CODES = (
    "error_code", "errorCode", "limit_source", "error_type", "reason", "code", "Code", "type", "__type", "status",
)  # fmt: skip
_STATUSES = ("code", "status", "status_code", "statusCode", "raw_status_code")
_MESSAGES = ("message", "Message", "error_description", "detail", "error", "title", "msg", "description")
# Where an error, or more about it, is found inside an error; the innermost says most.
_HOLDERS = ("error", "Error", "err", "response", "msg", "detail", "errors", "details", "metadata", "availability")
# These say only that this is an error.
_EMPTY_CODES = frozenset({"error", "response.failed", "response.error", "turn.failed", "failed", "null", "none"})
_FAILED_EVENTS = frozenset({"error", "response.failed", "response.error", "turn.failed"})
_RPC_STATUSES = frozenset(
    {
        "RESOURCE_EXHAUSTED", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED",
        "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "ABORTED", "CANCELLED", "UNKNOWN",
    }
)  # fmt: skip


class Said:
    """What a body says, collected before anything is concluded from it."""

    __slots__ = ("codes", "headers", "is_google", "models", "quotas", "rejected", "status", "texts", "wait")

    def __init__(self) -> None:
        self.codes: list[str] = []  # the most telling first
        self.texts: list[str] = []
        self.status: int | None = None  # an HTTP status inside the body
        self.wait: float | None = None
        self.headers: dict[str, Any] = {}  # a gateway's headers inside the body
        self.quotas: list[tuple[str, str]] = []  # ids and values of violated quotas
        self.models: set[str] = set()
        self.is_google = False
        self.rejected = False  # a subscription's event says so

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def read(body: Any, now: float, *, is_error: bool) -> Said | None:
    """None if the body is no error: `is_error` says that something else, such as the status, has told so already."""
    body = unfold(body, looks_for_error=not is_error)
    said = Said()
    if isinstance(body, dict):
        if not is_error and not _tells_of_error(body):
            return None
        _read_object(said, body, now, 0)
    elif isinstance(body, str) and is_error and body:
        said.texts.append(_plain(body))
    elif not is_error:
        return None
    return said


def unfold(body: Any, *, looks_for_error: bool = False) -> Any:
    """The object in a body: out of bytes, out of JSON, out of a stream's lines, out of a list of one."""
    if isinstance(body, bytes | bytearray | memoryview):
        if looks_for_error and isinstance(body, bytes) and b"rror" not in body and b"rate_limit" not in body:
            return None
        body = bytes(body[:_MOST_TEXT]).decode("utf-8", "replace")
    if isinstance(body, str):
        body = body.strip()
        if len(body) > _MOST_TEXT or (looks_for_error and "rror" not in body and "rate_limit" not in body):
            return body[:_MOST_MESSAGE]
        if body[:1] in ("{", "["):
            body = from_json(body, body)
        elif body.startswith(("data:", "event:", ":")):
            body = _of_stream(body)
        elif body.startswith(("b'{", 'b"{')):  # bytes that somebody printed
            body = from_json(body[2:-1].replace("\\n", "\n").replace('\\"', '"').replace("\\'", "'"), body)
    if isinstance(body, list | tuple):
        inner = [unfold(item) if isinstance(item, str | bytes) else item for item in body[:100]]
        objects = [item for item in inner if isinstance(item, dict)]
        return next((item for item in objects if _tells_of_error(item)), objects[0] if objects else None)
    return body


def from_json(text: str, otherwise: Any = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def _of_stream(text: str) -> Any:
    """The last event of server-sent events that tells of an error, else the text."""
    for line in reversed(text.splitlines()):
        if line.startswith("data:"):
            event = from_json(line[5:].strip())
            if isinstance(event, dict) and _tells_of_error(event):
                return event
    return text


def _tells_of_error(body: dict[Any, Any]) -> bool:
    if body.get("error") or isinstance(body.get("Error"), dict) or body.get("object") == "error":
        return True
    kind = body.get("type")
    if isinstance(kind, str) and (kind in _FAILED_EVENTS or kind == "rate_limit_event"):
        return True
    response = body.get("response")
    return isinstance(response, dict) and bool(response.get("error"))


def _read_object(said: Said, body: dict[Any, Any], now: float, depth: int) -> None:
    if depth > _MOST_DEPTH:
        return
    info = body.get("rate_limit_info")
    if isinstance(info, dict):
        _read_plan_event(said, info, now)
        return
    for holder in _HOLDERS:
        inner = body.get(holder)
        if isinstance(inner, str):
            inner = _json_in(inner)
        for one in inner[:20] if isinstance(inner, list) else (inner,):
            if isinstance(one, dict):
                _read_object(said, one, now, depth + 1)
    _read_quotas(said, body)
    _read_messages(said, body, now, depth)
    _read_codes(said, body)
    _read_waits(said, body, now)
    if isinstance(body.get("headers"), dict):
        said.headers.update(body["headers"])


def _read_messages(said: Said, body: dict[Any, Any], now: float, depth: int) -> None:
    for name in _MESSAGES:
        text = body.get(name)
        if isinstance(text, str) and text and text not in said.texts:
            nested = _json_in(text)
            if isinstance(nested, dict):
                _read_object(said, nested, now, depth + 1)
            else:
                said.texts.append(_plain(text))
    raw = body.get("raw")  # the upstream's own words, as a gateway passes them on
    if isinstance(raw, str) and raw:
        said.texts.append(_plain(raw))


def _read_codes(said: Said, body: dict[Any, Any]) -> None:
    for name in _CODES:
        code = body.get(name)
        if isinstance(code, str) and code and len(code) < 200:
            if code in _RPC_STATUSES:
                said.is_google = said.is_google or name == "status"
            if code.isdigit():
                continue
            if " " in code:
                said.texts.append(code)  # a sentence where others have a code
            elif code.lower() not in _EMPTY_CODES:
                said.codes.append(code)
    if isinstance(body.get("error"), str) and " " not in body["error"]:
        said.codes.append(body["error"][:200])
    if body.get("object") == "error" and body.get("code") in ("1300", "3505", 1300, 3505):
        said.codes.append("rate_limited" if str(body["code"]) == "1300" else "capacity_exceeded")
    for name in _STATUSES:
        status = parse_number(body.get(name))
        if status is not None and 400 <= status <= 599 and said.status is None:
            said.status = int(status)


def _read_waits(said: Said, body: dict[Any, Any], now: float) -> None:
    if said.wait is None:
        milliseconds = parse_number(body.get("retry_after_ms"))
        if milliseconds is not None:
            said.wait = max(milliseconds / 1000, 0.0)
    for name in (*_WAITS, *_INSTANTS):
        if said.wait is None and name in body:
            said.wait = wait_of(body[name], now)


def _read_quotas(said: Said, body: dict[Any, Any]) -> None:
    """Google's details: which quotas were violated, and of which model."""
    violations = body.get("violations")
    for violation in violations[:50] if isinstance(violations, list) else ():
        if isinstance(violation, dict):
            said.is_google = True
            quota = violation.get("quotaId") or violation.get("quotaMetric") or violation.get("description")
            if isinstance(quota, str):
                said.quotas.append((quota[:200], str(violation.get("quotaValue", ""))[:20]))
            dimensions = violation.get("quotaDimensions")
            if isinstance(dimensions, dict) and isinstance(dimensions.get("model"), str):
                said.models.add(dimensions["model"])
    if isinstance(body.get("quota_limit"), str):  # the metadata of an ErrorInfo
        said.is_google = True
        said.quotas.append((body["quota_limit"][:200], str(body.get("quota_limit_value", ""))[:20]))
    if isinstance(body.get("@type"), str) and "google" in body["@type"]:
        said.is_google = True
        metadata = body.get("metadata")
        if isinstance(metadata, dict) and isinstance(metadata.get("model"), str):
            said.models.add(metadata["model"])


def _read_plan_event(said: Said, info: dict[Any, Any], now: float) -> None:
    if info.get("status") != "rejected":
        return
    said.rejected = True
    said.codes.append("usage_limit_reached")
    _read_waits(said, info, now)
    windows = info.get("unifiedWindows")
    each = windows.values() if isinstance(windows, dict) else windows if isinstance(windows, list) else ()
    for window in each:  # the last of several that are used up is the one that binds
        if isinstance(window, dict) and window.get("status") == "rejected":
            for name in (*_INSTANTS, "reset"):
                wait = wait_of(window.get(name), now)
                if wait is not None:
                    said.wait = max(said.wait or 0.0, wait)


def _json_in(text: str) -> Any:
    text = text.strip()
    return unfold(text) if text[:1] in ("{", "[") and len(text) < _MOST_TEXT else None


def _plain(text: str) -> str:
    """A sentence; of a page, its title."""
    if "<" in text[:200] and re.search(r"<(?:!doctype|html|head|title|body|h1)\b", text[:500], re.IGNORECASE):
        titles = re.findall(r"<(?:title|h1)[^>]{0,100}>([^<]{1,200})", text[:20_000], re.IGNORECASE)
        return " ".join(title.strip() for title in titles[:2]) or "an HTML page"
    return text[:_MOST_MESSAGE]


def first_object(text: str) -> Any:
    """The JSON object that a text begins with, whatever follows it; None if there is none."""
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None
