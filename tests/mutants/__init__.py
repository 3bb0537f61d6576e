"""Planted bugs: each is one small change to a copy of the source, and the suite has to notice it.

`make mutants` plants them one by one. The bugs stand in `planted_*.py`; how they are tried, in `__main__`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# What a bug's place is given by.
PACKAGE = Path("src/agentos")


class Mutant(NamedTuple):
    bug: str  # what goes wrong, as a sentence
    place: str  # a file of the package
    old: str  # stands there exactly once
    new: str
    tests: tuple[str, ...]  # that have to notice it: files, or node ids

    @property
    def path(self) -> Path:
        """Seen from the project's folder."""
        return PACKAGE / self.place

    def applied(self, text: str) -> str:
        """Raises `ValueError` if what it changes is not there, or not only once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.bug!r} is out of date: {self.place} has {self.old!r} {found} times, not once")
        return text.replace(self.old, self.new)


def tests_of(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{file}.py::{name}" for name in names) or (f"tests/{file}.py",)
