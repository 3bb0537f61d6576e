"""Why requests wait, how fast a pool can be, and why a credential is of no use. Nothing here changes a pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agentos.events import EXHAUSTED, PoolWaiting
from agentos.limits.amounts import Binding, Detail
from agentos.verdict import RATE_LIMITED

from .records import CredentialRecord, RequestClass, scope_of

if TYPE_CHECKING:
    from .allocator import Allocator

Need: TypeAlias = tuple[int, int, Detail | None]


def explain(pool: Allocator, request_class: RequestClass, now: float, need: Need | None = None) -> PoolWaiting:
    """Return why a request of a class would wait: its credentials are in use, cool down or are at a limit.

    `need` is its requests, tokens and detail; without it those of the first waiter.
    """
    serving = [c for c in pool.credentials.values() if c.serves(request_class)]
    candidates = [c for c in serving if c.quarantine is None]
    requests, tokens, detail = need or _need_of_head(pool, request_class)
    scope = scope_of(request_class)
    by_group = {c.group: c.group.pace.binding(scope, requests, tokens, now, detail) for c in candidates}
    holds = [_hold_of(credential, by_group[credential.group], scope) for credential in candidates]
    ends = [hold for hold in holds if hold.at > now]
    waiting = PoolWaiting(
        RATE_LIMITED if candidates and len(ends) == len(candidates) else EXHAUSTED,
        len(candidates),
        sum(1 for c in candidates if c.leases),
        len(ends),
        None,
        quarantined=len(serving) - len(candidates),
    )
    if ends:
        waiting = _with_first(waiting, ends, now)
    counted = candidates
    if waiting.reason == EXHAUSTED:
        counted = [hold.credential for hold in holds if hold.at <= now]
        waiting = waiting._replace(on=counted[0].id if len(counted) == 1 else None)
    return waiting._replace(
        at_once=sum(c.max_concurrent for c in counted),
        leases=sum(len(c.leases) for c in counted),
        is_learned=any(c.concurrency is not None for c in counted),
    )


class _Hold(NamedTuple):
    """Until when a credential is held up, and by what: a limit, or the cool-down behind a verdict."""

    at: float  # 0 for now
    credential: CredentialRecord
    limit: str | None
    verdict: str | None
    amount: float | None


def _hold_of(credential: CredentialRecord, binding: Binding, scope: str | None) -> _Hold:
    cooled_until = credential.usable_at(scope)
    if binding.at >= cooled_until:
        return _Hold(binding.at, credential, binding.name, None, binding.amount)
    verdicts = [
        domain.cooled_by.get(key)
        for domain in credential.cooldown_scopes
        for key, until in domain.cooling.items()
        if until == cooled_until and key in (None, scope)
    ]
    return _Hold(cooled_until, credential, None, next(iter(verdicts), None), None)


def _with_first(waiting: PoolWaiting, holds: list[_Hold], now: float) -> PoolWaiting:
    """Add what holds up the credential that is usable first, and how many quota groups the same holds up."""
    first = min(holds, key=lambda hold: hold.at)
    same = {h.credential.group: h for h in holds if (h.limit, h.verdict) == (first.limit, first.verdict)}
    amounts = [hold.amount for hold in same.values() if hold.amount is not None]
    return waiting._replace(
        usable_in=first.at - now,
        limit=first.limit,
        verdict=first.verdict,
        on=first.credential.group.name if len(same) == 1 else None,
        groups=len(same),
        amount=sum(amounts) if amounts else None,
    )


def _need_of_head(pool: Allocator, request_class: RequestClass) -> Need:
    """Return requests, tokens and detail of the first waiter; of a plain request if there is none."""
    queue = pool.waiting.get(request_class)
    if not queue:
        return 1, 0, None
    head = next(iter(queue.values()))
    return head.requests, head.tokens, head.detail


def fastest(credentials: Iterable[CredentialRecord], now: float) -> tuple[float | None, float]:
    """Return the requests a second that all limits together allow (None if one is unknown), and the seconds until the
    first credential can be used."""
    usable = [c for c in credentials if c.quarantine is None]
    rates = {c.group.name: c.group.pace.rate() for c in usable}
    known_rates = [rate for rate in rates.values() if rate is not None]
    ready_at = min((max(c.usable_at(None), c.paced_until(None, 1, 0, now)) for c in usable), default=now)
    return (sum(known_rates) if known_rates and len(known_rates) == len(rates) else None), max(0.0, ready_at - now)


def reasons(credentials: Iterable[CredentialRecord], scope: str | None, for_provider: str | None = None,
            only: str | None = None) -> dict[str, str]:  # fmt: skip
    """Return why each credential (of a provider, or only one) is of no use for a scope, by id."""
    return {
        c.id: c.quarantine or f"does not serve scope {scope}"
        for c in credentials
        if (for_provider is None or c.provider.name == for_provider) and (only is None or c.id == only)
    }
