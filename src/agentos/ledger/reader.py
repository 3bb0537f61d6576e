"""`Ledger`: reads the record of a run, also while the run is writing.

A reader sees committed transactions only, and never blocks the run. Iteration takes constant memory: rows are fetched
in pages, and no transaction stays open between two pages.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from agentos.errors import LedgerError
from agentos.identifiers import sanitize_identifier
from agentos.items import codec
from agentos.items.results import Counts, Spent

from . import _checksums as checksums
from . import _database as database
from ._batch import FAILED, SUCCEEDED, decode_id, encode_id
from ._checksums import Row
from ._database import PAGE_ROWS, PAGE_SIZE
from ._spent import read_spent
from .ownership import check_complete, left_note
from .recorded import DAMAGED, UNFINISHED, CredentialTotals, Launch, RecordedAttempt, RecordedItem, RequestUsage

_EARLIER = "FROM earlier_attempts AS e WHERE e.run = items.run AND e.item_id = items.id"
_USAGE = (
    f"coalesce(tokens, 0) + (SELECT total(e.tokens) {_EARLIER})",
    f"coalesce(cost, 0) + (SELECT total(e.cost) {_EARLIER})",
)
# The plus disables the index on `run`, with which SQLite would sort the whole run for each page. The other two
# conditions have an index of their own.
_CONDITIONS = {
    None: "+run = ?",
    SUCCEEDED: "+run = ? AND outcome = 'succeeded'",
    FAILED: "run = ? AND outcome = 'failed'",
    UNFINISHED: "run = ? AND outcome IS NULL",
    DAMAGED: "+run = ?",
}
_ATTEMPT = """SELECT item_id, launch, n, credential_id, waited, started_at, ended_at, verdict, requests, tokens, cost,
    error FROM attempts WHERE run = ?"""
# Columns of `RequestUsage`; the cost is NULL if that of some requests is not known.
_REQUEST_USAGE = """total(u.requests), total(u.input_tokens), total(u.output_tokens), total(u.cached_tokens),
    CASE WHEN total(u.requests > 0 AND u.cost IS NULL) = 0 THEN total(u.cost) END, total(u.held), total(u.refusals)
    FROM request_usage AS u WHERE u.run = ?"""
_TOTALS = """SELECT credential_id, count(*), total(verdict = 'succeeded'), total(requests), total(tokens), total(cost),
    total(waited), 0 FROM attempts WHERE run = ? AND credential_id IS NOT NULL GROUP BY credential_id"""
# The same of requests through a gateway; the cost is NULL if that of some requests is not known.
_COUNTED_TOTALS = """SELECT u.credential_id, count(*), total(a.verdict = 'succeeded'), total(u.requests),
    total(u.tokens), CASE WHEN total(u.requests > 0 AND u.cost IS NULL) = 0 THEN total(u.cost) END, 0,
    total(u.refusals) FROM credential_usage AS u LEFT JOIN attempts AS a USING (run, item_id, launch, n)
    WHERE u.run = ? GROUP BY u.credential_id"""
_USED_CREDENTIALS = """SELECT launch, n, credential_id FROM credential_usage WHERE run = ? AND item_id = ?
    ORDER BY launch, n, requests DESC, credential_id"""


class Ledger:
    """Reads one run of a ledger. For one thread at a time; use it in a `with` block."""

    def __init__(self, path: Path, run_id: str, run: int, connection: sqlite3.Connection) -> None:
        self.path = path
        self.run_id = run_id
        self._run = run
        self._connection = connection
        has_checksums = database.has_checksums(connection)
        self._select = checksums.select(*_USAGE, has_checksums=has_checksums)
        self._check = checksums.RowCheck(has_checksums=has_checksums)

    @classmethod
    def open(cls, path: str | os.PathLike[str], run_id: str | None = None) -> Ledger:
        """Open a run; without a `run_id`, the one that was launched last. Raise `LedgerError` if it cannot be read, or
        has lost transactions."""
        path = Path(os.path.realpath(Path(path).expanduser()))
        if not database.check(path):
            raise LedgerError(f"there is no ledger {path}")
        note = left_note(path)  # before transactions are counted: a launch may commit meanwhile
        with database.explained(path):
            connection = database.connect_reader(path)
            try:
                check_complete(path, note, *connection.execute("SELECT ledger_id, commits FROM written").fetchone())
                name, run = _find_run(connection, path, run_id)
                return cls(path, name, run, connection)
            except BaseException:
                connection.close()
                raise

    def run_ids(self) -> list[str]:
        """Return the ids of all runs in this ledger."""
        return [row[0] for row in self._all("SELECT run_id FROM runs ORDER BY run")]

    def launches(self) -> list[Launch]:
        """Return all launches of the run, in their order."""
        query = "SELECT launch, pid, host, started_at, ended_at, stopped FROM launches WHERE run = ? ORDER BY launch"
        return [Launch(*row) for row in self._all(query, self._run)]

    def counts(self) -> Counts:
        """Return the numbers of items by outcome."""
        with database.explained(self.path):
            return database.count(self._connection, self._run)

    def item(self, item_id: str) -> RecordedItem | None:
        """Return one item; None if it is not recorded."""
        if not isinstance(item_id, str):
            raise TypeError(f"the id of an item is a string, not {type(item_id).__name__}")
        rows = self._all(f"{self._select} WHERE run = ? AND id = ?", self._run, encode_id(item_id))
        return next(self._with_usage([self._item(rows[0])])) if rows else None

    def items(self, outcome: str | None = None) -> Iterator[RecordedItem]:
        """Yield all items, or those with one outcome, in the order in which they were first recorded. An item whose row
        is damaged has the outcome "damaged" and no other."""
        if outcome not in _CONDITIONS:
            raise ValueError(f"outcome must be 'succeeded', 'failed', 'unfinished', 'damaged' or None, not {outcome!r}")
        for page in self._pages(f"{self._select} WHERE {_CONDITIONS[outcome]}"):
            yield from self._with_usage(self._items_of(page, outcome))

    def ids(self) -> Iterator[str]:
        """Yield the ids of all items, in the order of `items`, without reading inputs and values."""
        for page in self._pages("SELECT rowid, id FROM items WHERE +run = ?"):
            yield from (decode_id(row[1]) for row in page if len(row) > 1)

    def standing(self, item_id: str) -> tuple[str, int] | None:
        """Return the outcome of an item and the launch of its newest attempt, without reading input and value; None if
        the item is not recorded."""
        query = "SELECT coalesce(outcome, ?), launch FROM items WHERE run = ? AND id = ?"
        rows = self._all(query, UNFINISHED, self._run, encode_id(item_id))
        return (rows[0][0], rows[0][1]) if rows else None

    def slowest(self, count: int) -> list[tuple[str, float]]:
        """Return the items that took longest from their first start to their end: ids and seconds."""
        query = "SELECT id, duration FROM items WHERE run = ? AND duration > 0 ORDER BY duration DESC LIMIT ?"
        slowest = self._all(query, self._run, count)
        return [(decode_id(item_id), duration) for item_id, duration in slowest if isinstance(duration, float)]

    def attempts(self, item_id: str | None = None) -> Iterator[RecordedAttempt]:
        """Yield the attempts of one item, or of all items, item by item, oldest first."""
        if item_id is not None:
            yield from self._attempts_of([encode_id(item_id)])
            return
        for page in self._pages("SELECT rowid, id FROM items WHERE +run = ?"):
            yield from self._attempts_of([row[1] for row in page if len(row) > 1])

    def credentials(self) -> list[CredentialTotals]:
        """Return the usage of each credential, the one with the most attempts first."""
        rows = self._all(_TOTALS, self._run)
        if database.has_credential_usage(self._connection):
            rows += self._all(_COUNTED_TOTALS, self._run)
        totals = [
            CredentialTotals(name, attempts, int(succeeded), int(requests), int(tokens), cost, waited, int(refusals))
            for name, attempts, succeeded, requests, tokens, cost, waited, refusals in rows
        ]
        return sorted(totals, key=lambda total: (-total.attempts, -total.requests, total.credential_id))

    def usage(self, *, of_ended: bool = False) -> RequestUsage | None:
        """Return what all requests of the run have used; None if it has no gateway. `of_ended`: those of items that
        have ended."""
        if not self._has_request_usage():
            return None
        items = " AND u.item_id IN (SELECT id FROM items WHERE run = u.run AND outcome IS NOT NULL)" if of_ended else ""
        return _request_usage(self._all(f"SELECT {_REQUEST_USAGE}{items}", self._run)[0])

    def spent(self) -> Spent:
        """Return what all launches of the run have spent."""
        with database.explained(self.path):
            return read_spent(self._connection, self._run)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ledger {self.path}, run {self.run_id}>"

    # --- queries --------------------------------------------------------------------------------------------------

    def _all(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with database.explained(self.path):
            return checksums.fetch_all(self._connection, query, values)

    def _pages(self, query: str) -> Iterator[list[Row]]:
        """Yield pages of a query whose first column is the row number. A row that cannot be read is (number,)."""
        first: int | None = 1
        while first is not None:
            with database.explained(self.path):
                try:
                    page = self._page(f"{query} AND rowid >= ? ORDER BY rowid LIMIT {PAGE_ROWS}", first)
                    first = page[-1][0] + 1 if page else None
                except sqlite3.DatabaseError as error:
                    if not checksums.is_damage(error):
                        raise
                    page, first = self._damaged_page(query, first or 1)
            yield page

    def _page(self, query: str, first: int) -> list[Row]:
        page, size = [], 0
        for row in self._connection.execute(query, (self._run, first)):
            page.append(row)
            size += sum(len(value) for value in row if isinstance(value, str))
            if size > PAGE_SIZE:
                break
        return page

    def _damaged_page(self, query: str, first: int) -> tuple[list[Row], int | None]:
        """Return a page that is read row by row, and the first number of the next; None if there are no more rows."""
        page_numbers = f"SELECT rowid FROM items WHERE rowid >= ? ORDER BY rowid LIMIT {PAGE_ROWS}"
        numbers = [number for (number,) in self._connection.execute(page_numbers, (first,)).fetchall()]
        rows = checksums.fetch_each(self._connection, f"{query} AND", (self._run,), numbers)
        return rows, numbers[-1] + 1 if numbers else None

    def _item(self, row: Row) -> RecordedItem:
        try:
            if self._check.is_intact(row):
                return _item(row)
        except (ValueError, TypeError):
            pass  # a row without a checksum that holds something else than it did
        item_id, error = checksums.indexed_id(self._connection, row[0]), checksums.damage_text(row[0])
        return RecordedItem(item_id, DAMAGED, None, None, error, {}, 0, 0, None, None, None, 0, 0.0)

    def _items_of(self, page: list[Row], outcome: str | None) -> Iterator[RecordedItem]:
        for row in page:
            if outcome == DAMAGED and self._check.is_intact(row):
                continue  # without decoding it
            item = self._item(row)
            if outcome is None or item.outcome == outcome:
                yield item

    def _has_request_usage(self) -> bool:
        if not database.has_request_usage(self._connection):
            return False
        return bool(self._all("SELECT 1 FROM request_usage WHERE run = ? LIMIT 1", self._run))

    def _with_usage(self, items: Iterable[RecordedItem]) -> Iterator[RecordedItem]:
        """Yield the items with the usage of their requests, if the run has a gateway."""
        if not self._has_request_usage():
            yield from items
            return
        for item in items:
            rows = self._all(f"SELECT count(*), {_REQUEST_USAGE} AND u.item_id = ?", self._run, encode_id(item.id))
            count, *columns = rows[0]
            if not count:
                yield item
                continue
            ids = dict.fromkeys(row[2] for row in self._used_credentials(item.id))
            yield replace(item, usage=_request_usage(columns), credential_ids=tuple(ids))

    def _used_credentials(self, item_id: str) -> list[tuple[Any, ...]]:
        """Return launch, attempt and credential of the requests of an item."""
        if not database.has_credential_usage(self._connection):
            return []
        return self._all(_USED_CREDENTIALS, self._run, encode_id(item_id))

    def _attempts_of(self, ids: list[str | bytes]) -> Iterator[RecordedAttempt]:
        parameters = ", ".join("?" * len(ids))
        query = f"{_ATTEMPT} AND item_id IN ({parameters}) ORDER BY item_id, launch, n"
        usage = self._usage_by_attempt(ids, parameters)
        for stored_id, *row in self._all(query, self._run, *ids):
            item_id, used = decode_id(stored_id), usage.get((stored_id, row[0], row[1]))
            rows = () if used is None else self._used_credentials(item_id)
            names = tuple(name for *of, name in rows if of == row[:2])
            row += used, names
            yield RecordedAttempt(item_id, *row)

    def _usage_by_attempt(self, ids: list[str | bytes], parameters: str) -> dict[tuple[Any, ...], RequestUsage]:
        """Return the usage of the attempts of these items, by id, launch and number."""
        if not self._has_request_usage():
            return {}
        query = f"SELECT item_id, launch, n, {_REQUEST_USAGE} AND item_id IN ({parameters}) GROUP BY item_id, launch, n"
        return {tuple(row[:3]): _request_usage(row[3:]) for row in self._all(query, self._run, *ids)}


def _find_run(connection: sqlite3.Connection, path: Path, run_id: str | None) -> tuple[str, int]:
    if run_id is None:
        query = "SELECT run_id, run FROM launches JOIN runs USING (run) ORDER BY started_at DESC, run DESC LIMIT 1"
        row = connection.execute(query).fetchone()
    else:
        query = "SELECT run_id, run FROM runs WHERE run_id = ?"
        row = connection.execute(query, (sanitize_identifier(run_id),)).fetchone()
    if row is None:
        run_ids = ", ".join(repr(name) for (name,) in connection.execute("SELECT run_id FROM runs LIMIT 20"))
        problem = "no run yet" if run_id is None else f"no run {run_id!r}"
        raise LedgerError(f"the ledger {path} has {problem}" + (f": it has {run_ids}" if run_ids else ""))
    name, run = row
    return name, run


def _request_usage(row: Sequence[Any]) -> RequestUsage:
    requests, input_tokens, output_tokens, cached_tokens, cost, held_seconds, refusals = row
    return RequestUsage(
        int(requests), int(input_tokens), int(output_tokens), int(cached_tokens), cost, held_seconds, int(refusals)
    )


def _item(row: Row) -> RecordedItem:
    columns = checksums.named(row)
    tokens, cost = row[-2:]
    input_text, value, metadata = (columns[name] for name in ("input", "value", "metadata"))
    return RecordedItem(
        id=decode_id(columns["id"]),
        outcome=columns["outcome"] or UNFINISHED,
        input=None if input_text is None else codec.decode(input_text),
        value=None if value is None else codec.decode(value),
        error=columns["error"],
        metadata={} if metadata is None else codec.decode(metadata),
        attempts=columns["n"],
        launch=columns["launch"],
        duration=columns["duration"],
        ended_at=columns["ended_at"],
        credential_id=columns["credential_id"],
        tokens=int(tokens),
        cost=cost,
    )
