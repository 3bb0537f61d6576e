"""In which line of a TOML file something stands, so that an error about it can say so.

`tomllib` gives values without places. This walks the same text once more, only to note lines: it relies on `tomllib`
having read the file, so that nothing has to be checked here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

# Keys of tables, and numbers in arrays: ("credential", 1, "limits", "burst").
Path = tuple[str | int, ...]

_TOKEN = re.compile(
    r"""
      (?P<string> \"{3} (?:[^\\]|\\.)*? \"{3,5} | '{3} .*? '{3,5} | \"(?:[^\"\\\n]|\\.)*\" | '[^'\n]*' )
    | (?P<comment> \#[^\n]* )
    | (?P<newline> \n )
    | (?P<mark> [\[\]{}=,.] )
    | (?P<bare> [^\s\[\]{}=,.\"'\#]+ )
    """,
    re.VERBOSE | re.DOTALL,
)


class TomlLines:
    """Where everything in a well-formed TOML text stands."""

    def __init__(self, text: str) -> None:
        self._at: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}  # how often an array of tables has been begun
        self._tokens = list(_tokens(text))
        self._next = 0
        self._walk()

    def of(self, path: Path) -> int:
        """The line of a key or table; of what it is in, if it does not stand there itself; else the first."""
        while path and path not in self._at:
            path = path[:-1]
        return self._at.get(path, 1)

    def _walk(self) -> None:
        table: Path = ()
        while (piece := self._skip()) is not None:
            if piece == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        line = self._line()
        self._next += 1
        is_array = self._peek() == "["
        self._next += is_array
        names = self._names()
        self._next += 1 + is_array
        path: Path = ()
        for name in names[:-1]:
            path = self._newest((*path, name))
        path = (*path, names[-1])
        if is_array:
            number = self._tables.get(path, 0)
            self._tables[path] = number + 1
            self._at.setdefault(path, line)
            path = (*path, number)
        self._at[path] = line
        return path

    def _newest(self, path: Path) -> Path:
        """Under the name of an array of tables, its last one is meant."""
        return (*path, self._tables[path] - 1) if path in self._tables else path

    def _pair(self, table: Path) -> None:
        line = self._line()
        path = table
        for name in self._names():
            path = (*path, name)
            self._at.setdefault(path, line)
        self._next += 1  # the equals sign
        self._value(path)

    def _value(self, path: Path) -> None:
        piece = self._peek()
        if piece == "[":
            self._next += 1
            number = 0
            while self._skip() != "]":
                self._at[(*path, number)] = self._line()
                self._value((*path, number))
                number += 1
                self._next += self._skip() == ","
            self._next += 1
        elif piece == "{":
            self._next += 1
            while self._skip() != "}":
                self._pair(path)
                self._next += self._skip() == ","
            self._next += 1
        else:  # a string, or all that a number, a date or a truth value is made of
            while self._peek() not in (None, "\n", ",", "]", "}"):
                self._next += 1

    def _names(self) -> list[str]:
        """Of a key with its dots."""
        names = []
        while True:
            piece = self._peek() or ""
            names.append(tomllib.loads(f"key = {piece}")["key"] if piece[:1] in ("'", '"') else piece)
            self._next += 1
            if self._peek() != ".":
                return names
            self._next += 1

    def _peek(self) -> str | None:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else None

    def _line(self) -> int:
        return self._tokens[self._next][1]

    def _skip(self) -> str | None:
        """Past line ends, to the next token."""
        while (piece := self._peek()) == "\n":
            self._next += 1
        return piece


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """With their lines; comments are left out."""
    line = 1
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "comment":
            yield match.group(), line
        line += match.group().count("\n")
