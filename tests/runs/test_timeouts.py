"""Attempts that exceed their time-out, as threads and as tasks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    CredentialCoordinator,
    current_item,
)
from tests.conftest import eventually

from .coordinators import KEYS, by_id, quiet


def test_timed_out_thread_is_abandoned_with_its_lease() -> None:
    """The item fails without a retry: its first attempt may still be at work."""
    gate = threading.Event()
    clock = FakeClock()
    pool = CredentialCoordinator(KEYS[:2])
    should_stop: list[bool] = []

    def worker(item: str, _: str) -> str:
        if item == "stuck":
            gate.wait(60)
            should_stop.append(current_item().should_stop)
        return item

    coordinator = quiet(2, pool, timeout=5, retries=5, clock=clock)
    with coordinator.stream(["stuck", "a", "b", "c"], worker) as results:
        outcomes = by_id([next(results) for _ in "abc"])
        clock.advance(5)
        outcomes.update(by_id(list(results)))
    stats = results.stats
    assert outcomes["stuck"].metadata["error_type"] == "AttemptTimeout"
    assert outcomes["stuck"].attempts == 1  # no retry: the first attempt may still run
    assert stats.success_count == 3
    assert pool.get_stats()["reserved"] == 1
    gate.set()
    eventually(lambda: pool.get_stats()["reserved"] == 0)
    assert should_stop == [True]


def test_time_of_a_suspended_program_does_not_count() -> None:
    """Ctrl-Z, or a closed lid: an attempt has not run meanwhile, or its end was not noticed."""
    gates = {"slow": threading.Event(), "other": threading.Event()}
    clock = FakeClock()
    with quiet(2, timeout=5, clock=clock).stream(list(gates), lambda item, _: gates[item].wait(60) and item) as results:
        eventually(lambda: results.stats.running == 2)
        clock.advance(1)
        clock.pause(3600)
        clock.advance(3599.9)
        gates["other"].set()  # the run processes this end after the timers that have expired
        assert next(results).value == "other"
        gates["slow"].set()
        assert [result.success for result in results] == [True]


class SlowResult:
    """A result whose conversion to JSON waits."""

    def __init__(self) -> None:
        self.is_converting, self.go_on = threading.Event(), threading.Event()

    def tolist(self) -> list[int]:
        self.is_converting.set()
        self.go_on.wait(60)
        return [1]


@pytest.mark.parametrize("does_end", [True, False])
def test_result_that_is_processed_is_not_timed_out(does_end: bool, tmp_path: Path) -> None:
    """The worker has returned in time. Processing may take one time-out more, not longer: it may never end."""
    result = SlowResult()
    clock = FakeClock()
    coordinator = quiet(1, timeout=5, clock=clock, ledger=tmp_path / "ledger.db")
    with coordinator.stream(["a"], lambda _item, _: result) as results:
        assert result.is_converting.wait(60)
        clock.advance(5)
        if does_end:
            result.go_on.set()
        else:
            eventually(lambda: clock.advance(1) or results.stats.completed == 1)
        assert [r.success for r in results] == [does_end]
    result.go_on.set()


def test_timeout_counts_again_after_a_suspend() -> None:
    gate = threading.Event()
    clock = FakeClock()
    with quiet(1, timeout=5, clock=clock).stream(["slow"], lambda item, _: gate.wait(60) and item) as results:
        eventually(lambda: results.stats.running == 1)
        clock.pause(60)
        eventually(lambda: clock.advance(1) or results.stats.completed == 1)
        assert [result.metadata["error_type"] for result in results] == ["AttemptTimeout"]
    gate.set()


def test_run_stops_when_all_workers_are_abandoned() -> None:
    gate = threading.Event()
    coordinator = quiet(2, timeout=0.02)
    stats, results = coordinator.execute_parallel(range(10), lambda _i, _c: gate.wait(30))
    gate.set()
    assert len(results) in (2, 3)  # a replacement may have started before the second was abandoned
    assert "did not end at the time-out" in (stats.stopped or "")
    assert len(coordinator.get_checkpoints()) == 10 - len(results)


@pytest.mark.usefixtures("_short_pauses")
def test_timed_out_task_is_cancelled_and_retried() -> None:
    async def worker(item: str, _: Any) -> int:
        if item == "slow" and current_item().attempt == 1:
            await asyncio.Event().wait()
        return current_item().attempt

    clock = FakeClock()
    with quiet(2, timeout=5, clock=clock).stream(["slow", "quick"], worker) as results:
        first = next(results)
        assert (first.item_id, first.value) == ("quick", 1)
        clock.advance(5)
        eventually(lambda: clock.advance(0.0001) or results.stats.completed == 2)  # the pause before the retry
        assert [(result.item_id, result.value) for result in results] == [("slow", 2)]


def test_task_that_ignores_cancellation_is_abandoned() -> None:
    async def worker(_item: str, _: Any) -> None:
        end = asyncio.get_running_loop().create_future()
        while True:
            try:
                await asyncio.shield(end)
            except asyncio.CancelledError:
                if not current_item().should_stop:
                    return

    pool = CredentialCoordinator(KEYS[:1])
    coordinator = quiet(1, pool, timeout=0.05, grace_seconds=0.05)
    stats, results = coordinator.execute_parallel(["stubborn", "next"], worker)
    assert results[0].metadata["error_type"] == "AttemptTimeout"
    assert stats.stopped is not None
    eventually(lambda: pool.get_stats()["reserved"] == 0)  # the task is closed with its loop
