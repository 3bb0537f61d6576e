"""Attempts as asyncio tasks, on a loop of their own."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest

from agentos.workflows.parallel import ParallelCoordinator
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
