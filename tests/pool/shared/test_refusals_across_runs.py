"""Refusals of keys count across runs and owners: a dead key is quarantined by the second run."""

from __future__ import annotations

import pytest

from agentos.pool._rules.records import MAX_REFUSALS_APART
from agentos.pool.shared import messages as wire
from agentos.verdict import AUTH_FAILED, Verdict

from .owned_pool import OwnedPool, declaration

KEY = declaration(max_concurrent=8)
REFUSED = Verdict(AUTH_FAILED, message="Incorrect API key")


def run(pool: OwnedPool, *answers: tuple[str, Verdict | None], is_killed: bool = False, pause: float = 60.0) -> None:
    """Carry out a run, then let the next owner begin: items and the answers to their requests; None: a success."""
    client = pool.client(f"run at {pool.now}", KEY)
    for item, verdict in answers:
        pool.advance(10.0)
        lease = client.leases + 1
        client.leases = lease
        client.send(wire.Request(lease, item, 1, 0, "m", None))
        assert lease in client.granted
        client.end(lease, verdict, success=verdict is None)
    if is_killed:
        pool.commit(everything=True)
    else:
        client.send(wire.Leave())
        pool.save()
    pool.now += pause
    pool.take_over()


def quarantine(pool: OwnedPool) -> str | None:
    return pool.owner.allocator.credentials["k0"].quarantine


@pytest.mark.parametrize("is_killed", [False, True])
def test_refusals_of_two_runs_quarantine(is_killed: bool) -> None:
    pool = OwnedPool()
    run(pool, ("a", REFUSED), is_killed=is_killed)
    assert quarantine(pool) is None
    run(pool, ("b", REFUSED), is_killed=is_killed)
    assert quarantine(pool) == "refused by the provider 2 times in a row: Incorrect API key"


def test_refusals_of_one_item_quarantine_by_the_third() -> None:
    pool = OwnedPool()
    for expected in (None, None, "refused by the provider 3 times in a row: Incorrect API key"):
        run(pool, ("a", REFUSED))
        assert quarantine(pool) == expected


@pytest.mark.parametrize("is_killed", [False, True])
def test_success_of_another_run_ends_the_row(is_killed: bool) -> None:
    pool = OwnedPool()
    run(pool, ("a", None), ("b", REFUSED), is_killed=is_killed)
    run(pool, ("c", None), is_killed=is_killed)
    run(pool, ("d", REFUSED), is_killed=is_killed)
    assert quarantine(pool) is None


def test_refusal_of_the_day_before_confirms_nothing() -> None:
    pool = OwnedPool()
    run(pool, ("a", REFUSED), pause=MAX_REFUSALS_APART)
    run(pool, ("b", REFUSED))
    assert quarantine(pool) is None


def test_new_secret_forgets_refusals_of_the_old() -> None:
    pool = OwnedPool()
    run(pool, ("a", REFUSED))
    client = pool.client("second", declaration(max_concurrent=8, fingerprint="another"))
    lease = client.request(scope="m")
    client.end(lease, REFUSED)
    assert quarantine(pool) is None
