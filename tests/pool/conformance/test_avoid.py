"""Requests that leave credentials alone, printed verdicts and `clear`, in every store."""

from __future__ import annotations

import pytest

from agentos.errors import UnknownCredential
from agentos.pool import shared_state
from agentos.pool._rules.lease_states import LIVE, REFUSED, WAITING
from agentos.pool.store import LeaseHandle
from agentos.verdict import Verdict
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, QuotaExhausted
from tests.conftest import eventually

KEYS = [Credential(f"sk-avoid-{id_}-0000", id=id_, limits=Limits(max_concurrent=4)) for id_ in "ab"]
NONE: frozenset[str] = frozenset()
A, B, BOTH = frozenset("a"), frozenset("b"), frozenset("ab")


@pytest.fixture
def pool(store: str) -> CredentialCoordinator:
    return CredentialCoordinator(KEYS, store=store, reporter=lambda _: None)


def request(pool: CredentialCoordinator, excluded: frozenset[str], later: frozenset[str]) -> LeaseHandle:
    handle: LeaseHandle = pool.make_handle("item")
    handle.deliver = lambda: None
    pool.avoid(handle, excluded, later)
    pool.request(handle)
    return handle


@pytest.mark.parametrize(("excluded", "later"), [(A, NONE), (NONE, A)], ids=["never", "later"])
def test_avoided_credential_is_not_granted(
    pool: CredentialCoordinator, excluded: frozenset[str], later: frozenset[str]
) -> None:
    handles = [request(pool, excluded, later) for _ in range(4)]
    eventually(lambda: all(handle.state == LIVE for handle in handles))
    assert {handle.credential_id for handle in handles} == {"b"}


def test_request_that_avoids_all_for_now_waits(pool: CredentialCoordinator) -> None:
    handle = request(pool, NONE, BOTH)
    with pool.lease(timeout=20):  # answered after it
        assert handle.state == WAITING
    pool.quarantine("b", "gone")
    assert handle.state == WAITING
    pool.withdraw(handle)


def test_request_that_excludes_all_is_refused(pool: CredentialCoordinator) -> None:
    handle = request(pool, BOTH, NONE)
    eventually(lambda: handle.state == REFUSED)


def test_excluded_and_quarantined_credentials_refuse_a_request(pool: CredentialCoordinator) -> None:
    pool.quarantine("b", "gone")
    handle = request(pool, A, NONE)
    eventually(lambda: handle.state == REFUSED)


@pytest.mark.parametrize("kind", ["auth_failed", "rate_limited", "quota_exhausted", "overloaded"])
def test_printed_verdict_reaches_no_other_member(store: str, pool: CredentialCoordinator, kind: str) -> None:
    """Invariant 42: whatever commands print, the pool does not change."""
    other = pool if store == "memory:" else CredentialCoordinator(KEYS, store=store, reporter=lambda _: None)
    for _ in range(6):
        handle = request(pool, B, NONE)
        eventually(lambda handle=handle: handle.state == LIVE)
        pool.end(handle, Verdict(kind, 3600.0, message="printed", is_printed=True))
    for _ in range(2):
        with other.lease(timeout=20, prefer="a") as lease:
            assert lease.credential_id == "a"
    assert not [state for state in other.states() if state.quarantined or state.cooled_by]


def test_clear_ends_cool_down_and_quarantine(pool: CredentialCoordinator) -> None:
    for _ in range(2):
        with pytest.raises(QuotaExhausted), pool.lease(timeout=20):
            raise QuotaExhausted(until=pool.clock.epoch() + 7200)
    pool.quarantine("a", "refused")
    assert pool.get_available_count() == 0
    pool.clear("a")
    pool.clear("b")
    assert pool.get_available_count() == 2
    with pytest.raises(UnknownCredential):
        pool.clear("unknown")


def test_clear_from_another_process_serves_waiters(shared_store: str) -> None:
    with CredentialCoordinator(KEYS[:1], store=shared_store, reporter=lambda _: None) as pool:
        with pytest.raises(QuotaExhausted), pool.lease(timeout=20):
            raise QuotaExhausted(until=pool.clock.epoch() + 7200)
        waiter = request(pool, NONE, NONE)
        assert waiter.state == WAITING
        assert shared_state.clear(shared_store, "a")
        eventually(lambda: waiter.state == LIVE)
        assert not shared_state.clear(shared_store, "a")
    assert [state.cooled_by for state in shared_state.look(shared_store).states] == [{}]  # the journal has it, too
