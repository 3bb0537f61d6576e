"""Leases that take the short way: what must still hold their credentials back; both ways decide alike."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from agentos.events import CoolDownStarted
from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.free_leases import FreeLeases
from agentos.pool._rules.lease_states import WAITING
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

from .test_allocator import NOW, ask, credential_of, make_pool

LATER = NOW + 120.0


def make_healthy(*ids: str, group: str | None = None) -> Allocator:
    """Return a pool whose credentials have each served a request and are idle."""
    pool = Allocator()
    for id_ in ids:
        pool.add(id_, group or f"own {id_}", "p", frozenset(), Limits(), NOW)
    for _ in range(2):  # once more: a group of several credentials starts slowly
        records = [ask(pool) for _ in ids]
        for record in records:
            if record.credential is not None:
                pool.lease_end.end(record, NOW, success=True)
    pool.advance(NOW)
    for record in pool.served:
        pool.lease_end.end(record, NOW, success=True)
    pool.served.clear()
    assert all(credential.is_healthy for credential in pool.credentials.values())
    return pool


def grants(pool: Allocator, now: float = NOW) -> list[str | None]:
    """Return the credentials that two requests are granted."""
    return [credential_of(ask(pool, now)) for _ in range(2)]


@pytest.mark.parametrize(
    "hold_back",
    [
        lambda pool: pool.quarantine("a", "refused", NOW),
        lambda pool: pool.remove("a", NOW),
        lambda pool: pool.cool(pool.credentials["a"].group, None, 60.0, RATE_LIMITED, NOW),
    ],
    ids=["quarantined", "removed", "cooled"],
)
def test_healthy_credential_held_back_is_not_granted(hold_back: Callable[[Allocator], None]) -> None:  # invariants 4, 5
    pool = make_healthy("a", "b")
    hold_back(pool)
    assert grants(pool) == ["b", None]


@pytest.mark.parametrize("is_removed", [False, True])
def test_success_of_credential_out_of_use_puts_it_not_back(is_removed: bool) -> None:  # invariant 5
    pool = make_healthy("a", "b")
    record = ask(pool)
    if is_removed:
        pool.remove("a", NOW)
    else:
        pool.quarantine("a", "refused", NOW)
    pool.lease_end.end(record, NOW, success=True)
    assert grants(pool) == ["b", None]


def test_leased_credential_is_not_granted_to_another_class() -> None:  # invariant 1
    pool = make_healthy("a")
    pool.lease_end.end(ask(pool, scope="x"), NOW, success=True)  # now there is an entry of both classes
    assert credential_of(ask(pool)) == "a"
    assert credential_of(ask(pool, scope="x")) is None


def test_learned_rate_holds_healthy_credentials_back() -> None:
    """Both credentials are ready when the rate admits one request: the second one is not granted."""
    pool = make_healthy("a", "b", group="g")
    pool.lease_end.end(ask(pool), NOW, Verdict(RATE_LIMITED, retry_after=60.0))
    pool.advance(LATER)
    assert all(credential.is_healthy for credential in pool.credentials.values())
    assert grants(pool, LATER) == ["b", None]


def test_short_way_is_not_taken_when_time_has_come() -> None:
    """The cool-down of the credential that was used longest ago is over, but `advance` was not called yet."""
    pool = make_healthy("a", "b")
    pool.cool(pool.credentials["a"].group, None, 60.0, RATE_LIMITED, NOW)
    pool.lease_end.end(ask(pool), NOW, success=True)  # of b
    assert not pool.free.grant(LeaseRecord(), LATER)
    assert credential_of(ask(pool, LATER)) == "a"


def test_lease_of_scoped_credential_ends_in_its_scope() -> None:
    pool = Allocator()
    pool.add("a", "own a", None, frozenset({"x"}), Limits(), NOW)
    pool.request(LeaseRecord(scope="y"), NOW, wait=False)  # now there is a heap of that scope
    for _ in range(2):
        record = ask(pool, scope="x")
        if not pool.free.end(record):
            pool.lease_end.end(record, NOW, success=True)
    assert pool.credentials["a"].is_healthy
    assert credential_of(ask(pool, scope="y")) is None


def test_preferred_credential_precedes_healthy_ones() -> None:
    pool = make_healthy("a", "b")
    assert credential_of(ask(pool, prefer="b")) == "b"


def test_unused_probe_of_healthy_group_makes_room() -> None:
    pool = make_healthy("a", "b", group="g")
    pool.lease_end.end(ask(pool), NOW, Verdict(QUOTA_EXHAUSTED))
    probe, other = LeaseRecord(), LeaseRecord()
    assert pool.request(probe, LATER)
    assert not pool.request(other, LATER)
    pool.lease_end.withdraw(probe, LATER)
    pool.advance(LATER)
    assert pool.served == [other]


def test_success_of_healthy_credential_ends_row_of_overloads() -> None:
    pool, seconds = make_healthy("a"), []
    for now in (NOW, LATER):
        pool.lease_end.end(ask(pool, now), now, Verdict(OVERLOADED))
        seconds += [event.seconds for event in pool.events if isinstance(event, CoolDownStarted)]
        pool.events.clear()
        pool.advance(now + 100.0)
        pool.lease_end.end(ask(pool, now + 100.0), now + 100.0, success=True)
    assert seconds[0] == seconds[1]


VERDICTS = [
    Verdict(RATE_LIMITED, retry_after=3.0),
    Verdict(QUOTA_EXHAUSTED),
    Verdict(OVERLOADED),
    Verdict(AUTH_FAILED, message="401"),
]


class Twins:
    """Two pools with the same history: one has the short way, the other has not."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.now = chance, NOW
        self.pools = [make_pool("a", "b", max_concurrent=1), make_pool("a", "b", max_concurrent=1)]
        for pool in self.pools:
            pool.add("c", "own c", None, frozenset(), Limits(max_concurrent=3), NOW)
            pool.add("d", "own d", None, frozenset({"x"}), Limits(requests_per_minute=30), NOW)
            pool.add("e", "own e", None, frozenset({"x"}), Limits(), NOW)
        self.pools[1].free = Without(self.pools[1])
        self.live: list[list[LeaseRecord]] = []  # pairs
        self.free_ends = 0

    def step(self) -> None:
        """Let the same thing happen to both pools."""
        chance = self.chance
        kind = chance.choices(["request", "success", "verdict", "wait", "change"], [50, 50, 1, 8, 4])[0]
        if kind == "request":
            scope, prefer = chance.choice([None, None, "x", "y"]), chance.choice([None] * 9 + ["b"])
            tokens = chance.choice([0] * 9 + [5])
            pair = [LeaseRecord(None, 1, tokens, scope, prefer) for _ in self.pools]
            can_wait = chance.random() < 0.05
            for pool, record in zip(self.pools, pair, strict=True):
                pool.request(record, self.now, can_wait)
            self.live.append(pair)
        elif kind in ("success", "verdict") and self.live:
            pair = self.live.pop(chance.randrange(len(self.live)))
            verdict = chance.choice(VERDICTS) if kind == "verdict" else None
            for pool, record in zip(self.pools, pair, strict=True):
                if verdict is None and pool.free.end(record):
                    self.free_ends += 1
                elif record.state == WAITING:
                    pool.lease_end.withdraw(record, self.now)
                else:
                    pool.lease_end.end(record, self.now, verdict, success=verdict is None)
        elif kind == "wait":
            self.now += chance.choice([0.01, 0.5, 5.0, 100.0])
            if chance.random() < 0.5:
                for pool in self.pools:
                    pool.advance(self.now)
        elif kind == "change":
            id_, change = chance.choice("abc"), chance.choice(["quarantine", "cool", "restore", "clear", "clear"])
            for pool in self.pools:
                if change == "quarantine":
                    pool.quarantine(id_, "refused", self.now)
                elif change == "cool":
                    pool.cool(pool.credentials[id_].group, "x", 2.0, RATE_LIMITED, self.now)
                else:
                    getattr(pool, change)(id_, self.now)

    def view(self, number: int) -> object:
        """Return what one of the pools has decided."""
        pool = self.pools[number]
        leases = [(pair[number].state, pair[number].credential_id, pair[number].fence) for pair in self.live]
        credentials = [
            (c.id, c.used_requests, c.used_tokens, len(c.leases), c.fence, c.last_used, c.is_healthy)
            for c in pool.credentials.values()
        ]
        return leases, credentials, pool.sequence, pool.events, pool.announced, len(pool.served)


class Without(FreeLeases):
    """No short way."""

    def grant(self, record: LeaseRecord, now: float) -> bool:
        return False

    def end(self, record: LeaseRecord) -> bool:
        return False


@pytest.mark.parametrize("seed", range(60))
def test_short_way_decides_as_the_long_way(seed: int) -> None:
    twins = Twins(random.Random(seed))
    for _ in range(500):
        twins.step()
        assert twins.view(0) == twins.view(1)
    assert twins.free_ends
