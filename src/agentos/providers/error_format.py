"""Formats an error as a provider would, so that its SDKs and the agents built on them understand an answer of ours.

The gateway uses it for the requests that it answers itself. `shape` is one of those in `usage`; a name of an
OpenAI-compatible provider gives the format of OpenAI.
"""

from __future__ import annotations

import json
import math
from typing import Any, Literal, NamedTuple

ErrorKind = Literal[
    "rate_limited",  # usable again after `retry_after`
    "quota_exhausted",  # the same, but the wait is long: of a day, a plan or a credit
    "budget_reached",  # of the run or the item that sends the request: not usable again without a person
    "overloaded",
    "auth_failed",
    "forbidden",
    "invalid_request",
    "not_found",
    "too_large",
    "timeout",
    "server_error",
]


class _Names(NamedTuple):
    """How each provider names a kind of error."""

    openai_type: str
    openai_code: str | None
    anthropic: str
    gemini: str


_NAMES: dict[ErrorKind, _Names] = {
    "rate_limited": _Names("requests", "rate_limit_exceeded", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    "quota_exhausted": _Names("insufficient_quota", "insufficient_quota", "rate_limit_error", "RESOURCE_EXHAUSTED"),
    "budget_reached": _Names("insufficient_quota", "insufficient_quota", "billing_error", "RESOURCE_EXHAUSTED"),
    "overloaded": _Names("service_unavailable_error", "server_is_overloaded", "overloaded_error", "UNAVAILABLE"),
    "auth_failed": _Names("invalid_request_error", "invalid_api_key", "authentication_error", "UNAUTHENTICATED"),
    "forbidden": _Names("invalid_request_error", "permission_denied", "permission_error", "PERMISSION_DENIED"),
    "invalid_request": _Names("invalid_request_error", None, "invalid_request_error", "INVALID_ARGUMENT"),
    "not_found": _Names("invalid_request_error", "not_found", "not_found_error", "NOT_FOUND"),
    "too_large": _Names("invalid_request_error", "request_too_large", "request_too_large", "INVALID_ARGUMENT"),
    "timeout": _Names("server_error", "timeout", "timeout_error", "DEADLINE_EXCEEDED"),
    "server_error": _Names("server_error", "server_error", "api_error", "INTERNAL"),
}
# The status that a kind has if the caller does not choose another one.
STATUSES: dict[ErrorKind, int] = {
    "rate_limited": 429,
    "quota_exhausted": 429,
    "budget_reached": 402,  # SDKs do not repeat it
    "overloaded": 503,
    "auth_failed": 401,
    "forbidden": 403,
    "invalid_request": 400,
    "not_found": 404,
    "too_large": 413,
    "timeout": 504,
    "server_error": 500,
}


def error_body(shape: str, status: int, kind: ErrorKind, message: str, retry_after: float | None = None) -> bytes:
    """Return the JSON body of an error. `retry_after`: seconds, which Gemini states in the body."""
    names = _NAMES[kind]
    body: dict[str, Any]
    if shape == "anthropic":
        body = {"type": "error", "error": {"type": names.anthropic, "message": message}}
    elif shape == "gemini":
        error: dict[str, Any] = {"code": status, "message": message, "status": names.gemini}
        if retry_after is not None:
            delay = f"{_whole_seconds(retry_after)}s"
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
        body = {"error": error}
    else:
        error = {"message": message, "type": names.openai_type, "param": None, "code": names.openai_code}
        body = {"error": error}
    return json.dumps(body).encode()


def error_headers(shape: str, retry_after: float | None = None, *, is_final: bool = False) -> dict[str, str]:
    """Return the headers of an error. `retry_after`: seconds until the request can succeed, rounded up. `is_final`: the
    same request cannot succeed, so that SDKs must not repeat it."""
    headers = {"content-type": "application/json"}
    if retry_after is not None:
        headers["retry-after"] = str(_whole_seconds(retry_after))
    if is_final and shape != "gemini":  # Google's SDK does not read it
        headers["x-should-retry"] = "false"
    return headers


def _whole_seconds(seconds: float) -> int:
    """Round up: a client that comes back too early would be refused again."""
    return max(0, math.ceil(seconds - 1e-6))
