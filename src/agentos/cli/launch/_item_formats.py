"""Parses the formats of items: JSON lines, a JSON array, CSV and TSV with a header, and plain lines.

Any input gives items or a `BadItems` with the location, what was expected and what was found. Lines end with LF or
CRLF; text is UTF-8, with or without a byte order mark. Plain lines may hold other bytes, as file names do: these become
surrogates, from which the bytes can be restored.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import click

from agentos.reporters.format import escape_controls

Item = str | dict[str, Any]
# An item with its line number, or its number among the elements of an array.
Located = tuple[int, Item]
Lines = Iterator[tuple[int, bytes]]

STDIN = "stdin"
FORMATS = ("jsonl", "json", "csv", "tsv", "txt")
BY_EXTENSION = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".txt": "txt",
}  # fmt: skip
# The problem of an input without items: a mistake in the command before a pipe is more likely than nothing to do.
EMPTY = "expected items, and found none"
# Levels of nested objects and arrays: `json.dumps` must be able to write an item again.
MAX_DEPTH = 100
_NESTED = (dict, list)
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class BadItems(click.UsageError):
    """The input cannot be read as items."""

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"{escape_controls(location)}: {problem}")
        self.location = location
        self.problem = problem


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


# Parses standard JSON: no NaN, and no number beyond the range of a float. Raises `ValueError` or `RecursionError`.
parse = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite).decode


def items_in(
    name: str, format_: str | None, chunks: Iterable[bytes], delimiter: str | None = None
) -> Iterator[Located]:
    """Yield the items of the file `name` as its bytes arrive. Without a format: JSON lines if the first line looks like
    JSON, else plain lines. Reads no more chunks than the next item needs, except for a JSON array. `delimiter` stands
    between the fields of CSV, instead of a comma."""
    lines = _lines(name, chunks)
    if format_ is None:
        format_, lines = _guess_format(lines)
    if format_ in ("csv", "tsv"):
        return _csv(name, lines, delimiter or ("," if format_ == "csv" else "\t"))
    return _READERS[format_](name, lines)


def location_of(name: str, format_: str | None, number: int) -> str:
    return f"{name}, {'element' if format_ == 'json' else 'line'} {number}"


def as_item(value: Any, location: str) -> Item:
    """Return a JSON value as an item: strings and objects as they are, numbers as text. Raise `BadItems`."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if _is_deep(value):
            raise BadItems(location, f"expected at most {MAX_DEPTH} nested levels, and found more")
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    kind = "null" if value is None else "an array"
    raise BadItems(location, f"expected a string or an object, and found {kind}")


def _is_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _NESTED)
        ]
        if not level:
            return False
    return True


# --- lines --------------------------------------------------------------------------------------------------------


def _lines(name: str, chunks: Iterable[bytes]) -> Lines:
    parts: list[bytes] = []  # of a line whose end has not arrived
    number = 0
    for chunk in chunks:
        first_part, *next_lines = chunk.split(b"\n")
        parts.append(first_part)
        for line in next_lines:
            number += 1
            yield number, _without_mark(name, number, b"".join(parts))
            parts = [line]
    number += 1
    if any(parts):
        yield number, _without_mark(name, number, b"".join(parts))


def _without_mark(name: str, number: int, line: bytes) -> bytes:
    if number > 1:
        return line
    if line.startswith(_UTF16_MARKS) and b"\0" in line:
        raise BadItems(f"{name}, line 1", "expected UTF-8, and found UTF-16: save the file as UTF-8")
    return line.removeprefix(_UTF8_MARK)


def _guess_format(lines: Lines) -> tuple[str, Lines]:
    """Return the format, judged by the first line that is not empty, and all lines."""
    consumed: list[tuple[int, bytes]] = []
    format_ = "txt"
    for number, line in lines:
        consumed.append((number, line))
        if line.strip():
            format_ = "jsonl" if line.lstrip().startswith((b"{", b'"', b"[")) else "txt"
            break
    return format_, itertools.chain(consumed, lines)


def _decode(name: str, number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise BadItems(
            f"{name}, line {number}", f"expected UTF-8, and byte {error.start + 1} is 0x{byte:02x}: save it as UTF-8"
        ) from None


# --- formats ------------------------------------------------------------------------------------------------------


def _txt(_name: str, lines: Lines) -> Iterator[Located]:
    for number, line in lines:
        text = line.removesuffix(b"\r").decode("utf-8", "surrogateescape")
        if text.strip(" \t"):
            yield number, text


def _jsonl(name: str, lines: Lines) -> Iterator[Located]:
    for number, line in lines:
        if not line.strip():
            continue
        location = f"{name}, line {number}"
        text = _decode(name, number, line)
        try:
            value = parse(text)
        except (ValueError, RecursionError) as error:
            hint = " (for plain lines use --format txt)" if name == STDIN and number == 1 else ""
            raise BadItems(location, f"expected a JSON string or object: {_problem_text(error)}{hint}") from None
        if isinstance(value, list):
            hint = "--format json" if name == STDIN else "name the file .json"
            raise BadItems(location, f"expected a string or an object, and found an array (an array of items: {hint})")
        yield number, as_item(value, location)


def _json(name: str, lines: Lines) -> Iterator[Located]:
    text = "\n".join([_decode(name, number, line) for number, line in lines])
    try:
        elements = parse(text)
    except json.JSONDecodeError as error:
        raise BadItems(f"{name}, line {error.lineno}", f"expected a JSON array: {_problem_text(error)}") from None
    except (ValueError, RecursionError) as error:
        raise BadItems(name, f"expected a JSON array: {_problem_text(error)}") from None
    if not isinstance(elements, list):
        kind = f"an object with {listed(elements)}" if isinstance(elements, dict) else f"{json.dumps(elements):.40}"
        raise BadItems(name, f"expected a JSON array of strings or objects, and found {kind}")
    for number, element in enumerate(elements, start=1):
        yield number, as_item(element, f"{name}, element {number}")


def _csv(name: str, lines: Lines, delimiter: str) -> Iterator[Located]:
    csv.field_size_limit(sys.maxsize)  # a field may be a document
    rows = csv.reader((_decode(name, number, line) + "\n" for number, line in lines), strict=True, delimiter=delimiter)
    header: list[str] | None = None
    while True:
        first_line = rows.line_num + 1
        location = f"{name}, line {first_line}"
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            raise BadItems(f"{name}, line {max(rows.line_num, 1)}", f"expected CSV: {error}") from None
        if not row:
            continue
        if header is None:
            header = _check_header(row, location)
        elif len(row) != len(header):
            raise BadItems(location, f"expected {len(header)} fields ({listed(header)}), and found {len(row)}")
        else:
            yield first_line, dict(zip(header, row, strict=True))
    if header is None:
        raise BadItems(name, "expected CSV with a header row, and found nothing")


def _check_header(names: list[str], location: str) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise BadItems(location, f"expected a name for each field, and found {name!r} twice")
    return names


_READERS: dict[str, Callable[[str, Lines], Iterator[Located]]] = {
    "jsonl": _jsonl,
    "json": _json,
    "txt": _txt,
}


# --- texts --------------------------------------------------------------------------------------------------------


def _problem_text(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (column {error.colno})"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def listed(names: Iterable[str]) -> str:
    """Return the first ten names for a message."""
    first_names = [repr(name)[:60] for name in itertools.islice(names, 11)]
    return ", ".join([*first_names[:10], "…"] if len(first_names) > 10 else first_names) or "no fields"
