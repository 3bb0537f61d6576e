"""The cost of a ledger: 20,000 no-op items over 16 keys, rows per second, and 500 durable items against DBOS.

Uses private modules of the ledger, because it measures the writing of rows without a run, and because the peers write
to the same kind of database file.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentos.clock import SYSTEM_CLOCK
from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.ledger import _database as database
from agentos.ledger.record import RunRecord
from agentos.runs._parts.attempt_context import RunContext
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator, WorkflowResult

from . import disk
from .items import ITEMS, WORKERS, no_op, run_executor
from .measuring import Row, at_least, at_most, measure, per_operation

PACKAGES = ("dbos",)
COMMITTED_ITEMS = 1000  # each in a transaction of its own
ROWS = 20_000
ROWS_PER_COMMIT = 1000
DURABLE_ITEMS = 500


class Folder:
    """A temporary folder with a new ledger file for each round."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=disk.PREFIX, dir=disk.parent()))
        self._numbers = itertools.count()

    def new(self) -> Path:
        return self.path / f"{next(self._numbers)}.db"

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path)


def run_recorded(path: Path, pool: CredentialCoordinator | None, count: int) -> None:
    with ParallelCoordinator(WORKERS, pool, ledger=path, reporter=None).stream(range(count), no_op) as results:
        done = sum(result.success for result in results)
    assert done == count


def commit_each(path: Path, count: int = COMMITTED_ITEMS) -> None:
    """Write every row in a transaction of its own, as a careful loop would."""
    database.create(path)
    connection = database.connect_writer(path)
    statement = _plain_insert()
    for row in _rows(count):
        connection.execute("BEGIN")
        connection.execute(statement, row)
        connection.execute("COMMIT")
    connection.close()


def insert_many(path: Path, rows: list[tuple[Any, ...]]) -> float:
    """Insert rows with `executemany`. Return the seconds per row."""
    database.create(path)
    connection = database.connect_writer(path)
    statement = _plain_insert()
    start = time.perf_counter()
    for first in range(0, len(rows), ROWS_PER_COMMIT):
        connection.execute("BEGIN")
        connection.executemany(statement, rows[first : first + ROWS_PER_COMMIT])
        connection.execute("COMMIT")
    elapsed = time.perf_counter() - start
    connection.close()
    return elapsed / len(rows)


def record_many(path: Path, outcomes: list[tuple[Item, Attempt, WorkflowResult, str]]) -> float:
    """Record outcomes as a run does, from the end of an attempt to the commit. Return the seconds per outcome."""
    record = RunRecord(path, "bench", SYSTEM_CLOCK, str)
    unrecorded = len(outcomes)
    is_done = threading.Event()

    def on_recorded(results: list[WorkflowResult], _size: int) -> None:
        nonlocal unrecorded
        unrecorded -= len(results)
        if not unrecorded:
            is_done.set()

    record.start(on_recorded, lambda error: print(error))
    start = time.perf_counter()
    for outcome in outcomes:
        record.item_ended(*outcome)
    assert is_done.wait(60)
    elapsed = time.perf_counter() - start
    record.close(None)
    return elapsed / len(outcomes)


def _rows(count: int) -> list[tuple[Any, ...]]:
    row = ("succeeded", "succeeded", 0.0, 1, "key-12345678", 0.0, 1.8e9, 1.8e9, 1, 0, 0.001, "1", "1")
    return [(1, 1, str(number), *row) for number in range(count)]


def _plain_insert() -> str:
    columns = (
        "run, launch, id, outcome, verdict, cost, n, credential_id, waited, started_at, ended_at, requests, tokens,"
    )
    columns += " duration, input, value"
    return f"INSERT INTO items ({columns}) VALUES ({', '.join('?' * (columns.count(',') + 1))})"


def _outcomes(count: int) -> list[tuple[Item, Attempt, WorkflowResult, str]]:
    context = RunContext("bench", None)
    outcomes = []
    for number in range(count):
        item = Item(str(number), number)
        item.prepare_record()
        item.input = "1"
        attempt = Attempt(item, context, 0.0)
        attempt.prepare_record()
        attempt.credential_id, attempt.attempt, attempt.ended_at = "key-12345678", 1, 0.001
        result = WorkflowResult(item.id, True, None, 0.001, {}, number, 1, attempt.credential_id)
        outcomes.append((item, attempt, result, "1"))
    return outcomes


def run_dbos(folder: Folder) -> None:
    """Run a workflow of one step per item, on WORKERS threads."""
    from dbos import DBOS, SetWorkflowID

    handles = []
    name = folder.new().stem
    for number in range(DURABLE_ITEMS):
        with SetWorkflowID(f"{name}-{number}"):
            handles.append(DBOS.start_workflow(_durable, number))
    assert sum(handle.get_result() == number for number, handle in enumerate(handles)) == DURABLE_ITEMS


def _launch_dbos(folder: Folder) -> None:
    from dbos import DBOS

    logging.getLogger("dbos").setLevel(logging.ERROR)
    url = f"sqlite:///{folder.new()}"
    config: Any = {"name": "bench", "system_database_url": url, "max_executor_threads": WORKERS, "log_level": "ERROR"}
    DBOS(config=config)
    global _durable
    step = DBOS.step()(no_op)

    @DBOS.workflow()
    def durable(number: int) -> int:
        return step(number)

    _durable = durable
    DBOS.launch()


_durable: Any = None


def rows() -> Iterator[Row]:
    pool = CredentialCoordinator([f"key-{number:04d}" for number in range(16)])
    with Folder() as folder:
        ours, executor, commits = measure(
            {
                "ledger": per_operation(lambda: run_recorded(folder.new(), pool, ITEMS), ITEMS),
                "ThreadPoolExecutor, no record": per_operation(run_executor, ITEMS),
                "one commit per item": per_operation(lambda: commit_each(folder.new()), COMMITTED_ITEMS),
            }
        )
        yield at_most(1.3, "per item, 16 keys, ledger", ours, executor)
        yield at_most(0.1, "the same", ours, commits)

        plain_rows, outcomes = _rows(ROWS), _outcomes(ROWS)
        ours, peer = measure(
            {
                "recorded": lambda: record_many(folder.new(), outcomes),
                "executemany by 1,000": lambda: insert_many(folder.new(), plain_rows),
            }
        )
        yield at_least(0.5, "rows per second into the ledger", ours, peer)

        _launch_dbos(folder)
        ours, dbos = measure(
            {
                "durable": per_operation(lambda: run_recorded(folder.new(), None, DURABLE_ITEMS), DURABLE_ITEMS),
                "DBOS on SQLite": per_operation(lambda: run_dbos(folder), DURABLE_ITEMS),
            },
            rounds=5,
        )
        yield at_least(100, "500 durable items", ours, dbos)
        from dbos import DBOS

        DBOS.destroy()
