"""One credential at one instant, for those who look at the pool or plan with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

from agentos.limits.declaration import REQUESTS_PER_DAY, Limits

from ._rules.records import CredentialRecord, LeaseRecord


class Holder(NamedTuple):
    """Who has a lease."""

    requester: str | None
    seconds: float  # for so long
    host: str | None = None  # None: this process
    pid: int | None = None
    run: str | None = None  # what it does there


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

    @property
    def keys_file_line(self) -> str | None:
        """What was learned about its limit, as a line for the keys file."""
        return f"requests_per_minute = {math.floor(min(self.learned.values()))}" if self.learned else None


class CredentialSnapshot(NamedTuple):
    """One credential at one instant, in the store's own time."""

    id: str
    group: str
    provider: str | None
    scopes: frozenset[str]
    holders: tuple[Holder, ...]
    max_concurrent: int
    cooling: dict[str | None, float]  # scope -> seconds left
    cooled_by: dict[str | None, str]  # scope -> the verdict that lasts longest
    quarantine: str | None
    is_available: bool
    fence: int
    requests: int
    tokens: int
    paced: float  # seconds until its limits admit one more request
    binding: str | None  # the limit that decides that
    used: dict[str, tuple[float, float]]  # of each declared limit: what is used, and the limit
    learned: dict[str | None, float]  # scope -> requests per minute


class CredentialForecast(NamedTuple):
    """The limits and the state of one credential from which a plan is calculated."""

    id: str
    group: str
    provider: str | None
    scopes: frozenset[str]
    limits: Limits
    cooling: float = 0.0  # seconds until it can be used
    learned: float | None = None  # requests per minute, if no limit is declared
    used_today: int = 0  # requests of its group
    day_ends_after: Callable[[float], float] | None = None  # instant -> the next end of the provider's day


def snapshot(credential: CredentialRecord, now: float) -> CredentialSnapshot:
    cooling: dict[str | None, float] = {}
    cooled_by: dict[str | None, str] = {}
    for cooldown_scope in credential.cooldown_scopes:
        for scope, until in cooldown_scope.cooling.items():
            if until - now > cooling.get(scope, 0.0):
                cooling[scope] = until - now
                cooled_by[scope] = cooldown_scope.cooled_by[scope]
    at, binding = max(
        (cooldown_scope.pace.binding(None, 1, 0, now) for cooldown_scope in credential.paced_by), key=itemgetter(0)
    )
    pace = credential.group.pace
    return CredentialSnapshot(
        id=credential.id,
        group=credential.group.name or "",
        provider=credential.provider.name,
        scopes=credential.scopes,
        holders=tuple(_holder(record, now) for record in credential.leases.values()),
        max_concurrent=credential.max_concurrent,
        cooling=cooling,
        cooled_by=cooled_by,
        quarantine=credential.quarantine,
        is_available=credential.is_usable(None, now),
        fence=credential.fence,
        requests=credential.used_requests + sum(record.requests for record in credential.leases.values()),
        tokens=credential.used_tokens + sum(record.tokens for record in credential.leases.values()),
        paced=max(0.0, at - now),
        binding=binding,
        used={} if pace.limiter is None else pace.limiter.usage(now),
        learned=pace.learned_limits(),
    )


def later(one: CredentialSnapshot, seconds: float) -> CredentialSnapshot:
    """As it looks so long afterwards, if nothing but time has passed: for those who must not let the pool itself grow
    older."""
    cooling = {scope: left - seconds for scope, left in one.cooling.items() if left > seconds}
    return one._replace(
        holders=tuple(holder._replace(seconds=holder.seconds + seconds) for holder in one.holders),
        cooling=cooling,
        cooled_by={scope: one.cooled_by[scope] for scope in cooling},
        paced=max(0.0, one.paced - seconds),
    )


def _holder(record: LeaseRecord, now: float) -> Holder:
    owner, seconds = record.owner, max(0.0, now - record.granted_at)
    if owner is None:
        return Holder(record.requester, seconds)
    return Holder(record.requester, seconds, owner.host, owner.pid, owner.name)


def forecast(credential: CredentialRecord, now: float) -> CredentialForecast:
    """What a plan needs to know of it."""
    pace = credential.paced_as.pace
    limits, ends_after = credential.group.pace.limits, credential.group.pace.day_ends_after
    used = {} if credential.group.pace.limiter is None else credential.group.pace.limiter.usage(now)
    return CredentialForecast(
        credential.id,
        credential.paced_as.name or "",
        credential.provider.name,
        credential.scopes,
        replace(limits, max_concurrent=credential.max_concurrent),
        cooling=max(0.0, credential.usable_at(None) - now),
        learned=pace.learned_limits().get(None),
        used_today=int(used.get(REQUESTS_PER_DAY, (0, 0))[0]),
        day_ends_after=None if ends_after is None else lambda then: ends_after(now + then) - now,
    )


def state_of(snapshot: CredentialSnapshot, epoch: float) -> CredentialState:
    """Return a snapshot as users see it: instants as epoch seconds."""
    cooling = {scope: epoch + left for scope, left in snapshot.cooling.items()}
    if snapshot.paced > 0:
        cooling[None] = max(cooling.get(None, 0.0), epoch + snapshot.paced)
    return CredentialState(
        key_id=snapshot.id,
        in_use=bool(snapshot.holders),
        reserved_by=snapshot.holders[0].requester if snapshot.holders else None,
        rate_limited_until=cooling.pop(None, None),
        is_available=snapshot.is_available,
        quota_group=snapshot.group,
        provider=snapshot.provider,
        live_leases=len(snapshot.holders),
        max_concurrent=snapshot.max_concurrent,
        quarantined=snapshot.quarantine,
        cooling={scope: until for scope, until in cooling.items() if scope is not None},
        cooled_by={scope or "": verdict for scope, verdict in snapshot.cooled_by.items()},
        fence=snapshot.fence,
        requests=snapshot.requests,
        tokens=snapshot.tokens,
        waits_for=snapshot.binding,
        used=snapshot.used,
        learned={scope or "": rate for scope, rate in snapshot.learned.items()},
        holders=tuple(holder.requester for holder in snapshot.holders if holder.requester is not None),
        held_by=snapshot.holders,
    )
