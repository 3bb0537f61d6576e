"""Turn limits, details, verdicts and events into fields of messages, and back.

Values that are no part of the protocol themselves: the owner checks them when it reads them, because a member may send
anything.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from agentos import events
from agentos.limits.amounts import Detail
from agentos.limits.declaration import Limits, Window
from agentos.verdict import Verdict, WindowReport

from .messages import MAX_COUNT, MAX_SECONDS, PROTOCOL, DetailFields, Event, Name, Seconds, Text

_EVENTS = {
    cls.__name__: cls
    for cls in (
        events.PoolWaiting,
        events.CoolDownStarted,
        events.LimitLearned,
        events.CredentialQuarantined,
    )
}
# Fields of `PoolWaiting` that protocol 4 knows. No other event has as many.
FIELDS_KNOWN_BEFORE = 14
_NO_LIMITS = Limits()
_LIMITS = frozenset(Limits.__dataclass_fields__)
_VERDICT_FIELDS = len(Verdict._fields)


def event_of(event: tuple[Any, ...], protocol: int) -> Event:
    """Return an event of the pool as a reply to a member of this protocol."""
    return Event(type(event).__name__, list(fields_for(event, protocol)))


def fields_for(event: tuple[Any, ...], protocol: int) -> tuple[Any, ...]:
    """Return the fields of an event that a member of this protocol knows: it refuses more."""
    return event if protocol >= PROTOCOL else event[:FIELDS_KNOWN_BEFORE]


def read_event(event: Event) -> Any:
    """Return the event that a reply carries; None for an event that only newer versions know."""
    cls = _EVENTS.get(event.name)
    if cls is None:
        return None
    return cls(*(tuple(field) if isinstance(field, list) else field for field in event.fields))  # type: ignore[arg-type]


def limits_of(fields: dict[str, Any]) -> Limits:
    """Return the limits that `limits_fields` returned. Raises `ValueError` for a name or value that this version does
    not know."""
    unknown = fields.keys() - _LIMITS
    if unknown:
        raise ValueError(f"this version of agentos does not know the limit {', '.join(sorted(unknown))}")
    if "windows" not in fields:
        return Limits(**fields)
    try:
        windows = [Window(*window) for window in fields["windows"]]
    except TypeError as error:
        raise ValueError(f"this version of agentos does not know a window: {error}") from None
    return Limits(**fields | {"windows": windows})


def limits_fields(limits: Limits) -> dict[str, Any]:
    """Return the fields of limits that differ from their defaults, for messages and the journal."""
    declared = {field.name: getattr(limits, field.name) for field in dataclasses.fields(limits)}
    changed = {name: value for name, value in declared.items() if value != getattr(_NO_LIMITS, name)}
    if limits.windows:
        changed["windows"] = [list(dataclasses.astuple(window)) for window in limits.windows]
    return changed


def detail_fields(detail: Detail | None) -> DetailFields | None:
    """Return a detail as the owner accepts it."""
    if detail is None:
        return None
    return (min(detail.input_tokens, MAX_COUNT), min(detail.output_tokens, MAX_COUNT), min(float(detail.cost), 1e15))


def detail_of(fields: DetailFields | None) -> Detail | None:
    """Return the detail that `detail_fields` returned."""
    return None if fields is None else Detail(*fields)


def verdict_of(fields: list[Any]) -> Verdict:
    """Return a verdict. Fields of newer versions are ignored. Raises `ValueError` for values of a wrong type."""
    verdict = Verdict(*(fields[:_VERDICT_FIELDS] or (None,)))
    checked = msgspec.convert(verdict._asdict(), _VerdictTypes)
    return verdict._replace(windows=tuple(WindowReport(*window) for window in checked.windows))


class _VerdictTypes(Struct):
    """The types of the fields of `Verdict`, for validation."""

    kind: str | None
    retry_after: Seconds | None
    cool_down: Seconds | None
    remaining_requests: Seconds | None
    remaining_tokens: Seconds | None
    reset_requests: Seconds | None
    reset_tokens: Seconds | None
    window: str | None
    scope: str | None
    message: Text
    limit_requests: Seconds | None
    limit_tokens: Seconds | None
    requests_period: Seconds | None
    tokens_period: Seconds | None
    is_loose: bool
    is_printed: bool
    is_guess: bool
    windows: Annotated[
        list[tuple[Name, Annotated[float, Meta(ge=1, le=MAX_SECONDS)], Seconds | None, Seconds | None, Seconds | None]],
        Meta(max_length=50),
    ]
