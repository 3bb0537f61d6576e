"""Results that were on record when the run began: fetched when they are taken, so that they cost no memory before.

The run marks what it has met in its input; whoever reads the results fetches those rows in between, whenever no new
result is there. So a million recorded results neither delay new work nor fill the outbox.
"""

from __future__ import annotations

import sqlite3
import threading
from array import array
from collections import deque
from typing import Any

from agentos.items import codec
from agentos.items.results import WorkflowResult

from . import _database as database
from ._batch import SUCCEEDED, shown_id
from ._database import PAGE_ROWS, PAGE_SIZE
from .record import RunRecord

_COLUMNS = "rowid, id, outcome, error, duration, metadata, value, n, credential_id"


class RecordedResults:
    """One thread adds, others fetch, one at a time."""

    def __init__(self, record: RunRecord) -> None:
        self._path = record.path
        self._added: deque[array[int]] = deque()
        self._page: deque[WorkflowResult] = deque()
        self._lock = threading.Lock()  # guards the connection: a reader that gives up leaves its fetch behind
        self._connection: sqlite3.Connection | None = None

    def add(self, numbers: array[int]) -> None:
        for first in range(0, len(numbers), PAGE_ROWS):
            self._added.append(numbers[first : first + PAGE_ROWS])

    def next(self) -> WorkflowResult | None:
        """None: no more have been added so far."""
        if not self._page:
            self.fetch()
        return self._page.popleft() if self._page else None

    def has_page(self) -> bool:
        """Whether `next` will not have to wait for the disk."""
        return bool(self._page) or not self._added

    def fetch(self) -> None:
        with self._lock:
            if self._added and not self._page:
                with database.explained(self._path):
                    self._fetch(self._added.popleft())

    def close(self) -> None:
        with self._lock:
            self._added.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _fetch(self, numbers: array[int]) -> None:
        if self._connection is None:
            self._connection = database.connect_reader(self._path)
        places = ", ".join("?" * len(numbers))
        size = 0
        # One by one, so that the rest can be left for the next page if they are large.
        for row in self._connection.execute(f"SELECT {_COLUMNS} FROM items WHERE rowid IN ({places})", tuple(numbers)):
            numbers.remove(row[0])
            self._page.append(_result(row))
            size += len(row[6] or "")
            if size > PAGE_SIZE and numbers:
                self._added.appendleft(numbers)
                return


def _result(row: tuple[Any, ...]) -> WorkflowResult:
    _, item_id, outcome, error, duration, metadata, value, attempts, credential_id = row
    return WorkflowResult(
        shown_id(item_id),
        outcome == SUCCEEDED,
        error,
        duration,
        {**(codec.decode(metadata) if metadata is not None else {}), "recorded": True},
        None if value is None else codec.decode(value),
        attempts,
        credential_id,
    )
