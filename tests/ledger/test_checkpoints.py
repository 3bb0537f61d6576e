"""Checkpoints and files of items: durable until their item succeeds."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from agentos.items.file_names import database_name
from agentos.ledger import record
from agentos.runs._parts.attempt_context import RunContext
from agentos.workflows.parallel import (
    LedgerError,
    Transient,
    current_item,
)
from tests.support import workers

from .runs import Doubling, by_id, coordinator_of


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_checkpoint_and_file_survive_until_the_item_succeeds(path: Path, kind: str) -> None:
    coordinator = coordinator_of(path, workers=kind, retry_failed=True)
    coordinator.execute_parallel(["a", "b"], workers.leave_half_way)
    files = path.with_name("run.db-files") / "main"
    assert len(list(files.iterdir())) == 2
    _, results = coordinator.execute_parallel(["a", "b"], workers.leave_half_way)
    assert {key: result.value for key, result in by_id(results).items()} == {
        "a": [{"step": 1, "of": "a"}, "half", 1],
        "b": [{"step": 1, "of": "b"}, "half", 1],
    }
    assert not files.parent.exists()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM files").fetchone() == (0,)
    connection.close()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_next_attempt_loads_the_checkpoint(path: Path, kind: str) -> None:
    _, results = coordinator_of(path, workers=kind).execute_parallel(["a"], workers.remember)
    assert (results[0].value, results[0].attempts) == ({"step": 1}, 2)


def test_checkpoint_loads_as_plain_data_in_same_process(path: Path) -> None:
    def worker(_item: str, _credential: str | None) -> Any:
        current_item().checkpoint.save((1, {"a": (2,)}))
        return current_item().checkpoint.load()

    _, results = coordinator_of(path).execute_parallel(["a"], worker)
    assert results[0].value == [1, {"a": [2]}]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_unrecordable_checkpoint_raises_in_the_worker(path: Path, kind: str) -> None:
    _, results = coordinator_of(path, workers=kind).execute_parallel(["a"], workers.save_a_function)
    assert "the checkpoint, of type function, cannot be recorded" in results[0].value


def test_checkpoint_is_committed_when_save_returns(path: Path) -> None:
    def worker(_item: str, _credential: str | None) -> Any:
        current_item().checkpoint.save("here")
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT saved FROM checkpoints").fetchall()
        items = connection.execute("SELECT id, input, outcome FROM items").fetchall()
        connection.close()
        return [rows, items]

    _, results = coordinator_of(path).execute_parallel(["a"], worker)
    assert results[0].value == [[('"here"',)], [("a", '"a"', None)]]


def test_files_of_success_before_a_crash_are_removed_later(path: Path) -> None:
    coordinator_of(path).execute_parallel(["a"], Doubling())
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO files VALUES (1, 'a', 'left.db')")
    connection.close()
    folder = path.with_name("run.db-files") / "main"
    folder.mkdir(parents=True)
    for name in ("left.db", "left.db-wal", "other.db"):
        (folder / name).touch()
    coordinator_of(path).execute_parallel(["a"], Doubling())
    assert [entry.name for entry in folder.iterdir()] == ["other.db"]


def test_unrecorded_file_is_removed_after_success(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch is killed before it is on record that the item has a file, the next before that is removed."""
    folder = path.with_name("run.db-files") / "main"
    folder.mkdir(parents=True)
    (folder / database_name("a")).touch()
    with monkeypatch.context() as patch:
        patch.setattr(RunContext, "forget", lambda *_: None)
        patch.setattr(record.RunRecord, "_end_launch", lambda *_: None)
        coordinator_of(path).execute_parallel(["a"], Doubling())
    assert (folder / database_name("a")).exists()
    coordinator_of(path).execute_parallel(["a"], Doubling())
    assert [entry.name for entry in path.parent.iterdir()] == ["run.db"]


def test_checkpoint_without_ledger_raises_in_the_worker(path: Path) -> None:
    errors: list[str] = []

    def worker(_item: int, _credential: str | None) -> None:
        path.unlink()
        try:
            current_item().checkpoint.save(1)
        except LedgerError as error:
            errors.append(str(error))
            raise

    with pytest.raises(LedgerError, match="removed or replaced"):
        coordinator_of(path).execute_parallel(["a"], worker)
    assert errors == ["the checkpoint was not saved: the run is over"]


def test_folder_in_place_of_item_file_is_removed(path: Path) -> None:
    def worker(item: int, _credential: str | None) -> int:
        current_item().workflow_db.mkdir()
        return item

    for _ in range(2):
        stats, _ = coordinator_of(path).execute_parallel(range(3), worker)
        assert stats.success_count == 3
    assert [entry.name for entry in path.parent.iterdir()] == ["run.db"]


def test_stale_attempt_cannot_save(path: Path) -> None:  # invariant 23
    entered, may_save = threading.Event(), threading.Event()
    errors: list[str] = []

    def worker(_item: str, _credential: str | None) -> Any:
        item = current_item()
        if item.attempt == 1:
            late = threading.Thread(target=save_late, args=(item,))
            late.start()
            threads.append(late)
            raise Transient("once")
        item.checkpoint.save("two")
        may_save.set()
        threads[0].join(60)
        return item.checkpoint.load()

    def save_late(item: Any) -> None:
        entered.set()
        may_save.wait(60)
        try:
            item.checkpoint.save("one")
        except LedgerError as error:
            errors.append(str(error))

    threads: list[threading.Thread] = []
    _, results = coordinator_of(path).execute_parallel(["a"], worker)
    assert results[0].value == "two"
    assert "its item has a newer attempt than 1" in errors[0]


def test_worker_process_saves_from_many_tasks_at_once(path: Path) -> None:
    _, results = coordinator_of(path, workers="processes").execute_parallel(["a", "b"], workers.save_many)
    assert [(result.error, result.value) for result in results] == [(None, True), (None, True)]
