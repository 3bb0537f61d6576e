"""`agentos export`: writes the results of a run as rows, in constant memory."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import click

from agentos.home.run_status import open_ledger
from agentos.items.fields import WHOLE, field_text
from agentos.ledger.reader import Ledger
from agentos.ledger.recorded import DAMAGED, RecordedItem
from agentos.plurals import plural

from ..completion import files, run_ids
from ..console import Command, Failure, binary_stdout, say
from ..find import find_run

COLUMNS = (
    "id",
    "outcome",
    "output",
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
# Fields of items that get a column in CSV, at most.
MAX_FIELDS = 1000


@click.command(cls=Command)
@click.argument("run_id", metavar="RUN", shell_complete=run_ids)
@click.option(
    "--format",
    "row_format",
    type=click.Choice(["jsonl", "csv"]),
    help="Format of the rows. [default: csv for an --output that ends in .csv, else jsonl]",
)
@click.option(
    "--output", metavar="FILE", shell_complete=files, help="Write to this file, not to stdout; replaced when complete."
)
@click.option(
    "--only", type=click.Choice(["succeeded", "failed", "unfinished", "damaged"]), help="Only items with this outcome."
)
def export(run_id: str, row_format: str | None, output: str | None, only: str | None) -> None:
    """Export the results of a run, a row for each started item: id, the fields of the item, outcome, output, value,
    error, attempts, duration (in seconds), ended_at (epoch seconds), credential_id, tokens, cost. The output is plain
    text: what a command printed on stdout, or what a function returned. The value has everything; in CSV it is JSON
    text. In CSV each field of the items has a column of its name (input.NAME where a name is taken); in JSON lines the
    item is the field input. Further columns have a value after a run with a gateway: requests, input_tokens,
    output_tokens, cached_tokens, held_seconds (requests waited for a key) and refusals (of providers, which the item
    did not see).

    \b
    Examples:
      agentos export 20261116-093012-1f3a5c > results.jsonl
      agentos export 20261116-093012-1f3a5c --only failed --format csv --output failed.csv
    """
    folder = find_run(run_id)
    if row_format is None:
        row_format = "csv" if output is not None and output.lower().endswith(".csv") else "jsonl"
    with open_ledger(folder) as ledger, _open_output(output) as file:
        write = _jsonl(file) if row_format == "jsonl" else _csv(file, _input_columns(ledger, only))
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
        stdout = binary_stdout()
        yield stdout
        stdout.flush()
        return
    target = Path(os.path.realpath(path))
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
    row = {name: getattr(item, name) for name in COLUMNS if name != "output"}
    row = {"id": row.pop("id"), "outcome": row.pop("outcome"), "output": _output_text(item), **row}
    if item.usage is None:
        row["tokens"], row["cost"] = item.tokens or None, item.cost or None  # 0: the worker has reported none
    else:
        row["cost"] = item.usage.cost  # also of attempts that were killed; None: not known
        row["credential_id"] = ", ".join(item.credential_ids) or None
    row.update({name: None if item.usage is None else getattr(item.usage, name) for name in USAGE_COLUMNS})
    return row


def _output_text(item: RecordedItem) -> str | None:
    """Return what a command printed, without the line end, or what a function returned, as text; None without a
    value."""
    value = item.value
    if item.outcome != "succeeded" or value is None:
        return None
    if isinstance(value, dict) and "stdout" in value and "exit_status" in value:
        return str(value["stdout"]).rstrip("\n")
    return field_text(value)


def _jsonl(output: BinaryIO) -> Callable[[RecordedItem], None]:
    def write(item: RecordedItem) -> None:
        row = _row(item)
        row = {"id": row.pop("id"), "input": item.input, **row}
        output.write(json.dumps(row).encode() + b"\n")

    return write


def _csv(output: BinaryIO, inputs: dict[str, str]) -> Callable[[RecordedItem], None]:
    """Return a function that writes a row. `inputs`: a column for each field of the items."""
    rows = csv.writer(_Encoder(output))
    rows.writerow(["id", *inputs.values(), *COLUMNS[1:], *USAGE_COLUMNS])

    def write(item: RecordedItem) -> None:
        row = _row(item)
        row["value"] = json.dumps(item.value) if item.outcome == "succeeded" else None
        fields = [_input_text(item, name) for name in inputs]
        rows.writerow([row.pop("id"), *fields, *row.values()])

    return write


def _input_text(item: RecordedItem, name: str) -> str | None:
    if name == WHOLE:
        return None if isinstance(item.input, dict) else field_text(item.input)
    value = item.input.get(name) if isinstance(item.input, dict) else None
    return None if value is None else field_text(value)


def _input_columns(ledger: Ledger, only: str | None) -> dict[str, str]:
    """Return a column for each field of the items, in the order of the ledger; WHOLE for items that are texts and are
    not their ids."""
    names: dict[str, None] = {}
    for item in ledger.items(only):
        if isinstance(item.input, dict):
            names.update(dict.fromkeys(item.input))
        elif item.input is not None and item.input != item.id:
            names[WHOLE] = None
        if len(names) > MAX_FIELDS:
            raise Failure(f"the items have more than {MAX_FIELDS} different fields, too many columns: use jsonl")
    own_columns = {"id", *COLUMNS, *USAGE_COLUMNS, "input"}
    columns = {name: f"input.{name}" if name in own_columns else name for name in names}
    if WHOLE in columns:
        columns[WHOLE] = "input"
    if columns.pop("id", None) is not None and any(_has_other_id(item) for item in ledger.items(only)):
        columns["id"] = "input.id"
    return columns


def _has_other_id(item: RecordedItem) -> bool:
    """Return whether the field `id` of the item is not its id: another field is (`--id-field`)."""
    return isinstance(item.input, dict) and "id" in item.input and field_text(item.input["id"]) != item.id


class _Encoder:
    """Encodes text as UTF-8. Ids that are file names and not UTF-8 (surrogates) become their original bytes."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output

    def write(self, text: str) -> None:
        try:
            self._output.write(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            self._output.write(text.encode("utf-8", "backslashreplace"))
