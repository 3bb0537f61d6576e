"""What can be said about a pool: why somebody waits, how fast all of it is. Nothing here changes it."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import TYPE_CHECKING

from agentos.events import EXHAUSTED, PoolWaiting
from agentos.verdict import RATE_LIMITED

from .records import CredentialRecord, RequestClass, scope_of

if TYPE_CHECKING:
    from .allocator import Allocator


def explain(
    pool: Allocator, request_class: RequestClass, now: float, need: tuple[int, int] | None = None
) -> PoolWaiting:
    """Why a request for this would wait: all that could serve it are in use, or the provider says wait.
    `need`: of requests and tokens; else what the first waiter needs."""
    candidates = [c for c in pool.credentials.values() if c.quarantine is None and c.serves(request_class)]
    requests, tokens = need or _first_need(pool, request_class)
    scope = scope_of(request_class)
    paced = {
        c.id: max((d.pace.binding(scope, requests, tokens, now) for d in c.paced_by), key=itemgetter(0))
        for c in candidates
    }
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


def _first_need(pool: Allocator, request_class: RequestClass) -> tuple[int, int]:
    """What the first waiter asks for, or anybody would."""
    queue = pool.waiting.get(request_class)
    if not queue:
        return 1, 0
    head = next(iter(queue.values()))
    return head.requests, head.tokens


def fastest(credentials: Iterable[CredentialRecord], now: float) -> tuple[float | None, float]:
    """How many requests a second all limits of these together allow, None where one is not known; and for how many
    seconds none of them can be used."""
    usable = [c for c in credentials if c.quarantine is None]
    rates = {c.paced_as.name: c.paced_as.pace.rate() for c in usable}
    known = [rate for rate in rates.values() if rate is not None]
    ready_at = min((max(c.usable_at(None), c.paced_until(None, 1, 0, now)) for c in usable), default=now)
    return (sum(known) if known and len(known) == len(rates) else None), max(0.0, ready_at - now)


def reasons(credentials: Iterable[CredentialRecord], scope: str | None) -> dict[str, str]:
    """Why each credential is of no use for this scope."""
    return {c.id: c.quarantine or f"does not serve scope {scope}" for c in credentials}
