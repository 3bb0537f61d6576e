"""A command that cannot be started for a reason that holds for all items stops the run; no item fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from agentos.workers.command import _process
from agentos.workflows.parallel import Command, CredentialCoordinator, Ledger, ParallelCoordinator, WorkerStartError

ITEMS = ["a", "b", "c"]


def run(path: Path, command: Command, items: list[Any] = ITEMS) -> tuple[int, int]:
    """Run one item at a time; return how many have succeeded and failed."""
    ParallelCoordinator(1, retries=0, reporter=None, ledger=path / "ledger.db").execute_parallel(items, command)
    return counts(path)


def counts(path: Path) -> tuple[int, int]:
    with Ledger.open(path / "ledger.db") as ledger:
        return ledger.counts().succeeded, ledger.counts().failed


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return path


def test_removed_program_stops_run_and_next_launch_continues(tmp_path: Path) -> None:
    """An agent that updates itself is missing for a moment."""
    program = script(tmp_path / "agent", 'rm "$0"')
    with pytest.raises(WorkerStartError, match="agent cannot be started: No such file"):
        run(tmp_path, Command([str(program), "{id}"]))
    assert counts(tmp_path) == (1, 0)
    script(program, "exit 0")
    assert run(tmp_path, Command([str(program), "{id}"])) == (3, 0)


def test_run_without_a_program_returns_its_credential(tmp_path: Path) -> None:
    pool = CredentialCoordinator(["sk-a-0123456789"])
    with pytest.raises(WorkerStartError):
        ParallelCoordinator(1, pool, reporter=None).execute_parallel(ITEMS, Command([str(tmp_path / "none")]))
    assert [state.in_use for state in pool.states()] == [False]


def test_removed_working_folder_stops_run(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    command = Command(["sh", "-c", "rmdir ../work"], cwd=folder)
    with pytest.raises(WorkerStartError, match="work does not exist"):
        run(tmp_path, command)
    assert counts(tmp_path) == (1, 0)


def test_unusable_folder_for_files_stops_run(tmp_path: Path) -> None:
    command = Command(["sh", "-c", f"rm -r {tmp_path}/checkpoints; touch {tmp_path}/checkpoints"], folder=tmp_path)
    with pytest.raises(WorkerStartError, match="checkpoints"):
        run(tmp_path, command)
    assert counts(tmp_path) == (1, 0)
    (tmp_path / "checkpoints").unlink()
    assert run(tmp_path, Command(["true"], folder=tmp_path)) == (3, 0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_full_disk_for_an_item_stops_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(_process, "open_anonymous_file", fail)
    with pytest.raises(WorkerStartError, match=os.strerror(number)):
        run(tmp_path, Command(["true"], stdin="id"))
    assert counts(tmp_path) == (0, 0)


def test_program_that_depends_on_item_fails_its_item_only(tmp_path: Path) -> None:
    assert run(tmp_path, Command(["{id}"]), ["no-such-program", "true"]) == (1, 1)


def test_item_that_blocks_its_own_folder_fails_alone(tmp_path: Path) -> None:
    """The second attempt finds a file in place of the folder, into which its item has to be written."""
    text = 'rmdir "$AGENTOS_CHECKPOINT_DIR"; touch "$AGENTOS_CHECKPOINT_DIR"; exit 1'
    command = Command(["sh", "-c", text], folder=tmp_path)
    coordinator = ParallelCoordinator(1, retries=1, reporter=None, ledger=tmp_path / "ledger.db")
    items = [{"id": "a", "text": "x" * 200_000}, {"id": "b"}]
    coordinator.execute_parallel(items, command)
    assert counts(tmp_path) == (0, 2)
