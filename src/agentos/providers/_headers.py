"""What the headers of an answer say: how long to wait, and what is left of which allowance."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from agentos.durations import parse_number

from ._dates import http_date, wait_of

Headers = dict[str, str]

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
_PERIODS = {
    "second": 1.0, "sec": 1.0, "minute": MINUTE, "min": MINUTE, "hour": HOUR, "day": DAY, "month": 30 * DAY,
}  # fmt: skip
_LIMIT, _REMAINING, _RESET = "limit", "remaining", "reset"
_TOGETHER = "tokenlimit-tokens"  # counted per second


class Allowance(NamedTuple):
    """One allowance as the headers tell it: what is left, until when, of how much, counted over how long."""

    remaining: int | None = None
    reset: float | None = None
    limit: float | None = None
    period: float | None = None


UNTOLD = Allowance()


class _Dimension(NamedTuple):
    """What is counted, by the name of its headers."""

    is_tokens: bool
    name: str  # empty: the headers name no dimension
    period: float | None  # where the name says it


def lower(headers: Any) -> Headers:
    """Headers of any library with their names in lower case; empty if these are none."""
    try:
        try:
            return {str.lower(name): str.strip(value) for name, value in headers.items()}
        except TypeError:  # bytes, or numbers
            return {_text(name).lower(): _text(value).strip() for name, value in headers.items()}
    except Exception:  # not a mapping after all: it says nothing
        return {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else value.decode("latin-1") if isinstance(value, bytes) else str(value)


def server_now(headers: Headers, now: float) -> float:
    """The server's own clock, where it tells it, makes ours irrelevant for what it says of instants."""
    date = headers.get("date")
    told = http_date(date) if date else None
    return now if told is None else told


def retry_after(headers: Headers, now: float) -> float | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after"):
        milliseconds = parse_number(headers.get(name))
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


def allowances(headers: Headers, provider: str, now: float) -> tuple[Allowance, Allowance]:
    """What is left of requests and of tokens: of several dimensions, the one of which least is left."""
    fields: dict[_Dimension, dict[str, str]] = {}
    for name, value in headers.items():
        if "limit-" in name and (meant := _meaning(name)) is not None:
            dimension, field = meant
            told = fields.get(dimension)
            if told is None:
                told = fields[dimension] = {}
            told[field] = value
    if not fields:
        return UNTOLD, UNTOLD
    # No epoch or date is shorter; without one, nobody's clock matters.
    has_instant = any(len(told.get(_RESET, "")) >= 10 for told in fields.values())
    at = server_now(headers, now) if has_instant else now
    requests, tokens = UNTOLD, UNTOLD
    for dimension, told in fields.items():
        reset = told.get(_RESET)
        wait = None if reset is None else wait_of(reset, at)
        limit, remaining = _count(told.get(_LIMIT)), _count(told.get(_REMAINING))
        period = None if limit is None else dimension.period or _period(headers, provider, dimension, wait)
        read = Allowance(None if remaining is None else int(remaining), wait, limit, period)
        if dimension.is_tokens:
            tokens = read if tokens is UNTOLD else min(tokens, read, key=_scarcity)
        else:
            requests = read if requests is UNTOLD else min(requests, read, key=_scarcity)
    return requests, tokens


@lru_cache(maxsize=512)  # the same few names come with every answer
def _meaning(name: str) -> tuple[_Dimension, str] | None:
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
        return None  # images, seconds of audio, a plan's windows: not what is paced here
    period = next((_PERIODS[word] for word in words if word in _PERIODS), None)
    return _Dimension(is_tokens, dimension, period), field


def _count(text: str | None) -> float | None:
    """Less than nothing left is how some say that they do not know."""
    found = parse_number(text)
    if found is None and text is not None:
        found = parse_number(re.split(r"[;,]", text)[0])  # "100, 100;w=60"
    return None if found is None or found < 0 else found


def _scarcity(allowance: Allowance) -> tuple[float, float, float]:
    """Least left first; of equals, the one that takes longest; what tells nothing last."""
    remaining, reset, limit, _ = allowance
    untold = float("inf")
    return (
        untold if remaining is None else remaining,
        0.0 if reset is None else -reset - 1,
        untold if limit is None else limit,
    )


def _period(headers: Headers, provider: str, dimension: _Dimension, reset: float | None) -> float:
    """The seconds that a limit counts over, where the name of its header does not say them."""
    is_together = "together" in provider or ("x-tokenlimit-limit" in headers and reset is not None and reset <= 1)
    if dimension.is_tokens:
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
    return HOUR if reset <= HOUR else DAY  # one that ends later than in a minute is longer than a minute


def plan_reset(headers: Headers, now: float) -> float | None:
    """Seconds until the last of a plan's used-up windows opens again, in the headers of subscriptions."""
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
    left = parse_number(fields.get("rem", ["1"])[0])
    return wait_of(fields.get("rst", [""])[0], now) if left is not None and left <= 0 else None


def is_plan_used_up(headers: Headers) -> bool:
    return headers.get("anthropic-ratelimit-unified-status") == "rejected"
