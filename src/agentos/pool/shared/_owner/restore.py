"""Store the state of an owner as a snapshot, and restore an owner from a snapshot and the entries after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from agentos.limits.amounts import Detail
from agentos.limits.usage_state import LeaseShare, UsageRow, UsageState
from agentos.verdict import AUTH_FAILED

from ..._rules.cooldown_scope import CooldownScope
from ..._rules.lease_states import LIVE
from .. import message_values as values
from . import entries as kinds
from .entries import CooldownRow, CredentialRow, GroupRow, LeaseRow, SessionRow, Snapshot
from .owner import Owner
from .session import OwnedRecord

# `LeaseRow.usage` of a lease that occupies a part of windows.
_HAD_WINDOWS = (None, None, 0.0, 0.0, 0.0)
# Largest total that is stored: MessagePack has no larger integers than 64 bits.
MAX_TOTAL = 2**62


def snapshot(owner: Owner, now: float) -> Snapshot:
    """Return the whole state of a pool."""
    allocator = owner.allocator
    everything = (*allocator.credentials.values(), *allocator.members.leaving.values())
    groups = {credential.group: None for credential in everything}
    scopes: dict[CooldownScope, None] = {owner.store_scope: None}
    scopes |= {scope: None for credential in everything for scope in credential.cooldown_scopes}
    leases = [record for session in owner.sessions.values() for record in session.leases.values()]
    return Snapshot(
        now,
        owner.next_session,
        [_session_row(session) for session in owner.sessions.values()],
        [_credential_row(owner, credential) for credential in everything],
        [_group_row(group, now) for group in groups],
        [_lease_row(record) for record in leases if record.state == LIVE],
        [
            CooldownRow(scope.kind, scope.name, model, until, scope.cooled_by[model])
            for scope in scopes
            for model, until in scope.cooling.items()
        ],
        allocator.members.fences(),
    )


def _session_row(session: Any) -> SessionRow:
    declared = {id_: values.limits_fields(limits) for id_, limits in session.limits.items()}
    return SessionRow(
        session.index, session.id, session.host, session.pid, session.name, session.ttl, session.heard, declared
    )


def _credential_row(owner: Owner, credential: Any) -> CredentialRow:
    return CredentialRow(
        credential.id, credential.group.name, credential.provider.name, sorted(credential.scopes),
        values.limits_fields(credential.limits), credential.fence, owner.fingerprints.get(credential.id, ""),
        owner.seen_at.get(credential.id, 0.0), credential.quarantine, credential.is_proven,
        min(credential.used_requests, MAX_TOTAL), min(credential.used_tokens, MAX_TOTAL), credential.auth_failures,
        credential.auth_failed_by, credential.auth_failed_at,
    )  # fmt: skip


def _group_row(group: CooldownScope, now: float) -> GroupRow:
    charges = [
        record.charge[1]
        for credential in group.members.values()
        for record in credential.leases.values()
        if record.charge is not None and record.charge[0] is group
    ]
    usage = group.pace.usage_state(charges, now)
    learned = list(group.pace.learned_limits().items())
    rows, bucket = (None, None) if usage is None else ([tuple(row) for row in usage.rows], usage.bucket)
    return GroupRow(group.name or "", rows, bucket, learned)  # type: ignore[arg-type]


def _lease_row(record: Any) -> LeaseRow:
    group, charge = record.charge or (None, None)
    usage = group.pace.lease_usage(charge) if group is record.credential.group else None
    return LeaseRow(
        record.owner.index, record.id, record.credential_id, record.fence, record.requests, record.tokens,
        record.scope, record.requester, record.granted_at, None if usage is None else _HAD_WINDOWS,
        [tuple(share) for share in usage or ()],
        None if record.detail is None else tuple(record.detail),
    )  # fmt: skip


def read_batches(batches: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, list[kinds.Entry] | None]]:
    """Decode the batches of a journal; None instead of one that cannot be read."""
    for at, entries in batches:
        try:
            yield at, kinds.decode_entries(entries)
        except msgspec.MsgspecError:
            yield at, None


def restore(owner: Owner, saved: Snapshot | None, batches: Iterable[tuple[float, list[kinds.Entry] | None]],
            now: float) -> bool:  # fmt: skip
    """Give a new owner the state that the journal holds. `batches`: the entries after the snapshot, with their
    instants; None instead of entries that cannot be read. Sessions count as silent since `now`: their members greet the
    owner, or expire. Return False if entries were left out: grants may be missing."""
    is_complete = True
    if saved is not None:
        _restore_snapshot(owner, saved, now)
    for at, batch in batches:
        is_complete = batch is not None and is_complete
        for entry in batch or ():
            try:
                if entry[:2] == kinds.AT:
                    at = float(entry[2])
                    continue
                owner.allocator.advance(at)
                _REPLAY[entry[0]](owner, at, *entry[1:])
            except Exception:  # it is no entry, or it refers to one that was left out
                is_complete = False
    for session in owner.sessions.values():
        session.expires_at = now + session.ttl
        session.kept = session.heard
    owner.allocator.served.clear()
    owner.allocator.events.clear()
    owner.discard_output()
    owner.advance(now)
    return is_complete


def _restore_snapshot(owner: Owner, saved: Snapshot, now: float) -> None:
    allocator = owner.allocator
    at = saved.at
    allocator.members.restore_fences(saved.fences)
    for row in saved.credentials:
        owner.restore_credential(row, values.limits_of(row.limits), at)
    owner.next_session = saved.next_session
    for session_row in saved.sessions:
        session = owner.join(
            session_row.index, session_row.id, session_row.host, session_row.pid, session_row.name, session_row.ttl, at
        )
        session.heard = session_row.heard
        session.limits = {id_: values.limits_of(fields) for id_, fields in session_row.declared.items()}
        session.credential_ids = frozenset(session.limits)
    scopes = {(s.kind, s.name): s for c in allocator.credentials.values() for s in c.cooldown_scopes}
    for group_row in saved.groups:
        group = scopes.get(("group", group_row.name))
        if group is not None:
            if group_row.rows is not None:
                usage = UsageState([UsageRow(*row) for row in group_row.rows], group_row.bucket)
                group.pace.restore_usage(usage, owner.ends_after, at)
            for model, rate in group_row.learned:
                group.pace.start_with(model, rate / 60.0, at)
    for cooldown in saved.cooldowns:
        _cool(owner, at, cooldown.kind, cooldown.name, cooldown.scope, cooldown.until, cooldown.verdict)
    for lease in saved.leases:
        _restore_lease(owner, lease, now)


def _restore_lease(owner: Owner, row: LeaseRow, now: float) -> None:
    session = owner.by_index[row.session]
    detail = None if row.detail is None else Detail(*row.detail)
    record = OwnedRecord(row.requester, row.requests, row.tokens, row.scope, None, None, None, detail)
    record.join_class(session)
    record.id, record.owner, record.granted_at = row.lease, session, row.granted_at
    shares = None if row.usage is None else [LeaseShare(*share) for share in row.shares]
    owner.allocator.restore_lease(record, row.credential, row.fence, shares, now)
    session.leases[row.lease] = record


# --- entries: the same changes that the owner made, without a decision ------------------------------------------------


def _join(owner: Owner, at: float, index: int, id_: str, host: str, pid: int, name: str | None, ttl: float) -> None:
    owner.join(index, id_, host, pid, name, ttl, at)


def _leave(owner: Owner, at: float, index: int) -> None:
    session = owner.by_index.get(index)
    if session is not None:  # the ends of its leases have entries of their own
        del owner.by_index[index], owner.sessions[session.id]
        for id_ in session.limits:
            owner.keep_to_strictest(id_, at)


def _declare(owner: Owner, at: float, index: int, id_: str, group: str, provider: str | None, scopes: list[str],
             limits: dict[str, Any], fingerprint: str) -> None:  # fmt: skip
    session = owner.by_index.get(index)
    if session is not None:
        owner.declare(session, id_, group, provider, frozenset(scopes), values.limits_of(limits), fingerprint, at)


def _drop(owner: Owner, at: float, index: int, id_: str) -> None:
    if index in owner.by_index:
        owner.drop(owner.by_index[index], id_, at)


def _grant(owner: Owner, at: float, index: int, lease: int, credential_id: str, fence: int, requests: int, tokens: int,
           scope: str | None, requester: str | None, detail: Sequence[Any] | None = None) -> None:  # fmt: skip
    what = (requests, tokens, scope, requester, None if detail is None else Detail(*detail))
    owner.adopt(owner.by_index[index], lease, credential_id, fence, *what, at)


def _find(owner: Owner, credential_id: str, fence: int) -> OwnedRecord | None:
    members = owner.allocator.members
    credential = members.credentials.get(credential_id) or members.leaving.get(credential_id)
    return None if credential is None else credential.leases.get(fence)  # type: ignore[return-value]


def _end(owner: Owner, at: float, credential_id: str, fence: int, is_first_success: bool = False,
         arrived: float = 0.0) -> None:  # fmt: skip
    record = _find(owner, credential_id, fence)
    if record is not None:
        if arrived and record.charge is not None:
            group, charge = record.charge
            group.pace.confirm(charge, record, arrived)
        if is_first_success and record.credential is not None:
            record.credential.is_proven = True
            record.credential.auth_failures = 0
        record.owner.leases.pop(record.id, None)
        owner.allocator.feedback.mark_answered(record)  # nothing is learned from it again
        owner.allocator.lease_end.end(record, at)
        owner.seen_at[credential_id] = at


def _correct(owner: Owner, at: float, credential_id: str, fence: int, requests: int, tokens: int,
             detail: Sequence[Any] | None = None) -> None:  # fmt: skip
    record = _find(owner, credential_id, fence)
    if record is not None:
        owner.allocator.correct(record, requests, tokens, None if detail is None else Detail(*detail), at)


def _debt(owner: Owner, at: float, credential_id: str, requests: int, tokens: int, used_at: float,
          scope: str | None = None, detail: Sequence[Any] | None = None) -> None:  # fmt: skip
    what = (scope, None if detail is None else Detail(*detail))
    owner.count_debt(credential_id, requests, tokens, used_at, at, *what)


def _cool(owner: Owner, at: float, kind: str, name: str | None, scope: str | None, until: float, verdict: str) -> None:
    cooldown_scope = owner.find_scope(kind, name)
    if cooldown_scope is not None:
        owner.allocator.cool(cooldown_scope, scope, until - at, verdict, at)


def _cool_and_count(owner: Owner, at: float, kind: str, name: str | None, *what: Any) -> None:
    """Cool, and count the refusal that led to it. Its requester is not known: the next one counts as another."""
    _cool(owner, at, kind, name, *what)
    credential = owner.allocator.credentials.get(name or "")
    if kind == "credential" and what[-1] == AUTH_FAILED and credential is not None:
        credential.count_refusal(None, at)


def _quarantine(owner: Owner, at: float, id_: str, reason: str | None) -> None:
    if id_ in owner.allocator.credentials:
        if reason is None:
            owner.allocator.restore(id_, at)
        else:
            owner.allocator.quarantine(id_, reason, at)


def _clear(owner: Owner, at: float, id_: str) -> None:
    if id_ in owner.allocator.credentials:
        owner.allocator.clear(id_, at)


def _heard(owner: Owner, _at: float, index: int, number: int) -> None:
    if index in owner.by_index:
        owner.by_index[index].heard = number


def _learned(owner: Owner, at: float, group: str | None, scope: str | None, requests_per_minute: float) -> None:
    cooldown_scope = owner.find_scope("group", group)
    if cooldown_scope is not None:
        cooldown_scope.pace.start_with(scope, requests_per_minute / 60.0, at)


_REPLAY: dict[int, Callable[..., None]] = {
    kinds.JOIN: _join,
    kinds.LEAVE: _leave,
    kinds.DECLARE: _declare,
    kinds.DROP: _drop,
    kinds.GRANT: _grant,
    kinds.END: _end,
    kinds.CORRECT: _correct,
    kinds.DEBT: _debt,
    kinds.COOL: _cool_and_count,
    kinds.QUARANTINE: _quarantine,
    kinds.HEARD: _heard,
    kinds.LEARNED: _learned,
    kinds.CLEAR: _clear,
}
