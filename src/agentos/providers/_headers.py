"""Reads the headers of an answer: how long to wait, and what is left of which limit."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from agentos.durations import parse_number
from agentos.limits.declaration import INPUT_TOKENS, OUTPUT_TOKENS, REQUESTS, TOKENS
from agentos.verdict import WindowReport

from ._dates import http_date, wait_of

Headers = dict[str, str]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
_PERIODS = {
    "second": 1.0, "sec": 1.0, "minute": MINUTE, "min": MINUTE, "hour": HOUR, "day": DAY, "month": 30 * DAY,
}  # fmt: skip
_DIRECTIONS = {"input": INPUT_TOKENS, "prompt": INPUT_TOKENS, "output": OUTPUT_TOKENS, "generated": OUTPUT_TOKENS}
_LIMIT, _REMAINING, _RESET = "limit", "remaining", "reset"
_TOGETHER = "tokenlimit-tokens"  # a header of Together AI, counted per second


class ReportedLimit(NamedTuple):
    """A limit as headers report it: what is left, seconds until it resets, of how much, per how many seconds."""

    remaining: int | None = None
    reset: float | None = None
    limit: float | None = None
    period: float | None = None


NOT_REPORTED = ReportedLimit()


class _Dimension(NamedTuple):
    """What a limit counts, by the name of its headers."""

    of: str  # as `Window.of`
    name: str  # empty: the headers name no dimension
    period: float | None  # where the name says it


def lower(headers: Any) -> Headers:
    """Return headers of any library with their names in lower case; {} for an object that is no mapping."""
    try:
        try:
            return {str.lower(name): str.strip(value) for name, value in headers.items()}
        except TypeError:  # bytes, or numbers
            return {_text(name).lower(): _text(value).strip() for name, value in headers.items()}
    except Exception:
        return {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else str(value)


def server_now(headers: Headers, now: float) -> float:
    """Return the server's time if the answer has it, else `now`: instants in the answer are by the server's clock."""
    date = headers.get("date")
    server_time = http_date(date) if date else None
    return now if server_time is None else server_time


def retry_after(headers: Headers, now: float) -> float | None:
    """Return the seconds to wait that a header states, at least 0; None if none does. The first three are in
    milliseconds."""
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"):
        milliseconds = parse_number(headers[name]) if name in headers else None
        if milliseconds is not None:
            return max(milliseconds / 1000, 0.0)
    text = headers.get("retry-after")
    if text is None:
        return None
    seconds = parse_number(text)
    if seconds is None:
        until = http_date(text)
        if until is None:
            return None
        seconds = until - server_now(headers, now)
    return max(seconds, 0.0)


def reported_limits(
    headers: Headers, provider: str, now: float
) -> tuple[ReportedLimit, ReportedLimit, tuple[WindowReport, ...]]:
    """Return the limits of requests and of tokens, of several each the one of which least is left; and all of them as
    windows. A limit of tokens in one direction does not pace all tokens: it has no `limit` among the first two."""
    fields: dict[_Dimension, dict[str, str]] = {}
    for name, value in headers.items():
        if "limit-" in name and (meaning := _meaning(name)) is not None:
            dimension, field = meaning
            values = fields.get(dimension)
            if values is None:
                values = fields[dimension] = {}
            values[field] = value
    if not fields:
        return NOT_REPORTED, NOT_REPORTED, ()
    # An epoch or a date has at least 10 characters. Without one the server's clock is not needed.
    has_instant = any(len(values.get(_RESET, "")) >= 10 for values in fields.values())
    at = server_now(headers, now) if has_instant else now
    requests, tokens = NOT_REPORTED, NOT_REPORTED
    windows = []
    for dimension, values in fields.items():
        reset = values.get(_RESET)
        wait = None if reset is None else wait_of(reset, at)
        limit, remaining = _count(values.get(_LIMIT)), _count(values.get(_REMAINING))
        period = None if limit is None else dimension.period or _period(headers, provider, dimension, wait)
        reported = ReportedLimit(None if remaining is None else int(remaining), wait, limit, period)
        if limit and period is not None:
            windows.append(WindowReport(dimension.of, period, limit, remaining, wait))
        if dimension.of in (INPUT_TOKENS, OUTPUT_TOKENS):
            reported = reported._replace(limit=None, period=None)
        if dimension.of != REQUESTS:
            tokens = reported if tokens is NOT_REPORTED else min(tokens, reported, key=_scarcity)
        else:
            requests = reported if requests is NOT_REPORTED else min(requests, reported, key=_scarcity)
    return requests, tokens, tuple(windows)


@lru_cache(maxsize=512)  # every answer has the same few names
def _meaning(name: str) -> tuple[_Dimension, str] | None:
    """Return what a header counts and which field of it; None for any other header."""
    if name.startswith("x-tokenlimit-"):
        field, dimension = name[13:], _TOGETHER
    elif name.startswith("anthropic-ratelimit-"):
        dimension, _, field = name[20:].rpartition("-")
    else:
        plain = re.fullmatch(r"(?:x-)?rate-?limit-(limit|remaining|reset)(?:-(.+))?", name)
        if plain is None:
            return None
        field, dimension = plain[1], plain[2] or ""
    if field not in (_LIMIT, _REMAINING, _RESET):
        return None
    words = re.split(r"[-_]", dimension)
    is_tokens = "tokens" in words or "token" in words
    if not is_tokens and dimension and not any(word.startswith("req") for word in words):
        return None  # images, seconds of audio, windows of a plan: not paced
    period = next((_PERIODS[word] for word in words if word in _PERIODS), None)
    of = REQUESTS if not is_tokens else next((_DIRECTIONS[word] for word in words if word in _DIRECTIONS), TOKENS)
    return _Dimension(of, dimension, period), field


def _count(text: str | None) -> float | None:
    """Return a number of requests or tokens; None for a negative one, which some providers send for "unknown"."""
    count = parse_number(text)
    if count is None and text is not None:
        count = parse_number(re.split(r"[;,]", text)[0])  # "100, 100;w=60"
    return None if count is None or count < 0 else count


def _scarcity(reported: ReportedLimit) -> tuple[float, float, float]:
    """Return a sort key: least left first, of equals the one that resets last, unknown numbers at the end."""
    remaining, reset, limit, _ = reported
    unknown = float("inf")
    return (
        unknown if remaining is None else remaining,
        0.0 if reset is None else -reset - 1,
        unknown if limit is None else limit,
    )


def _period(headers: Headers, provider: str, dimension: _Dimension, reset: float | None) -> float:
    """Return the seconds that a limit counts over, for headers whose names do not contain a period."""
    is_together = "together" in provider or ("x-tokenlimit-limit" in headers and reset is not None and reset <= 1)
    if dimension.of != REQUESTS:
        return 1.0 if is_together and dimension.name == _TOGETHER else MINUTE
    if dimension.name:
        return DAY if "groq" in provider else MINUTE
    resource = headers.get("x-ratelimit-resource")
    if resource is not None or provider == "github":
        return MINUTE if resource in ("search", "code_search") else HOUR
    if is_together:
        return 1.0
    if reset is None or reset <= MINUTE:
        return MINUTE
    return HOUR if reset <= HOUR else DAY


def plan_reset(headers: Headers, now: float) -> float | None:
    """Return the seconds until the last used-up window of a subscription resets; None without such headers."""
    waits: list[float | None] = []
    at = server_now(headers, now)
    for name, value in headers.items():
        if name.startswith("anthropic-ratelimit-unified") and name.endswith("status") and value == "rejected":
            if "overage" not in name:
                waits.append(wait_of(headers.get(f"{name[:-6]}reset"), at))
        elif name.startswith("x-codex-") and name.endswith("-used-percent"):
            if (parse_number(value) or 0.0) >= 100:
                waits.append(wait_of(headers.get(f"{name[:-12]}reset-at"), at))
        elif name.startswith("x-quota-snapshot-"):
            waits.append(_snapshot_reset(value, at))
    return max((wait for wait in waits if wait is not None), default=None)


def _snapshot_reset(text: str, now: float) -> float | None:
    from urllib.parse import parse_qs  # rare

    fields = parse_qs(text)
    remaining = parse_number(fields.get("rem", ["1"])[0])
    return wait_of(fields.get("rst", [""])[0], now) if remaining is not None and remaining <= 0 else None


def is_plan_used_up(headers: Headers) -> bool:
    return headers.get("anthropic-ratelimit-unified-status") == "rejected"
