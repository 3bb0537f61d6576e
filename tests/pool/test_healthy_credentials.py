"""Credentials that have served requests, and whose leases take the short way: what must still hold them back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentos.events import CoolDownStarted
from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

from .test_allocator import NOW, ask, credential_of

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
