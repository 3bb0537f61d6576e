"""A table of a TOML file that knows where it stands, and what may be in it.

Every error names the file, the line and what was expected, and never shows a value: what stands in the wrong place may
be a key.
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
# A name that somebody mistyped looks like this; anything else may be a key in the wrong place, and is not shown.
_WORD = re.compile(r"[A-Za-z_-]{1,32}")
# What people write for our names.
_MEANT = {
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
# What tomllib says without quoting the file.
_SAFE_TO_REPEAT = frozenset(
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
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a table"}


def parse(file: Path, text: str) -> Table:
    """The whole file, as a table."""
    try:
        values = tomllib.loads(text)
        return Table(file, text, (), values)
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        said, _, place = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", place)
        line = int(found.group(1)) if found else text.count("\n") + 1
        what = f"not TOML ({said})" if said in _SAFE_TO_REPEAT else "not TOML"
    raise KeysFileError(f'{file}, line {line}: {what}; expected a [[table]] or name = value, with a text in "quotes"')


@dataclass(frozen=True)
class Table:
    """A table of the file: what it holds, and where it stands."""

    file: Path
    source: str = field(repr=False)  # the whole file; may hold a key
    path: tuple[str | int, ...]
    values: dict[str, Any] = field(repr=False)

    @property
    def line(self) -> int:
        return line_of(self.source, self.path)

    def fail(self, key: str | None, what: str) -> NoReturn:
        line = line_of(self.source, self.path if key is None else (*self.path, key))
        raise KeysFileError(f"{self.file}, line {line}: {what}") from None

    def fail_kind(self, key: str, expected: str) -> NoReturn:
        kind = _KINDS.get(type(self.values[key]), "a date or time")
        self.fail(key, f"{key if _WORD.fullmatch(key) else 'this'} must be {expected}, not {kind}")

    def knows_only(self, names: Sequence[str], what: str) -> None:
        for key in self.values:
            if key not in names:
                shown = f"{what} has no {key!r}" if _WORD.fullmatch(key) else f"{what} has nothing of this name"
                near = nearest(key, names)
                self.fail(key, f"{shown}: " + (f"did you mean {near}?" if near else f"it may have {', '.join(names)}"))

    def text(self, key: str, *, is_one_line: bool = True) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str):
            self.fail_kind(key, "a text in quotes")
        if not value or (is_one_line and not value.isprintable()):
            self.fail(key, f"{key} must be a text of one line that is not empty")
        return value

    def needed_text(self, key: str, example: str, *, is_one_line: bool = True) -> str:
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
            self.fail("day_resets", "day_resets names a time zone that is not known on this machine")
        return value

    def within(self, key: str) -> Table:
        value = self.values[key]
        if not isinstance(value, dict):
            self.fail_kind(key, "a table")
        return Table(self.file, self.source, (*self.path, key), value)

    def tables(self, key: str) -> list[Table]:
        value = self.values.get(key, [])
        if isinstance(value, dict):
            self.fail(key, f"write [[{key}]] with two brackets: there may be several")
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            self.fail(key, f"{key} must be written as tables that begin with [[{key}]]")
        return [Table(self.file, self.source, (*self.path, key, n), one) for n, one in enumerate(value)]


def nearest(written: str, names: Sequence[str]) -> str | None:
    """The name that was probably meant."""
    meant = _MEANT.get(written.lower())
    if meant in names:
        return meant
    near = difflib.get_close_matches(written.lower(), names, n=1)
    return near[0] if near else None
