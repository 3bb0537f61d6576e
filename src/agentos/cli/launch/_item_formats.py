"""Items as files and pipes spell them: JSON lines, a JSON array, CSV with a header, or plain lines.

Whatever comes is either an item or a `BadItems` that says where, what was expected and what was found instead. Lines
end with a newline, with or without a carriage return before it; text is UTF-8, with or without its mark at the start.
Only plain lines may hold other bytes: names of files do, and they come back as they were.
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
# An item with its line, or its number among the elements of an array.
Located = tuple[int, Item]
Lines = Iterator[tuple[int, bytes]]

STDIN = "stdin"
FORMATS = ("jsonl", "json", "csv", "txt")
BY_EXTENSION = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".csv": "csv", ".txt": "txt"}
# Objects within objects, at the most: what is written down again must not be deeper than can be written.
MOST_DEPTH = 100
_NESTED = (dict, list)
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


class BadItems(click.UsageError):
    """What was given cannot be read as items. Nothing has been started."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{escape_controls(place)}: {problem}")
        self.place = place
        self.problem = problem


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


# JSON as it is defined: no NaN, and no number that is infinite here. Raises `ValueError` or `RecursionError`.
parse = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite).decode


def items_in(name: str, told: str | None, chunks: Iterable[bytes]) -> Iterator[Located]:
    """Of the file `name`, as its bytes come. Without a format: JSON lines if the first line looks like it, else plain
    lines. Reads no further than for the item that is asked for, unless it is one JSON array."""
    lines = _lines(name, chunks)
    if told is None:
        told, lines = _guessed(lines)
    return _READERS[told](name, lines)


def place_of(name: str, told: str | None, number: int) -> str:
    return f"{name}, {'element' if told == 'json' else 'line'} {number}"


def as_item(value: Any, place: str) -> Item:
    """From what JSON can hold."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if _is_deep(value):
            raise BadItems(place, f"expected an object, and found one with more than {MOST_DEPTH} others inside it")
        return value
    if isinstance(value, int | float):
        return json.dumps(value)
    found = "null" if value is None else "an array"
    raise BadItems(place, f"expected a string or an object, and found {found}")


def _is_deep(value: dict[str, Any]) -> bool:
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
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
    parts: list[bytes] = []  # of a line whose end has not come
    number = 0
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            number += 1
            yield number, _unmarked(name, number, b"".join(parts))
            parts = [other]
    number += 1
    if any(parts):
        yield number, _unmarked(name, number, b"".join(parts))


def _unmarked(name: str, number: int, line: bytes) -> bytes:
    if number > 1:
        return line
    if line.startswith(_UTF16_MARKS) and b"\0" in line:
        raise BadItems(f"{name}, line 1", "expected UTF-8, and found UTF-16: save the file as UTF-8")
    return line.removeprefix(_UTF8_MARK)


def _guessed(lines: Lines) -> tuple[str, Lines]:
    read: list[tuple[int, bytes]] = []
    told = "txt"
    for number, line in lines:
        read.append((number, line))
        if line.strip():
            told = "jsonl" if line.lstrip().startswith((b"{", b'"', b"[")) else "txt"
            break
    return told, itertools.chain(read, lines)


def _decoded(name: str, number: int, line: bytes) -> str:
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
        place = f"{name}, line {number}"
        text = _decoded(name, number, line)
        try:
            value = parse(text)
        except (ValueError, RecursionError) as error:
            hint = " (plain lines? --format txt)" if name == STDIN and number == 1 else ""
            raise BadItems(place, f"expected a JSON string or object: {_told(error)}{hint}") from None
        if isinstance(value, list):
            hint = "--format json" if name == STDIN else "name the file .json"
            raise BadItems(place, f"expected a string or an object, and found an array (of all items? {hint})")
        yield number, as_item(value, place)


def _json(name: str, lines: Lines) -> Iterator[Located]:
    text = "\n".join([_decoded(name, number, line) for number, line in lines])
    try:
        elements = parse(text)
    except json.JSONDecodeError as error:
        raise BadItems(f"{name}, line {error.lineno}", f"expected a JSON array: {_told(error)}") from None
    except (ValueError, RecursionError) as error:
        raise BadItems(name, f"expected a JSON array: {_told(error)}") from None
    if not isinstance(elements, list):
        found = f"an object with {listed(elements)}" if isinstance(elements, dict) else f"{json.dumps(elements):.40}"
        raise BadItems(name, f"expected a JSON array of strings or objects, and found {found}")
    for number, element in enumerate(elements, start=1):
        yield number, as_item(element, f"{name}, element {number}")


def _csv(name: str, lines: Lines) -> Iterator[Located]:
    csv.field_size_limit(sys.maxsize)  # a field may be a document
    rows = csv.reader((_decoded(name, number, line) + "\n" for number, line in lines), strict=True)
    header: list[str] | None = None
    while True:
        first_line = rows.line_num + 1
        place = f"{name}, line {first_line}"
        try:
            row = next(rows)
        except StopIteration:
            break
        except csv.Error as error:
            raise BadItems(f"{name}, line {max(rows.line_num, 1)}", f"expected CSV: {error}") from None
        if not row:
            continue
        if header is None:
            header = _checked_header(row, place)
        elif len(row) != len(header):
            raise BadItems(place, f"expected {len(header)} fields ({listed(header)}), and found {len(row)}")
        else:
            yield first_line, dict(zip(header, row, strict=True))
    if header is None:
        raise BadItems(name, "expected CSV with a row of names first, and found nothing")


def _checked_header(names: list[str], place: str) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise BadItems(place, f"expected a name for each field, and found {name!r} twice")
    return names


_READERS: dict[str, Callable[[str, Lines], Iterator[Located]]] = {
    "jsonl": _jsonl,
    "json": _json,
    "csv": _csv,
    "txt": _txt,
}


# --- in words -----------------------------------------------------------------------------------------------------


def _told(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (column {error.colno})"
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def listed(names: Iterable[str]) -> str:
    """So many as one can read."""
    some = [repr(name)[:60] for name in itertools.islice(names, 11)]
    return ", ".join([*some[:10], "…"] if len(some) > 10 else some) or "no fields"
