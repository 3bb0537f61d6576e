"""The results of a run as rows, in constant memory."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from agentos.ledger.reader import Ledger, RecordedItem

from ..console import Failure

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


def export_items(ledger: Ledger, only: str | None, told: str, output: BinaryIO) -> None:
    write = _FORMATS[told](output)
    for item in ledger.items(only):
        write(item)


@contextmanager
def opened(path: str | None) -> Iterator[BinaryIO]:
    """stdout, or a file that is there when it is whole. A device or a pipe is written to as it is."""
    if path is None or path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path).resolve()
    is_plain = target.is_file() or not target.exists()
    place = target.with_name(f"{target.name}.part") if is_plain else target
    try:
        with place.open("wb") as file:
            yield file
        if is_plain:
            place.replace(target)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        if is_plain:
            place.unlink(missing_ok=True)


def _jsonl(output: BinaryIO) -> Callable[[RecordedItem], None]:
    def write(item: RecordedItem) -> None:
        row = {name: getattr(item, name) for name in COLUMNS}
        output.write(json.dumps(row).encode() + b"\n")

    return write


def _csv(output: BinaryIO) -> Callable[[RecordedItem], None]:
    rows = csv.writer(_Encoded(output))
    rows.writerow(COLUMNS)

    def write(item: RecordedItem) -> None:
        row: dict[str, Any] = {name: getattr(item, name) for name in COLUMNS}
        row["value"] = json.dumps(item.value) if item.outcome == "succeeded" else None
        rows.writerow(row.values())

    return write


class _Encoded:
    """Ids may be names of files that are no text: those are written as the bytes that they are."""

    def __init__(self, output: BinaryIO) -> None:
        self._output = output

    def write(self, text: str) -> None:
        try:
            self._output.write(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            self._output.write(text.encode("utf-8", "backslashreplace"))


_FORMATS: dict[str, Callable[[BinaryIO], Callable[[RecordedItem], None]]] = {"jsonl": _jsonl, "csv": _csv}
