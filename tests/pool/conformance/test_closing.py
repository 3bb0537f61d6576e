"""Closing a shared pool in one of its processes."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from agentos import errors
from agentos.pool.shared_state import look
from agentos.pool.states import Holder
from agentos.workflows.parallel import CredentialCoordinator
from tests.conftest import eventually

from .members import Processes, keys

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


def test_journal_without_owner_shows_leases_of_living_processes(processes: Processes, shared_store: str) -> None:
    """A stopped process holds its lease; one that was killed together with the owner holds none."""
    stopped, killed = (processes.open(shared_store, keys(2), ttl=300) for _ in range(2))
    for name, member in (("a", stopped), ("b", killed)):
        member.lease(name)
        member.granted(name)
    owner = stopped.do("owner_pid")
    os.kill(owner, signal.SIGSTOP)  # it notices nothing
    stopped.pause()
    killed.kill()
    os.kill(owner, signal.SIGKILL)
    if shared_store.startswith("sqlite"):  # over a server it is not known which of several members has ended
        eventually(lambda: [holder.pid for holder in holders(shared_store)] == [stopped.pid])
    assert stopped.pid in [holder.pid for holder in holders(shared_store)]
    stopped.kill()
    eventually(lambda: holders(shared_store) == [])


def holders(store: str) -> list[Holder]:
    return [holder for state in look(store).states for holder in state.held_by]
