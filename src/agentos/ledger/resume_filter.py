"""Removes items with a recorded outcome from a run's input, on a thread of its own.

A `ResumeFilter` is a source that reads from another source. It looks up many ids with one query: while every item that
it reads is on record, it doubles its read-ahead (up to `MAX_READ_AHEAD`), because such items take no slot of the run.
The first new item resets the read-ahead to the number of items that the run has requested.
"""

from __future__ import annotations

import itertools
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

from . import _database as database
from ._batch import FAILED, SUCCEEDED, stored_id
from .record import RunRecord
from .recorded_results import RecordedResults

# Items that are read ahead, at most, while everything is on record; and looked up by one statement.
MAX_READ_AHEAD = 512
# How long to wait for the next item that was asked for, before those that have come are looked up.
GATHER_SECONDS = 0.001
# Recorded results are handed over when nothing has come for so long, or all was read: first comes what is new.
IDLE_SECONDS = 0.02

# Id, row number, short input, hash of a long one, outcome, launch.
Known = tuple[str | bytes, int, str | None, bytes | None, str | None, int]
_KNOWN = "SELECT id, rowid, iif(input_hash IS NULL, input, NULL), input_hash, outcome, launch FROM items"


class RunWithRecord(Receiver, Protocol):
    """Who is told."""

    def items_recorded(self, succeeded: int, failed: int) -> None:
        """So many items of the input have their outcome on record."""


class ResumeFilter:
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
        self._complete = maker.complete  # only what will be started needs that
        self._record = record
        self._recorded_results = recorded_results
        # By outcome and whether the input has changed.
        self._decisions = {
            (outcome, is_changed): decide(outcome, is_changed, retry_failed=retry_failed, rerun_changed=rerun_changed)
            for outcome in (SUCCEEDED, FAILED, None)
            for is_changed in (True, False)
        }
        self.total = source.total
        self.has_scopes = source.has_scopes
        self._inbox: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._receiver: RunWithRecord
        self._is_closed = False
        # Used by the filter's own thread only:
        self._wanted = 0  # items that the run has asked for
        self._coming = 0  # items that the source was asked for
        self._ahead = 1
        self._end: tuple[BaseException | None] | None = None
        self._succeeded = self._failed = 0  # not told yet
        self._held: list[ReadItem] = []  # being looked up
        self._is_in_order = True  # as far as is known
        self._coming_up: dict[str | bytes, Known] = {}  # rows that follow on those that were met
        self._last_row = 0
        self._seen = bytearray()  # one bit per row that this launch has met

    # --- towards the run ------------------------------------------------------------------------------------------

    def request(self, count: int, receiver: RunWithRecord) -> None:
        self._receiver = receiver
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentos-resume-filter", daemon=True)
            self._thread.start()
        self._inbox.put(("wanted", count))

    def unread_ids(self) -> Iterator[str] | None:
        """After `close`. What was not read may be on record already, and is not listed then."""
        if self._thread is not None:
            self._thread.join()
        left = [*self._held, *self._drained(wait=False)]
        unread = self._source.unread()
        if unread is None and not left:
            return None
        return self._unfinished(itertools.chain(left, unread or ()))

    def close(self) -> None:
        self._is_closed = True
        self._inbox.put(("closed", None))
        self._source.close()

    # --- towards the source ---------------------------------------------------------------------------------------

    def items_read(self, read: list[ReadItem]) -> None:
        self._inbox.put(("read", read))

    def source_ended(self, error: BaseException | None) -> None:
        self._inbox.put(("ended", error))

    # --- on its own thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with database.explained(self._record.path), database.reading(self._record.path) as connection:
                while not self._is_closed and self._end is None:
                    self._take(connection)
        except BaseException as error:
            self._end = (error,)
        self._tell_recorded()
        if self._end is not None and not self._is_closed:
            self._receiver.source_ended(self._end[0])

    def _take(self, connection: sqlite3.Connection) -> None:
        read = self._drained()
        if self._is_closed:
            self._inbox.put(("read", read))  # for `unread_ids`
            return
        if read:
            self._held = read
            passed = self._sifted(connection, read)
            self._held = []
            self._wanted = max(0, self._wanted - len(passed))  # more may have come than was asked for
            self._ahead = min(2 * self._ahead, MAX_READ_AHEAD) if not passed else 1
            if passed:
                self._receiver.items_read(passed)
        missing = max(self._wanted, self._ahead) - self._coming
        if self._wanted > 0 and missing > 0 and self._end is None:
            self._coming += missing
            self._source.request(missing, self)

    def _drained(self, *, wait: bool = True) -> list[ReadItem]:
        """What has been read, and is in the inbox together with all else."""
        read: list[ReadItem] = []
        try:
            message = self._inbox.get(wait, IDLE_SECONDS)
        except Empty:
            if not wait:
                return read
            self._tell_recorded()
            message = self._inbox.get()
        while True:
            kind, about = message
            if kind == "read":
                read += about
            elif kind == "wanted":
                self._wanted += about
            elif kind == "ended":
                self._end = (about,)
            is_more_coming = 0 < len(read) < self._coming and self._end is None
            try:
                message = self._inbox.get(is_more_coming, GATHER_SECONDS)
            except Empty:
                self._coming -= len(read)
                return read

    def _tell_recorded(self) -> None:
        if self._succeeded or self._failed:
            self._receiver.items_recorded(self._succeeded, self._failed)
            self._succeeded = self._failed = 0

    def _sifted(self, connection: sqlite3.Connection, read: list[ReadItem]) -> list[ReadItem]:
        """Those that are not on record, or cannot stay so."""
        recorded = array("q")
        passed: list[ReadItem] = []
        for item, problem, row, decision in self._decided(connection, read):
            if row is None:
                passed.append((item, problem or self._complete(item)))
                continue
            _, number, _, _, outcome, launch = row
            if launch == self._record.launch or self._has_seen(number):
                problem = Problem.repeated(item.id)
            elif decision is USE_RECORD:
                recorded.append(number)
                if outcome == SUCCEEDED:
                    self._succeeded += 1
                else:
                    self._failed += 1
                continue
            elif decision is REFUSE or (decision is REPLACE and problem is not None):
                problem = Problem.changed(item.id)
            else:
                item.is_changed = decision is REPLACE
            passed.append((item, problem or self._complete(item)))
        self._recorded_results.add(recorded)
        return passed

    def _decided(
        self, connection: sqlite3.Connection, read: list[ReadItem]
    ) -> Iterator[tuple[Item, Problem | None, Known | None, str | None]]:
        """What is on record about each item, and what becomes of it for that."""
        ids = [stored_id(item.id) for item, _ in read]
        known = self._known(connection, ids)
        # The inputs as they would be on record.
        inputs = json_text.redact_json_texts([item.input for item, _ in read], self._record.redact)
        for (item, problem), item_id, given in zip(read, ids, inputs, strict=True):
            row = known.get(item_id)
            if row is None or (problem is not None and problem.is_unrecorded):
                yield item, problem, None, None
                continue
            item.has_record = True
            _, _, short_input, input_hash, outcome, _ = row
            decision = None
            # Without an input on record the item failed because of that; maybe it can be recorded now.
            if short_input is not None or input_hash is not None:
                is_changed = input_hash != item.input_hash or (short_input is not None and short_input != given)
                decision = self._decisions[outcome, is_changed]
            yield item, problem, row, decision

    def _known(self, connection: sqlite3.Connection, ids: list[str | bytes]) -> dict[str | bytes, Known]:
        """What is on record about these ids."""
        if self._is_in_order:
            self._read_on(connection)
        known = {item_id: self._coming_up.pop(item_id) for item_id in ids if item_id in self._coming_up}
        if len(known) <= len(ids) // 2:
            self._is_in_order = False
            self._coming_up.clear()
        missing = [item_id for item_id in ids if item_id not in known] if len(known) < len(ids) else []
        for first in range(0, len(missing), MAX_READ_AHEAD):
            some = missing[first : first + MAX_READ_AHEAD]
            query = f"{_KNOWN} WHERE run = ? AND id IN ({', '.join('?' * len(some))})"
            rows = connection.execute(query, (self._record.run, *some)).fetchall()
            known.update([(row[0], row) for row in rows])
        return known

    def _read_on(self, connection: sqlite3.Connection) -> None:
        """Items mostly come in the order in which they were written down, and rows in their order cost a third."""
        if len(self._coming_up) < MAX_READ_AHEAD:
            query = f"{_KNOWN} WHERE rowid > ? AND +run = ? ORDER BY rowid LIMIT {2 * MAX_READ_AHEAD}"
            rows = connection.execute(query, (self._last_row, self._record.run)).fetchall()
            if rows:
                self._last_row = rows[-1][1]
                self._coming_up.update([(row[0], row) for row in rows])

    def _has_seen(self, number: int) -> bool:
        """And has from now on."""
        byte, bit = number >> 3, 1 << (number & 7)
        if byte >= len(self._seen):
            self._seen.extend(bytes(byte + 1 - len(self._seen) + len(self._seen) // 2))
        if self._seen[byte] & bit:
            return True
        self._seen[byte] |= bit
        return False

    def _unfinished(self, unread: Iterator[ReadItem]) -> Iterator[str]:
        while some := list(itertools.islice(unread, MAX_READ_AHEAD)):
            try:
                with database.explained(self._record.path), database.reading(self._record.path) as connection:
                    decided = [(item, decision) for item, _, _, decision in self._decided(connection, some)]
            except LedgerError:  # nobody can say what is on record
                decided = [(item, None) for item, _ in some]
            yield from [item.id for item, decision in decided if decision != USE_RECORD]


# What becomes of an item whose id is on record.
USE_RECORD = "recorded"  # it has its outcome: that is returned, and nothing is executed
RUN = "again"  # it was not finished, or failed and is to be tried again
REFUSE = "changed"  # the id means something else now: refused
REPLACE = "forget"  # the same, but asked for: what is on record is put aside


def decide(outcome: str | None, is_changed: bool, *, retry_failed: bool, rerun_changed: bool) -> str:
    if is_changed:
        return REPLACE if rerun_changed else REFUSE
    if outcome is None or (outcome == "failed" and retry_failed):
        return RUN
    return USE_RECORD
