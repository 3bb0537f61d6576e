"""Mistakes in the rules: an exception there is an error of the member whose message led to it, and of no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from agentos import errors
from agentos.events import StoreUnreachable
from agentos.pool.shared._member import member
from agentos.pool.shared._owner import owner_child
from agentos.workflows.parallel import Credential, CredentialCoordinator
from tests.conftest import eventually

from .observed_pool import ObservedPool

UNLUCKY = "unlucky"
OWNER = f"""
import sys
from agentos.pool._rules.allocator import Allocator
from agentos.pool.shared._owner import owner_process

add, request = Allocator.add, Allocator.request

def add_or_fail(self, id, *what):
    return add(self, id, *what) if id != {UNLUCKY!r} else {{}}["no such credential"]

def request_or_fail(self, record, *what, **options):
    if record.requester == {UNLUCKY!r}:
        raise KeyError("no such request")
    return request(self, record, *what, **options)

Allocator.add, Allocator.request = add_or_fail, request_or_fail
owner_process.main(sys.argv[1:])
"""


@pytest.fixture
def store(shared_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return a store whose owners make mistakes."""
    monkeypatch.setattr(owner_child, "OWNER_COMMAND", [sys.executable, "-c", OWNER])
    yield shared_store
    member.close_all()


@pytest.mark.parametrize("waits", [True, False])
def test_request_that_meets_a_mistake_fails_alone(store: str, waits: bool) -> None:  # invariant 46
    holder, second = ObservedPool(store, ttl=30, count=2), ObservedPool(store, ttl=30, count=2)
    with holder.pool.lease() as lease:
        pid, fence = second.owner_pid, second.fence()
        if waits:
            with pytest.raises(errors.PoolError, match="no such request"), second.pool.lease(UNLUCKY, timeout=20):
                raise AssertionError
        else:
            assert second.pool.reserve_credential(UNLUCKY) is None
        assert second.fence() > fence
        eventually(lambda: holder.pool.get_stats()["reserved"] == 1)
        assert not lease._handle.is_lost
        assert holder.owner_pid == second.owner_pid == pid
    eventually(lambda: second.pool.get_stats()["available"] == 2)
    assert not holder.events_of(StoreUnreachable) + second.events_of(StoreUnreachable)


def test_member_whose_greeting_meets_a_mistake_is_refused_alone(store: str) -> None:  # invariant 46
    first, second = ObservedPool(store, ttl=30), ObservedPool(store, ttl=30)
    fence, pid = first.fence(), first.owner_pid
    unlucky = Credential("sk-fault-unlucky-secret", id=UNLUCKY)
    second.pool.add(unlucky)
    eventually(lambda: second.events_of(StoreUnreachable))
    assert "no such credential" in second.events_of(StoreUnreachable)[0].reason
    assert first.fence() > fence  # it has greeted the restored owner
    greeted_at = first.pool._store._member._greeted_at  # type: ignore[attr-defined]
    for _ in range(20):
        assert first.fence() > fence
    assert first.owner_pid == pid
    assert first.pool._store._member._greeted_at == greeted_at  # type: ignore[attr-defined]
    with pytest.raises(errors.StoreError, match="no such credential"):
        CredentialCoordinator([unlucky], store=store)
    assert first.fence() > fence
