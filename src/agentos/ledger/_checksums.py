"""Checksums of rows: detect bits that have changed on the disk since a row was written.

SQLite checks the structure of a file, not the content of its rows. Each row of `items` and `checkpoints` has the CRC-32
of all its other columns, as bytes in format 2 of `marshal`, which every version of Python writes alike. A ledger of
version 1 has no checksums: it can be read, and the next launch adds them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from marshal import dumps
from typing import Any
from zlib import crc32

from agentos.errors import LedgerError

Row = tuple[Any, ...]

# All columns of `items`, in the order of the checksum. The first ones are the same in all successes of a batch.
HEAD_COLUMNS = "run, launch, outcome, verdict, cost, error, metadata, input_hash"
TAIL_COLUMNS = "id, n, credential_id, waited, started_at, ended_at, requests, tokens, duration, input, value"
_COLUMN_NAMES = f"{HEAD_COLUMNS}, {TAIL_COLUMNS}".split(", ")
_HEAD_SIZE = HEAD_COLUMNS.count(",") + 1
# Indexes in a row that `select` returns: number, checksum, head, tail, further columns.
_HEAD = slice(2, 2 + _HEAD_SIZE)
_TAIL = slice(2 + _HEAD_SIZE, 2 + len(_COLUMN_NAMES))
_FORMAT = 2

_OLD = ", ".join(_COLUMN_NAMES)
_NEW = _OLD.replace("verdict", "?1")
# Sets the verdict of rows, and their checksums unless these are wrong already.
SET_VERDICT = f"""UPDATE items SET verdict = ?1,
    checksum = CASE checksum WHEN row_checksum({_OLD}) THEN row_checksum({_NEW}) ELSE checksum END"""
# From version 1 of the schema to version 2.
MIGRATION = (
    "ALTER TABLE items ADD COLUMN checksum INTEGER",
    "ALTER TABLE checkpoints ADD COLUMN checksum INTEGER",
    f"UPDATE items SET checksum = row_checksum({_OLD})",
    "UPDATE checkpoints SET checksum = checkpoint_checksum(run, item_id, launch, n, saved)",
)


def select(*more_columns: str, has_checksums: bool = True) -> str:
    """Return a SELECT of whole rows of `items`, as `RowCheck` needs them."""
    checksum = "checksum" if has_checksums else "NULL"
    return f"SELECT {', '.join(['rowid', checksum, *_COLUMN_NAMES, *more_columns])} FROM items"


def index_of(column: str) -> int:
    """Return the index of a column in such a row."""
    return 2 + _COLUMN_NAMES.index(column)


def named(row: Row) -> dict[str, Any]:
    """Return the columns of a row by name."""
    return dict(zip(_COLUMN_NAMES, row[2:], strict=False))


def add_checksums(head: Row, rows: Iterable[Row]) -> list[Row]:
    """Return rows of TAIL_COLUMNS, each with its checksum as a further column. `head`: the columns that they share."""
    start = crc32(dumps(head, _FORMAT))
    try:
        return [(*row, crc32(dumps(row, _FORMAT), start)) for row in rows]
    except ValueError:
        return [(*row, crc32(_encode(row), start)) for row in rows]


def checksum_of(*columns: Any) -> int:
    """Return the checksum of all columns of a row of `items`."""
    return crc32(_encode(columns[_HEAD_SIZE:]), crc32(_encode(columns[:_HEAD_SIZE])))


def checkpoint_checksum(*columns: Any) -> int:
    """Return the checksum of a row of `checkpoints`: run, item_id, launch, n, saved."""
    return crc32(_encode(columns))


def _encode(columns: Row) -> bytes:
    try:
        return dumps(columns, _FORMAT)
    except ValueError:  # an id or a number of tokens is an object of a subclass, which SQLite stores as its base
        return dumps(tuple(map(_to_base, columns)), _FORMAT)


def _to_base(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else value


class RowCheck:
    """Compares rows with their checksums. Successive rows mostly have the same head, whose checksum is kept."""

    def __init__(self, *, has_checksums: bool = True) -> None:
        """Without `has_checksums`, a row counts as intact if it could be read."""
        self._has_checksums = has_checksums
        self._head: Row = ()
        self._start = 0

    def is_intact(self, row: Row) -> bool:
        """Return whether a row matches its checksum. A row with fewer columns could not be read at all."""
        if len(row) < _TAIL.stop:
            return False
        head = row[_HEAD]
        if head != self._head:
            self._head, self._start = head, crc32(dumps(head, _FORMAT))
        return crc32(dumps(row[_TAIL], _FORMAT), self._start) == row[1] or not self._has_checksums


# --- reading past damage ------------------------------------------------------------------------------------------


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether SQLite could not read a row because of its content."""
    name = getattr(error, "sqlite_errorname", None) or ""
    return name.startswith("SQLITE_CORRUPT") or "Could not decode to UTF-8" in str(error)


def fetch_all(connection: sqlite3.Connection, query: str, values: Iterable[Any]) -> list[Row]:
    """Return the rows of a query. Text that is not UTF-8 any more is returned with surrogates."""
    values = tuple(values)
    try:
        return connection.execute(query, values).fetchall()
    except sqlite3.OperationalError as error:
        if not is_damage(error):
            raise
    connection.text_factory = _decode_damaged
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.text_factory = str


def fetch_each(connection: sqlite3.Connection, query: str, values: Row, numbers: Iterable[int]) -> list[Row]:
    """Return the rows of these numbers, one query for each. A row that cannot be read is (number,)."""
    rows: list[Row] = []
    for number in numbers:
        try:
            rows += fetch_all(connection, f"{query} rowid = ?", (*values, number))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            rows.append((number,))
    return rows


def indexed_id(connection: sqlite3.Connection, number: int) -> str:
    """Return the id of a damaged row from the index of ids, which has a copy; else a text with the row's number."""
    query = "SELECT id FROM items INDEXED BY sqlite_autoindex_items_1 WHERE +rowid = ?"
    try:
        item_id = fetch_all(connection, query, (number,))[0][0]
    except (sqlite3.DatabaseError, IndexError):
        return f"row {number}"
    return item_id if isinstance(item_id, str) else repr(item_id)


def damage_text(number: int) -> str:
    """Return the sentence about a damaged row: what happened, and what to do."""
    return (
        f"row {number} of the ledger is damaged, its content does not match its checksum: restore the ledger from a "
        "copy, or run the item again with retry_failed=True (agentos retry)"
    )


def check_checkpoint(item_id: str, row: Row, checksum: int) -> None:
    """Raise `LedgerError` if a row of `checkpoints` does not match its checksum."""
    if checkpoint_checksum(*row) != checksum:
        raise LedgerError(
            f"the checkpoint of item {item_id!r} is damaged: restore the ledger from a copy, or save another checkpoint"
        )


def _decode_damaged(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
