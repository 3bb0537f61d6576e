"""`agentos export`: writes the results of a run as rows, in constant memory."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from agentos.home.run_status import open_ledger
from agentos.ledger.reader import DAMAGED, RecordedItem
from agentos.plurals import plural

from ..completion import files, run_ids
from ..console import Command, Failure, say
from ..find import find_run

COLUMNS = (
    "id",
    "outcome",
    "value",
    "error",
    "attempts",
    "duration",
    "ended_at",
    "credential_id",
    "tokens",
    "cost",
)
# Columns of a run with a gateway; empty in any other run.
USAGE_COLUMNS = ("requests", "input_tokens", "output_tokens", "cached_tokens", "held_seconds", "refusals")


@click.command(cls=Command)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option(
    "--format",
    "row_format",
    type=click.Choice(["jsonl", "csv"]),
    default="jsonl",
    show_default=True,
    help="Format of the rows.",
)
@click.option(
    "--output", metavar="FILE", shell_complete=files, help="Write to this file, not to stdout; replaced when complete."
)
@click.option(
    "--only", type=click.Choice(["succeeded", "failed", "unfinished", "damaged"]), help="Only items with this outcome."
)
def export(run_id: str, row_format: str, output: str | None, only: str | None) -> None:
    """Export the results of a run, a row for each started item: id, outcome, value, error, attempts, duration,
    ended_at, credential_id, tokens, cost. In CSV the value is JSON text. A run with a gateway has further columns:
    requests, input_tokens, output_tokens, cached_tokens, held_seconds (requests waited for a key) and refusals (of
    providers, which the item did not see).

    \b
    Examples:
      agentos export 20261116-093012-1f3a5c > results.jsonl
      agentos export 20261116-093012-1f3a5c --only failed --format csv --output failed.csv
    """
    folder = find_run(run_id)
    with open_ledger(folder) as ledger, _open_output(output) as file:
        write = _FORMATS[row_format](file)
        damaged = 0
        for item in ledger.items(only):
            write(item)
            damaged += item.outcome == DAMAGED
    if damaged and only != DAMAGED:
        records = plural(damaged, "record")
        say(f"Warning: {records} of the ledger could not be read: see agentos show {folder.run_id}", err=True)


@contextmanager
def _open_output(path: str | None) -> Iterator[BinaryIO]:
    """Yield stdout, or a file that replaces `path` when it is complete. A device or a pipe is written directly."""
    if path is None or path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path).resolve()
    is_replaced = target.is_file() or not target.exists()
    written_path = target.with_name(f"{target.name}.part") if is_replaced else target
    try:
        with written_path.open("wb") as file:
            yield file
        if is_replaced:
            written_path.replace(target)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if is_replaced:
            written_path.unlink(missing_ok=True)


def _row(item: RecordedItem) -> dict[str, Any]:
    row = {name: getattr(item, name) for name in COLUMNS}
    if item.usage is not None:
        row["cost"] = item.usage.cost  # also of attempts that were killed; None: not known
    row.update({name: None if item.usage is None else getattr(item.usage, name) for name in USAGE_COLUMNS})
    return row


def _jsonl(output: BinaryIO) -> Callable[[RecordedItem], None]:
    def write(item: RecordedItem) -> None:
        row = _row(item)
        output.write(json.dumps(row).encode() + b"\n")

    return write


def _csv(output: BinaryIO) -> Callable[[RecordedItem], None]:
    rows = csv.writer(_Encoder(output))
    rows.writerow(COLUMNS + USAGE_COLUMNS)

    def write(item: RecordedItem) -> None:
        row = _row(item)
        row["value"] = json.dumps(item.value) if item.outcome == "succeeded" else None
        rows.writerow(row.values())

    return write


class _Encoder:
    """Encodes text as UTF-8. Ids that are file names and not UTF-8 (surrogates) become their original bytes."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output

    def write(self, text: str) -> None:
        try:
            self._output.write(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            self._output.write(text.encode("utf-8", "backslashreplace"))


_FORMATS: dict[str, Callable[[BinaryIO], Callable[[RecordedItem], None]]] = {"jsonl": _jsonl, "csv": _csv}
