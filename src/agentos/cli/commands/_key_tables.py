"""Credentials as tables for people and as records for programs: as the keys declare them, and as a store knows them."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agentos.durations import format_duration
from agentos.errors import CredentialError
from agentos.keys.keys_file import Keys
from agentos.limits.declaration import Limits
from agentos.pool.credential import Credential
from agentos.pool.states import CredentialSnapshot, Holder
from agentos.reporters.format import shorten, table
from agentos.reporters.sentences import verdict_text

# Characters of a cell, and of the last cell of a row.
MAX_CELL = 60
MAX_LAST_CELL = 200
EMPTY = "-"
_UNITS = {"requests_per_minute": "requests/min", "tokens_per_minute": "tokens/min", "requests_per_day": "requests/day"}


# --- as declared --------------------------------------------------------------------------------------------------


def declared_lines(keys: Keys, disabled: Mapping[str, str]) -> list[str]:
    """Return a row for each credential of the keys."""
    rows = [
        (
            credential.id,
            credential.provider or EMPTY,
            _group_name(credential) or EMPTY,
            _limits_text(credential.limits),
            shorten(_declared_state(credential, keys, disabled), MAX_LAST_CELL),
        )
        for credential in keys.credentials
    ]
    return table([("ID", "PROVIDER", "GROUP", "LIMITS", "STATE"), *rows])


def declared_record(credential: Credential, keys: Keys, disabled: Mapping[str, str]) -> dict[str, Any]:
    return {
        "id": credential.id,
        "provider": credential.provider,
        "quota_group": _group_name(credential),
        "scopes": sorted(credential.scopes),
        "limits": dataclasses.asdict(credential.limits),
        "credential_env": keys.variables.get(credential.id),
        "state": _declared_state(credential, keys, disabled),
    }


def disabled_lines(reasons: Mapping[str, str]) -> list[str]:
    rows = [(shorten(id_, MAX_CELL), shorten(reason, MAX_LAST_CELL)) for id_, reason in reasons.items()]
    return table([("ID", "REASON"), *rows])


def _group_name(credential: Credential) -> str | None:
    """Return the quota group; None for the group of this credential alone, whose name says nothing."""
    return None if credential.quota_group == f"credential {credential.id}" else credential.quota_group


def _limits_text(limits: Limits) -> str:
    parts = [
        f"{_number_text(value)} {unit}" for name, unit in _UNITS.items() if (value := getattr(limits, name)) is not None
    ]
    if limits.requests_per_day is not None:
        parts[-1] += f" from {limits.day_resets}"
    if limits.burst is not None:
        parts.append(f"burst {_number_text(limits.burst)}")
    return ", ".join([*parts, f"{limits.max_concurrent} at once"])


def _declared_state(credential: Credential, keys: Keys, disabled: Mapping[str, str]) -> str:
    """Return whether the secret can be read. A reference `cmd:` is not run: it may ask a person for a password."""
    if credential.id in disabled:
        return f"disabled: {disabled[credential.id]}"
    kind, _, name = keys.references.get(credential.id, "").partition(":")
    if kind == "env" and not os.environ.get(name, "").strip():
        return f"variable {name} not set"
    if kind != "cmd":
        try:
            _ = credential.secret
        except CredentialError as error:
            return str(error)
    return "ready"


# --- as a store knows them ----------------------------------------------------------------------------------------


def pool_lines(snapshots: Iterable[CredentialSnapshot]) -> list[str]:
    """Return a row for each credential; below them a row for each lease, the longest held first."""
    snapshots = list(snapshots)
    rows = [
        (
            shorten(snapshot.id, MAX_CELL),
            f"{len(snapshot.holders)} of {snapshot.max_concurrent}",
            _usage_text(snapshot),
            shorten(_pool_state(snapshot), MAX_LAST_CELL),
        )
        for snapshot in snapshots
    ]
    lines = table([("ID", "IN USE", "USED", "STATE"), *rows])
    leases = [(holder, snapshot.id) for snapshot in snapshots for holder in snapshot.holders]
    if leases:
        leases.sort(key=lambda lease: -lease[0].seconds)
        lease_rows = [(shorten(id_, MAX_CELL), *_holder_cells(holder)) for holder, id_ in leases]
        lines += ["", *table([("HELD", "BY ITEM", "OF RUN", "FOR", "PROCESS"), *lease_rows])]
    return lines


def pool_record(snapshot: CredentialSnapshot) -> dict[str, Any]:
    """Return the record of a credential. Instants are epoch seconds, by the clock of this machine."""
    now = time.time()
    return {
        "id": snapshot.id,
        "provider": snapshot.provider,
        "quota_group": snapshot.group,
        "scopes": sorted(snapshot.scopes),
        "max_concurrent": snapshot.max_concurrent,
        "holders": [_holder_record(holder, now) for holder in snapshot.holders],
        "is_available": snapshot.is_available,
        "quarantine": snapshot.quarantine,
        "cooling": [
            {"scope": scope, "until": now + seconds, "reason": snapshot.cooled_by.get(scope)}
            for scope, seconds in snapshot.cooling.items()
        ],
        "limited": None if snapshot.paced <= 0 else {"limit": snapshot.binding, "until": now + snapshot.paced},
        "used": {name: {"used": used, "limit": limit} for name, (used, limit) in snapshot.used.items()},
        "learned": [{"scope": scope, "requests_per_minute": rate} for scope, rate in snapshot.learned.items()],
    }


def _holder_cells(holder: Holder) -> tuple[str, ...]:
    return (
        shorten(holder.requester or EMPTY, MAX_CELL),
        shorten(holder.run or EMPTY, MAX_CELL),
        format_duration(holder.seconds),
        f"{shorten(holder.host or EMPTY, MAX_CELL)}, pid {holder.pid}",
    )


def _holder_record(holder: Holder, now: float) -> dict[str, Any]:
    return {
        "item": holder.requester,
        "run": holder.run,
        "host": holder.host,
        "pid": holder.pid,
        "since": now - holder.seconds,
    }


def _pool_state(snapshot: CredentialSnapshot) -> str:
    if snapshot.quarantine is not None:
        return f"quarantined: {snapshot.quarantine}"
    cooldowns = [
        (scope, seconds, snapshot.cooled_by.get(scope) or "cooling down") for scope, seconds in snapshot.cooling.items()
    ]
    waits = [(seconds, reason) for scope, seconds, reason in cooldowns if scope is None]
    if snapshot.paced > 0:
        waits.append((snapshot.paced, snapshot.binding or "limited"))
    if waits:
        seconds, reason = max(waits)
        return f"usable in {format_duration(seconds)}: {verdict_text(reason)}"
    scopes = [
        f"{scope} in {format_duration(seconds)}: {reason}" for scope, seconds, reason in cooldowns if scope is not None
    ]
    return f"usable; for {', for '.join(scopes)}" if scopes else "usable"


def _usage_text(snapshot: CredentialSnapshot) -> str:
    parts = [
        f"{_number_text(math.ceil(used))} of {_number_text(limit)} {_unit(name)}"
        for name, (used, limit) in snapshot.used.items()
    ]
    for scope, rate in snapshot.learned.items():
        of_scope = "" if scope is None else f" for {shorten(scope, 20)}"
        parts.append(f"learned {_number_text(math.floor(rate))} requests/min{of_scope}")
    return ", ".join(parts) or EMPTY


def _unit(limit: str) -> str:
    return limit.replace(" per minute", "/min").replace(" per day", "/day")


def _number_text(value: float) -> str:
    return f"{value:,.10g}"
