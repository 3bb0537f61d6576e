"""Closing a shared pool in one of its processes."""

from __future__ import annotations

import threading

import pytest

from agentos import errors
from agentos.pool.shared_state import look
from agentos.workflows.parallel import CredentialCoordinator
from tests.conftest import eventually

KEY = "sk-closing-000000"


def test_closed_pool_returns_leases_to_other_processes(shared_store: str) -> None:
    first, second = (CredentialCoordinator([KEY], store=shared_store) for _ in range(2))
    key = first.reserve(timeout=20)
    assert key is not None
    first.close()
    assert second.reserve(timeout=20) == KEY
    first.release(key)  # too late
    assert second.get_available_count() == 0


def test_request_to_closed_pool_raises_at_once(shared_store: str) -> None:
    pool = CredentialCoordinator([KEY], store=shared_store)
    pool.close()
    pool.close()
    with pytest.raises(errors.StoreError, match="closed"), pool.lease():
        raise AssertionError
    with pytest.raises(errors.StoreError, match="closed"):
        pool.reserve_credential()


def test_close_wakes_waiters_with_an_error(shared_store: str) -> None:
    pool = CredentialCoordinator([KEY], store=shared_store)
    pool.reserve(timeout=20)
    failures: list[Exception] = []

    def ask() -> None:
        try:
            with pool.lease():
                raise AssertionError
        except errors.PoolError as error:
            failures.append(error)

    waiter = threading.Thread(target=ask)
    waiter.start()
    eventually(lambda: pool.get_stats()["waiting"] == 1)
    pool.close()
    waiter.join(20)
    assert [type(failure) for failure in failures] == [errors.StoreError]


def test_close_ends_session_and_threads(shared_store: str) -> None:
    first, second = (CredentialCoordinator([KEY], store=shared_store) for _ in range(2))
    assert len(look(shared_store).members) == 2
    first.close()
    eventually(lambda: len(look(shared_store).members) == 1)
    second.close()
    eventually(lambda: look(shared_store).owner is None)
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("agentos-pool")])
