"""Dialects: statuses, rate-limit headers, waits and error bodies in the style of each provider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, Literal, NamedTuple

from .rules import DailyQuota, Rule
from .scripts import Kind

Style = Literal["openai", "anthropic", "gemini"]
# Form of a wait: `retry-after` in seconds with fractions, in whole ones or as a date, `retry-after-ms`, or none.
RetryAfter = Literal["seconds", "whole", "ms", "date"] | None

STATUSES: dict[Kind, int] = {
    "limit": 429,
    "quota": 429,
    "payment": 402,
    "dead": 401,
    "overloaded": 503,
    "forbidden": 403,
    "bad_request": 400,
    "server_error": 500,
}


class Refusal(NamedTuple):
    """Why a request is not served, independent of the style."""

    kind: Kind
    # Seconds; None: not known, or waiting cannot help.
    wait: float | None = None
    # The rule that does not admit it.
    rule: Rule | None = None
    model: str = "sim-1"


def status_of(style: Style, kind: Kind) -> int:
    if style == "anthropic" and kind == "overloaded":
        return 529
    if style == "gemini" and kind == "dead":
        return 400
    return STATUSES[kind]


def limit_headers(style: Style, rules: Sequence[Rule], refused_by: Rule | None, date: float) -> dict[str, str]:
    """Return limit, remainder and reset of requests and tokens, from the refusing rule or the first one of each."""
    headers: dict[str, str] = {}
    for counts in ("requests", "tokens"):
        candidates = [rule for rule in rules if rule.counts == counts and rule.has_headers]
        if not candidates or style == "gemini":
            continue
        rule = refused_by if refused_by in candidates else candidates[0]
        limit, remaining = _plain(rule.stated_limit), str(rule.remaining(date))
        until_full = max(0.0, rule.full_at(date) - date)
        if style == "anthropic":
            names = [f"anthropic-ratelimit-{counts}-{field}" for field in ("limit", "remaining", "reset")]
            reset = _rfc_3339(date + until_full)
        else:
            names = [f"x-ratelimit-{field}-{counts}" for field in ("limit", "remaining", "reset")]
            reset = go_duration(until_full)
        headers.update(zip(names, (limit, remaining, reset), strict=True))
    return headers


def wait_headers(form: RetryAfter, wait: float | None, date: float) -> dict[str, str]:
    if wait is None or form is None:
        return {}
    if form == "ms":
        return {"retry-after-ms": str(round(_up_to_ms(wait) * 1000))}
    if form == "whole":
        return {"retry-after": str(math.ceil(_up_to_ms(wait)))}
    if form == "date":
        return {"retry-after": formatdate(math.ceil(_up_to_ms(date + wait)), usegmt=True)}
    return {"retry-after": _plain(_up_to_ms(wait))}


def error_body(style: Style, status: int, refusal: Refusal, form: RetryAfter) -> dict[str, Any]:
    if style == "anthropic":
        return _anthropic_error(refusal)
    if style == "gemini":
        return _gemini_error(status, refusal, form)
    return {"error": openai_error(refusal)}


def openai_error(refusal: Refusal) -> dict[str, Any]:
    kind, rule = refusal.kind, refusal.rule
    type_, code, message = {
        "limit": ("requests", "rate_limit_exceeded", "Rate limit reached."),
        "quota": (
            "insufficient_quota",
            "insufficient_quota",
            "The quota of this account is used up.",
        ),
        "payment": ("insufficient_quota", "credit_balance_exhausted", "The credit of this account is used up."),
        "dead": ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
        "overloaded": ("service_unavailable_error", "server_is_overloaded", "The server is overloaded."),
        "forbidden": ("request_forbidden", "unsupported_country_region_territory", "Not supported in this region."),
        "bad_request": ("invalid_request_error", None, "The request is not valid."),
        "server_error": ("server_error", None, "The server had an error."),
    }[kind]
    if kind == "limit" and rule is not None:
        type_ = rule.counts
        message = f"Rate limit reached for {refusal.model} on {rule.name}: Limit {_plain(rule.stated_limit)}."
        if refusal.wait is None:
            message = f"Request too large for {refusal.model} on {rule.name}: Limit {_plain(rule.stated_limit)}."
    if kind == "limit" and refusal.wait is not None:
        message += f" Please try again in {go_duration(refusal.wait)}."
    return {"message": message, "type": type_, "param": None, "code": code}


def _anthropic_error(refusal: Refusal) -> dict[str, Any]:
    type_, message = {
        "limit": ("rate_limit_error", "This request would exceed a rate limit of your organization."),
        "quota": ("rate_limit_error", "The spend limit of your organization is reached."),
        "payment": ("billing_error", "There is a problem with your payment."),
        "dead": ("authentication_error", "invalid x-api-key"),
        "overloaded": ("overloaded_error", "Overloaded"),
        "forbidden": ("permission_error", "This key may not use that resource."),
        "bad_request": ("invalid_request_error", "The request is not valid."),
        "server_error": ("api_error", "Internal server error"),
    }[refusal.kind]
    error: dict[str, Any] = {"type": type_, "message": message}
    if refusal.kind == "quota":
        error["details"] = {"error_code": "enforced_spend_limit_reached"}
    return {"type": "error", "error": error, "request_id": "req_sim"}


def _gemini_error(status: int, refusal: Refusal, form: RetryAfter) -> dict[str, Any]:
    kind, rule = refusal.kind, refusal.rule
    name, message = {
        "limit": ("RESOURCE_EXHAUSTED", "You exceeded your current quota."),
        "quota": ("RESOURCE_EXHAUSTED", "You exceeded your current quota."),
        "payment": ("RESOURCE_EXHAUSTED", "The prepaid credit of this account is used up."),
        "dead": ("INVALID_ARGUMENT", "API key not valid."),
        "overloaded": ("UNAVAILABLE", "The model is overloaded."),
        "forbidden": ("PERMISSION_DENIED", "This key may not use that model."),
        "bad_request": ("INVALID_ARGUMENT", "The request is not valid."),
        "server_error": ("INTERNAL", "An internal error has occurred."),
    }[kind]
    details: list[dict[str, Any]] = []
    if kind in ("limit", "quota"):
        details.append(_quota_failure(kind, rule, refusal.model))
        # The real service gives a short wait also when the quota of the day is used up.
        wait = 20.0 if kind == "quota" else refusal.wait
        if wait is not None and form is not None:
            delay = f"{_plain(_up_to_ms(wait))}s"
            details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    if kind == "dead":
        reason = {"reason": "API_KEY_INVALID", "domain": "googleapis.com"}
        details.append({"@type": "type.googleapis.com/google.rpc.ErrorInfo", **reason})
    error: dict[str, Any] = {"code": status, "message": message, "status": name}
    return {"error": {**error, "details": details} if details else error}


def _quota_failure(kind: Kind, rule: Rule | None, model: str) -> dict[str, Any]:
    is_daily = kind == "quota" or isinstance(rule, DailyQuota)
    unit = "ContentInputTokens" if rule is not None and rule.counts == "tokens" else "Requests"
    quota_id = f"Generate{unit}Per{'Day' if is_daily else 'Minute'}PerProjectPerModel-FreeTier"
    suffix = "requests" if unit == "Requests" else "input_token_count"
    metric = f"generativelanguage.googleapis.com/generate_content_free_tier_{suffix}"
    violation = {"quotaMetric": metric, "quotaId": quota_id, "quotaDimensions": {"location": "global", "model": model}}
    return {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}


def go_duration(seconds: float) -> str:
    """Format a duration as Go does: `120ms`, `1.5s`, `6m0s`."""
    ms = round(_up_to_ms(seconds) * 1000)
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    hours, ms = divmod(ms, 3_600_000)
    minutes, ms = divmod(ms, 60_000)
    tail = f"{_plain(ms / 1000)}s"
    return f"{hours}h{minutes}m{tail}" if hours else f"{minutes}m{tail}" if minutes else tail


def _rfc_3339(date: float) -> str:
    return datetime.fromtimestamp(math.ceil(_up_to_ms(date)), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _up_to_ms(seconds: float) -> float:
    """Round up to milliseconds, so that a wait is never too short. A microsecond is rounding error, not a wait."""
    return math.ceil(seconds * 1000 - 1e-3) / 1000


def _plain(number: float) -> str:
    """Format whole numbers without a point, others with up to three digits, rounded down."""
    if abs(number - round(number)) < 1e-9:
        return str(round(number))
    return f"{math.floor(number * 1000 + 1e-6) / 1000:.3f}".rstrip("0").rstrip(".")
