"""What a worker can ask of its item: checkpoint, files, usage, leases."""

from __future__ import annotations

import gc
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest

from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Transient,
    current_item,
)
from tests.conftest import eventually

from .coordinators import KEYS, quiet


def test_current_item_describes_the_attempt() -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="alpha")])

    def worker(item: str, _: str) -> tuple[Any, ...]:
        current = current_item()
        return current.id, current.attempt, current.run_id, current.credential_id, current.should_stop

    _, results = quiet(1, pool).execute_parallel(["a"], worker, run_id="my-run")
    assert results[0].value == ("a", 1, "my-run", "alpha", False)
    with pytest.raises(RuntimeError, match="no item is running here"):
        current_item()
    with pytest.raises(ValueError, match="Invalid identifier"):
        quiet().execute_parallel([1], worker, run_id="../etc")


@pytest.mark.usefixtures("_short_pauses")
def test_checkpoint_and_workflow_db_survive_a_retry() -> None:
    def worker(_item: str, _: Any) -> tuple[Any, str, bool]:
        current = current_item()
        if current.attempt == 1:
            current.checkpoint.save({"step": 2})
            current.workflow_db.write_text("state")
            raise Transient
        return current.checkpoint.load(), current.workflow_db.read_text(), "../.." in str(current.workflow_db)

    _, results = quiet().execute_parallel(["../../etc/passwd"], worker)
    assert results[0].value == ({"step": 2}, "state", False)


@pytest.mark.usefixtures("_quick_collection")
def test_files_of_a_run_are_removed_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gate = threading.Event()

    def worker(item: str, _: Any) -> None:
        current_item().workflow_db.write_text("state")
        if item == "stuck":
            gate.wait(30)

    quiet(2).execute_parallel(["a", "b"], worker)
    assert list(tmp_path.iterdir()) == []
    clock = FakeClock()
    with quiet(1, timeout=5, clock=clock).stream(["stuck"], worker) as stream:
        eventually(lambda: list(tmp_path.rglob("*.db")))
        clock.advance(5)
        assert [result.success for result in stream] == [False]
    del stream
    assert len(list(tmp_path.iterdir())) == 1  # the abandoned thread may still use its file
    gate.set()
    eventually(lambda: gc.collect() >= 0 and not list(tmp_path.iterdir()))


def test_reported_usage_settles_the_lease() -> None:
    pool = CredentialCoordinator(KEYS[:1])

    def worker(_item: str, _: str) -> None:
        current_item().report_usage(requests=2, tokens=100)
        current_item().report_usage(tokens=50, cost=0.25)

    _, results = quiet(1, pool).execute_parallel(["a"], worker)
    assert results[0].metadata["usage"] == {"requests": 2, "tokens": 150, "cost": 0.25}
    assert (pool.states()[0].requests, pool.states()[0].tokens) == (2, 150)


@pytest.mark.parametrize("cost", [-1, 1e15, 1e308, float("inf"), float("nan")])
def test_report_usage_rejects_costs_that_cannot_be_summed(cost: float) -> None:
    _, results = quiet(1, None).execute_parallel(["a"], lambda *_: current_item().report_usage(cost=cost))
    assert "usage must be at least 0" in str(results[0].error)


def test_worker_leases_its_own_credential_first() -> None:
    """Otherwise workers that all lease would wait for each other in a circle."""
    pool = CredentialCoordinator(KEYS[:2])
    barrier = threading.Barrier(2, timeout=60)

    def worker(_item: int, key: str) -> bool:
        barrier.wait()  # both keys are in use now
        with current_item().lease(timeout=60) as lease:
            return lease.secret == key

    _, results = quiet(2, pool).execute_parallel(range(2), worker)
    assert all(result.value is True for result in results), results
    assert pool.get_stats()["reserved"] == 0


def test_second_concurrent_lease_comes_from_the_pool() -> None:
    pool = CredentialCoordinator(KEYS[:2])

    def worker(_item: int, key: str) -> tuple[int, int]:
        with current_item().lease() as first, current_item().lease() as second:
            different = len({first.secret, second.secret})
        with current_item().lease(scope="another") as third:
            return different, int(third.secret in KEYS)

    _, results = quiet(1, pool).execute_parallel([1], worker)
    assert results[0].value == (2, 1)
    assert pool.get_stats()["reserved"] == 0


def test_worker_without_admission_leases_by_itself() -> None:
    pool = CredentialCoordinator(KEYS[:1])

    async def worker(item: int, credential: Any) -> Any:
        assert credential is None
        async with current_item().lease() as lease:
            return lease.secret

    stats, results = quiet(10, pool, admission="none").execute_parallel(range(30), worker)
    assert stats.success_count == 30, results
    assert {result.value for result in results} == set(KEYS[:1])


def test_observed_response_reaches_the_pool() -> None:
    class Answer:
        status_code = 429
        headers = {"retry-after": "60"}  # noqa: RUF012

    pool = CredentialCoordinator(KEYS[:1])
    quiet(1, pool).execute_parallel([1], lambda _i, _c: current_item().observe(Answer()))
    assert pool.get_stats()["rate_limited"] == 1
