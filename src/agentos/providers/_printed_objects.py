"""Reads objects as programs print them for people: JSON, Python's `repr`, Node's `util.inspect`, hashes of Ruby.

The forms differ in quotes, in the names of constants and in what stands before a value (`Headers {`, `[Object] `,
`b'`). They share braces, brackets, colons and commas. The reader uses only those, and ignores what it does not know.
"""

from __future__ import annotations

import re
from typing import Any

# Characters of an object that are read, and levels of objects inside objects.
_MAX_TEXT = 64_000
_MAX_DEPTH = 20

_TOKEN = re.compile(
    r"\s*(?:('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`\\]|\\.)*`)|(=>|[{}\[\],:])|([^\s{}\[\],:'\"`=]+|\S))",
    re.DOTALL,
)
# Inside a string: a terminal broke the line there.
_BROKEN_LINE = re.compile(r"\s*\n\s*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_CONSTANTS = {"null": None, "None": None, "undefined": None, "nil": None, "true": True, "True": True}
_CONSTANTS |= {"false": False, "False": False}


def read(text: str, start: int) -> tuple[dict[str, Any] | None, int]:
    """Return the object whose brace is at `start`, and the position after it; None if there is no object.

    Of an object that is cut, what has been printed is returned.
    """
    if text[start : start + 1] != "{":
        return None, start
    reader = _Reader(text, start)
    value = reader.read_composite(0)
    return (value if isinstance(value, dict) else None), reader.position


class _Reader:
    __slots__ = ("_end", "_text", "_token", "position")

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._end = min(len(text), start + _MAX_TEXT)
        self.position = start
        self._token: tuple[str | None, str | None, str | None] = (None, None, None)
        self._next()

    def _next(self) -> None:
        """Read a token: a string, a mark or a word. All are None at the end."""
        match = _TOKEN.match(self._text, self.position, self._end)
        self._token = (None, None, None) if match is None else (match[1], match[2], match[3])
        self.position = self._end if match is None else match.end()

    def read_composite(self, depth: int) -> Any:
        """Return the object or list whose first brace or bracket is the present token. Leaves its last one there."""
        is_object = self._token[1] == "{"
        closing = "}" if is_object else "]"
        pairs: dict[str, Any] = {}
        values: list[Any] = []
        while self._token[1] != closing and self._token != (None, None, None):
            self._next()
            key, value = self._read_item(closing, depth)
            values.append(value)
            if key is not None:
                pairs[key] = value
        return pairs if is_object else values

    def _read_item(self, closing: str, depth: int) -> tuple[str | None, Any]:
        """Return what stands before a comma: a key, if there is a colon, and the last value.

        Names of classes and other words before an object, a list or a string do not count.
        """
        key: str | None = None
        value: Any = None
        while self._token != (None, None, None) and self._token[1] not in (",", closing):
            string, mark, word = self._token
            if mark in ("{", "[") and depth < _MAX_DEPTH:
                value = self.read_composite(depth + 1)
            elif mark in (":", "=>"):
                if mark == "=>" or (key is None and isinstance(value, str | int)):
                    key, value = str(value), None
            elif string is not None:
                part = _unquoted(string)
                value = value + part if self._is_joined(value) else part
            elif word not in (None, "+") and not isinstance(value, dict):
                value = _constant(word) if value is None else value
            self._next()
        return key, value

    def _is_joined(self, value: Any) -> bool:
        """Return whether the present string continues the one before: `'first' +\\n 'second'`."""
        before = self._text[: self.position - len(self._token[0] or "")].rstrip()[-1:]
        return isinstance(value, str) and before == "+"


def _unquoted(string: str) -> str:
    return _ESCAPE.sub(_unescaped, _BROKEN_LINE.sub(" ", string[1:-1]))


def _unescaped(match: re.Match[str]) -> str:
    code = match[1] or match[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(match[3], match[3])


def _constant(word: str) -> Any:
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    return int(word) if word.isdigit() and len(word) < 20 else word
