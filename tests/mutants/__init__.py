"""Planted bugs: each is one small change to a copy of the source that at least one named test must detect.

`make mutants` plants them one by one (`__main__`). The bugs are in `planted_*.py`, a file for each subject.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

PACKAGE = Path("src/agentos")


class Mutant(NamedTuple):
    """One planted bug: a replacement in one file, and the tests that must fail with it."""

    bug: str  # a sentence: which component does what wrong
    place: str  # path of the file below PACKAGE
    old: str  # text that occurs exactly once in the file
    new: str  # replacement for it
    tests: tuple[str, ...]  # test files or node ids, at least one of which must fail

    @property
    def path(self) -> Path:
        """Return the file's path below the project's folder."""
        return PACKAGE / self.place

    def applied(self, text: str) -> str:
        """Return the file's text with the bug. Raise `ValueError` unless `old` occurs exactly once."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.bug!r} is out of date: {self.place} has {self.old!r} {count} times, not once")
        return text.replace(self.old, self.new)


def tests_of(file: str, *names: str) -> tuple[str, ...]:
    """Return the node ids of the named tests of a file, or the whole file if no test is named."""
    return tuple(f"tests/{file}.py::{name}" for name in names) or (f"tests/{file}.py",)
