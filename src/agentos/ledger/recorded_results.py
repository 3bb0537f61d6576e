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
from agentos.items.sources import DAMAGED_RECORD

from . import _checksums as checksums
from . import _database as database
from ._batch import SUCCEEDED, decode_id
from ._database import PAGE_ROWS, PAGE_SIZE
from .record import RunRecord

_SELECT = checksums.select()
_ID, _OUTCOME, _ERROR, _DURATION, _METADATA, _VALUE, _N, _CREDENTIAL_ID = map(
    checksums.index_of, ("id", "outcome", "error", "duration", "metadata", "value", "n", "credential_id")
)


class RecordedResults:
    """A queue of recorded results. One thread adds; another one fetches, or several, one at a time."""

    def __init__(self, record: RunRecord) -> None:
        self._path = record.path
        self._pending: deque[array[int]] = deque()  # row numbers that are not fetched yet, by page
        self._page: deque[WorkflowResult[Any]] = deque()
        self._lock = threading.Lock()  # guards the connection: a fetch may go on after its task was cancelled
        self._connection: sqlite3.Connection | None = None
        self._check = checksums.RowCheck()

    def add(self, numbers: array[int]) -> None:
        """Add rows, by their numbers."""
        for first in range(0, len(numbers), PAGE_ROWS):
            self._pending.append(numbers[first : first + PAGE_ROWS])

    def next(self) -> WorkflowResult[Any] | None:
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
        try:
            # Row by row: large rows end the page early, and the rest becomes the next page.
            for row in self._connection.execute(f"{_SELECT} WHERE rowid IN ({parameters})", tuple(numbers)):
                numbers.remove(row[0])
                self._page.append(self._result(row))
                size += len(row[-1] or "")
                if size > PAGE_SIZE and numbers:
                    self._pending.appendleft(numbers)
                    return
        except sqlite3.DatabaseError as error:
            if not checksums.is_damage(error):
                raise
            rows = checksums.fetch_each(self._connection, f"{_SELECT} WHERE", (), numbers)
            self._page.extend(map(self._result, rows))

    def _result(self, row: tuple[Any, ...]) -> WorkflowResult[Any]:
        try:
            if self._check.is_intact(row):
                return _result(row)
        except (ValueError, TypeError):
            pass  # a row without a checksum that holds something else than it did
        assert self._connection is not None
        item_id = checksums.indexed_id(self._connection, row[0])
        metadata = {"error_type": DAMAGED_RECORD, "verdict": None, "recorded": True}
        return WorkflowResult(item_id, False, checksums.damage_text(row[0]), 0.0, metadata)


def _result(row: tuple[Any, ...]) -> WorkflowResult[Any]:
    # By position, not by name: called for each of up to a million rows.
    item_id, metadata, value = row[_ID], row[_METADATA], row[_VALUE]
    return WorkflowResult(
        item_id if type(item_id) is str else decode_id(item_id),
        row[_OUTCOME] == SUCCEEDED,
        row[_ERROR],
        row[_DURATION],
        {"recorded": True} if metadata is None else {**codec.decode(metadata), "recorded": True},
        None if value is None else codec.decode(value),
        row[_N],
        row[_CREDENTIAL_ID],
    )
