"""Credentials as one table for people, and as records for programs: what the keys declare and what a store knows."""

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
from agentos.limits.declaration import COST, FIRST_USE, Limits, Window, short_name
from agentos.pool.credential import Credential
from agentos.pool.pauses import longest_pause
from agentos.pool.references import is_reference, resolve
from agentos.pool.shared_state import PoolView
from agentos.pool.states import CredentialState, Holder
from agentos.reporters.format import shorten, table
from agentos.reporters.unusable_text import out_of_use_text

# Characters of a cell, and of the last cell of a row.
MAX_CELL = 60
MAX_LAST_CELL = 200
EMPTY = "-"
USABLE = "usable"


# --- one table ----------------------------------------------------------------------------------------------------


def key_lines(keys: Keys | None, disabled: Mapping[str, str], states: Iterable[CredentialState]) -> list[str]:
    """Return a row for each credential: those of the keys, then others that the store or the list of disabled keys
    knows. What the keys declare and what the store knows of a credential stand in the same row."""
    by_id = {state.key_id: state for state in states}
    credentials = {} if keys is None else {credential.id: credential for credential in keys.credentials}
    rows = [
        _key_row(id_, credentials.get(id_), by_id.get(id_), keys, disabled)
        for id_ in dict.fromkeys([*credentials, *by_id, *disabled])
    ]
    return table([("ID", "PROVIDER", "GROUP", "IN USE", "LIMITS", "STATE"), *rows])


def _key_row(
    id_: str,
    credential: Credential | None,
    state: CredentialState | None,
    keys: Keys | None,
    disabled: Mapping[str, str],
) -> tuple[str, ...]:
    provider = credential.provider if credential is not None else None if state is None else state.provider
    group = _group_name(credential) if credential is not None else None
    if state is not None and group is None and state.quota_group != f"credential {id_}":
        group = state.quota_group
    at_once = (
        state.max_concurrent if state is not None else None if credential is None else credential.limits.max_concurrent
    )
    origin = " (so far)" if state is not None and state.is_concurrency_learned else ""
    limits = EMPTY if state is None else _usage_text(state)
    if limits == EMPTY and credential is not None:
        limits = _limits_text(credential.limits)
    return (
        shorten(id_, MAX_CELL),
        shorten(provider or EMPTY, MAX_CELL),
        shorten(group or EMPTY, MAX_CELL),
        EMPTY if at_once is None else f"{0 if state is None else state.live_leases} of {at_once}{origin}",
        limits,
        shorten(_key_state(id_, credential, state, keys, disabled), MAX_LAST_CELL),
    )


def _key_state(
    id_: str,
    credential: Credential | None,
    state: CredentialState | None,
    keys: Keys | None,
    disabled: Mapping[str, str],
) -> str:
    """Return why a credential is not used: disabled, else its quarantine or pause in the store, and a secret that this
    process cannot read. A run that was started elsewhere may use it all the same."""
    if id_ in disabled:
        return f"disabled: {disabled[id_]}"
    declared = USABLE if credential is None or keys is None else _declared_state(credential, keys, disabled)
    stored = USABLE if state is None else _pool_state(state)
    if declared == USABLE:
        return stored
    if stored == USABLE and (state is None or not state.in_use):
        return declared
    return f"{stored}; in this shell: {declared}"


# --- as declared --------------------------------------------------------------------------------------------------


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


def _group_name(credential: Credential) -> str | None:
    """Return the quota group; None for the group of this credential alone, whose name says nothing."""
    return None if credential.quota_group == f"credential {credential.id}" else credential.quota_group


def _limits_text(limits: Limits) -> str:
    parts = [f"{_number_text(w.amount)} {short_name(w.name)}{_reset_text(w)}" for w in limits.all_windows()]
    if limits.burst is not None:
        parts.append(f"burst {_number_text(limits.burst)}")
    if limits.reserve:
        parts.append(f"{limits.reserve:.0%} left for people")
    return ", ".join(parts) or EMPTY


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
    return USABLE


# --- as a store knows them ----------------------------------------------------------------------------------------


def lease_lines(states: Iterable[CredentialState]) -> list[str]:
    """Return a row for each lease, the longest held first; nothing if there is none."""
    leases = [(holder, state.key_id) for state in states for holder in state.held_by]
    if not leases:
        return []
    leases.sort(key=lambda lease: -lease[0].seconds)
    rows = [(shorten(id_, MAX_CELL), *_holder_cells(holder)) for holder, id_ in leases]
    return ["", *table([("HELD", "BY ITEM", "OF RUN", "FOR", "PROCESS"), *rows])]


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
    owner = f"Pool owner: {shorten(pool.owner.host, MAX_CELL)}, pid {pool.owner.pid}, since {since}"
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
        "is_concurrency_learned": state.is_concurrency_learned,
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
        return out_of_use_text(state.quarantined)
    now = time.time()
    pause = longest_pause(state, now)
    if pause is None:
        return USABLE
    return pause.text(now) if pause.scope is None else f"{USABLE}; {pause.text(now)}"


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
