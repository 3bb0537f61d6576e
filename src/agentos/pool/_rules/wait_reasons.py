"""Why requests wait, how fast a pool can be, and why a credential is of no use. Nothing here changes a pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from agentos.events import EXHAUSTED, PoolWaiting
from agentos.limits.amounts import Detail
from agentos.verdict import RATE_LIMITED

from .records import CredentialRecord, RequestClass, scope_of

if TYPE_CHECKING:
    from .allocator import Allocator

Need: TypeAlias = tuple[int, int, Detail | None]


def explain(pool: Allocator, request_class: RequestClass, now: float, need: Need | None = None) -> PoolWaiting:
    """Return why a request of a class would wait: its credentials are in use, cool down or are at a limit.

    `need` is its requests, tokens and detail; without it those of the first waiter.
    """
    candidates = [c for c in pool.credentials.values() if c.quarantine is None and c.serves(request_class)]
    requests, tokens, detail = need or _need_of_head(pool, request_class)
    scope = scope_of(request_class)
    paced = {c.id: c.group.pace.binding(scope, requests, tokens, now, detail) for c in candidates}
    ends = {c.id: max(c.usable_at(scope), paced[c.id][0]) for c in candidates}
    cooling = sum(1 for end in ends.values() if end > now)
    reason = RATE_LIMITED if candidates and cooling == len(candidates) else EXHAUSTED
    in_use = sum(1 for c in candidates if c.leases)
    usable_in, limit = None, None
    if cooling:
        first = min((c for c in candidates if ends[c.id] > now), key=lambda c: ends[c.id])
        usable_in = ends[first.id] - now
        limit = paced[first.id][1] if paced[first.id][0] == ends[first.id] else None
    return PoolWaiting(reason, len(candidates), in_use, cooling, usable_in, limit)


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
