"""`RecordedResults`: results of earlier launches, fetched from the ledger when the caller takes them.

The resume filter adds row numbers; the thread that takes results fetches these rows whenever there is no new result. A
million recorded results therefore neither delay new items nor fill the result queue.
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
from ._batch import SUCCEEDED, decode_id
from ._database import PAGE_ROWS, PAGE_SIZE
from .record import RunRecord

_COLUMNS = "rowid, id, outcome, error, duration, metadata, value, n, credential_id"


class RecordedResults:
    """A queue of recorded results. One thread adds; another one fetches, or several, one at a time."""

    def __init__(self, record: RunRecord) -> None:
        self._path = record.path
        self._pending: deque[array[int]] = deque()  # row numbers that are not fetched yet, by page
        self._page: deque[WorkflowResult] = deque()
        self._lock = threading.Lock()  # guards the connection: a fetch may go on after its task was cancelled
        self._connection: sqlite3.Connection | None = None

    def add(self, numbers: array[int]) -> None:
        """Add rows, by their numbers."""
        for first in range(0, len(numbers), PAGE_ROWS):
            self._pending.append(numbers[first : first + PAGE_ROWS])

    def next(self) -> WorkflowResult | None:
        """Return the next result; fetch a page if necessary. None if there is none so far."""
        if not self._page:
            self.fetch()
        return self._page.popleft() if self._page else None

    def has_page(self) -> bool:
        """Return whether `next` will return without reading from the disk."""
        return bool(self._page) or not self._pending

    def fetch(self) -> None:
        """Read the next page. No-op if the current page is not used up."""
        with self._lock:
            if self._pending and not self._page:
                with database.explained(self._path):
                    self._fetch(self._pending.popleft())

    def close(self) -> None:
        """Drop the remaining results and close the connection. Blocks while a fetch is under way."""
        with self._lock:
            self._pending.clear()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _fetch(self, numbers: array[int]) -> None:
        if self._connection is None:
            self._connection = database.connect_reader(self._path)
        parameters = ", ".join("?" * len(numbers))
        size = 0
        # Row by row: large rows end the page early, and the rest becomes the next page.
        query = f"SELECT {_COLUMNS} FROM items WHERE rowid IN ({parameters})"
        for row in self._connection.execute(query, tuple(numbers)):
            numbers.remove(row[0])
            self._page.append(_result(row))
            size += len(row[6] or "")
            if size > PAGE_SIZE and numbers:
                self._pending.appendleft(numbers)
                return


def _result(row: tuple[Any, ...]) -> WorkflowResult:
    _, item_id, outcome, error, duration, metadata, value, attempts, credential_id = row
    return WorkflowResult(
        decode_id(item_id),
        outcome == SUCCEEDED,
        error,
        duration,
        {**(codec.decode(metadata) if metadata is not None else {}), "recorded": True},
        None if value is None else codec.decode(value),
        attempts,
        credential_id,
    )
