"""What a refused request says about the provider's allowance, and what is known when a rate is refused."""

from __future__ import annotations

import math
from typing import NamedTuple

# Shortest wait in seconds after a refusal without a hint.
MIN_WAIT = 0.05
# A hint that is longer than the time of this many requests is not exact.
LONG_HINT = 1.2


class Refusal(NamedTuple):
    """A refused request, and what its answer says about the provider's allowance."""

    sent_at: float
    number: int  # of the request, counted from the first
    earlier: int  # requests in flight that were sent before it
    hint: float | None
    error: float  # seconds by which the hint may be too long
    empty_at: float  # instant at which the provider has one request again, most likely
    free_at: float  # and at the earliest

    @property
    def wait(self) -> float:
        return MIN_WAIT if self.hint is None else self.hint


class Episode(NamedTuple):
    """What is known when a rate is refused."""

    admitted: int  # requests since the mark (the last refusal, or the last step), if all that are in flight succeed
    confirmed: int  # those that have succeeded
    seconds: float  # 0 or less: the request was sent before the last step
    slack: float  # seconds of them in which requests did not wait for the rate
    error: float  # of the seconds, at most, because hints have whole ones
    floor: float  # requests per second that succeeded since the last refusal: the limit is not lower
    is_exact: bool  # the time is that between the ends of two exact hints
    after_refusal: bool  # the mark is a refusal: the provider had stored nothing then


def read_refusal(sent_at: float, number: int, earlier: int, hint: float | None, likely_rate: float) -> Refusal:
    """Return what a refusal says. A hint is too long by up to a second if it has whole seconds, or names a date, which
    has; one that does not is no longer than the time of one request."""
    if hint is None:
        return Refusal(sent_at, number, earlier, None, math.inf, sent_at, sent_at)
    error = 1.0 if hint % 1.0 == 0.0 or hint * likely_rate > LONG_HINT else 0.0
    empty_at = sent_at + max(0.0, hint - error / 2.0)
    return Refusal(sent_at, number, earlier, hint, error, empty_at, sent_at + max(0.0, hint - error))
