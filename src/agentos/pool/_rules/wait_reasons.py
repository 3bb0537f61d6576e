"""Why requests wait, how fast a pool can be, and why a credential is of no use. Nothing here changes a pool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agentos.bounds import TRIAL
from agentos.events import DISABLED, EXHAUSTED, PoolWaiting
from agentos.limits.amounts import Binding, Detail
from agentos.limits.declaration import DECLARED_AS
from agentos.verdict import RATE_LIMITED

from .records import CredentialRecord, RequestClass, scope_of

if TYPE_CHECKING:
    from .allocator import Allocator

Need: TypeAlias = tuple[int, int, Detail | None]
# By credential id: for how many seconds a requester leaves it alone, and why.
Rests: TypeAlias = Mapping[str, tuple[float, str]]
NO_RESTS: Rests = {}
_NO_REST = (0.0, "")
# Seconds. A credential that admits its next request sooner is paced: requests are spaced. Others are paused.
LONG_SPACING = 60.0


def is_paused(seconds: float, *, is_cool_down: bool, in_use: bool) -> bool:
    """Return whether a credential that admits its next request in some seconds counts as paused: not if requests are
    spaced, or if it serves items meanwhile."""
    return seconds >= LONG_SPACING or (is_cool_down and not in_use)


def explain(pool: Allocator, request_class: RequestClass, now: float, need: Need | None = None,
            rests: Rests = NO_RESTS) -> PoolWaiting:  # fmt: skip
    """Return why a request of a class would wait: its credentials are in use, cool down or are at a limit.

    `need` is its requests, tokens and detail; without it those of the first waiter. `rests`: credentials that the
    requester leaves alone by itself.
    """
    serving = [c for c in pool.credentials.values() if c.serves(request_class)]
    candidates = [c for c in serving if c.quarantine is None]
    requests, tokens, detail = need or _need_of_head(pool, request_class)
    scope = scope_of(request_class)
    by_group = {c.group: c.group.pace.binding(scope, requests, tokens, now, detail) for c in candidates}
    holds = [_hold_of(credential, by_group[credential.group], scope, now, rests) for credential in candidates]
    ends = [hold for hold in holds if hold.at > now]
    waiting = PoolWaiting(
        RATE_LIMITED if candidates and len(ends) == len(candidates) else EXHAUSTED,
        len(candidates),
        sum(1 for c in candidates if c.leases),
        len(ends),
        None,
        quarantined=len(serving) - len(candidates),
        disabled=sum(1 for c in serving if (c.quarantine or "").startswith(DISABLED)),
        paused=sum(1 for hold in ends if hold.is_pause(now)),
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

    @property
    def kind_of_limit(self) -> str | None:
        return None if self.limit is None else DECLARED_AS.get(self.limit, self.limit)

    def is_pause(self, now: float) -> bool:
        is_cool_down = self.limit is None and self.verdict != TRIAL
        return is_paused(self.at - now, is_cool_down=is_cool_down, in_use=bool(self.credential.leases))


def _hold_of(credential: CredentialRecord, binding: Binding, scope: str | None, now: float, rests: Rests) -> _Hold:
    cooled_until = credential.usable_at(scope)
    rest_seconds, rest_reason = rests.get(credential.id, _NO_REST)
    if now + rest_seconds > max(binding.at, cooled_until):
        return _Hold(now + rest_seconds, credential, None, rest_reason, None)
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
    """Add what holds up the credential that is usable first, and how many others the same holds up. A limit that was
    learned is the same as one that is declared."""
    first = min(holds, key=lambda hold: hold.at)
    same = [hold for hold in holds if (hold.kind_of_limit, hold.verdict) == (first.kind_of_limit, first.verdict)]
    by_group = {hold.credential.group: hold for hold in same}
    amounts = [hold.amount for hold in by_group.values() if hold.amount is not None]
    learned = sum(1 for hold in by_group.values() if hold.limit in DECLARED_AS)
    return waiting._replace(
        usable_in=first.at - now,
        limit=first.limit if learned == len(by_group) else first.kind_of_limit,
        verdict=first.verdict,
        on=first.credential.group.name if len(by_group) == 1 else None,
        groups=len(by_group),
        amount=sum(amounts) if len(amounts) == len(by_group) else None,
        held=len(same),
        learned=learned,
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
