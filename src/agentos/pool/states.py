"""The state of a credential at one instant, for display, and its forecast, for plans."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from agentos.limits.declaration import AUTO, Calendar, Limits
from agentos.limits.usage_state import UsageState
from agentos.verdict import RATE_LIMITED

from ._rules.records import CredentialRecord, LeaseRecord


class Holder(NamedTuple):
    """One live lease: its requester, and the process that holds it."""

    requester: str | None
    seconds: float  # since the grant
    host: str | None = None  # None: this process
    pid: int | None = None
    run: str | None = None  # the name of the run in that process


@dataclass(frozen=True, slots=True)
class CredentialState:
    """One credential at one instant. Instants are epoch seconds. Never holds a secret."""

    key_id: str
    in_use: bool = False
    reserved_by: str | None = None  # the requester of its oldest live lease
    rate_limited_until: float | None = None
    is_available: bool = True  # a request that names no scope would be granted it now
    quota_group: str = ""
    provider: str | None = None
    live_leases: int = 0
    max_concurrent: int = 1
    quarantined: str | None = None  # why
    cooling: dict[str, float] = field(default_factory=dict)  # scope -> epoch, where only a scope cools
    cooled_by: dict[str, str] = field(default_factory=dict)  # scope ("" for all) -> the verdict that cools it
    fence: int = 0
    requests: int = 0  # used and reserved, since it joined the pool
    tokens: int = 0
    waits_for: str | None = None  # the limit that does not admit another request now
    used: dict[str, tuple[float, float]] = field(default_factory=dict)  # of each declared limit: used, and the limit
    learned: dict[str, float] = field(default_factory=dict)  # scope ("" for none) -> requests per minute
    holders: tuple[str, ...] = ()  # the requesters of its live leases, where they gave a name
    held_by: tuple[Holder, ...] = ()  # the same leases, with the process that has each
    is_concurrency_learned: bool = False  # `max_concurrent` is not declared, but learned so far
    # The parts of `rate_limited_until`, and the scopes that it serves (empty: all).
    scopes: tuple[str, ...] = field(default=(), repr=False, compare=False)
    cooled_until: float | None = field(default=None, repr=False, compare=False)
    limited_until: float | None = field(default=None, repr=False, compare=False)

    @property
    def keys_file_line(self) -> str | None:
        """The learned limit as a line for the keys file; None if no limit was learned."""
        return f"requests_per_minute = {math.floor(min(self.learned.values()))}" if self.learned else None


class CredentialForecast(NamedTuple):
    """The limits and the state of one credential from which a plan is calculated."""

    id: str
    group: str
    provider: str | None
    scopes: frozenset[str]
    limits: Limits
    cooling: float = 0.0  # seconds until it can be used
    learned: float | None = None  # requests per minute, if no limit is declared
    used: tuple[tuple[str, float], ...] = ()  # of each declared limit of its group, by name
    calendar: Calendar | None = None  # ends of calendar windows; instants are seconds from now
    is_concurrency_learned: bool = False  # `max_concurrent` of the limits is not declared, but learned so far
    usage: UsageState | None = None  # the same as `used`, with the instants; None: not known
    at_once: int | None = None  # leases at once so far, if `limits.max_concurrent` is "auto" and the limit was not met
    cooled_by: str = RATE_LIMITED  # the verdict behind `cooling`
    is_proven: bool = False  # it has served a request
    has_started: bool = False  # the slow start of its group is over


def credential_state(credential: CredentialRecord, now: float, epoch: float) -> CredentialState:
    """Return the state of a credential, with instants as epoch seconds. `epoch` is the wall clock at `now`."""
    ends, cooled_by = _cooldowns(credential, now, epoch)
    ready_at, limit, _ = credential.group.pace.binding(None, 1, 0, now)
    cooled_until = ends.pop(None, None)
    limited_until = epoch + (ready_at - now) if ready_at > now else None
    pace, leases = credential.group.pace, tuple(credential.leases.values())
    return CredentialState(
        key_id=credential.id,
        in_use=bool(leases),
        reserved_by=leases[0].requester if leases else None,
        rate_limited_until=max((end for end in (cooled_until, limited_until) if end is not None), default=None),
        is_available=credential.is_usable(None, now),
        quota_group=credential.group.name or "",
        provider=credential.provider.name,
        live_leases=len(leases),
        max_concurrent=credential.max_concurrent,
        quarantined=credential.quarantine,
        cooling={scope: end for scope, end in ends.items() if scope is not None},
        cooled_by=cooled_by,
        fence=credential.fence,
        requests=credential.used_requests + sum(record.requests for record in leases),
        tokens=credential.used_tokens + sum(record.tokens for record in leases),
        waits_for=limit,
        used={} if pace.limiter is None else pace.limiter.usage(now),
        learned={scope or "": rate for scope, rate in pace.learned_limits().items()},
        holders=tuple(record.requester for record in leases if record.requester is not None),
        held_by=tuple(_holder(record, now) for record in leases),
        is_concurrency_learned=credential.concurrency is not None,
        scopes=tuple(sorted(credential.scopes)),
        cooled_until=cooled_until,
        limited_until=limited_until,
    )


def _cooldowns(
    credential: CredentialRecord, now: float, epoch: float
) -> tuple[dict[str | None, float], dict[str, str]]:
    """Return by scope the end of the longest cool-down, as epoch seconds, and the kind of its verdict."""
    ends: dict[str | None, float] = {}
    cooled_by: dict[str, str] = {}
    for cooldown_scope in credential.cooldown_scopes:
        for scope, until in cooldown_scope.cooling.items():
            end = epoch + (until - now)
            if end > ends.get(scope, epoch):
                ends[scope] = end
                cooled_by[scope or ""] = cooldown_scope.cooled_by[scope]
    return ends, cooled_by


def _holder(record: LeaseRecord, now: float) -> Holder:
    owner, seconds = record.owner, max(0.0, now - record.granted_at)
    if owner is None:
        return Holder(record.requester, seconds)
    return Holder(record.requester, seconds, owner.host, owner.pid, owner.name)


def forecast(credential: CredentialRecord, now: float) -> CredentialForecast:
    """Return the limits and the state of a credential for a plan that starts now. Limits are learned, and quotas used
    up, for a model: a plan that names none is for the model that the credential was used for most."""
    pace, calendar = credential.group.pace, credential.group.pace.calendar
    scope, learned = pace.main_scope, pace.learned_limits()
    limits, usage = pace.forecast(now)
    used = {} if credential.group.pace.limiter is None else credential.group.pace.limiter.usage(now)
    grows = credential.concurrency is not None and not credential.concurrency.is_met
    ends, cooled_by = _cooldowns(credential, now, 0.0)
    return CredentialForecast(
        credential.id,
        credential.group.name or "",
        credential.provider.name,
        credential.scopes,
        replace(limits, max_concurrent=AUTO if grows else credential.max_concurrent),
        cooling=max(0.0, credential.usable_at(scope) - now),
        learned=learned.get(None, learned.get(scope)),
        used=tuple((name, amount) for name, (amount, _) in used.items() if amount),
        calendar=None if calendar is None else lambda resets, then: calendar(resets, now + then) - now,
        is_concurrency_learned=credential.concurrency is not None,
        usage=usage,
        at_once=credential.max_concurrent if grows else None,
        cooled_by=cooled_by[max(ends.keys() & {None, scope}, key=ends.__getitem__) or ""]
        if ends.keys() & {None, scope}
        else RATE_LIMITED,
        is_proven=credential.is_proven,
        has_started=pace.has_started,
    )
