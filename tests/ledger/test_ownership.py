"""`owner_of` and `Ownership`: the process that writes to a ledger, as other processes see it."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agentos.ledger.ownership import Owner, Ownership, owner_of
from agentos.workflows.parallel import Ledger, LedgerError, ParallelCoordinator, RunBusy

from .runs import Doubling, coordinator_of

OWNING = """
import sys
from pathlib import Path
from agentos.ledger.ownership import Ownership

owner = Ownership.take(Path(sys.argv[1]))
if "announced" in sys.argv:
    owner.announce("a-run", "a-ledger")
    owner.saw_commits(3)
print("owned", flush=True)
sys.stdin.readline()
owner.release(in_order=True)
"""
ASKING = """
import sys
from pathlib import Path
from agentos.ledger.ownership import owner_of

print(owner_of(Path(sys.argv[1])))
"""


@contextmanager
def owning_process(path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", OWNING, str(path), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "owned\n"
        try:
            yield program
        finally:
            program.kill()


def test_missing_or_closed_ledger_has_no_owner(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    assert owner_of(path) is None
    assert owner_of(tmp_path / "none" / "run.db") is None
    ParallelCoordinator(ledger=path, reporter=None).execute_parallel(["a"], lambda item, _: item)
    assert owner_of(path) is None


def test_owner_of_returns_the_note_and_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    start_time = time.time()
    with owning_process(path, "announced") as program:
        for _ in range(3):
            owner = owner_of(path)
            assert owner is not None
            assert owner.since is not None
            assert start_time <= owner.since <= time.time()
            assert owner == Owner(program.pid, socket.gethostname(), owner.since, "a-run", is_here=True)
        with pytest.raises(RunBusy):
            Ownership.take(path)
    assert owner_of(path) is None  # the process was killed, and its note still exists


def test_note_of_a_killed_launch_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    with owning_process(path, "announced") as first:
        pass
    assert path.with_name("run.db-lock").exists()
    with owning_process(path) as second:
        assert owner_of(path) == Owner(second.pid, socket.gethostname(), None, None, is_here=True)
        assert second.pid != first.pid


@pytest.mark.parametrize(("more", "is_refused"), [(0, False), (1, True)])
def test_reader_refuses_a_ledger_that_lost_transactions(tmp_path: Path, more: int, is_refused: bool) -> None:
    """The launch was killed and its -wal file was cut off: results were missing from every export, silently."""
    path = tmp_path / "run.db"
    ParallelCoordinator(ledger=path, reporter=None).execute_parallel(["a"], lambda item, _: item)
    with closing(sqlite3.connect(path)) as connection:
        ledger_id, commits = connection.execute("SELECT ledger_id, commits FROM written").fetchone()
    note = {"ledger_id": ledger_id, "commits": commits + more}
    path.with_name("run.db-lock").write_text(json.dumps(note))
    if is_refused:
        with pytest.raises(LedgerError, match=f"has lost {more} of {commits + more} transactions"):
            Ledger.open(path)
    else:
        with Ledger.open(path) as ledger:
            assert ledger.counts().succeeded == 1


def test_owner_of_reports_the_calling_process(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    own = Ownership.take(path)
    try:
        owner = owner_of(path)
        assert owner is not None
        assert owner.pid == os.getpid()
        output = subprocess.run(
            [sys.executable, "-c", ASKING, str(path)], capture_output=True, text=True, check=True
        ).stdout
        assert f"pid={os.getpid()}" in output
    finally:
        own.release(in_order=True)
    assert owner_of(path) is None


def test_ledger_with_second_hard_link_is_refused(tmp_path: Path) -> None:
    """Each name would have its own -lock and -wal file: two programs would write to one file."""
    first, second = tmp_path / "first.db", tmp_path / "second.db"
    coordinator_of(first).execute_parallel(["a"], Doubling())
    may_end = threading.Event()
    with coordinator_of(first).stream(["a", "b"], lambda *_: may_end.wait(30)) as results:
        second.hardlink_to(first)
        with pytest.raises(LedgerError, match="2 names"):
            coordinator_of(second).execute_parallel(["c"], Doubling())
        may_end.set()
        assert len(list(results)) == 2
    with pytest.raises(LedgerError, match="2 names"):
        coordinator_of(first).execute_parallel(["c"], Doubling())
    second.unlink()
    coordinator_of(first).execute_parallel(["a", "b", "c"], Doubling())
    assert not list(tmp_path.glob("*-lock"))
