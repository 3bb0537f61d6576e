"""An owner that is restored from its journal continues as the one that was killed would have."""

from __future__ import annotations

import copy

import pytest

from agentos.limits.declaration import Window
from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner.entries import AT, Snapshot
from agentos.pool.shared._owner.owned_pool import LAZY_SECONDS
from agentos.pool.shared._owner.owner import Owner
from agentos.pool.shared._owner.restore import snapshot

from .owned_pool import OwnedPool, declaration, ends
from .owner_histories import (
    KEYS,
    History,
    bucket_levels_of,
    cooldowns_of,
    declared_by,
    leases_of,
    quarantines_of,
    usage_of,
)

SEEDS = range(60)
STEPS = 120
# Entries that nothing waits for are in the journal this much later than they happened, and snapshots round instants up.
LATE = LAZY_SECONDS + 0.2
# Greatest declared rate of the histories, in requests per second.
MAX_RATE = 1.0


def check_equal(living: Owner, restored: Owner, now: float, message: str) -> None:
    assert leases_of(restored) == leases_of(living), message
    assert declared_by(restored) == declared_by(living), message
    assert quarantines_of(restored) == quarantines_of(living), message
    assert cooldowns_of(restored, now) == cooldowns_of(living, now), message
    for id_, credential in living.allocator.credentials.items():
        assert restored.allocator.credentials[id_].fence >= credential.fence, message
        assert restored.allocator.credentials[id_].is_proven == credential.is_proven, message
    for session_id, session in living.sessions.items():
        assert restored.sessions[session_id].heard == session.heard, message


def check_usage(living: Owner, restored: Owner, now: float, message: str) -> None:
    """Never less is used than in the living one, and no more than it had used LATE seconds ago."""
    used, expected = usage_of(restored, now), usage_of(living, now)
    assert used.keys() == expected.keys(), message
    for name, amount in expected.items():
        assert used[name] >= amount - 1e-6, f"{name} {message}"
    levels = bucket_levels_of(restored, now)
    for name, level in bucket_levels_of(living, now).items():  # they only smooth what the windows limit
        assert abs(levels[name] - level) <= MAX_RATE * LATE, f"{name} {message}"
    later = usage_of(restored, now + LATE)
    for name, amount in later.items():
        if "day" not in name[1] and "2 minutes" not in name[1]:  # first use: when it began is a bound
            assert amount <= expected[name] + 1e-6, f"{name} {message}"


def check_grants(living: Owner, restored: Owner, now: float, message: str) -> None:
    """The restored owner grants nothing that the living one would refuse by a limit or by max_concurrent."""
    for key in KEYS:
        credential, other = living.allocator.credentials.get(key), restored.allocator.credentials.get(key)
        if credential is None or other is None:
            continue
        assert other.has_room() == credential.has_room(), f"{key} {message}"
        limiter, other_limiter = credential.group.pace.limiter, other.group.pace.limiter
        if limiter is not None and other_limiter is not None:
            for requests, tokens in ((1, 0), (1, 100), (2, 450)):
                if limiter.ready_at(requests, tokens, now) > now + LATE:  # else by its bucket only
                    assert other_limiter.ready_at(requests, tokens, now), f"{key} {requests} {tokens} {message}"


def living_copy(pool: OwnedPool) -> Owner:
    """Return a copy of the living owner: looking at usage later than now drops what has expired by then."""
    return copy.deepcopy(pool.owner)


@pytest.mark.parametrize("seed", SEEDS)
def test_restored_owner_equals_living_one(seed: int) -> None:
    check_restored(seed)


def check_restored(seed: int) -> None:
    """At any instant, from entries alone, and from a snapshot of any instant with the entries after it."""  # 47
    history = History(seed)
    pool = history.pool
    saved: list[tuple[int, Snapshot]] = []
    for step in range(STEPS):
        history.step()
        if history.rng.random() < 0.1:
            pool.commit(everything=True)
            saved.append((len(pool.batches), pool.copy()))
        if history.rng.random() < 0.15:
            pool.commit(everything=True)
            position, state = history.rng.choice(saved or [(0, None)])
            living = living_copy(pool)
            for batches, first in ((pool.batches, None), (pool.batches[position:], state)):
                message = f"seed {seed}, step {step}, snapshot at {None if first is None else position}"
                restored = pool.restored(first, batches)
                check_equal(living, restored, pool.now, message)
                check_grants(living, restored, pool.now, message)
                check_usage(living, restored, pool.now, message)


@pytest.mark.parametrize("seed", SEEDS)
def test_journal_shows_all_that_members_know(seed: int) -> None:
    check_journal(seed)


def check_journal(seed: int) -> None:
    """Cut after any batch, before the next one: members know of no grant and no usage that it does not show."""  # 47
    history = History(seed, has_refunds=False)
    pool = history.pool
    restored, batches = pool.restored(), 0
    for step in range(STEPS):
        history.step()
        known = {
            (client.name, g.lease, g.credential, g.fence)
            for client in history.clients
            if client.name in pool.owner.sessions
            for g in client.granted.values()
        }
        if len(pool.batches) != batches or step % 4 == 0:  # also later than the last batch
            restored, batches = pool.restored(None, pool.batches), len(pool.batches)
        shown = {lease[:4] for lease in leases_of(restored)}
        live = {lease[:4] for lease in leases_of(pool.owner)}
        assert known & live <= shown, f"seed {seed}, step {step}"
        if pool.owner.commit_by == float("inf"):
            used, expected = usage_of(restored, pool.now), usage_of(living_copy(pool), pool.now)
            for name, amount in expected.items():
                assert used[name] >= amount - 1e-6, f"seed {seed}, step {step}"


@pytest.mark.parametrize("seed", SEEDS)
def test_owner_killed_again_and_again_continues(seed: int) -> None:
    """Each owner is restored from the journal of the one before; its members greet it with what they hold."""
    history = History(seed)
    pool = history.pool
    for _ in range(STEPS):
        history.step()
        if history.rng.random() < 0.1:
            pool.commit(everything=history.rng.random() < 0.5)
            if history.rng.random() < 0.3:
                pool.save()
            before = {c.name: set(c.granted) for c in history.clients}
            pool.take_over()
            for client in history.clients:
                client.greet(held=client.held())
                assert set(client.granted) == before[client.name] & set(client.granted)
        for credential in pool.owner.allocator.credentials.values():
            assert all(r.owner.leases.get(r.id) is r for r in credential.leases.values())


@pytest.mark.parametrize("others", [{}, {"requests_per_minute": 60}], ids=["no other limit", "another limit"])
def test_counted_day_in_unknown_zone_is_restored(others: dict[str, int]) -> None:
    """A snapshot counts the day of a limit that is not declared any more, in a zone that the next owner does not know.
    The day after, that owner can save its state, too."""
    pool = OwnedPool()
    client = pool.client("m", declaration(requests_per_day=5, day_resets="00:00 Europe/Berlin"))
    client.request()
    client.send(declaration(**others))
    pool.save()
    restored = pool.restored(ends=ends_without_zones)
    assert leases_of(restored) == leases_of(pool.owner)
    assert snapshot(restored, pool.now + 2 * 86_400.0).groups


def ends_without_zones(resets: str, at: float) -> float:
    """Know UTC only."""
    if not resets.endswith("UTC"):
        raise ValueError(resets)
    return ends(resets, at)


FIRST_USE = Window("requests", 4, "2m", "first-use")


def test_first_use_window_begins_at_one_instant_in_replays() -> None:  # invariants 39, 47
    """Late usage begins the window, and is in the journal a second later. A request granted 118.5 s after it may arrive
    in the next period of the provider, and must count there, too; by the second it would not."""
    pool = OwnedPool()
    client = pool.client("m", declaration(windows=[FIRST_USE], max_concurrent=9), ttl=500.0)
    client.send(wire.UseMore(10**9, 1, 0, "k0"))
    pool.advance(1.5)
    client.end(client.request(), success=True)  # the period ends 120 s later
    pool.advance(117.0)
    client.request()
    pool.advance(5.0)
    client.request()
    restored = pool.restored()
    living = usage_of(pool.owner, pool.now)
    assert list(living.values()) == [2.0]
    assert usage_of(restored, pool.now) == living
    assert len([entry for _, batch in pool.batches for entry in batch if entry[:2] == AT]) > 2


def test_window_without_declaration_counts_on_after_a_snapshot() -> None:  # invariant 39
    """It is declared again while what was used meanwhile still counts."""
    pool = OwnedPool()
    client = pool.client("m", declaration(windows=[FIRST_USE], max_concurrent=9))
    client.send(declaration(max_concurrent=9))
    pool.save()
    client.request()
    client.send(declaration(windows=[FIRST_USE], max_concurrent=9))
    assert list(usage_of(pool.owner, pool.now).values()) == [1.0]
    pool.commit(everything=True)
    assert usage_of(pool.restored(), pool.now) == usage_of(pool.owner, pool.now)
