"""Runs that end early: by a shutdown, or because the ledger cannot be written."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos.events import RunEnded, RunStopping
from agentos.ledger import _database as database
from agentos.ledger import record
from agentos.ledger.ownership import stop_of
from agentos.workflows.parallel import (
    Interrupted,
    Ledger,
    LedgerError,
    ParallelCoordinator,
    WorkflowResult,
    current_item,
)
from tests.conftest import BUSY, eventually

from .runs import Doubling, by_id, coordinator_of, counts_of, fill_disk


def test_shutdown_with_stuck_workers_records_ended_items(path: Path) -> None:
    stuck = threading.Event()  # invariant 25

    def worker(item: int, _credential: str | None) -> int:
        if item >= 10:
            stuck.wait(60)
        return item

    coordinator = coordinator_of(path, grace_seconds=0.2)
    stream = coordinator.stream(range(100), worker)
    results = [next(stream) for _ in range(10)]
    eventually(lambda: stream.stats.running == 4)
    start = time.monotonic()
    coordinator.request_shutdown()
    results += list(stream)
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    stuck.set()
    assert sorted(int(result.item_id) for result in results) == list(range(10))
    assert sorted(map(int, coordinator.get_checkpoints())) == list(range(10, 100))
    with Ledger.open(path) as ledger:
        assert ledger.counts().succeeded == 10
        unfinished = list(ledger.items("unfinished"))
        assert [item.id for item in unfinished] == ["10", "11", "12", "13"]
        assert {attempt.verdict for item in unfinished for attempt in ledger.attempts(item.id)} == {"interrupted"}
        assert ledger.launches()[0].stopped == "interrupted"
    stats, results = coordinator_of(path).execute_parallel(range(100), lambda item, _: item)
    assert (stats.completed, stats.recorded) == (100, 10)
    assert {key: result.value for key, result in by_id(results).items()} == {str(n): n for n in range(100)}


def test_get_checkpoints_of_resumed_run_omits_recorded_items(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(0, 100, 2), Doubling())
    coordinator = coordinator_of(path, grace_seconds=5)
    running = threading.Event()

    def worker(_item: int, _credential: str | None) -> None:
        running.set()
        while not current_item().should_stop:
            time.sleep(0.001)
        raise Interrupted

    with coordinator.stream(range(100), worker) as results:
        assert running.wait(60)
    assert results.stats.stopped == "stream closed early"
    assert sorted(map(int, coordinator.get_checkpoints())) == list(range(1, 100, 2))


def test_get_checkpoints_names_changed_items_of_a_rerun(path: Path) -> None:
    coordinator_of(path).execute_parallel([{"id": n, "v": 1} for n in range(100)], lambda *_: 1, lambda i: str(i["id"]))
    coordinator = coordinator_of(path, on_changed="rerun")
    with coordinator.stream(
        [{"id": n, "v": n % 2} for n in range(100)], lambda *_: 2, lambda i: str(i["id"])
    ) as results:
        ended_ids = {next(results).item_id}
    ended_ids |= {result.item_id for result in results}
    open_ids = set(coordinator.get_checkpoints())
    assert open_ids | ended_ids >= {str(n) for n in range(0, 100, 2)}
    assert not open_ids & {str(n) for n in range(1, 100, 2)}
    assert set(coordinator.get_checkpoints()) == open_ids


def test_interrupted_item_runs_again(path: Path) -> None:
    def stops(_item: int, _credential: str | None) -> None:
        while not current_item().should_stop:
            time.sleep(0.001)
        raise Interrupted

    coordinator = coordinator_of(path)
    with coordinator.stream(["a"], stops) as results:
        eventually(lambda: results.stats.running == 1)
    assert counts_of(path) == (0, 0, 1)
    _, results_again = coordinator.execute_parallel(["a"], Doubling())
    assert results_again[0].value == "aa"


def test_late_last_commit_releases_the_ledger(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LAST_COMMIT_SECONDS", 0.05)
    is_running, may_end = threading.Event(), threading.Event()

    def worker(_item: int, _credential: str | None) -> None:
        is_running.set()
        may_end.wait(30)

    coordinator = coordinator_of(path, grace_seconds=0.05)
    stream = coordinator.stream(["a"], worker)
    assert is_running.wait(60)
    second = sqlite3.connect(path, isolation_level=None)
    second.execute("BEGIN IMMEDIATE")
    coordinator.request_shutdown()
    with pytest.raises(LedgerError, match="did not record the last results in time"):
        list(stream)
    second.close()
    may_end.set()
    eventually(lambda: not path.with_name("run.db-lock").exists())
    assert coordinator_of(path).execute_parallel(["a"], Doubling())[0].completed == 1


def run_until_it_stops(
    path: Path, cause_failure: Callable[[], None], **options: Any
) -> tuple[LedgerError, list[WorkflowResult]]:
    """Run until `cause_failure`, called after 20 results, stops the run; return its error and the reported results."""
    coordinator = coordinator_of(path, grace_seconds=5, **options)
    results: list[WorkflowResult] = []
    pause = threading.Event()
    with pytest.raises(LedgerError) as caught:
        for result in coordinator.stream(range(20_000), lambda item, _: pause.wait(0.002) or item):
            results.append(result)
            if len(results) == 20:
                cause_failure()
    assert len(results) < 20_000
    open_ids = set(coordinator.get_checkpoints())
    assert open_ids | {result.item_id for result in results} == {str(n) for n in range(20_000)}
    assert not open_ids & {result.item_id for result in results}
    return caught.value, results


def test_launch_that_was_taken_over_cannot_write(path: Path) -> None:  # invariant 23
    def take_over() -> None:
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        connection.execute("INSERT INTO launches (run, launch, pid, host, started_at) VALUES (1, 2, 1, 'x', 0)")
        connection.close()

    error, results = run_until_it_stops(path, take_over)
    assert "taken over by a later launch" in str(error)
    with Ledger.open(path) as ledger:
        assert {result.item_id for result in results} <= {item.id for item in ledger.items("succeeded")}


def test_ledger_error_is_reported_as_reason_of_the_stop(path: Path) -> None:
    events: list[Any] = []
    coordinator = ParallelCoordinator(2, ledger=path, reporter=events.append)
    pause = threading.Event()
    with pytest.raises(LedgerError):
        for _ in coordinator.stream(range(10_000), lambda *_: pause.wait(0.002)):
            if path.exists():
                path.unlink()
    (stopping,) = [event for event in events if isinstance(event, RunStopping)]
    assert "removed or replaced" in stopping.reason
    end_event = events[-1]
    assert isinstance(end_event, RunEnded)
    assert "removed or replaced" in end_event.stats.stopped
    assert end_event.stats.completed < 10_000


def test_run_that_cannot_start_releases_the_ledger(path: Path) -> None:
    with pytest.raises(Exception, match="top level of a module"):
        coordinator_of(path, workers="processes").execute_parallel([1], lambda *_: None)
    with pytest.raises(ValueError, match="two items have the id"):
        coordinator_of(path).execute_parallel([1, 1], Doubling())
    assert coordinator_of(path).execute_parallel([1], Doubling())[0].completed == 1


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_removed_ledger_stops_the_run(path: Path, suffix: str) -> None:  # invariant 28
    error, _ = run_until_it_stops(path, lambda: Path(f"{path}{suffix}").unlink())
    assert "removed or replaced while in use" in str(error)


def test_replaced_ledger_stops_the_run(path: Path, tmp_path: Path) -> None:
    second = tmp_path / "other.db"
    coordinator_of(second).execute_parallel(["a"], Doubling())
    content = second.read_bytes()
    error, _ = run_until_it_stops(path, lambda: second.replace(path))
    assert "removed or replaced while in use" in str(error)
    assert path.read_bytes() == content


def test_full_disk_stops_the_run_and_next_launch_continues(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fill_disk(patch, free_pages=10)
        error, results = run_until_it_stops(path, lambda: None)
    assert "the disk is full" in str(error)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    with Ledger.open(path) as ledger:
        on_record = {item.id for item in ledger.items("succeeded")}
        assert ledger.launches()[0].ended_at is None
    assert {result.item_id for result in results} <= on_record
    stop = stop_of(path)
    assert stop is not None
    assert "the disk is full" in stop.reason
    stats, _ = coordinator_of(path).execute_parallel(range(1000), Doubling())
    assert (stats.completed, stats.stopped) == (1000, None)
    with Ledger.open(path) as ledger:
        assert "the disk is full" in (ledger.launches()[0].stopped or "")
    assert stop_of(path) is None


def test_locked_ledger_stops_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    connections: list[sqlite3.Connection] = []

    def lock() -> None:
        connections.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        connections[0].execute("BEGIN IMMEDIATE")

    error, _ = run_until_it_stops(path, lock)
    connections[0].close()
    assert "locked by another program" in str(error)
    with Ledger.open(path) as ledger:
        assert ledger.counts().failed == 0
