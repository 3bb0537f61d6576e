"""Finds the line of a table or key in a TOML text that `tomllib` has accepted, for error messages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

# Keys of tables and indexes of arrays: ("credential", 1, "limits", "burst").
Path = tuple[str | int, ...]

# Strings and comments are matched because they may contain brackets and line ends.
_PIECE = re.compile(
    r'"{3}(?:[^\\]|\\.)*?"{3,5}|' r"'{3}.*?'{3,5}|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'|#[^\n]*|[\[\]{}\n]", re.DOTALL
)


def line_of(text: str, path: Path) -> int:
    """Return the line, from 1, of a table or key; of the innermost table that would contain it if it is missing. All of
    an inline table counts as the line where it begins."""
    line, depth = 1, 0
    table: Path = ()
    sizes: dict[Path, int] = {}  # arrays of tables -> number of their headers so far
    for start, statement in _statements(text):
        try:
            values = tomllib.loads(statement)
        except (ValueError, RecursionError):  # a failed search must not replace the error that needs the line
            continue
        if statement.lstrip().startswith("["):
            table, array = _header(values, sizes)
            matched = next((len(each) for each in (table, array) if each == path[: len(each)]), 0)
        else:
            matched = _matched(table, values, path)
        if matched > depth:
            offset = _inline_table(statement, path[len(table) : matched])
            line, depth = text.count("\n", 0, start + offset) + 1, matched
    return line


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each header and each `key = value`, which may span lines, with its offset in the text."""
    text, start = text + "\n", 0
    for match, nesting in _pieces(text):
        if match[0] == "\n" and not nesting:
            yield start, text[start : match.end()]
            start = match.end()


def _pieces(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield the matches of `_PIECE` with the number of brackets that are open before each."""
    nesting = 0
    for match in _PIECE.finditer(text):
        yield match, nesting
        nesting += (match[0] in ("[", "{")) - (match[0] in ("]", "}"))


def _header(values: Any, sizes: dict[Path, int]) -> tuple[Path, Path]:
    """Return the path of a table from its parsed header, and the path of the array that it is appended to, if any.
    The name of an array, as a parent, stands for its last table."""
    path: Path = ()
    while isinstance(values, dict) and values:
        path = (*path, sizes[path] - 1) if path in sizes else path
        name, values = next(iter(values.items()))
        path = (*path, name)
    if not isinstance(values, list):
        return path, path
    sizes[path] = sizes.get(path, 0) + 1
    return (*path, sizes[path] - 1), path


def _matched(table: Path, values: Any, path: Path) -> int:
    """Return how many parts of `path` a `key = value` of a table has."""
    if path[: len(table)] != table:
        return 0
    for depth, part in enumerate(path[len(table) :], len(table)):
        try:
            values = values[part]
        except (KeyError, IndexError, TypeError):
            return depth
    return len(path)


def _inline_table(statement: str, parts: Path) -> int:
    """Return the offset of the inline table that `parts` names in `key = [{…}, {…}]`; 0 for any other statement."""
    index = next((part for part in parts if isinstance(part, int)), None)
    if index is None:
        return 0
    tables = [match.start() for match, nesting in _pieces(statement) if match[0] == "{" and nesting == 1]
    return tables[index] if index < len(tables) else 0
