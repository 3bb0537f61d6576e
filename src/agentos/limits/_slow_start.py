"""Slow start: limit concurrency while no limit of the provider is known, and after a cool-down.

One request at a time is always allowed: it waits for its own answer and cannot stampede. Each success allows more at
once. A steady rate adds others, for requests that take long to be answered.
"""

from __future__ import annotations

from ._windows import Bucket

# Requests per second beyond the concurrent ones: at first, after a cool-down, and after a refusal by a limit that is
# hardly known yet.
INITIAL_RATE = 4.0
RAMP_RATE = 8.0
CAUTIOUS_RATE = 0.5
# Requests more at once with each success in the last case.
CAUTIOUS_SLOTS = 5


class SlowStart:
    """Admits one request at a time, and `per_success` more with each success; besides, `rate` requests per second.

    If `starts_full`, `max_in_flight` requests may start at once: the caller asked for several leases together.
    """

    __slots__ = ("_bucket", "_per_success", "_slots")

    def __init__(self, at: float, per_success: int, rate: float, max_in_flight: int = 1, *,
                 starts_full: bool = False) -> None:  # fmt: skip
        self._slots = 1
        self._per_success = per_success
        self._bucket = Bucket(rate, max(1.0, max_in_flight) if starts_full else 1.0, at)
        if not starts_full:
            self._bucket.change(at, level=0.0)

    def ready_at(self, in_flight: int, now: float) -> float:
        return 0.0 if in_flight < self._slots else self._bucket.ready_at(1.0, now)

    def take(self, in_flight: int, now: float) -> None:
        """Count one more request, sent while `in_flight` were unanswered."""
        if in_flight >= self._slots:
            self._bucket.take(1.0, now)

    def record_success(self) -> None:
        self._slots += self._per_success

    def is_over(self, max_in_flight: int) -> bool:
        return self._slots >= max_in_flight
