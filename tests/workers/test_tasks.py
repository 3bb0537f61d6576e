"""Attempts as asyncio tasks, on a loop of their own."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from typing import Any

import pytest

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator
from tests.conftest import eventually


async def _ignore_every_cancellation(_item: str, _credential: Any) -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except (asyncio.CancelledError, GeneratorExit):
            continue


def test_closed_loop_logs_nothing_about_stubborn_tasks(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio would log that each of these tasks was destroyed while it was pending."""
    monkeypatch.setattr("agentos.workers.tasks.CLEANUP_SECONDS", 0.01)
    coordinator = ParallelCoordinator(1, reporter=None, timeout=0.05, grace_seconds=0.05, retries=0)
    coordinator.execute_parallel(["stubborn"], _ignore_every_cancellation)
    eventually(lambda: not any(thread.name == "agentos-loop" for thread in threading.enumerate()))
    gc.collect()
    assert caplog.messages == []


def test_closed_loop_still_logs_lost_exceptions_of_other_tasks(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise LookupError("lost")

    async def worker(_item: str, _credential: Any) -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.wait([task])

    ParallelCoordinator(1, reporter=None).execute_parallel(["a"], worker)
    eventually(lambda: gc.collect() >= 0 and any("never retrieved" in message for message in caplog.messages))


async def _cancel_all_tasks(item: int, _credential: Any) -> int:
    if item == 3:
        for task in asyncio.all_tasks():
            task.cancel()
    await asyncio.sleep(0)
    return item


async def _stop_loop(item: int, _credential: Any) -> int:
    if item == 3:
        asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return item


async def _exit_in_callback(item: int, _credential: Any) -> int:
    if item == 3:
        asyncio.get_running_loop().call_soon(sys.exit, 3)
    await asyncio.sleep(0)
    return item


async def _exit_in_background_task(item: int, _credential: Any) -> int:
    async def leave() -> None:
        sys.exit(3)

    background = asyncio.ensure_future(leave()) if item == 3 else None
    await asyncio.sleep(0)
    return item if background is None or not background.done() else -1


@pytest.mark.parametrize(
    ("worker", "has_failures"),
    [(_cancel_all_tasks, True), (_stop_loop, False), (_exit_in_callback, False), (_exit_in_background_task, False)],
)
@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_run_ends_although_a_worker_disturbs_its_loop(worker: Any, has_failures: bool, workers: int) -> None:
    pool = CredentialCoordinator([Credential("sk-alpha-000000", limits=Limits(max_concurrent=50))])
    coordinator = ParallelCoordinator(workers, pool, reporter=None, timeout=60, retries=0)
    stats, results = coordinator.execute_parallel(range(200), worker)
    assert len(results) == 200
    assert (stats.failed > 0) == has_failures
    assert stats.failed <= workers
    assert pool.get_stats()["reserved"] == 0


@pytest.mark.parametrize(("worker", "error"), [(_cancel_all_tasks, asyncio.CancelledError), (_stop_loop, RuntimeError)])
def test_disturbed_callers_loop_ends_the_call(worker: Any, error: type[BaseException]) -> None:
    """The worker cancels or stops its caller as well; the run must not keep the caller waiting."""
    pool = CredentialCoordinator([Credential("sk-alpha-000000", limits=Limits(max_concurrent=50))])
    coordinator = ParallelCoordinator(4, pool, reporter=None, grace_seconds=600)
    with pytest.raises(error):
        asyncio.run(coordinator.execute_parallel_async(range(200), worker))
    eventually(lambda: pool.get_stats()["reserved"] == 0)
