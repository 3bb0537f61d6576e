"""Declare limits: what a provider allows one quota group, as windows of time with an amount each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

from agentos.durations import parse_duration

from . import concurrency

# Returns the end of the calendar period that an instant lies in. The first argument is `Window.calendar`.
Calendar: TypeAlias = Callable[[str, float], float]

# What a window counts.
REQUESTS = "requests"
TOKENS = "tokens"
INPUT_TOKENS = "input_tokens"
OUTPUT_TOKENS = "output_tokens"
COST = "cost"
KINDS = (REQUESTS, TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, COST)
# The used share of a subscription in percent. It is read from answers, and cannot be declared.
PLAN = "plan"
# How a window resets, if not at a time of the calendar.
ROLLING = "rolling"
FIRST_USE = "first-use"
# The scope of a window that counts every request.
EVERY_SCOPE = "*"
# Names of the most frequent limits, as users see them.
REQUESTS_PER_MINUTE = "requests per minute"
TOKENS_PER_MINUTE = "tokens per minute"
REQUESTS_PER_DAY = "requests per day"
# Names of limits that were learned, of the slow start, and the declared limit that each learned one stands for.
LEARNED_REQUESTS = "learned requests per minute"
LEARNED_TOKENS = "learned tokens per minute"
SLOW_START = "slow start"
DECLARED_AS = {LEARNED_REQUESTS: REQUESTS_PER_MINUTE, LEARNED_TOKENS: TOKENS_PER_MINUTE}
# `max_concurrent` of a credential whose number of requests at once is learned.
AUTO = "auto"
# Length in seconds of the sliding window over which limits per minute are counted.
WINDOW_SECONDS = 60.0

_MINUTE, _HOUR, _DAY, _WEEK, _MONTH = 60.0, 3_600.0, 86_400.0, 604_800.0, 31 * 86_400.0
_LENGTHS = {"minute": _MINUTE, "hour": _HOUR, "day": _DAY, "week": _WEEK, "month": _MONTH}
_NOUNS = {INPUT_TOKENS: "input tokens", OUTPUT_TOKENS: "output tokens", PLAN: "% of the plan"}
_DAYS_OF_WEEK = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MAX_SECONDS = 400 * _DAY


@dataclass(frozen=True, slots=True)
class Window:
    """An amount per length of time.

    `of` is `"requests"`, `"tokens"`, `"input_tokens"`, `"output_tokens"` or `"cost"`. `every` is a duration (`"60s"`,
    `"5h"`, `"7d"`, seconds as a number) or `"month"`. `resets` is `"rolling"`, `"first-use"` (the window begins with
    its first request), or a time and a zone for a day or a month (`"00:00 UTC"`), with a day of the week before it for
    a week (`"mon 00:00 UTC"`). A month is one of the calendar; `"rolling"` then means `"00:00 UTC"`. `scope` is a model
    or a pattern, such as `"*opus*"`: other requests do not count.
    """

    of: str
    amount: float
    every: str | float
    resets: str = ROLLING
    scope: str = EVERY_SCOPE

    def __post_init__(self) -> None:
        if self.of not in KINDS and self.of != PLAN:
            raise ValueError(f"of must be one of {', '.join(KINDS)}; not {self.of!r}")
        if not _is_amount(self.amount):
            raise ValueError(f"amount must be a number above 0, not {self.amount!r}")
        if self.of == REQUESTS and self.amount < 1:
            raise ValueError(f"amount must be at least 1 for requests, not {self.amount!r}")
        if not 1.0 <= _length(self.every) <= _MAX_SECONDS:
            raise ValueError(f"every must be a duration from 1s to 400d, such as '5h', or 'month'; not {self.every!r}")
        if not isinstance(self.scope, str) or not 0 < len(self.scope) <= 1_000:
            raise ValueError(f"scope must be a model or a pattern, such as '*opus*', not {self.scope!r}")
        if not isinstance(self.resets, str) or (self.resets not in (ROLLING, FIRST_USE) and not self.calendar):
            raise ValueError(
                "resets must be 'rolling', 'first-use', or the start of a day, week or month, such as '00:00 UTC' or "
                f"'mon 00:00 UTC'; not {self.resets!r}"
            )
        if self.resets == FIRST_USE and self.every == "month":
            raise ValueError("a month resets at a time of the calendar; write every='30d' for one from the first use")

    @property
    def seconds(self) -> float:
        """The length; of a calendar month the greatest one."""
        return _length(self.every)

    @property
    def calendar(self) -> str | None:
        """When the window begins, as `reset_times` reads it: a time and a zone, with `month` or a day of the week
        before it; None for a window that does not follow the calendar."""
        if self.every == "month":
            return "month 00:00 UTC" if self.resets == ROLLING else _starting_with("month", self.resets)
        if self.resets in (ROLLING, FIRST_USE):
            return None
        if self.seconds == _DAY:
            return self.resets if is_time_and_zone(self.resets) else None
        day, _, time = self.resets.lower().partition(" ")
        is_week = self.seconds == _WEEK and day in _DAYS_OF_WEEK
        return _starting_with(day, self.resets[len(day) + 1 :]) if is_week and time else None

    @property
    def key(self) -> tuple[str, str, float, str]:
        """Of two declarations with the same key the smaller amount holds."""
        return self.of, self.scope, self.seconds, self.calendar or self.resets

    @property
    def name(self) -> str:
        """The name that users see: `input tokens per minute`, `requests per 5 hours for *opus*`."""
        of_scope = "" if self.scope == EVERY_SCOPE else f" for {self.scope}"
        return f"{_NOUNS.get(self.of, self.of)} per {self._length_name()}{of_scope}"

    def _length_name(self) -> str:
        if self.calendar is not None:
            return {_DAY: "day", _WEEK: "week"}.get(self.seconds, "month")
        if self.seconds in (_MINUTE, _HOUR):
            return "minute" if self.seconds == _MINUTE else "hour"
        for unit, seconds in (("days", _DAY), ("hours", _HOUR), ("minutes", _MINUTE)):
            if self.seconds % seconds == 0 and (self.seconds > _DAY or unit != "days"):
                return f"{self.seconds / seconds:g} {unit}"
        return f"{self.seconds:g} s"


def short_name(name: str) -> str:
    """Return the name of a limit for a narrow column: `requests/min`, `tokens/5h for *opus*`."""
    noun, _, length = name.partition(" per ")
    for unit, short in (("minutes", "min"), ("minute", "min"), ("hours", "h"), ("hour", "h"), ("days", "d")):
        length = re.sub(rf"^(\d*) ?{unit}\b", rf"\g<1>{short}", length)
    return f"{noun}/{length}" if length else noun


def _starting_with(day: str, time_and_zone: str) -> str | None:
    return f"{day} {time_and_zone}" if is_time_and_zone(time_and_zone) else None


def _length(every: object) -> float:
    """Return the seconds of a duration; 0 for a text that is none."""
    if isinstance(every, str):
        return _LENGTHS.get(every) or parse_duration(every) or 0.0
    return float(every) if isinstance(every, int | float) and not isinstance(every, bool) else 0.0


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 1e-9 < value < 1e15


_AMOUNTS = {
    # field -> (what it counts, length); a limit per day begins at `day_resets`.
    "requests_per_minute": (REQUESTS, "minute"),
    "tokens_per_minute": (TOKENS, "minute"),
    "input_tokens_per_minute": (INPUT_TOKENS, "minute"),
    "output_tokens_per_minute": (OUTPUT_TOKENS, "minute"),
    "requests_per_day": (REQUESTS, "day"),
    "tokens_per_day": (TOKENS, "day"),
}
_PER_DAY = tuple(name for name, (_, every) in _AMOUNTS.items() if every == "day")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider allows one quota group. None means: not known, to be learned from answers.

    `max_concurrent` is the number of live leases per credential, or `"auto"`: learned from answers. All other figures
    are counted per quota group. `burst` is the number of requests that may be sent at once (None: one second's worth,
    at least one). `day_resets` is when the provider's day begins: a time and a zone, such as
    `"00:00 America/Los_Angeles"`. `windows` are further limits; each figure of this class is a window, too. `reserve`
    is the share of every window that is left for people: 0.1 leaves a tenth.
    """

    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    requests_per_day: int | None = None
    max_concurrent: int | str = 1
    burst: float | None = None
    day_resets: str = "00:00 UTC"
    input_tokens_per_minute: float | None = None
    output_tokens_per_minute: float | None = None
    tokens_per_day: float | None = None
    windows: tuple[Window, ...] = ()
    reserve: float = 0.0

    def __post_init__(self) -> None:
        at_once = self.max_concurrent
        if at_once != AUTO and (not isinstance(at_once, int) or isinstance(at_once, bool) or at_once < 1):
            raise ValueError(f"max_concurrent must be a whole number from 1, or 'auto'; not {at_once!r}")
        for name in (*_AMOUNTS, "burst"):
            value = getattr(self, name)
            if value is not None and not _is_amount(value):
                raise ValueError(f"{name} must be a number above 0, or None if it is not known; not {value!r}")
        if self.requests_per_day is not None and self.requests_per_day != int(self.requests_per_day):
            raise ValueError(f"requests_per_day must be a whole number, not {self.requests_per_day!r}")
        for name in ("requests_per_day", "burst"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value!r}")
        if not isinstance(self.day_resets, str) or not is_time_and_zone(self.day_resets):
            raise ValueError(f"day_resets must look like '00:00 UTC', not {self.day_resets!r}")
        is_number = isinstance(self.reserve, int | float) and not isinstance(self.reserve, bool)
        if not is_number or not 0 <= self.reserve < 1:
            raise ValueError(f"reserve must be a share from 0 to below 1, such as 0.1; not {self.reserve!r}")
        if not isinstance(self.windows, list | tuple) or not all(isinstance(each, Window) for each in self.windows):
            raise ValueError(f"windows must be a list of Window objects, not {self.windows!r}")
        object.__setattr__(self, "windows", tuple(self.windows))

    @property
    def first_concurrent(self) -> int:
        """Return the number of live leases per credential before anything is learned."""
        return concurrency.START if isinstance(self.max_concurrent, str) else self.max_concurrent

    @property
    def rate(self) -> float | None:
        """Return requests per second that may be used; None if not declared."""
        return None if self.requests_per_minute is None else self.requests_per_minute * (1.0 - self.reserve) / 60.0

    @property
    def is_paced(self) -> bool:
        """Return True if any limit over time is declared."""
        return bool(self.windows) or any(getattr(self, name) is not None for name in _AMOUNTS)

    def all_windows(self) -> tuple[Window, ...]:
        """Return every limit over time as a window, each once."""
        declared = [self._window_of(field) for field in _AMOUNTS if getattr(self, field) is not None]
        return _smallest((*declared, *self.windows))

    def doubled(self, name: str) -> Limits:
        """Return limits with twice the amount of the windows of this name."""
        doubled = {
            field: 2 * getattr(self, field)
            for field in _AMOUNTS
            if getattr(self, field) is not None and self._window_of(field).name == name
        }
        windows = (replace(each, amount=2 * each.amount) if each.name == name else each for each in self.windows)
        return replace(self, **doubled, windows=tuple(windows))

    def _window_of(self, field: str) -> Window:
        """Return the window that a figure declares."""
        of, every = _AMOUNTS[field]
        amount = getattr(self, field)
        amount = max(1.0, amount) if of == REQUESTS else amount
        return Window(of, amount, every, self.day_resets if every == "day" else ROLLING)

    def usable(self, window: Window) -> float:
        """Return the amount of a window without the reserve for people; at least one request."""
        amount = window.amount * (1.0 - self.reserve) if self.reserve else window.amount
        return max(1.0, amount) if window.of == REQUESTS else amount

    def calendars(self) -> frozenset[str]:
        """Return the starts of all calendar windows, as `reset_times` reads them."""
        return frozenset(window.calendar for window in self.all_windows() if window.calendar is not None)


def is_time_and_zone(text: str) -> bool:
    """Return whether a text looks like `00:00 UTC`."""
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
        combined = second if second.is_paced else first
        return replace(combined, reserve=max(first.reserve, second.reserve))
    second = _with_day_of(first, second)
    has_day = any(getattr(first, name) is not None for name in _PER_DAY)
    per_day = _smaller(first.requests_per_day, second.requests_per_day)
    amounts = {name: _smaller(getattr(first, name), getattr(second, name)) for name in (*_AMOUNTS, "burst")}
    return Limits(
        **amounts | {"requests_per_day": None if per_day is None else int(per_day)},  # type: ignore[arg-type]
        day_resets=first.day_resets if has_day else second.day_resets,
        windows=_smallest((*first.windows, *second.windows)),
        reserve=max(first.reserve, second.reserve),
    )


def _with_day_of(first: Limits, second: Limits) -> Limits:
    """Return `second`, with its limits per day as windows of their own if its days begin at another time."""
    days = [limits for limits in (first, second) if any(getattr(limits, name) is not None for name in _PER_DAY)]
    if len(days) < 2 or first.day_resets == second.day_resets:
        return second
    windows = [
        Window(_AMOUNTS[name][0], getattr(second, name), "day", second.day_resets)
        for name in _PER_DAY
        if getattr(second, name) is not None
    ]
    return replace(second, requests_per_day=None, tokens_per_day=None, windows=(*second.windows, *windows))


def _smallest(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Return the windows without those of the same key and a larger amount, in the order of their first declaration."""
    by_key: dict[tuple[str, str, float, str], Window] = {}
    for window in windows:
        known = by_key.get(window.key)
        if known is None or window.amount < known.amount:
            by_key[window.key] = window
    return tuple(by_key.values())


def _smaller(first: float | None, second: float | None) -> float | None:
    return second if first is None else first if second is None else min(first, second)
