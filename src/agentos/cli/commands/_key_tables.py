"""What a store says about credentials: as tables for people, and as records for programs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from agentos.durations import format_duration
from agentos.pool.states import CredentialSnapshot, Holder
from agentos.reporters.format import shorten, table
from agentos.reporters.sentences import verdict_text

# Of a text in a table, so much, and more in the last column.
MOST_OF_CELL = 60
MOST_OF_LAST = 200
NONE = "-"


def lines(found: Iterable[CredentialSnapshot]) -> list[str]:
    """A row for each credential, and below that one for each that holds one, the longest first."""
    found = list(found)
    rows = [
        (
            shorten(one.id, MOST_OF_CELL),
            f"{len(one.holders)} of {one.max_concurrent}",
            _used(one),
            shorten(_state(one), MOST_OF_LAST),
        )
        for one in found
    ]
    told = table([("ID", "IN USE", "USED", "STATE"), *rows])
    held = sorted(((holder, one.id) for one in found for holder in one.holders), key=lambda pair: -pair[0].seconds)
    if held:
        rows_of_holders = [(shorten(id_, MOST_OF_CELL), *_holder(holder)) for holder, id_ in held]
        told += ["", *table([("HELD", "BY ITEM", "OF RUN", "FOR", "PROCESS"), *rows_of_holders])]
    return told


def record(one: CredentialSnapshot) -> dict[str, Any]:
    """Instants are epoch seconds, by this machine's clock."""
    now = time.time()
    return {
        "id": one.id,
        "provider": one.provider,
        "quota_group": one.group,
        "scopes": sorted(one.scopes),
        "max_concurrent": one.max_concurrent,
        "holders": [_holder_record(holder, now) for holder in one.holders],
        "is_available": one.is_available,
        "quarantine": one.quarantine,
        "cooling": [
            {"scope": scope, "until": now + left, "reason": one.cooled_by.get(scope)}
            for scope, left in one.cooling.items()
        ],
        "limited": None if one.paced <= 0 else {"limit": one.binding, "until": now + one.paced},
        "used": {name: {"used": used, "limit": limit} for name, (used, limit) in one.used.items()},
        "learned": [{"scope": scope, "requests_per_minute": rate} for scope, rate in one.learned.items()],
    }


def figure(value: float) -> str:
    return f"{value:,.10g}"


def _holder(holder: Holder) -> tuple[str, ...]:
    return (
        shorten(holder.requester or NONE, MOST_OF_CELL),
        shorten(holder.run or NONE, MOST_OF_CELL),
        format_duration(holder.seconds),
        f"{shorten(holder.host or NONE, MOST_OF_CELL)}, pid {holder.pid}",
    )


def _holder_record(holder: Holder, now: float) -> dict[str, Any]:
    return {
        "item": holder.requester,
        "run": holder.run,
        "host": holder.host,
        "pid": holder.pid,
        "since": now - holder.seconds,
    }


def _state(one: CredentialSnapshot) -> str:
    if one.quarantine is not None:
        return f"quarantined: {one.quarantine}"
    waits = [(left, one.cooled_by.get(scope) or "cooling down") for scope, left in one.cooling.items() if scope is None]
    if one.paced > 0:
        waits.append((one.paced, one.binding or "limited"))
    if waits:
        left, reason = max(waits)
        return f"usable in {format_duration(left)}: {verdict_text(reason)}"
    scopes = [
        f"{scope} in {format_duration(left)}: {one.cooled_by.get(scope) or 'cooling down'}"
        for scope, left in one.cooling.items()
        if scope is not None
    ]
    return f"usable; for {', for '.join(scopes)}" if scopes else "usable"


def _used(one: CredentialSnapshot) -> str:
    parts = [f"{figure(math.ceil(used))} of {figure(limit)} {_unit(name)}" for name, (used, limit) in one.used.items()]
    for scope, rate in one.learned.items():
        of_scope = "" if scope is None else f" for {shorten(scope, 20)}"
        parts.append(f"learned {figure(math.floor(rate))} requests/min{of_scope}")
    return ", ".join(parts) or NONE


def _unit(limit: str) -> str:
    return limit.replace(" per minute", "/min").replace(" per day", "/day")
