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
from agentos.limits.declaration import AUTO, COST, FIRST_USE, Limits, Window, short_name
from agentos.pool.credential import Credential
from agentos.pool.references import is_reference, resolve
from agentos.pool.shared_state import PoolView
from agentos.pool.states import CredentialState, Holder
from agentos.reporters.format import shorten, table
from agentos.reporters.sentences import verdict_text

# Characters of a cell, and of the last cell of a row.
MAX_CELL = 60
MAX_LAST_CELL = 200
EMPTY = "-"


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
        # Without values, which may be secret.
        "base_url": None if is_reference(credential.sources.base_url or "") else credential.sources.base_url,
        "headers": sorted(credential.sources.headers),
        "command_env": sorted(credential.sources.command_env),
        "state": _declared_state(credential, keys, disabled),
    }


def disabled_lines(reasons: Mapping[str, str]) -> list[str]:
    rows = [(shorten(id_, MAX_CELL), shorten(reason, MAX_LAST_CELL)) for id_, reason in reasons.items()]
    return table([("ID", "REASON"), *rows])


def _group_name(credential: Credential) -> str | None:
    """Return the quota group; None for the group of this credential alone, whose name says nothing."""
    return None if credential.quota_group == f"credential {credential.id}" else credential.quota_group


def _limits_text(limits: Limits) -> str:
    parts = [f"{_number_text(w.amount)} {short_name(w.name)}{_reset_text(w)}" for w in limits.all_windows()]
    if limits.burst is not None:
        parts.append(f"burst {_number_text(limits.burst)}")
    if limits.reserve:
        parts.append(f"{limits.reserve:.0%} left for people")
    is_learned = limits.max_concurrent == AUTO
    return ", ".join([*parts, "learned number at once" if is_learned else f"{limits.max_concurrent} at once"])


def _reset_text(window: Window) -> str:
    if window.calendar is not None:
        return f" from {window.calendar.removeprefix('month ')}"
    return " from the first use" if window.resets == FIRST_USE else ""


def _declared_state(credential: Credential, keys: Keys, disabled: Mapping[str, str]) -> str:
    """Return whether the secret and the settings can be read. A reference `cmd:` is not run: it may ask a person for
    a password."""
    if credential.id in disabled:
        return f"disabled: {disabled[credential.id]}"
    secret = keys.references.get(credential.id)
    for reference in [*([] if secret is None else [secret]), *credential.sources.references]:
        kind, _, name = reference.partition(":")
        if kind == "env" and not os.environ.get(name, "").strip():
            return f"variable {name} not set"
        if kind != "cmd":
            try:
                resolve(reference, credential.id)
            except CredentialError as error:
                return str(error)
    return "ready"


# --- as a store knows them ----------------------------------------------------------------------------------------


def pool_lines(states: Iterable[CredentialState]) -> list[str]:
    """Return a row for each credential; below them a row for each lease, the longest held first."""
    states = list(states)
    rows = [
        (
            shorten(state.key_id, MAX_CELL),
            f"{state.live_leases} of {state.max_concurrent}",
            _usage_text(state),
            shorten(_pool_state(state), MAX_LAST_CELL),
        )
        for state in states
    ]
    lines = table([("ID", "IN USE", "USED", "STATE"), *rows])
    leases = [(holder, state.key_id) for state in states for holder in state.held_by]
    if leases:
        leases.sort(key=lambda lease: -lease[0].seconds)
        lease_rows = [(shorten(id_, MAX_CELL), *_holder_cells(holder)) for holder, id_ in leases]
        lines += ["", *table([("HELD", "BY ITEM", "OF RUN", "FOR", "PROCESS"), *lease_rows])]
    return lines


def member_lines(pool: PoolView) -> list[str]:
    """Return the owner of a pool and a row for each member; nothing if no process uses the pool."""
    if pool.owner is None:
        return []
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(pool.owner.since))
    rows = [
        (
            shorten(member.run or EMPTY, MAX_CELL),
            str(member.leases),
            str(member.waiting),
            format_duration(member.seconds),
            f"{shorten(member.host, MAX_CELL)}, pid {member.pid}",
        )
        for member in pool.members
    ]
    owner = f"Owner: {shorten(pool.owner.host, MAX_CELL)}, pid {pool.owner.pid}, since {since}"
    return ["", owner, *(table([("RUN", "LEASES", "WAITING", "FOR", "PROCESS"), *rows]) if rows else [])]


def pool_record(state: CredentialState) -> dict[str, Any]:
    """Return the record of a credential. Instants are epoch seconds, by the clock of this machine."""
    now = time.time()
    return {
        "id": state.key_id,
        "provider": state.provider,
        "quota_group": state.quota_group,
        "scopes": list(state.scopes),
        "max_concurrent": state.max_concurrent,
        "holders": [_holder_record(holder, now) for holder in state.held_by],
        "is_available": state.is_available,
        "quarantine": state.quarantined,
        "cooling": [
            {"scope": scope or None, "until": state.cooling.get(scope, state.cooled_until), "reason": reason}
            for scope, reason in state.cooled_by.items()
        ],
        "limited": None if state.limited_until is None else {"limit": state.waits_for, "until": state.limited_until},
        "used": {name: {"used": used, "limit": limit} for name, (used, limit) in state.used.items()},
        "learned": [{"scope": scope or None, "requests_per_minute": rate} for scope, rate in state.learned.items()],
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


def _pool_state(state: CredentialState) -> str:
    if state.quarantined is not None:
        return f"quarantined: {state.quarantined}"
    now = time.time()
    waits = []
    if state.cooled_until is not None:
        waits.append((state.cooled_until, state.cooled_by.get("") or "cooling down"))
    if state.limited_until is not None:
        waits.append((state.limited_until, state.waits_for or "limited"))
    if waits:
        until, reason = max(waits)
        return f"usable in {format_duration(max(0.0, until - now))}: {verdict_text(reason)}"
    scopes = [
        f"{scope} in {format_duration(max(0.0, until - now))}: {state.cooled_by.get(scope) or 'cooling down'}"
        for scope, until in state.cooling.items()
    ]
    return f"usable; for {', for '.join(scopes)}" if scopes else "usable"


def _usage_text(state: CredentialState) -> str:
    parts = [
        f"{_number_text(_used(name, used))} of {_number_text(limit)} {short_name(name)}"
        for name, (used, limit) in state.used.items()
    ]
    for scope, rate in state.learned.items():
        of_scope = f" for {shorten(scope, 20)}" if scope else ""
        parts.append(f"learned {_number_text(math.floor(rate))} requests/min{of_scope}")
    return ", ".join(parts) or EMPTY


def _used(name: str, used: float) -> float:
    """Return a used amount for display: whole requests and tokens, and fractions of money."""
    return used if name.startswith(COST) else math.ceil(used)


def _number_text(value: float) -> str:
    return f"{round(value, 4):,.10g}"
