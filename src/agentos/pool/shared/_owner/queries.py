"""Queries: what members, and commands that only look, may ask the owner of a shared pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentos.events import STORE_LOST
from agentos.limits.amounts import Detail
from agentos.limits.declaration import Limits

from ..._rules import wait_reasons
from ..._rules.records import CredentialRecord, RestrictedScope
from ...states import credential_state, forecast
from .. import message_values as values

if TYPE_CHECKING:
    from .owner import Owner
    from .session import Session


def _credentials(owner: Owner, session: Session | None) -> list[CredentialRecord]:
    """Return the credentials of a session, in the order in which they joined; all for a stranger."""
    credentials = owner.allocator.credentials.values()
    return [c for c in credentials if session is None or c.id in session.credential_ids]


def _request_class(owner: Owner, session: Session | None, scope: str | None, for_provider: str | None,
                   only: str | None) -> RestrictedScope:  # fmt: skip
    if session is not None:
        return session.request_class(scope, for_provider, only)
    return RestrictedScope(scope, frozenset(owner.allocator.credentials), for_provider)


def _states(owner: Owner, session: Session | None, now: float) -> Any:
    # `epoch` 0: instants are sent as seconds from now, because a member's wall clock may differ from the owner's.
    states = [credential_state(credential, now, 0.0) for credential in _credentials(owner, session)]
    limits = {credential.id: credential.group.pace.limits for credential in _credentials(owner, session)}
    # MessagePack has no larger integers.
    return [
        replace(
            state,
            requests=min(state.requests, 2**62),
            tokens=min(state.tokens, 2**62),
            waits_for=_limit_text(owner, state.waits_for, [limits[state.key_id]], now),
        )
        for state in states
    ]


def _limit_text(owner: Owner, limit: str | None, declared: Iterable[Limits], now: float) -> str | None:
    """Return the name of a limit. Of a day in a zone that this process does not know, which does not end, say so."""
    resets = {w.calendar for limits in declared for w in limits.all_windows() if w.calendar and w.name == limit}
    unknown = [text for text in sorted(resets) if not owner.knows(text, now)]
    return f"{limit}; the pool's owner cannot tell the end of the day {unknown[0]}" if unknown else limit


def _members(owner: Owner, _session: Session | None, now: float) -> Any:
    return {
        "owner": owner.identity,
        "members": [
            (s.host, s.pid, s.name, now - s.joined_at, sum(r.state == "live" for r in s.leases.values()),
             sum(r.state == "waiting" for r in s.leases.values()))
            for s in owner.sessions.values()
        ],
    }  # fmt: skip


def _explain(owner: Owner, session: Session | None, now: float, scope: str | None, need: Any = None,
             for_provider: str | None = None, only: str | None = None, rests: Any = ()) -> Any:  # fmt: skip
    request_class = _request_class(owner, session, scope, for_provider, only)
    if need is not None:
        requests, tokens, *detail = need
        need = requests, tokens, Detail(*detail[0]) if detail and detail[0] is not None else None
    rests = {id_: (float(seconds), str(reason)) for id_, (seconds, reason) in dict(rests).items()}
    waiting = wait_reasons.explain(owner.allocator, request_class, now, need, rests)
    declared = [credential.group.pace.limits for credential in _credentials(owner, session)]
    waiting = waiting._replace(limit=_limit_text(owner, waiting.limit, declared, now))
    return waiting._replace(reason=STORE_LOST) if owner.store_scope.cooling else waiting


def _snapshot(owner: Owner, session: Session | None, now: float, *arguments: Any) -> Any:
    return _states(owner, session, now), _explain(owner, session, now, *arguments)


def _reasons(owner: Owner, session: Session | None, _now: float, scope: str | None, for_provider: str | None = None,
             only: str | None = None) -> Any:  # fmt: skip
    return wait_reasons.reasons(_credentials(owner, session), scope, for_provider, only)


def _is_proven(owner: Owner, _session: Session | None, _now: float, credential_id: str) -> bool:
    credential = owner.allocator.credentials.get(credential_id)
    return credential is not None and credential.is_proven


def _available(owner: Owner, session: Session | None, now: float) -> int:
    return sum(credential.is_usable(None, now) for credential in _credentials(owner, session))


def _fastest(owner: Owner, session: Session | None, now: float) -> Any:
    return wait_reasons.fastest(_credentials(owner, session), now)


def _forecasts(owner: Owner, session: Session | None, now: float) -> Any:
    usable = [credential for credential in _credentials(owner, session) if not credential.quarantine]
    forecasts = []
    for credential in usable:
        planned = forecast(credential, now)
        ends_in = {resets: owner.ends_after(resets, now) - now for resets in planned.limits.calendars()}
        # One field is unused since members know all windows.
        first = (*planned[:7], planned.is_concurrency_learned, None, planned.used, ends_in)
        forecasts.append((*first, *planned[10:]))
    return forecasts


def as_known_before(what: str, answer: Any, protocol: int) -> Any:
    """Return an answer as a member of an older protocol accepts it."""
    if what == "explain":
        return values.fields_for(answer, protocol)
    if what == "snapshot":
        states, waiting = answer
        return states, values.fields_for(waiting, protocol)
    return answer


ANSWERS: dict[str, Callable[..., Any]] = {
    "states": _states,
    "members": _members,
    "explain": _explain,
    "snapshot": _snapshot,
    "reasons": _reasons,
    "is_proven": _is_proven,
    "available": _available,
    "fastest": _fastest,
    "forecasts_with_usage": _forecasts,
    "nothing": lambda _owner, _session, _now: None,  # its answer comes after everything that was sent before it
}
