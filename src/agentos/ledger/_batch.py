"""One transaction of a launch: the rows that have come together, and the statements that write them.

All rows are written by one statement. A statement per row would give the interpreter away and have to get it back a
thousand times, and each time may take 5 ms while workers compute.

An attempt is written over only by a newer one, and an outcome only by a later launch that was asked to try a failed
item again: both are conditions of the statement itself.
"""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

from agentos.items import codec
from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.items.results import WorkflowResult
from agentos.redaction import json_text

SUCCEEDED = "succeeded"
FAILED = "failed"
# Rows of one statement. To prepare one costs as much as to carry it out, so there are few of them.
SIZES = (512, 64, 8, 1)

# The largest number that SQLite keeps as one.
MOST = 2**63 - 1

Row = tuple[Any, ...]

# Most items succeed with nothing to add, and a row with half the columns costs half as much.
_PLAIN = "id, n, credential_id, waited, started_at, ended_at, requests, tokens, duration, input, value"
_FULL = """id, outcome, n, credential_id, waited, started_at, ended_at, verdict, requests, tokens, cost, error,
    duration, metadata, input_hash, input, value"""
_ON_CONFLICT = """ON CONFLICT (run, id) DO UPDATE SET
    launch = excluded.launch, outcome = excluded.outcome, n = excluded.n, credential_id = excluded.credential_id,
    waited = excluded.waited, started_at = excluded.started_at, ended_at = excluded.ended_at,
    verdict = excluded.verdict, requests = excluded.requests, tokens = excluded.tokens, cost = excluded.cost,
    error = excluded.error, duration = excluded.duration, metadata = excluded.metadata,
    input_hash = excluded.input_hash, input = excluded.input, value = excluded.value
    WHERE (items.outcome IS NULL OR (items.outcome = 'failed' AND excluded.launch > items.launch))
    AND (excluded.launch, excluded.n) >= (items.launch, items.n)"""
_SAVED = """INSERT INTO checkpoints (run, item_id, launch, n, saved) SELECT ?1, ?2, ?3, ?4, ?5
    WHERE NOT EXISTS (SELECT 1 FROM items WHERE run = ?1 AND id = ?2 AND outcome = 'succeeded')
    ON CONFLICT (run, item_id) DO UPDATE SET launch = excluded.launch, n = excluded.n, saved = excluded.saved
    WHERE (excluded.launch, excluded.n) >= (checkpoints.launch, checkpoints.n)"""


@functools.cache
def _statement(shared: tuple[str, ...], columns: str, rows: int) -> str:
    """`shared`: columns that are the same in all rows, and are given once."""
    given_once = [f"?{number}" for number in range(1, len(shared) + 1)]
    places = ", ".join([*given_once, *("?" * (columns.count(",") + 1))])
    values = ", ".join([f"({places})"] * rows)
    return f"INSERT INTO items ({', '.join(shared)}, {columns}) VALUES {values} {_ON_CONFLICT}"


def stored_id(item_id: str) -> str | bytes:
    """An id may be anything, also what is no valid text: then its bytes are kept."""
    if item_id.isascii():
        return item_id
    try:
        item_id.encode()
    except UnicodeEncodeError:
        return item_id.encode("utf-8", "surrogatepass")
    return item_id


def storable(text: str | None) -> str | None:
    """An error may quote what is no valid text, such as a file's name."""
    return text if text is None or text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shown_id(stored: str | bytes) -> str:
    return stored if isinstance(stored, str) else stored.decode("utf-8", "surrogatepass")


class Batch:
    """Rows are made when something happens, not when they are written: so nothing but plain values waits here."""

    def __init__(self, run: int, launch: int, epoch_minus_now: float) -> None:
        self._run = run
        self._launch = launch
        self._epoch_minus_now = epoch_minus_now
        self._others: list[tuple[str, Row]] = []  # statements that are rare
        self._attempts: list[Row] = []  # that are running, or were not the last of their item
        self._plain: list[Row] = []  # items that succeeded, with nothing to add
        self._ended: list[Row] = []  # all other items that have their outcome
        self.savers: list[threading.Event] = []  # to be told after the commit
        self.results: list[WorkflowResult] = []
        self.size = 0  # characters of their inputs and values

    def is_empty(self) -> bool:
        return not (self._plain or self._ended or self._attempts or self._others)

    # --- what happens ---------------------------------------------------------------------------------------------

    def attempt_started(self, attempt: Attempt) -> None:
        self._attempts.append(self._row(attempt.item, attempt, None, None, None, None, None, None, None))

    def attempt_ended(self, attempt: Attempt, verdict: str, error: str | None) -> None:
        """But not its item."""
        ended_at = attempt.ended_at + self._epoch_minus_now
        self._attempts.append(self._row(attempt.item, attempt, None, ended_at, verdict, error, None, None, None))

    def item_ended(self, item: Item, attempt: Attempt | None, result: WorkflowResult, value: str | None) -> int:
        """Returns the size of what will be written. `attempt` is None for an item that could not be started."""
        self.results.append(result)
        size = (0 if item.input is None else len(item.input)) + (0 if value is None else len(value))
        self.size += size
        if result.success and (item.checkpoint is not None or item.has_record):
            self._add("DELETE FROM checkpoints WHERE run = ? AND item_id = ?", stored_id(item.id))
        if attempt is not None and result.success and not result.metadata and item.input_hash is None:
            offset = self._epoch_minus_now
            self._plain.append(
                (
                    item.id if item.id.isascii() else stored_id(item.id),
                    attempt.attempt,
                    attempt.credential_id,
                    attempt.waited,
                    attempt.started_at + offset,
                    attempt.ended_at + offset,
                    0 if attempt.credential_id is None else 1,
                    item.tokens,
                    result.duration,
                    item.input,
                    value,
                )
            )
            return size
        outcome = verdict = SUCCEEDED
        if not result.success:
            outcome, verdict = FAILED, result.metadata.get("verdict") or FAILED
        ended_at = None if attempt is None else attempt.ended_at + self._epoch_minus_now
        metadata = codec.encode(result.metadata, "metadata") if result.metadata else None
        self._ended.append(
            self._row(item, attempt, outcome, ended_at, verdict, result.error, result.duration, metadata, value)
        )
        return size

    def saved(self, attempt: Attempt, text: str, saver: threading.Event) -> None:
        self.savers.append(saver)
        self._add(_SAVED, stored_id(attempt.id), self._launch, attempt.attempt, text)

    def discard_item(self, item: Item) -> None:
        """Its input has changed and it is to run again: its record goes, its attempts stay as history."""
        self._add("DELETE FROM items WHERE run = ? AND id = ?", stored_id(item.id))
        self._add("DELETE FROM checkpoints WHERE run = ? AND item_id = ?", stored_id(item.id))

    def file_requested(self, item_id: str, name: str) -> None:
        self._add("INSERT OR IGNORE INTO files (run, item_id, name) VALUES (?, ?, ?)", stored_id(item_id), name)

    def process_started(self, pgid: int, born: str) -> None:
        self._add("INSERT OR REPLACE INTO processes (run, pgid, born) VALUES (?, ?, ?)", pgid, born)

    def process_ended(self, pgid: int) -> None:
        self._add("DELETE FROM processes WHERE run = ? AND pgid = ?", pgid)

    def _add(self, statement: str, *values: Any) -> None:
        self._others.append((statement, (self._run, *values)))

    def _row(
        self,
        item: Item,
        attempt: Attempt | None,
        outcome: str | None,
        ended_at: float | None,
        verdict: str | None,
        error: str | None,
        duration: float | None,
        metadata: str | None,
        value: str | None,
    ) -> Row:
        """In the order of _FULL."""
        if attempt is None:
            about: Row = (0, None, None, None, None, verdict, None, None, None)
        else:
            requests, tokens, cost = (0, 0, 0.0) if attempt.usage is None else attempt.usage.values()
            about = (
                attempt.attempt,
                attempt.credential_id,
                attempt.waited,
                attempt.started_at + self._epoch_minus_now,
                ended_at,
                verdict,
                # What a worker did not report is what was reserved for it.
                min(requests, MOST) or (0 if attempt.credential_id is None else 1),
                min(tokens, MOST) or item.tokens,
                cost,
            )
        return (
            stored_id(item.id),
            outcome,
            *about,
            storable(error),
            duration,
            metadata,
            item.input_hash,
            item.input,
            value,
        )

    # --- statements -----------------------------------------------------------------------------------------------

    def write(self, connection: sqlite3.Connection, redact: Callable[[str], str]) -> None:
        for statement, row in self._others:
            connection.execute(statement, row)
        shared = {"run": self._run, "launch": self._launch}
        succeeded = {**shared, "outcome": SUCCEEDED, "verdict": SUCCEEDED, "cost": 0.0}
        _insert(connection, shared, _FULL, _without_secrets(self._attempts, redact))
        written = _insert(connection, succeeded, _PLAIN, _without_secrets(self._plain, redact))
        written += _insert(connection, shared, _FULL, _without_secrets(self._ended, redact))
        if written != len(self.results):
            # Nothing of this batch may be reported. It takes a bug to get here: the run asks for no such thing.
            raise RuntimeError(f"{len(self.results) - written} items have an outcome on record already")


def _insert(connection: sqlite3.Connection, shared: dict[str, Any], columns: str, rows: list[Row]) -> int:
    """Returns how many rows were written. A statement that is half full is filled up with the last row again: its
    outcome is there by then, and stays."""
    written = first = 0
    for size in SIZES:
        while len(rows) - first > size // 2:
            some = rows[first : first + size]
            some += some[-1:] * (size - len(some))
            values = (*shared.values(), *chain.from_iterable(some))
            written += connection.execute(_statement(tuple(shared), columns, size), values).rowcount
            first += size
    return written


def _without_secrets(rows: list[Row], redact: Callable[[str], str]) -> list[Row]:
    """Of inputs and values, the last two columns."""
    texts = [text for row in rows for text in row[-2:]]
    cleaned = json_text.redact_json_texts(texts, redact)
    if cleaned is texts:
        return rows
    return [(*row[:-2], *pair) for row, *pair in zip(rows, cleaned[::2], cleaned[1::2], strict=True)]
