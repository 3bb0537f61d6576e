"""Limits as they are declared: what a provider allows one quota group."""

from __future__ import annotations

from dataclasses import dataclass

# Names of the dimensions, for people.
REQUESTS_PER_MINUTE = "requests per minute"
TOKENS_PER_MINUTE = "tokens per minute"
REQUESTS_PER_DAY = "requests per day"
# Length in seconds of the sliding window over which limits per minute are counted.
WINDOW_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider allows one quota group. None means: not known, and so it is learned.

    `max_concurrent` is the number of leases at once per credential; all else is counted per quota group. `burst` is how
    many requests may be sent at once (None: one second's worth, at least one). `day_resets` is when the provider's day
    begins: a time and a zone, such as `"00:00 America/Los_Angeles"`.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    requests_per_day: int | None = None
    max_concurrent: int = 1
    burst: float | None = None
    day_resets: str = "00:00 UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.max_concurrent, int) or isinstance(self.max_concurrent, bool) or self.max_concurrent < 1:
            raise ValueError(f"max_concurrent must be a whole number from 1, not {self.max_concurrent!r}")
        for name in ("requests_per_minute", "tokens_per_minute", "requests_per_day", "burst"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 1e-9 < value < 1e15):
                raise ValueError(f"{name} must be a number above 0, or None for not known; not {value!r}")
        if self.requests_per_day is not None and self.requests_per_day != int(self.requests_per_day):
            raise ValueError(f"requests_per_day must be a whole number, not {self.requests_per_day!r}")
        for name in ("requests_per_day", "burst"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        if not isinstance(self.day_resets, str) or not _is_time_and_zone(self.day_resets):
            raise ValueError(f"day_resets must look like '00:00 UTC', not {self.day_resets!r}")

    @property
    def rate(self) -> float | None:
        """Requests per second."""
        return None if self.requests_per_minute is None else self.requests_per_minute / 60.0

    @property
    def is_paced(self) -> bool:
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


def strictest(one: Limits, other: Limits) -> Limits:
    """Of two declarations about the same allowance, the smaller figure of each dimension."""
    if not one.is_paced or not other.is_paced:
        return other if other.is_paced else one
    per_day = _smaller(one.requests_per_day, other.requests_per_day)
    return Limits(
        requests_per_minute=_smaller(one.requests_per_minute, other.requests_per_minute),
        tokens_per_minute=_smaller(one.tokens_per_minute, other.tokens_per_minute),
        requests_per_day=None if per_day is None else int(per_day),
        burst=_smaller(one.burst, other.burst),
        day_resets=one.day_resets if one.requests_per_day is not None else other.day_resets,
    )


def _smaller(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else min(one, other)
