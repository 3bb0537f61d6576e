"""Declare limits: what a provider allows one quota group."""

from __future__ import annotations

from dataclasses import dataclass

from . import concurrency

# Names of the dimensions, as users see them.
REQUESTS_PER_MINUTE = "requests per minute"
TOKENS_PER_MINUTE = "tokens per minute"
REQUESTS_PER_DAY = "requests per day"
# `max_concurrent` of a credential whose number of requests at once is learned.
AUTO = "auto"
# Length in seconds of the sliding window over which limits per minute are counted.
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider allows one quota group. None means: not known, to be learned from answers.

    `max_concurrent` is the number of live leases per credential, or `"auto"`: learned from answers. All other figures
    are counted per quota group. `burst` is the number of requests that may be sent at once (None: one second's worth,
    at least one). `day_resets` is when the provider's day begins: a time and a zone, such as
    `"00:00 America/Los_Angeles"`.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    requests_per_day: int | None = None
    max_concurrent: int | str = 1
    burst: float | None = None
    day_resets: str = "00:00 UTC"

    def __post_init__(self) -> None:
        at_once = self.max_concurrent
        if at_once != AUTO and (not isinstance(at_once, int) or isinstance(at_once, bool) or at_once < 1):
            raise ValueError(f"max_concurrent must be a whole number from 1, or 'auto'; not {at_once!r}")
        for name in ("requests_per_minute", "tokens_per_minute", "requests_per_day", "burst"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 1e-9 < value < 1e15):
                raise ValueError(f"{name} must be a number above 0, or None if it is not known; not {value!r}")
        if self.requests_per_day is not None and self.requests_per_day != int(self.requests_per_day):
            raise ValueError(f"requests_per_day must be a whole number, not {self.requests_per_day!r}")
        for name in ("requests_per_day", "burst"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        if not isinstance(self.day_resets, str) or not _is_time_and_zone(self.day_resets):
            raise ValueError(f"day_resets must look like '00:00 UTC', not {self.day_resets!r}")

    @property
    def first_concurrent(self) -> int:
        """Return the number of live leases per credential before anything is learned."""
        return concurrency.START if isinstance(self.max_concurrent, str) else self.max_concurrent

    @property
    def rate(self) -> float | None:
        """Return requests per second; None if not declared."""
        return None if self.requests_per_minute is None else self.requests_per_minute / 60.0

    @property
    def is_paced(self) -> bool:
        """Return True if any limit over time is declared."""
        return not (
            self.requests_per_minute is None and self.tokens_per_minute is None and self.requests_per_day is None
        )


def _is_time_and_zone(text: str) -> bool:
    time, _, zone = text.partition(" ")
    hours, _, minutes = time.partition(":")
    is_time = (
        len(time) == 5
        and time.isascii()
        and hours.isdecimal()
        and minutes.isdecimal()
        and int(hours) < 24
        and int(minutes) < 60
    )
    return is_time and len(zone.split()) == 1 and zone == zone.strip()


def strictest(first: Limits, second: Limits) -> Limits:
    """Combine two declarations about one quota group: the smaller figure of each dimension."""
    if not first.is_paced or not second.is_paced:
        return second if second.is_paced else first
    per_day = _smaller(first.requests_per_day, second.requests_per_day)
    return Limits(
        requests_per_minute=_smaller(first.requests_per_minute, second.requests_per_minute),
        tokens_per_minute=_smaller(first.tokens_per_minute, second.tokens_per_minute),
        requests_per_day=None if per_day is None else int(per_day),
        burst=_smaller(first.burst, second.burst),
        day_resets=first.day_resets if first.requests_per_day is not None else second.day_resets,
    )


def _smaller(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else min(first, second)
