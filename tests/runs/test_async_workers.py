"""Workers that are coroutine functions, on their own loop or the caller's."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Limits,
    current_item,
)
from tests.conftest import BUSY, eventually

from .coordinators import KEYS, quiet


def test_two_thousand_async_workers_run_at_once() -> None:
    limits = Limits(max_concurrent=1000, requests_per_minute=10**9, burst=10**9)  # high: nothing is learned
    pool = CredentialCoordinator([Credential(k, limits=limits) for k in KEYS])
    running = peak = 0
    all_in = asyncio.Event()

    async def worker(item: int, key: str) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        if running == 2000:
            all_in.set()
        await asyncio.wait_for(all_in.wait(), 60)
        running -= 1
        return current_item().attempt if current_item().id == str(item) else -1

    stats, results = quiet(2000, pool, max_parallelism=2000).execute_parallel(range(4000), worker)
    assert stats.success_count == 4000
    assert peak == 2000
    assert {result.value for result in results} == {1}


def test_execute_parallel_works_inside_a_running_loop() -> None:
    async def worker(item: int, _: Any) -> int:
        return item

    async def main() -> int:
        return quiet().execute_parallel(range(5), worker)[0].success_count

    assert asyncio.run(main()) == 5


def test_execute_parallel_async_uses_the_callers_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def worker(item: int, _: Any) -> bool:
            return asyncio.get_running_loop() is loop

        stats, results = await quiet().execute_parallel_async(range(50), worker)
        assert stats.success_count == 50
        assert all(result.value for result in results)
        ids = []
        async with quiet().astream(itertools.count(), worker) as stream:
            async for result in stream:
                ids.append(result.item_id)
                if len(ids) == 30:
                    break
        assert stream.stats.stopped == "stream closed early"
        stats, _ = await quiet().execute_parallel_async(range(5), lambda item, _: item)  # a plain function: threads
        assert stats.success_count == 5

    asyncio.run(main())


def test_async_exception_fails_its_own_item_only() -> None:
    async def worker(item: str, _: Any) -> str:
        errors = {"s": SystemExit(3), "k": KeyboardInterrupt(), "c": asyncio.CancelledError(), "v": ValueError("boom")}
        if item in errors:
            raise errors[item]
        return item

    stats, results = quiet().execute_parallel(list("askcvb"), worker)
    assert {r.item_id for r in results if r.success} == {"a", "b"}
    assert stats.failed == 4


def test_cancelling_execute_parallel_async_is_a_shutdown() -> None:
    async def main() -> None:
        started = asyncio.Event()
        ended = []

        async def worker(_item: int, _: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        coordinator = quiet(2)
        task = asyncio.create_task(coordinator.execute_parallel_async(range(5), worker))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ended) >= 1
        assert len(coordinator.get_checkpoints()) == 5

        async def half(item: int, _: Any) -> int:
            if item == 5:  # starts when items 0 to 3 have ended
                limit.reschedule(asyncio.get_running_loop().time())
            if item > 3:
                await asyncio.Event().wait()
            return item

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await coordinator.execute_parallel_async(range(8), half)
        assert sorted(result.item_id for result in coordinator.partial_results) == ["0", "1", "2", "3"]

    asyncio.run(main())


def test_task_cancelled_before_its_first_step_returns_its_lease() -> None:
    """A task that is cancelled before its first step never runs, so it cannot report its end."""
    pool = CredentialCoordinator([Credential(KEYS[0], limits=Limits(max_concurrent=50))])

    async def worker(item: int, _: Any) -> None:
        if item == 0:
            coordinator.request_shutdown()

    for _ in range(20):
        coordinator = quiet(50, pool, max_parallelism=50, grace_seconds=60)
        start = time.monotonic()
        _, results = coordinator.execute_parallel(range(2000), worker)
        assert time.monotonic() - start < 1 + BUSY
        assert len(results) + len(coordinator.get_checkpoints()) == 2000
        eventually(lambda: pool.get_stats()["reserved"] == 0)


def test_object_with_async_call_is_an_async_worker() -> None:
    class Worker:
        async def __call__(self, item: int, _: Any) -> int:
            return item + 1

    _, results = quiet().execute_parallel([1], Worker())
    assert results[0].value == 2
