"""Slow start: limit concurrency and rate while no limit of the provider is known, and after a cool-down.

One request at a time is always allowed: it waits for its own answer and cannot stampede. Successful answers add
concurrent requests. A token bucket whose rate doubles with use adds more, for requests that take long to be answered.
"""

from __future__ import annotations

from ._windows import Bucket

# Successful answers that allow one more concurrent request.
SUCCESSES_PER_SLOT = 32
# Requests per second beyond the concurrent ones, at first and after a cool-down; doubled after DOUBLING_SECONDS of use.
INITIAL_RATE = 4.0
RAMP_RATE = 8.0
DOUBLING_SECONDS = 0.5
# An answer that took fewer seconds did not come from a provider.
MIN_ANSWER_SECONDS = 0.005
# Slow start ends after this many answers, or at this rate (requests per second): refusals teach the rest.
MAX_ANSWERS = 1000
MAX_RATE = 1000.0


class SlowStart:
    """Admits one request at a time, and more as time and successful answers allow.

    After a cool-down, and at the beginning of a run, the first request goes alone. If `starts_full`, `max_in_flight`
    requests may start at once: the caller asked for several leases together.
    """

    __slots__ = ("_answers", "_bucket", "_doubles_after", "_per_slot", "_successes")

    def __init__(self, at: float, max_in_flight: int, successes_per_slot: int, rate: float, *,
                 starts_full: bool = False) -> None:  # fmt: skip
        self._bucket = Bucket(rate, max(1.0, max_in_flight), at)
        if not starts_full:
            self._bucket.change(at, level=0.0)
        self._doubles_after = DOUBLING_SECONDS * rate  # requests until the rate doubles
        self._per_slot = successes_per_slot
        self._successes = 0
        self._answers = 0

    def ready_at(self, in_flight: int, now: float) -> float:
        return 0.0 if self._has_slot(in_flight) else self._bucket.ready_at(1.0, now)

    def take(self, in_flight: int, now: float) -> None:
        """Count one more request, sent while `in_flight` were unanswered."""
        if self._has_slot(in_flight):
            return
        self._bucket.take(1.0, now)
        self._doubles_after -= 1.0
        if self._doubles_after <= 0.0:
            self._bucket.change(now, rate=self._bucket.rate * 2.0)
            self._doubles_after = DOUBLING_SECONDS * self._bucket.rate

    def record_success(self, seconds: float, now: float) -> None:
        """Count an answer that took `seconds`; return its token to the bucket if that is too short for a request."""
        self._answers += 1
        if seconds < MIN_ANSWER_SECONDS:
            self._bucket.take(-1.0, now)
        else:
            if not self._successes:  # the first request may also have waited for connections or programs
                self._bucket.change(now, level=0.0)
            self._successes += 1

    def is_over(self, max_in_flight: int) -> bool:
        is_proven = self._successes >= (max_in_flight - 1) * self._per_slot or self._answers >= MAX_ANSWERS
        return is_proven or self._bucket.rate > MAX_RATE

    def _has_slot(self, in_flight: int) -> bool:
        return in_flight * self._per_slot < self._per_slot + self._successes
