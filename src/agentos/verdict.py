"""Verdict: the meaning of one answer of a provider, and its six kinds."""

from __future__ import annotations

from typing import NamedTuple

RATE_LIMITED = "rate_limited"
QUOTA_EXHAUSTED = "quota_exhausted"
AUTH_FAILED = "auth_failed"
OVERLOADED = "overloaded"
TRANSIENT = "transient"
PERMANENT = "permanent"
VERDICT_KINDS = frozenset({RATE_LIMITED, QUOTA_EXHAUSTED, AUTH_FAILED, OVERLOADED, TRANSIENT, PERMANENT})
# Kinds that concern a credential or a provider, not the item: the item continues with another credential, or waits.
RETRY_ON_OTHER_KEY = frozenset({RATE_LIMITED, QUOTA_EXHAUSTED, AUTH_FAILED, OVERLOADED})


class WindowReport(NamedTuple):
    """A window as an answer states it. Durations in seconds; None for anything that it does not state."""

    of: str  # what it counts, as `Window.of`; or "plan": percent of a subscription
    seconds: float  # its length
    limit: float | None
    remaining: float | None
    reset: float | None  # seconds until it is unused


class Verdict(NamedTuple):
    """What an answer of a provider states. Durations in seconds; None for anything that it does not state."""

    kind: str | None
    retry_after: float | None = None
    cool_down: float | None = None  # used instead of `retry_after`, where the provider's hint is unwise
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    reset_requests: float | None = None
    reset_tokens: float | None = None
    window: str | None = None  # minute, hour, day, month, plan, credits, capacity or concurrency
    scope: str | None = None
    message: str = ""
    limit_requests: float | None = None  # per `requests_period`
    limit_tokens: float | None = None  # per `tokens_period`
    requests_period: float | None = None
    tokens_period: float | None = None
    is_loose: bool = False  # read from free text, not from a known format of a provider, an SDK or an agent
    is_printed: bool = False  # printed or reported by a command, which can print anything: concerns its run only
    is_guess: bool = False  # `cool_down` is our own estimate: the provider named no time
    windows: tuple[WindowReport, ...] = ()  # what is left of which window


NO_VERDICT = Verdict(None)
