"""Removes items with a recorded outcome from a run's input, on a thread of its own.

A `ResumeFilter` is a source that reads from another source. It looks up many ids with one query: while every item that
it reads is on record, it doubles its read-ahead (up to `MAX_READ_AHEAD`), because such items take no slot of the run.
The first new item resets the read-ahead to the number of items that the run has requested.
"""

from __future__ import annotations

import itertools
import operator
import sqlite3
import threading
from array import array
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from agentos.errors import LedgerError
from agentos.items.item import Item
from agentos.items.sources import CollectionSource, ItemMaker, Problem, ReadItem, Receiver, StreamSource
from agentos.redaction import json_text

from . import _checksums as checksums
from . import _database as database
from ._batch import FAILED, SUCCEEDED, encode_id
from .record import RunRecord
from .recorded_results import RecordedResults

# Items that are read ahead at most, while all are on record; also the ids that one query looks up.
MAX_READ_AHEAD = 512
# Seconds to wait for the next requested item before the items that have arrived are looked up.
GATHER_SECONDS = 0.001
# Seconds without input after which the number of recorded items is reported: new items have priority.
IDLE_SECONDS = 0.02

# Id, row number, short input, hash of a long input, outcome, launch.
RecordedRow = tuple[str | bytes, int, str | None, bytes | None, str | None, int]
_SELECT_ROW = "SELECT id, rowid, iif(input_hash IS NULL, input, NULL), input_hash, outcome, launch FROM items"
_SELECT_ALL = checksums.select()


# Decisions about an item whose id is on record.
USE_RECORD = "use record"  # return the recorded outcome
RUN = "run"  # the item is unfinished, or failed and is retried
REFUSE = "refuse"  # the input has changed: the item fails
REPLACE = "replace"  # the input has changed, or the record is damaged: discard the record and run
DAMAGED = "damaged"  # the row does not match its checksum: the item fails


def decide(outcome: str | None, is_changed: bool, *, retry_failed: bool, rerun_changed: bool) -> str:
    """Return the decision about an item with this recorded outcome."""
    if is_changed:
        return REPLACE if rerun_changed else REFUSE
    if outcome is None or (outcome == "failed" and retry_failed):
        return RUN
    return USE_RECORD


class RunWithRecord(Receiver, Protocol):
    """The receiver of the filtered items: a run."""

    def items_recorded(self, succeeded: int, failed: int) -> None:
        """Receive the numbers of items whose recorded outcome is used."""


class ResumeFilter:
    """A source of those items of another source that are not on record, or run again."""

    has_reader_thread = True

    def __init__(
        self,
        source: CollectionSource | StreamSource,
        maker: ItemMaker,
        record: RunRecord,
        recorded_results: RecordedResults,
        *,
        retry_failed: bool,
        rerun_changed: bool,
    ) -> None:
        self._source = source
        source.make = maker.make_bare
        self._complete = maker.complete  # for items that will be started
        self._record = record
        self._recorded_results = recorded_results
        # By recorded outcome, and whether the input has changed.
        self._decisions = {
            (outcome, is_changed): decide(outcome, is_changed, retry_failed=retry_failed, rerun_changed=rerun_changed)
            for outcome in (SUCCEEDED, FAILED, None)
            for is_changed in (True, False)
        }
        self._retry_failed = retry_failed
        self._on_damage = REPLACE if retry_failed or rerun_changed else DAMAGED
        self.total = source.total
        self.has_scopes = source.has_scopes
        self._mailbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._receiver: RunWithRecord
        self._is_closed = False
        # Used by the filter's own thread only:
        self._requested = 0  # items that the run has requested and not received
        self._expected = 0  # items that were requested from the source and have not arrived
        self._read_ahead = 1
        self._end: tuple[BaseException | None] | None = None
        self._succeeded = self._failed = 0  # recorded items that are not reported yet
        self._pending: list[ReadItem] = []  # items that are being looked up
        self._check = checksums.RowCheck()
        self._is_in_order = True  # so far, the input has the order of the rows
        self._next_rows: dict[str | bytes, RecordedRow] = {}  # the rows that follow in the table, by id
        self._last_row = 0
        self._matched_rows = bytearray()  # a bit per row: this launch has read an item with its id

    # --- for the run ----------------------------------------------------------------------------------------------

    def request(self, count: int, receiver: RunWithRecord) -> None:
        """Let the filter's thread deliver `count` more items. Returns at once."""
        self._receiver = receiver
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentos-resume-filter", daemon=True)
            self._thread.start()
        self._mailbox.put(("requested", count))

    def unread_ids(self) -> Iterator[str] | None:
        """Return the ids of undelivered items without a usable record; None if the source cannot list them. Call it
        after `close`. Blocks until the filter's thread has ended."""
        if self._thread is not None:
            self._thread.join()
        undelivered = [*self._pending, *self._take_messages(wait=False)]
        unread = self._source.unread()
        if unread is None and not undelivered:
            return None
        return self._unrecorded_ids(itertools.chain(undelivered, unread or ()))

    def close(self) -> None:
        """End the filter's thread after its current query. Does not wait for it."""
        self._is_closed = True
        self._mailbox.put(("closed", None))
        self._source.close()

    # --- for the source -------------------------------------------------------------------------------------------

    def items_read(self, read_items: list[ReadItem]) -> None:
        """Receive items from the source, on any thread."""
        self._mailbox.put(("read", read_items))

    def source_ended(self, error: BaseException | None) -> None:
        """Receive the end of the source, on any thread."""
        self._mailbox.put(("ended", error))

    # --- the filter's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with database.explained(self._record.path), database.reading(self._record.path) as connection:
                while not self._is_closed and self._end is None:
                    self._step(connection)
        except BaseException as error:
            self._end = (error,)
        self._report_recorded()
        if self._end is not None and not self._is_closed:
            self._receiver.source_ended(self._end[0])

    def _step(self, connection: sqlite3.Connection) -> None:
        read_items = self._take_messages()
        if self._is_closed:
            self._mailbox.put(("read", read_items))  # for `unread_ids`
            return
        if read_items:
            self._pending = read_items
            output_items = self._filter(connection, read_items)
            self._pending = []
            # Read-ahead may deliver more than was requested.
            self._requested = max(0, self._requested - len(output_items))
            self._read_ahead = min(2 * self._read_ahead, MAX_READ_AHEAD) if not output_items else 1
            if output_items:
                self._receiver.items_read(output_items)
        missing = max(self._requested, self._read_ahead) - self._expected
        if self._requested > 0 and missing > 0 and self._end is None:
            self._expected += missing
            self._source.request(missing, self)

    def _take_messages(self, *, wait: bool = True) -> list[ReadItem]:
        """Handle the messages in the mailbox; return the items among them. With `wait`, block until there is a message,
        and GATHER_SECONDS for further expected items."""
        read_items: list[ReadItem] = []
        try:
            message = self._mailbox.get(wait, IDLE_SECONDS)
        except Empty:
            if not wait:
                return read_items
            self._report_recorded()
            message = self._mailbox.get()
        while True:
            kind, content = message
            if kind == "read":
                read_items += content
            elif kind == "requested":
                self._requested += content
            elif kind == "ended":
                self._end = (content,)
            is_more_expected = 0 < len(read_items) < self._expected and self._end is None
            try:
                message = self._mailbox.get(is_more_expected, GATHER_SECONDS)
            except Empty:
                self._expected -= len(read_items)
                return read_items

    def _report_recorded(self) -> None:
        if self._succeeded or self._failed:
            self._receiver.items_recorded(self._succeeded, self._failed)
            self._succeeded = self._failed = 0

    def _filter(self, connection: sqlite3.Connection, read_items: list[ReadItem]) -> list[ReadItem]:
        """Return the items that run or fail; count the others and add their rows to the recorded results."""
        recorded_rows = array("q")
        output_items: list[ReadItem] = []
        for item, problem, row, decision in self._decisions_for(connection, read_items):
            if row is None:
                output_items.append((item, problem or self._complete(item)))
                continue
            _, number, _, _, outcome, launch = row
            if decision is DAMAGED:
                problem = Problem.damaged(item.id)
            elif launch == self._record.launch or self._is_repeated(number):
                # A damaged row number leads from two ids to one row.
                is_intact = self._is_intact(connection, row)
                problem = Problem.repeated(item.id) if is_intact else Problem.damaged(item.id)
            elif decision is USE_RECORD:
                recorded_rows.append(number)
                if outcome == SUCCEEDED:
                    self._succeeded += 1
                else:
                    self._failed += 1
                continue
            elif decision is REFUSE or (decision is REPLACE and problem is not None):
                problem = Problem.changed(item.id)
            else:
                item.is_changed = decision is REPLACE
            output_items.append((item, problem or self._complete(item)))
        self._recorded_results.add(recorded_rows)
        return output_items

    def _decisions_for(
        self, connection: sqlite3.Connection, read_items: list[ReadItem]
    ) -> Iterator[tuple[Item, Problem | None, RecordedRow | None, str | None]]:
        """Yield each item with its problem, its row and the decision about it."""
        ids = [encode_id(item.id) for item, _ in read_items]
        rows = self._rows_of(connection, ids)
        # Recorded inputs are redacted.
        inputs = json_text.redact_json_texts([item.input for item, _ in read_items], self._record.redact)
        for (item, problem), item_id, input_text in zip(read_items, ids, inputs, strict=True):
            row = rows.get(item_id)
            if row is None or (problem is not None and problem.is_unrecorded):
                yield item, problem, None, None
                continue
            item.has_record = True
            yield item, problem, row, self._decision(connection, item, input_text, row)

    def _decision(
        self, connection: sqlite3.Connection, item: Item, input_text: str | None, row: RecordedRow
    ) -> str | None:
        _, number, short_input, input_hash, outcome, _ = row
        decision = None
        # An item without a recorded input failed because its input was unrecordable. It may be recordable now.
        if short_input is not None or input_hash is not None:
            is_changed = input_hash != item.input_hash or (short_input is not None and short_input != input_text)
            decision = self._decisions.get((outcome, is_changed), DAMAGED)
        # The reader of a recorded result compares its row with the checksum. Other decisions are checked here.
        if (decision is USE_RECORD and not self._retry_failed) or self._is_intact(connection, row):
            return decision
        return self._on_damage if number else DAMAGED

    def _is_intact(self, connection: sqlite3.Connection, row: RecordedRow) -> bool:
        """Return whether the row's number leads to a row that has its id and matches its checksum."""
        rows = checksums.fetch_each(connection, f"{_SELECT_ALL} WHERE", (), [row[1]])
        return bool(rows) and self._check.is_intact(rows[0]) and checksums.named(rows[0])["id"] == row[0]

    def _rows_of(self, connection: sqlite3.Connection, ids: list[str | bytes]) -> dict[str | bytes, RecordedRow]:
        """Return the recorded rows of these ids."""
        if self._is_in_order:
            self._load_next_rows(connection)  # not past damage: the rows after it are looked up by id
        rows = {item_id: self._next_rows.pop(item_id) for item_id in ids if item_id in self._next_rows}
        if len(rows) <= len(ids) // 2:
            self._is_in_order = False
            self._next_rows.clear()
        missing = [item_id for item_id in ids if item_id not in rows] if len(rows) < len(ids) else []
        for first in range(0, len(missing), MAX_READ_AHEAD):
            chunk = missing[first : first + MAX_READ_AHEAD]
            query = f"{_SELECT_ROW} WHERE run = ? AND id IN ({', '.join('?' * len(chunk))})"
            try:
                chunk_rows = checksums.fetch_all(connection, query, (self._record.run, *chunk))
            except sqlite3.DatabaseError as error:
                if not checksums.is_damage(error):
                    raise
                chunk_rows = self._rows_one_by_one(connection, chunk)
            rows.update([(row[0], row) for row in chunk_rows])
        return rows

    def _rows_one_by_one(self, connection: sqlite3.Connection, ids: list[str | bytes]) -> list[RecordedRow]:
        """Return the recorded rows of these ids. One that cannot be read has the number 0 and the outcome DAMAGED."""
        rows: list[RecordedRow] = []
        for item_id in ids:
            try:
                rows += checksums.fetch_all(
                    connection, f"{_SELECT_ROW} WHERE run = ? AND id = ?", (self._record.run, item_id)
                )
            except sqlite3.DatabaseError as error:
                if not checksums.is_damage(error):
                    raise
                rows.append((item_id, 0, "", None, DAMAGED, 0))
        return rows

    def _load_next_rows(self, connection: sqlite3.Connection) -> None:
        """Load the next rows of the table. Inputs mostly have the order of the rows, and reading these in order costs a
        third of looking them up by id."""
        if len(self._next_rows) < MAX_READ_AHEAD:
            query = f"{_SELECT_ROW} WHERE rowid > ? AND +run = ? ORDER BY rowid LIMIT {2 * MAX_READ_AHEAD}"
            try:
                rows = checksums.fetch_all(connection, query, (self._last_row, self._record.run))
            except sqlite3.DatabaseError as error:
                if not checksums.is_damage(error):
                    raise
                self._is_in_order = False
                return
            numbers = [row[1] for row in rows]
            if not all(map(operator.lt, numbers, numbers[1:])):  # a number is damaged: SQLite trusts them
                self._is_in_order = False
            elif rows:
                self._last_row = numbers[-1]
                self._next_rows.update([(row[0], row) for row in rows])

    def _is_repeated(self, number: int) -> bool:
        """Return whether an item with this row was read before; mark the row as read."""
        byte, bit = number >> 3, 1 << (number & 7)
        if byte >= len(self._matched_rows):
            self._matched_rows.extend(bytes(byte + 1 - len(self._matched_rows) + len(self._matched_rows) // 2))
        if self._matched_rows[byte] & bit:
            return True
        self._matched_rows[byte] |= bit
        return False

    def _unrecorded_ids(self, unread: Iterator[ReadItem]) -> Iterator[str]:
        while chunk := list(itertools.islice(unread, MAX_READ_AHEAD)):
            try:
                with database.explained(self._record.path), database.reading(self._record.path) as connection:
                    decisions = [(item, decision) for item, _, _, decision in self._decisions_for(connection, chunk)]
            except LedgerError:  # the record cannot be read: list all ids
                decisions = [(item, None) for item, _ in chunk]
            yield from [item.id for item, decision in decisions if decision != USE_RECORD]
