"""Result streams: order, early close, and streams that are dropped."""

from __future__ import annotations

import asyncio
import gc
import itertools
import signal
import threading
from typing import Any

import pytest

from agentos.workflows.parallel import (
    Interrupted,
    current_item,
)
from tests.conftest import eventually

from .coordinators import quiet


def test_stream_yields_results_as_items_end() -> None:
    gate = threading.Event()
    with quiet(2).stream(["slow", "fast"], lambda item, _: item == "slow" and gate.wait(60)) as results:
        assert next(results).item_id == "fast"
        gate.set()
        assert next(results).item_id == "slow"
        assert next(results, None) is None
        assert results.stats.completed == 2


def test_closing_a_stream_early_is_a_graceful_shutdown() -> None:
    has_begun, has_stopped = threading.Event(), threading.Event()

    def worker(item: int, _: Any) -> int:
        if item > 2:
            has_begun.set()
            eventually(lambda: current_item().should_stop)
            has_stopped.set()
            raise Interrupted
        return item

    coordinator = quiet(2)
    with coordinator.stream(itertools.count(), worker) as results:
        for _ in range(3):
            next(results)
        assert has_begun.wait(60)
    assert has_stopped.is_set()
    checkpoints = coordinator.get_checkpoints()
    assert checkpoints
    assert all(int(item_id) > 2 for item_id in checkpoints)


def test_dropped_stream_stops_its_run() -> None:
    """Its unfinished items are checkpoints."""
    coordinator = quiet(2)
    for _ in coordinator.stream(range(1000), lambda item, _: item):
        break
    eventually(lambda: len(coordinator.get_checkpoints()) > 800)
    assert not coordinator._runs


@pytest.mark.usefixtures("_quick_collection")
def test_dropped_async_stream_restores_signal_handlers() -> None:
    handler = signal.getsignal(signal.SIGTERM)

    async def worker(item: int, _: Any) -> int:
        return item

    async def main() -> None:
        coordinator = quiet(2)
        async for _ in coordinator.astream(range(1000), worker):
            break
        while coordinator._runs:
            gc.collect()
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))])
        assert len(coordinator.get_checkpoints()) > 800

    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is handler


def test_closed_stream_accounts_for_every_item() -> None:
    """Each one is in a result, taken before or after the close, or is a checkpoint."""
    coordinator = quiet(2)
    with coordinator.stream(range(100), lambda item, _: item) as results:
        first = next(results)
        eventually(lambda: results.stats.completed > 50)
    leftover_ids = [result.item_id for result in results]
    ids = [first.item_id, *leftover_ids, *coordinator.get_checkpoints()]
    assert sorted(ids, key=int) == [str(n) for n in range(100)]

    async def main() -> None:
        async def worker(item: int, _: Any) -> int:
            return item

        async with coordinator.astream(range(100), worker) as stream:
            first = await anext(stream)
        ids = [first.item_id, *[r.item_id async for r in stream], *coordinator.get_checkpoints()]
        assert sorted(ids, key=int) == [str(n) for n in range(100)]

    asyncio.run(main())
