"""Resumed runs as streams: recorded results among new ones, endless inputs, repeated ids."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.items import duplicates, sources
from agentos.items.duplicates import RecentIds
from agentos.runs._parts import recorder
from agentos.workflows.parallel import (
    Interrupted,
    Ledger,
    ParallelCoordinator,
    WorkflowResult,
    current_item,
)
from tests.conftest import BUSY, eventually

from .runs import Doubling, by_id, coordinator_of, is_recorded


def test_stream_yields_new_and_recorded_results(path: Path) -> None:
    worker = Doubling()
    coordinator_of(path).execute_parallel(range(1000), worker)
    with coordinator_of(path).stream((n for n in range(1010)), worker) as results:
        stream_results = list(results)
    assert len(worker.calls) == 1010
    assert len(by_id(stream_results)) == 1010
    assert sum(is_recorded(result) for result in stream_results) == 1000
    assert results.stats.total == 1010


def test_new_items_start_before_recorded_results_are_taken(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(20_000), Doubling())
    was_called = threading.Event()

    def worker(_item: int, _credential: str | None) -> None:
        was_called.set()

    with coordinator_of(path).stream(range(20_001), worker):  # no result is taken
        assert was_called.wait(10 * BUSY)


def test_unstarted_items_are_not_recorded(path: Path) -> None:
    with coordinator_of(path).stream(itertools.count(), Doubling()) as results:
        stream_results = [next(results) for _ in range(10)]
    with Ledger.open(path) as ledger:
        assert ledger.counts().total < 50_000
        assert all(ledger.item(result.item_id) is not None for result in stream_results)


def test_blocked_generator_does_not_delay_items_already_read(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(100), Doubling())
    may_end, was_called = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield from range(101)
        may_end.wait(30)

    def worker(_item: int, _credential: str | None) -> None:
        was_called.set()

    with coordinator_of(path).stream(items(), worker) as results:
        assert was_called.wait(10)
        item_ids = {next(results).item_id for _ in range(101)}  # recorded results included
        may_end.set()
        assert list(results) == []
    assert len(item_ids) == 101


@pytest.mark.parametrize("between", [0, 1000])
def test_repeated_id_in_stream_fails(path: Path, monkeypatch: pytest.MonkeyPatch, between: int) -> None:
    """With 1,000 items in between, the source has forgotten the id, and the ledger must know it."""
    monkeypatch.setattr(sources, "RecentIds", lambda: RecentIds(capacity=100))

    def items() -> Iterator[int]:
        yield 0
        yield from range(1, between + 1)
        if between:  # a run remembers more ids than it may have uncommitted results: see the test below
            eventually(lambda: has_outcome("0"))
        yield 0

    def has_outcome(item_id: str) -> bool:
        with Ledger.open(path) as ledger:
            return ledger.standing(item_id) == ("succeeded", 1)

    calls = []
    with coordinator_of(path).stream(items(), lambda item, _: calls.append(item)) as results:
        failed = [result for result in results if not result.success]
    assert [(result.item_id, "ids must be unique" in str(result.error)) for result in failed] == [("0", True)]
    assert calls.count(0) == 1
    with Ledger.open(path) as ledger:
        assert ledger.counts().failed == 0  # the record is that of the first


def test_more_ids_are_remembered_than_results_can_be_uncommitted() -> None:
    """Otherwise a repeated id could be neither among the recent ids nor in the ledger."""
    assert duplicates.MAX_REMEMBERED > recorder.MAX_UNDELIVERED


def test_repeated_id_of_recorded_item_fails(path: Path) -> None:
    worker = Doubling()
    coordinator_of(path).execute_parallel(range(3), worker)
    _, results = coordinator_of(path).execute_parallel(iter([0, 1, 1]), worker)
    assert sorted((r.item_id, r.success) for r in results) == [("0", True), ("1", False), ("1", True)]
    assert len(worker.calls) == 3


def test_recorded_id_repeated_much_later_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "RecentIds", lambda: RecentIds(capacity=1))
    worker = Doubling()
    coordinator_of(path).execute_parallel(range(3), worker)
    _, results = coordinator_of(path).execute_parallel(iter([0, 1, 2, 0]), worker)
    assert sorted((r.item_id, r.success) for r in results) == [("0", False), ("0", True), ("1", True), ("2", True)]
    assert len(worker.calls) == 3


def test_async_run_resumes(path: Path) -> None:
    calls = []

    async def worker(item: int, _credential: str | None) -> int:
        calls.append(item)
        await asyncio.sleep(0)
        await current_item().checkpoint.asave({"item": item})
        return item + int(current_item().checkpoint.load()["item"])

    async def twice() -> list[WorkflowResult]:
        await coordinator_of(path).execute_parallel_async(range(30), worker)
        async with coordinator_of(path).astream(range(40), worker) as results:
            return [result async for result in results]

    results = by_id(asyncio.run(twice()))
    assert {key: result.value for key, result in results.items()} == {str(n): 2 * n for n in range(40)}
    assert sum(is_recorded(result) for result in results.values()) == 30
    assert len(calls) == 40
    coordinator_of(path).execute_parallel(range(40), worker)
    assert len(calls) == 40


@pytest.mark.parametrize(
    "item_id",
    ["../../etc", "a\0b", "CON", "dot.", "\u202eright", "lone \udcff", "nfd e\u0301", "\u00e9", "x" * 10_000, ""],
)
def test_any_text_is_a_valid_item_id(path: Path, item_id: str) -> None:
    def worker(_item: str, _credential: str | None) -> str:
        current_item().checkpoint.save(1)
        return str(current_item().workflow_db.parent)

    similar_ids = ["nfd \u00e9", "e\u0301"]
    for expected in (False, True):
        _, results = coordinator_of(path).execute_parallel([item_id, *similar_ids], worker, lambda item: item)
        assert {is_recorded(result) for result in results} == {expected}
        assert {result.value for result in results} == {f"{path}-files/main"}
    with Ledger.open(path) as ledger:
        item = ledger.item(item_id)
        assert item is not None
        assert (item.id, item.input) == (item_id, item_id)
        assert [attempt.item_id for attempt in ledger.attempts(item_id)] == [item_id]
        assert item_id in [attempt.item_id for attempt in ledger.attempts()]


def test_large_recorded_results_are_fetched_in_small_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator_of(path).execute_parallel(range(50), lambda *_: "x" * 300_000)
    from agentos.ledger import recorded_results

    monkeypatch.setattr(recorded_results, "PAGE_SIZE", 1_000_000)
    with coordinator_of(path).stream(range(50), Doubling()) as results:
        first = next(results)
        assert len(results._recorded_results._page) < 5
        assert len({first.item_id, *(result.item_id for result in results)}) == 50


def test_resume_stopped_while_filtering_counts_returned_results(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(20_000), Doubling())
    coordinator = coordinator_of(path)

    def worker(_item: int, _credential: str | None) -> None:  # in case an item starts before the shutdown
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    stream = coordinator.stream(range(40_000), worker)
    coordinator.request_shutdown()
    result_count = sum(1 for _ in stream)
    assert stream.stats.completed == stream.stats.recorded == result_count
    assert len(coordinator.get_checkpoints()) == 20_000


def test_slow_id_function_does_not_delay_shutdown(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(200), Doubling())
    coordinator = coordinator_of(path, grace_seconds=0.1)
    is_reading = threading.Event()

    def slow_id(item: int) -> str:
        is_reading.set()
        time.sleep(0.2)
        return str(item)

    stream = coordinator.stream(iter(range(200)), Doubling(), slow_id)
    assert is_reading.wait(60)
    start = time.monotonic()
    coordinator.request_shutdown()
    list(stream)
    assert time.monotonic() - start < 1 + BUSY  # reading all items would take 40 s


@pytest.mark.parametrize("timeout", [0.0001, 0.001, 0.01])
def test_timeout_of_anext_loses_no_recorded_result(path: Path, timeout: float) -> None:
    coordinator_of(path).execute_parallel(range(30), lambda *_: "x" * 500_000)

    async def take() -> list[str]:
        item_ids = []
        async with coordinator_of(path).astream(range(30), lambda *_: None) as results:
            while True:
                try:
                    item_ids.append((await asyncio.wait_for(anext(results), timeout)).item_id)
                except TimeoutError:
                    await asyncio.sleep(0.001)
                except StopAsyncIteration:
                    return item_ids

    assert sorted(map(int, asyncio.run(asyncio.wait_for(take(), 60)))) == list(range(30))


def test_task_that_reads_recorded_results_can_be_cancelled(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(20), lambda *_: "x" * 1_000_000)

    async def cancel_after(seconds: float) -> None:
        task = asyncio.ensure_future(coordinator_of(path).execute_parallel_async(range(20), lambda *_: None))
        await asyncio.sleep(seconds)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for number in range(12):
        asyncio.run(cancel_after(number * 0.005))
    assert coordinator_of(path).execute_parallel(range(20), Doubling())[0].recorded == 20


@pytest.mark.parametrize("reporter", [None, lambda _event: None], ids=["silent", "reporter"])
def test_untaken_large_results_stop_the_run_from_starting_items(path: Path, reporter: Any) -> None:
    worker = Doubling()
    coordinator = ParallelCoordinator(4, ledger=path, reporter=reporter)
    with coordinator.stream((str(n) * 250_000 for n in range(10**6)), worker, lambda item: item[:6]) as results:
        next(results)
        eventually(lambda: results._run.results.is_full())
        assert len(worker.calls) < 400
