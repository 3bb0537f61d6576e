"""A program that runs items with a ledger and kills itself at a given write: `python -m tests.acceptance.crashing …`.

It records the items that it has executed, and the results that were reported to it, in two plain files: one line per
item, each written with one system call, so that both are correct wherever the program dies. Writes are counted before
each statement that changes the ledger, before and after each commit, and at each note of the owner.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

from agentos.ledger import _database as database
from agentos.ledger import ownership
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator, current_item


def write_line(path: Path, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


def worker(item: int, _credential: str | None) -> dict[str, int]:
    folder = Path(os.environ["CRASHING_FOLDER"])
    write_line(folder / "executed", str(item))
    current = current_item()
    checkpoint = current.checkpoint.load()
    if item % 5 == 0 and checkpoint is None:
        current.checkpoint.save({"item": item})
        current.workflow_db.write_text("half")
    elif checkpoint is not None:
        assert checkpoint == {"item": item}
    time.sleep(float(os.environ.get("CRASHING_SECONDS", "0")))
    return {"item": item, "pid": os.getpid()}


def die_at_write(number: int) -> None:
    """Kill this process at the `number`-th change of the ledger's files."""
    remaining = number

    def count() -> None:
        nonlocal remaining
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *args: Any) -> sqlite3.Cursor:
            if not statement.startswith(("SELECT", "PRAGMA")):
                count()
            cursor = super().execute(statement, *args)
            if statement == "COMMIT":
                count()
            return cursor

        def close(self) -> None:
            count()
            super().close()
            count()

    plain_connect, plain_saw_commits = database.connect_writer, ownership.Ownership.saw_commits
    plain_create = database.create

    def connect_writer(path: Path) -> sqlite3.Connection:
        count()
        plain_connect(path).close()
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, factory=Connection)
        connection.execute("PRAGMA synchronous = FULL")
        database.add_functions(connection)
        return connection

    def saw_commits(self: ownership.Ownership, commits: int) -> None:
        count()
        plain_saw_commits(self, commits)

    def create(path: Path) -> None:
        count()
        plain_create(path)
        count()

    database.connect_writer = connect_writer
    database.create = create
    ownership.Ownership.saw_commits = saw_commits  # type: ignore[method-assign]


def main(folder: Path, items: int, kind: str, fatal_write: int) -> None:
    os.environ["CRASHING_FOLDER"] = str(folder)
    if fatal_write:
        die_at_write(fatal_write)
    pool = CredentialCoordinator(["sk-one-11111111", "sk-two-22222222"])
    coordinator = ParallelCoordinator(4, pool, ledger=folder / "run.db", workers=kind, reporter=None)
    with coordinator.stream(range(items), worker) as results:
        for result in results:
            assert result.success, result
            write_line(folder / "reported", result.item_id)
    print("DONE", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
