"""How runs stop early: halt, max_wait, shutdown, no usable credential."""

from __future__ import annotations

import threading
import time
from typing import Any

from agentos.events import CredentialQuarantined, RunStopping
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Interrupted,
    ParallelCoordinator,
    current_item,
)
from tests.conftest import BUSY, eventually

from .coordinators import KEYS, quiet


def test_run_stops_when_all_credentials_are_quarantined() -> None:
    """None can become usable without a person, so waiting would never end."""
    pool = CredentialCoordinator([Credential(KEYS[0], id="alpha")])
    coordinator = quiet(2, pool)
    started = threading.Event()

    def worker(item: int, _: str) -> int:
        started.set()
        pool.quarantine("alpha", "the card expired")
        return item

    stats, results = coordinator.execute_parallel(range(10), worker)
    assert stats.stopped is not None
    assert "the card expired" in stats.stopped
    assert [r.success for r in results] == [True]  # the running item finished
    assert len(coordinator.get_checkpoints()) == 9
    assert stats.failed == 0


def test_quarantine_is_reported_before_the_stop_that_it_causes() -> None:
    events: list[Any] = []
    pool = CredentialCoordinator([Credential(KEYS[0], id="alpha")], reporter=lambda _: None)
    coordinator = ParallelCoordinator(3, pool, reporter=events.append)

    def worker(_item: int, _: str) -> None:
        pool.quarantine("alpha", "the card expired")

    coordinator.execute_parallel(range(3), worker)
    kinds = [type(event) for event in events]
    assert kinds.index(CredentialQuarantined) < kinds.index(RunStopping)


def test_max_wait_stops_a_run_without_starts() -> None:
    pool = CredentialCoordinator(KEYS[:1])
    pool.mark_rate_limited(KEYS[0], 3600)
    coordinator = quiet(2, pool, max_wait=30)
    start = time.monotonic()
    stats, results = coordinator.execute_parallel(range(3), lambda *_: None)
    assert time.monotonic() - start < 1 + BUSY  # the provider asked for a longer wait: the run stops at once
    assert "within 30 s" in (stats.stopped or "")
    assert results == []
    assert coordinator.get_checkpoints() == ["0", "1", "2"]

    pool = CredentialCoordinator(KEYS[:1])
    with pool.lease():  # in use for an unknown time
        stats, _ = quiet(2, pool, max_wait=0.05).execute_parallel(range(3), lambda *_: None)
    assert "within 0.05 s" in (stats.stopped or "")


def test_halt_soon_starts_nothing_more() -> None:
    coordinator = quiet(1, halt="soon,fail=2")

    def worker(item: int, _: Any) -> None:
        if item in (1, 3):
            raise ValueError

    stats, results = coordinator.execute_parallel(range(100), worker)
    assert [r.item_id for r in results] == ["0", "1", "2", "3"]
    assert stats.stopped == "halted: 2 failed (soon,fail=2)"
    assert coordinator.get_checkpoints() == [str(n) for n in range(4, 100)]


def test_halt_now_asks_running_items_to_stop() -> None:
    barrier = threading.Barrier(2, timeout=60)

    def worker(item: str, _: Any) -> None:
        barrier.wait()
        if item == "bad":
            raise ValueError("boom")
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    coordinator = quiet(2, halt="now,fail=1")
    stats, results = coordinator.execute_parallel(["bad", "good", "never"], worker)
    assert [r.item_id for r in results] == ["bad"]
    assert stats.stopped == "halted: 1 failed (now,fail=1)"
    assert sorted(coordinator.get_checkpoints()) == ["good", "never"]


def test_halt_counts_percent_of_all_items() -> None:
    stats, results = quiet(1, halt="soon,fail=10%").execute_parallel(range(50), lambda i, _: 1 / (i % 2))
    assert stats.failed == 5
    assert len(results) == 9


def test_request_shutdown_lists_unfinished_items() -> None:
    """Also those that were never started, or never read."""
    coordinator = quiet(2, grace_seconds=30)
    running = threading.Barrier(3, timeout=60)

    def worker(item: int, _: Any) -> int:
        if item < 4:
            return item
        running.wait()
        eventually(lambda: current_item().should_stop)
        if item == 4:
            return item  # ends within the grace period
        raise Interrupted

    def shut_down() -> None:
        running.wait()
        coordinator.request_shutdown()

    threading.Thread(target=shut_down, daemon=True).start()
    stats, results = coordinator.execute_parallel(range(20), worker)
    assert stats.stopped == "interrupted"
    assert sorted(int(r.item_id) for r in results) == [0, 1, 2, 3, 4]
    # Items in flight, items that never started, and items that were never read.
    assert sorted(map(int, coordinator.get_checkpoints())) == list(range(5, 20))
    assert stats.failed == 0


def shut_down_after(started: threading.Event, coordinator: ParallelCoordinator) -> None:
    """Request a shutdown from another thread once an event is set."""
    threading.Thread(target=lambda: started.wait(60) and coordinator.request_shutdown(), daemon=True).start()


def test_blocked_thread_does_not_delay_shutdown() -> None:  # invariant 25
    gate = threading.Event()
    started = threading.Event()
    coordinator = quiet(1, grace_seconds=0.2)

    def worker(_item: int, _: Any) -> None:
        started.set()
        gate.wait(60)

    shut_down_after(started, coordinator)
    start = time.monotonic()
    stats, results = coordinator.execute_parallel(range(3), worker)
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    gate.set()
    assert (stats.stopped, results) == ("interrupted", [])
    assert coordinator.get_checkpoints() == ["0", "1", "2"]


def test_blocked_event_loop_does_not_delay_shutdown() -> None:  # invariant 25
    gate = threading.Event()
    started = threading.Event()
    coordinator = quiet(3, grace_seconds=0.2)

    async def worker(_item: int, _: Any) -> None:
        started.set()
        gate.wait(60)  # not await: blocks the loop

    shut_down_after(started, coordinator)
    start = time.monotonic()
    stats, results = coordinator.execute_parallel(range(5), worker)
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    gate.set()
    assert (stats.stopped, results) == ("interrupted", [])
    assert sorted(coordinator.get_checkpoints()) == ["0", "1", "2", "3", "4"]


def test_checkpoints_belong_to_the_last_run() -> None:
    coordinator = quiet(1, halt="now,fail=1")
    coordinator.execute_parallel([0, 1, 2], lambda i, _: 1 / i)
    assert coordinator.get_checkpoints() == ["1", "2"]
    coordinator.execute_parallel([1, 2], lambda i, _: 1 / i)
    assert coordinator.get_checkpoints() == []
