"""Known violations, per rule. The lists can only shrink: an entry that is no violation any more fails its test."""

from __future__ import annotations

from .imports import Violation


def assert_only_listed(violations: set[Violation], listed: set[Violation]) -> None:
    """Fail for a violation that is not listed, and for a listed one that does not occur."""
    new, gone = sorted(violations - listed), sorted(listed - violations)
    assert not new, "not allowed:\n" + "\n".join(f"    {pair}," for pair in new)
    assert not gone, "remove from exceptions.py, no violation any more:\n" + "\n".join(f"    {pair}," for pair in gone)


FLOORS: set[Violation] = set()

DOORS: set[Violation] = {
    ("agentos.cli.commands.keys", "agentos.cli.launch._store"),
    ("agentos.cli.commands.keys", "agentos.pool._replicas.visits"),
    ("agentos.cli.commands.plan", "agentos.cli.launch._store"),
    ("agentos.cli.commands.plan", "agentos.cli.launch._tokens"),
    ("agentos.workflows.parallel.coordinator", "agentos.runs._driver"),
    ("agentos.workflows.parallel.coordinator", "agentos.runs._rules.scheduler"),
}

DOCSTRINGS: set[Violation] = set()

PACKAGE_FILES: set[Violation] = set()

PURE_CODE: set[Violation] = set()
