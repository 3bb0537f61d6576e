"""Known violations by rule. The lists can only shrink: an entry that is no longer a violation fails the rule's test."""

from __future__ import annotations

from .imports import Violation


def assert_only_listed(violations: set[Violation], listed: set[Violation], rule: str) -> None:
    """Fail with the text of the rule for a violation that is not listed, and for a listed one that does not occur."""
    new, outdated = sorted(violations - listed), sorted(listed - violations)
    assert not new, f"not allowed:\n{_lines(new)}\n{rule}"
    assert not outdated, f"remove from exceptions.py, no violation any more:\n{_lines(outdated)}"


def _lines(violations: list[Violation]) -> str:
    return "\n".join(f"    {violation}," for violation in violations)


FLOORS: set[Violation] = set()

DOORS: set[Violation] = set()

DOCSTRINGS: set[Violation] = set()

PACKAGE_FILES: set[Violation] = set()

PURE_CODE: set[Violation] = set()
