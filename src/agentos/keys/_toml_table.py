"""Reads checked values from the tables of a TOML file.

Every error has the file, the line and what was expected. No error contains a value: a value in the wrong place may be
a key.
"""

from __future__ import annotations

import difflib
import re
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from agentos.errors import KeysFileError
from agentos.limits.declaration import Limits
from agentos.limits.reset_times import seconds_to_reset

from ._toml_lines import line_of

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A misspelt name looks like this. Any other text may be a key in the wrong place, and is not printed.
_WORD = re.compile(r"[A-Za-z_-]{1,32}")
# Names that people use instead of those of the keys file.
_SYNONYMS = {
    "key": "secret",
    "api_key": "secret",
    "token": "secret",
    "name": "id",
    "group": "quota_group",
    "organization": "quota_group",
    "project": "quota_group",
    "model": "scopes",
    "models": "scopes",
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "rpd": "requests_per_day",
    "concurrency": "max_concurrent",
    "env": "credential_env",
    "env_name": "credential_env",
    "variable": "credential_env",
    "url": "base_url",
    "regex": "match",
    "pattern": "match",
    "kind": "verdict",
}
# Messages of tomllib that do not quote the file.
_SAFE_MESSAGES = frozenset(
    {
        "Cannot overwrite a value",
        "Expected '=' after a key in a key/value pair",
        "Expected newline or end of document after a statement",
        "Invalid initial character for a key part",
        "Invalid value",
        "Unclosed array",
        "Unclosed inline table",
        "Unterminated string",
    }
)
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list", dict: "a table"}


def parse(file: Path, text: str) -> Table:
    """Return the root table of a file. Raises `KeysFileError` if the text is not TOML."""
    try:
        values = tomllib.loads(text)
        return Table(file, text, (), values)
    except (ValueError, RecursionError) as error:  # ValueError: also for a number of thousands of digits
        message, _, position = str(error).partition(" (at ")
        match = re.match(r"line (\d+)", position)
        line = int(match.group(1)) if match else text.count("\n") + 1
        problem = f"invalid TOML ({message})" if message in _SAFE_MESSAGES else "invalid TOML"
    expected = 'expected a [[table]] or name = value, with strings in "quotes"'
    raise KeysFileError(f"{file}, line {line}: {problem}; {expected}")


@dataclass(frozen=True)
class Table:
    """A table of the file, with its path. The methods raise `KeysFileError` for a value that is not as expected."""

    file: Path
    source: str = field(repr=False)  # the whole file; may hold a key
    path: tuple[str | int, ...]
    values: dict[str, Any] = field(repr=False)

    @property
    def line(self) -> int:
        return line_of(self.source, self.path)

    def line_of(self, key: str) -> int:
        return line_of(self.source, (*self.path, key))

    def fail(self, key: str | None, problem: str) -> NoReturn:
        line = line_of(self.source, self.path if key is None else (*self.path, key))
        raise KeysFileError(f"{self.file}, line {line}: {problem}") from None

    def fail_kind(self, key: str, expected: str) -> NoReturn:
        kind = _KINDS.get(type(self.values[key]), "a date or time")
        self.fail(key, f"{key if _WORD.fullmatch(key) else 'this'} must be {expected}, not {kind}")

    def check_names(self, names: Sequence[str], subject: str) -> None:
        """Fail for a key that is not in `names`. `subject` stands for the table in the message."""
        for key in self.values:
            if key not in names:
                problem = f"{subject} has no {key!r}" if _WORD.fullmatch(key) else f"{subject} has no such field"
                near = nearest(key, names)
                advice = f"did you mean {near}?" if near else f"allowed are {', '.join(names)}"
                self.fail(key, f"{problem}: {advice}")

    def text(self, key: str, *, is_one_line: bool = True) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fail_kind(key, "a string in quotes")
        if not value or (is_one_line and not value.isprintable()):
            self.fail(key, f"{key} must be a non-empty string of one line")
        return value

    def required_text(self, key: str, example: str, *, is_one_line: bool = True) -> str:
        value = self.text(key, is_one_line=is_one_line)
        if value is None:
            self.fail(None, f"{key} is missing: write {key} = {example}")
        return value

    def variable(self, key: str) -> str | None:
        value = self.text(key)
        if value is not None and not VARIABLE.fullmatch(value):
            self.fail(key, f"{key} must be the name of an environment variable, such as OPENAI_API_KEY")
        return value

    def number(self, key: str, expected: str) -> float | None:
        value = self.values.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            self.fail_kind(key, expected)
        return value

    def day_resets(self) -> str | None:
        value = self.text("day_resets")
        if value is None:
            return None
        try:
            Limits(day_resets=value)
        except ValueError:
            self.fail("day_resets", "day_resets must be a time and a zone, such as '00:00 America/Los_Angeles'")
        try:
            seconds_to_reset(value, time.time())
        except ValueError:
            self.fail("day_resets", "day_resets: this machine does not know the time zone")
        return value

    def sub_table(self, key: str) -> Table:
        value = self.values[key]
        if not isinstance(value, dict):
            self.fail_kind(key, "a table")
        return Table(self.file, self.source, (*self.path, key), value)

    def tables(self, key: str) -> list[Table]:
        value = self.values.get(key, [])
        if isinstance(value, dict):
            self.fail(key, f"write [[{key}]] with two brackets: there may be several")
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            self.fail(key, f"{key} must be written as tables that begin with [[{key}]]")
        return [Table(self.file, self.source, (*self.path, key, index), each) for index, each in enumerate(value)]


def nearest(word: str, names: Sequence[str]) -> str | None:
    """Return the name that a misspelt word probably stands for; None if there is none."""
    synonym = _SYNONYMS.get(word.lower())
    if synonym in names:
        return synonym
    matches = difflib.get_close_matches(word.lower(), names, n=1)
    return matches[0] if matches else None
