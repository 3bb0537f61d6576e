"""Random histories of an owner: what members might send, in virtual time, and its state in a comparable form."""

from __future__ import annotations

import random
from typing import Any

from agentos.limits.declaration import Window
from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner.owner import Owner
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT, Verdict

from .owned_pool import Client, OwnedPool, declaration

KEYS = ("k0", "k1", "k2", "k3")
GROUPS = {"k0": "g0", "k1": "g0", "k2": "g2", "k3": "g3"}
LIMITS: tuple[dict[str, Any], ...] = (
    {},
    {"max_concurrent": 3},
    {"requests_per_minute": 60, "burst": 2, "max_concurrent": 3},
    {"requests_per_minute": 6, "tokens_per_minute": 1000},
    {"tokens_per_minute": 500, "requests_per_day": 5, "max_concurrent": 2},
    {"requests_per_day": 8, "day_resets": "12:01 UTC", "max_concurrent": 2},
    {"windows": [Window("tokens", 900, "3m"), Window("requests", 6, "2m", "first-use")], "max_concurrent": 2},
    {"windows": [Window("input_tokens", 700, "1d", "12:01 UTC", "*model*")], "reserve": 0.2, "max_concurrent": 2},
)
PAUSES = (0.0, 0.0, 0.001, 0.02, 0.1, 0.5, 1.0, 1.1, 2.5, 6.0, 31.0, 70.0)
VERDICTS = (
    Verdict(RATE_LIMITED, retry_after=3.0),
    Verdict(RATE_LIMITED),
    Verdict(QUOTA_EXHAUSTED, retry_after=20.0),
    Verdict(AUTH_FAILED, message="no such key"),
    Verdict(OVERLOADED),
    Verdict(TRANSIENT),
    Verdict(None, limit_requests=30, remaining_requests=3),
)


class History:
    """One history. `told` is what members know: leases that they were granted and have not ended."""

    def __init__(self, seed: int, *, has_refunds: bool = True) -> None:
        self.rng = random.Random(seed)
        self.pool = OwnedPool()
        self.has_refunds = has_refunds
        self.limits = {key: self.rng.choice(LIMITS) for key in KEYS}
        self.members = 0
        self.clients: list[Client] = []

    def step(self) -> None:
        rng = self.rng
        self.pool.advance(rng.choice(PAUSES))
        self.clients = [client for client in self.clients if client.name in self.pool.owner.sessions]
        if not self.clients or (len(self.clients) < 4 and rng.random() < 0.1):
            self._join()
            return
        client = rng.choice(self.clients)
        rng.choice(_ACTIONS)(self, client)

    def _join(self) -> None:
        self.members += 1
        keys = KEYS if self.rng.random() < 0.7 else self.rng.sample(KEYS, 2)
        declared = [self.declaration(key) for key in keys]
        ttl = self.rng.choice([5.0, 30.0, 200.0])
        self.clients.append(self.pool.client(f"m{self.members}", *declared, ttl=ttl))

    def declaration(self, key: str, **changes: Any) -> wire.Declaration:
        return declaration(key, group=GROUPS[key], **(changes or self.limits[key]))

    def _request(self, client: Client) -> None:
        rng = self.rng
        client.request(rng.choice([0, 0, 100, 450]), requests=rng.choice([1, 1, 1, 2]), wait=rng.random() < 0.8,
                       scope=rng.choice([None, None, "m1"]), front=rng.random() < 0.1)  # fmt: skip

    def _end(self, client: Client) -> None:
        if client.granted:
            verdict = self.rng.choice(VERDICTS) if self.rng.random() < 0.3 else None
            client.end(self.rng.choice(list(client.granted)), verdict, success=verdict is None)

    def _use(self, client: Client) -> None:
        if client.granted:
            granted = self.rng.choice(list(client.granted.values()))
            least = 0 if self.has_refunds else 1
            amount = self.rng.choice([(least, granted.tokens // 2), (2, granted.tokens + 50), (least, granted.tokens)])
            settle = wire.Settle(granted.lease, max(amount[0], granted.requests * (1 - self.has_refunds)),
                                 max(amount[1], granted.tokens * (1 - self.has_refunds)))  # fmt: skip
            client.send(self.rng.choice([settle, wire.UseMore(granted.lease, 1, 10)]))

    def _say(self, client: Client) -> None:
        rng, key = self.rng, self.rng.choice(KEYS)
        lease = rng.choice([*client.granted, 0])
        client.send(rng.choice([
            wire.UseMore(10**9, 1, 20, key), wire.SetQuarantine(key, "by a person"), wire.SetQuarantine(key, None),
            wire.SetQuarantine(key, None), wire.Cool(key, rng.choice([0.5, 10.0])), wire.Confirm(lease),
            wire.Observed(lease, list(rng.choice(VERDICTS))),
        ]))  # fmt: skip

    def _withdraw(self, client: Client) -> None:
        if self.has_refunds:
            lease = self.rng.randint(0, client.leases)
            client.granted.pop(lease, None)
            client.send(wire.Withdraw(lease))

    def _beat(self, client: Client) -> None:
        client.send(wire.Heartbeat(list(client.granted)))

    def _redeclare(self, client: Client) -> None:
        key = self.rng.choice(KEYS)
        if self.rng.random() < 0.3 and key in {d.id for d in client.declared} and len(client.declared) > 1:
            client.declared = [d for d in client.declared if d.id != key]
            client.send(wire.Drop(key))
            return
        changed = self.declaration(key, **self.rng.choice(LIMITS))
        client.declared = [*(d for d in client.declared if d.id != key), changed]
        client.send(changed)

    def _go(self, client: Client) -> None:
        if self.rng.random() < 0.5:
            client.send(wire.Leave())
        else:
            self.pool.owner.disconnected(client.connection, self.pool.now)
            self.pool.commit()
        self.clients.remove(client)

    def _greet_again(self, client: Client) -> None:
        client.greet(held=client.held())


_ACTIONS = (
    *[History._request] * 10, *[History._end] * 6, *[History._use] * 3, *[History._say] * 3, *[History._beat] * 3,
    History._withdraw, History._redeclare, History._go, History._greet_again,
)  # fmt: skip


def leases_of(owner: Owner) -> set[tuple[Any, ...]]:
    """Return the live leases, by session."""
    return {
        (session.id, r.id, r.credential_id, r.fence, r.requests, r.tokens, r.scope)
        for session in owner.sessions.values()
        for r in session.leases.values()
        if r.state == "live"
    }


def cooldowns_of(owner: Owner, now: float) -> dict[tuple[str, str | None, str | None], float]:
    """Return the ends of running cool-downs."""
    scopes = {scope: None for c in owner.allocator.credentials.values() for scope in c.cooldown_scopes}
    return {
        (scope.kind, scope.name, model): round(until, 3)
        for scope in scopes
        for model, until in scope.cooling.items()
        if until > now + 0.002
    }


def declared_by(owner: Owner) -> dict[str, Any]:
    """Return what each session declares, and what holds for each credential."""
    credentials = owner.allocator.credentials.values()
    held = {c.id: (c.group.name, c.provider.name, c.scopes, c.limits, c.max_concurrent) for c in credentials}
    return {**held, **{f"session {s.id}": (s.limits, s.credential_ids, s.ttl) for s in owner.sessions.values()}}


def quarantines_of(owner: Owner) -> dict[str, str | None]:
    return {c.id: c.quarantine for c in owner.allocator.credentials.values()}


def usage_of(owner: Owner, now: float) -> dict[tuple[str | None, str], float]:
    """Return what is used of each declared limit, by group."""
    usage = {}
    for credential in owner.allocator.credentials.values():
        limiter = credential.group.pace.limiter
        if limiter is not None:
            for name, (used, _) in limiter.usage(now).items():
                usage[credential.group.name, name] = used
    return usage


def bucket_levels_of(owner: Owner, now: float) -> dict[str | None, float]:
    """Return the level of the token bucket of each group."""
    limiters = {c.group.name: c.group.pace.limiter for c in owner.allocator.credentials.values()}
    return {name: limiter.bucket.level(now) for name, limiter in limiters.items() if limiter and limiter.bucket}
