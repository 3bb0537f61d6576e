"""Verdict: what an answer of a provider says, and the six kinds that it can have."""

from __future__ import annotations

from typing import NamedTuple

# The six things an answer from a provider can say.
RATE_LIMITED = "rate_limited"
QUOTA_EXHAUSTED = "quota_exhausted"
AUTH_FAILED = "auth_failed"
OVERLOADED = "overloaded"
TRANSIENT = "transient"
PERMANENT = "permanent"
VERDICT_KINDS = frozenset({RATE_LIMITED, QUOTA_EXHAUSTED, AUTH_FAILED, OVERLOADED, TRANSIENT, PERMANENT})
# Verdicts about a credential or a provider, not about the item: the item goes on with another credential, or waits.
RETRY_ON_OTHER_KEY = frozenset({RATE_LIMITED, QUOTA_EXHAUSTED, AUTH_FAILED, OVERLOADED})


class Verdict(NamedTuple):
    """What an answer from a provider says. Durations in seconds, None where the answer is silent."""

    kind: str | None
    retry_after: float | None = None
    cool_down: float | None = None  # what we would wait, where the provider's hint is unwise
    remaining_requests: int | None = None
    remaining_tokens: int | None = None
    reset_requests: float | None = None
    reset_tokens: float | None = None
    window: str | None = None  # minute, hour, day, month, plan, credits, capacity or concurrency
    scope: str | None = None
    message: str = ""
    limit_requests: float | None = None  # the allowance that the answer names, counted over ...
    limit_tokens: float | None = None
    requests_period: float | None = None  # ... so many seconds
    tokens_period: float | None = None


NOTHING_SAID = Verdict(None)
