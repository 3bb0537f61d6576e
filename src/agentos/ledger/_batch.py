"""`Batch`: the rows of one transaction of a launch, and the statements that write them.

Many rows are written by one statement. A statement per row would release and reacquire the GIL for every row, and each
reacquisition may take 5 ms while workers compute.

Conditions in the statement itself make the writes idempotent: an attempt is overwritten by a newer one only, and an
outcome only by a later launch that retries a failed item.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from itertools import chain
from typing import Any

from agentos.items import codec
from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.items.results import WorkflowResult
from agentos.plurals import plural
from agentos.redaction import json_text

from ._checksums import HEAD_COLUMNS, TAIL_COLUMNS, Row, add_checksums, checkpoint_checksum, checksum_of

SUCCEEDED = "succeeded"
FAILED = "failed"
# Numbers of rows per statement. Preparing a statement costs as much as executing it, so there are few variants.
STATEMENT_ROWS = (512, 64, 8, 1)

# The largest integer that SQLite can store.
MAX_INTEGER = 2**63 - 1

# Columns of a success without metadata, the most frequent row: half the columns cost half the time.
_SUCCESS_COLUMNS = f"{TAIL_COLUMNS}, checksum"
_ALL_COLUMNS = f"{HEAD_COLUMNS.removeprefix('run, launch, ')}, {_SUCCESS_COLUMNS}"
_ON_CONFLICT = """ON CONFLICT (run, id) DO UPDATE SET
    launch = excluded.launch, outcome = excluded.outcome, n = excluded.n, credential_id = excluded.credential_id,
    waited = excluded.waited, started_at = excluded.started_at, ended_at = excluded.ended_at,
    verdict = excluded.verdict, requests = excluded.requests, tokens = excluded.tokens, cost = excluded.cost,
    error = excluded.error, duration = excluded.duration, metadata = excluded.metadata,
    input_hash = excluded.input_hash, input = excluded.input, value = excluded.value, checksum = excluded.checksum
    WHERE (items.outcome IS NULL OR (items.outcome = 'failed' AND excluded.launch > items.launch))
    AND (excluded.launch, excluded.n) >= (items.launch, items.n)"""
_REPLACE_USAGE = "INSERT OR REPLACE INTO request_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REPLACE_CREDENTIAL_USAGE = "INSERT OR REPLACE INTO credential_usage VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SAVE_CHECKPOINT = """INSERT INTO checkpoints (run, item_id, launch, n, saved, checksum) SELECT ?1, ?2, ?3, ?4, ?5, ?6
    WHERE NOT EXISTS (SELECT 1 FROM items WHERE run = ?1 AND id = ?2 AND outcome = 'succeeded')
    ON CONFLICT (run, item_id) DO UPDATE SET
    launch = excluded.launch, n = excluded.n, saved = excluded.saved, checksum = excluded.checksum
    WHERE (excluded.launch, excluded.n) >= (checkpoints.launch, checkpoints.n)"""


@functools.cache
def _statement(shared: tuple[str, ...], columns: str, rows: int) -> str:
    """Return an INSERT of `rows` rows. `shared`: columns with the same value in all rows, passed once."""
    shared_parameters = [f"?{number}" for number in range(1, len(shared) + 1)]
    parameters = ", ".join([*shared_parameters, *("?" * (columns.count(",") + 1))])
    values = ", ".join([f"({parameters})"] * rows)
    return f"INSERT INTO items ({', '.join(shared)}, {columns}) VALUES {values} {_ON_CONFLICT}"


def encode_id(item_id: str) -> str | bytes:
    """Return the id as it is stored: as bytes if it is not valid Unicode."""
    if item_id.isascii():
        return item_id
    try:
        item_id.encode()
    except UnicodeEncodeError:
        return item_id.encode("utf-8", "surrogatepass")
    return item_id


def to_valid_text(text: str | None) -> str | None:
    """Return the text with lone surrogates escaped: an error may quote a file name that is not valid UTF-8."""
    return text if text is None or text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def decode_id(column: str | bytes) -> str:
    """Return the id of a stored column."""
    return column if isinstance(column, str) else column.decode("utf-8", "surrogatepass")


class Batch:
    """The rows that wait for the next commit. They hold plain values only, as they were when the event happened."""

    def __init__(self, run: int, launch: int, epoch_minus_now: float) -> None:
        self._run = run
        self._launch = launch
        self._epoch_minus_now = epoch_minus_now
        self._statements: list[tuple[str, Row]] = []  # infrequent writes, one statement per row
        self._attempt_rows: list[Row] = []  # attempts that are running, or did not end their item
        self._success_rows: list[Row] = []  # successes without metadata
        self._outcome_rows: list[Row] = []  # all other outcomes
        self.on_commit: list[Callable[[], None]] = []  # called after the commit, for threads that wait for it
        self.results: list[WorkflowResult[Any]] = []
        self.size = 0  # characters of the inputs and values of `results`

    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        return not (self._success_rows or self._outcome_rows or self._attempt_rows or self._statements)

    # --- events ---------------------------------------------------------------------------------------------------

    def attempt_started(self, attempt: Attempt) -> None:
        """Add a running attempt, and its item as unfinished."""
        self._attempt_rows.append(self._row(attempt.item, attempt, None, None, None, None, None, None, None))

    def usage_changed(self, attempt: Attempt) -> None:
        """Add what a running attempt has used: in a row of its own if a gateway counts it, else with the attempt."""
        if attempt.request_usage is None:
            attempt.is_on_record = True
            self.attempt_started(attempt)
        else:
            self._usage_of(attempt)

    def attempt_ended(self, attempt: Attempt, verdict: str, error: str | None) -> None:
        """Add the end of an attempt that did not end its item."""
        ended_at = attempt.ended_at + self._epoch_minus_now
        self._attempt_rows.append(self._row(attempt.item, attempt, None, ended_at, verdict, error, None, None, None))

    def item_ended(self, item: Item, attempt: Attempt | None, result: WorkflowResult[Any], value: str | None) -> int:
        """Add the outcome of an item; return its size in characters. `attempt` is None for an item that was not
        started."""
        self.results.append(result)
        size = (0 if item.input is None else len(item.input)) + (0 if value is None else len(value))
        self.size += size
        if result.success and (item.checkpoint is not None or item.has_record):
            self._add("DELETE FROM checkpoints WHERE run = ? AND item_id = ?", encode_id(item.id))
        if attempt is not None and result.success and not result.metadata and item.input_hash is None:
            offset = self._epoch_minus_now
            self._success_rows.append(
                (
                    item.id if item.id.isascii() else encode_id(item.id),
                    attempt.attempt,
                    attempt.credential_id,
                    attempt.waited + 0.0,  # as SQLite returns it: a float, and no negative zero
                    attempt.started_at + offset,
                    attempt.ended_at + offset,
                    0 if attempt.credential_id is None else 1,
                    item.tokens,
                    result.duration + 0.0,
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
        self._outcome_rows.append(
            self._row(item, attempt, outcome, ended_at, verdict, result.error, result.duration, metadata, value)
        )
        return size

    def save_checkpoint(self, attempt: Attempt, text: str) -> None:
        """Add a checkpoint, as JSON."""
        columns = encode_id(attempt.id), self._launch, attempt.attempt, text
        self._add(_SAVE_CHECKPOINT, *columns, checkpoint_checksum(self._run, *columns))

    def discard_item(self, item: Item) -> None:
        """Add the deletion of an item's record, because its input has changed. Its attempts stay as history."""
        self._add("DELETE FROM items WHERE run = ? AND id = ?", encode_id(item.id))
        self._add("DELETE FROM checkpoints WHERE run = ? AND item_id = ?", encode_id(item.id))

    def file_requested(self, item_id: str, name: str) -> None:
        """Add the name of a file that the item may create."""
        self._add("INSERT OR IGNORE INTO files (run, item_id, name) VALUES (?, ?, ?)", encode_id(item_id), name)

    def process_started(self, pgid: int, born: str) -> None:
        """Add a process group, which the next launch kills if it is still recorded."""
        self._add("INSERT OR REPLACE INTO processes (run, pgid, born) VALUES (?, ?, ?)", pgid, born)

    def process_ended(self, pgid: int) -> None:
        """Add the deletion of a process group."""
        self._add("DELETE FROM processes WHERE run = ? AND pgid = ?", pgid)

    def _add(self, statement: str, *values: Any) -> None:
        self._statements.append((statement, (self._run, *values)))

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
        """Return a row in the order of _ALL_COLUMNS."""
        cost: float | None = None
        if attempt is None:
            attempt_columns: Row = (0, None, None, None, None, None, None)
        else:
            requests, tokens, cost = self._usage_of(attempt)
            attempt_columns = (
                attempt.attempt,
                attempt.credential_id,
                _stored(attempt.waited),
                attempt.started_at + self._epoch_minus_now,
                _stored(ended_at),
                # Usage that the worker did not report is recorded as it was reserved.
                min(requests, MAX_INTEGER) or (0 if attempt.credential_id is None else 1),
                min(tokens, MAX_INTEGER) or item.tokens,
            )
        head = outcome, verdict, _stored(cost), to_valid_text(error), metadata, item.input_hash
        return (*head, encode_id(item.id), *attempt_columns, _stored(duration), item.input, value)

    def _usage_of(self, attempt: Attempt) -> tuple[float, float, float]:
        """Return the requests, tokens and cost of an attempt. Those that a gateway counted have a row of their own."""
        usage = attempt.usage
        counted = attempt.request_usage
        if counted is None:
            return (0, 0, 0.0) if usage is None else (usage["requests"], usage["tokens"], usage["cost"])
        tokens = counted.input_tokens + counted.output_tokens
        counts = counted.requests, counted.input_tokens, counted.output_tokens, counted.cached_tokens
        cost = counted.cost if usage is None else usage["cost"]
        self._add(
            _REPLACE_USAGE,
            encode_id(attempt.id),
            self._launch,
            attempt.attempt,
            *(min(number, MAX_INTEGER) for number in counts),
            _stored(cost),
            _stored(counted.held_seconds) or 0.0,
            min(counted.refusals, MAX_INTEGER),
        )
        for credential_id, part in counted.by_credential.items():
            self._add(
                _REPLACE_CREDENTIAL_USAGE,
                encode_id(attempt.id),
                self._launch,
                attempt.attempt,
                credential_id,
                min(part.requests, MAX_INTEGER),
                min(part.input_tokens + part.output_tokens, MAX_INTEGER),
                _stored(part.cost),
                min(part.refusals, MAX_INTEGER),
            )
        return counted.requests, tokens, cost or 0.0

    # --- statements -----------------------------------------------------------------------------------------------

    def write(self, connection: sqlite3.Connection, redact: Callable[[str], str]) -> None:
        """Execute the statements. Raise `RuntimeError` if an item has an outcome already."""
        for statement, row in self._statements:
            connection.execute(statement, row)
        shared = {"run": self._run, "launch": self._launch}
        succeeded = {**shared, "outcome": SUCCEEDED, "verdict": SUCCEEDED, "cost": 0.0}
        success_rows = add_checksums((*succeeded.values(), None, None, None), _redact_rows(self._success_rows, redact))
        _insert(connection, shared, _ALL_COLUMNS, self._checked(_redact_rows(self._attempt_rows, redact)))
        row_count = _insert(connection, succeeded, _SUCCESS_COLUMNS, success_rows)
        row_count += _insert(connection, shared, _ALL_COLUMNS, self._checked(_redact_rows(self._outcome_rows, redact)))
        if row_count != len(self.results):
            # Only a bug leads here: a run ends each item once. Nothing of this batch may be reported.
            raise RuntimeError(f"already recorded: the outcome of {plural(len(self.results) - row_count, 'item')}")

    def _checked(self, rows: list[Row]) -> list[Row]:
        """Return rows of all columns with their checksums."""
        return [(*row, checksum_of(self._run, self._launch, *row)) for row in rows]


def _stored(number: float | None) -> float | None:
    """Return a number as SQLite will return it: as a float, without negative zero; NaN is stored as NULL."""
    return None if number is None or number != number else number + 0.0


def _insert(connection: sqlite3.Connection, shared: dict[str, Any], columns: str, rows: list[Row]) -> int:
    """Insert the rows; return how many were written. A statement that is more than half full is padded with its last
    row, which changes nothing: that outcome is recorded by then."""
    row_count = first = 0
    for size in STATEMENT_ROWS:
        while len(rows) - first > size // 2:
            chunk = rows[first : first + size]
            chunk += chunk[-1:] * (size - len(chunk))
            values = (*shared.values(), *chain.from_iterable(chunk))
            row_count += connection.execute(_statement(tuple(shared), columns, size), values).rowcount
            first += size
    return row_count


def _redact_rows(rows: list[Row], redact: Callable[[str], str]) -> list[Row]:
    """Return the rows with their last two columns, input and value, redacted."""
    if not rows:
        return rows
    texts = [text for row in rows for text in row[-2:]]
    redacted = json_text.redact_json_texts(texts, redact)
    if redacted is texts:
        return rows
    return [(*row[:-2], *pair) for row, *pair in zip(rows, redacted[::2], redacted[1::2], strict=True)]
