"""Known violations, per rule. The lists can only shrink: an entry that is no violation any more fails its test."""

from __future__ import annotations

from .imports import Violation


def assert_only_listed(violations: set[Violation], listed: set[Violation]) -> None:
    """Fail for a violation that is not listed, and for a listed one that does not occur."""
    new, gone = sorted(violations - listed), sorted(listed - violations)
    assert not new, "not allowed:\n" + "\n".join(f"    {pair}," for pair in new)
    assert not gone, "remove from exceptions.py, no violation any more:\n" + "\n".join(f"    {pair}," for pair in gone)


FLOORS: set[Violation] = set()

# The command line reaches into the package below it: these modules have no door yet.
DOORS: set[Violation] = {
    ("agentos.cli._check", "agentos.workflows.parallel._core.events"),
    ("agentos.cli._display", "agentos.workflows.parallel._core.events"),
    ("agentos.cli._display", "agentos.workflows.parallel._core.limits"),
    ("agentos.cli._display", "agentos.workflows.parallel._core.progress"),
    ("agentos.cli._engines", "agentos.workflows.parallel._workers.executors"),
    ("agentos.cli._execute", "agentos.workflows.parallel._core.events"),
    ("agentos.cli._home", "agentos.workflows.parallel._addresses"),
    ("agentos.cli._items", "agentos.workflows.parallel._fields"),
    ("agentos.cli._items", "agentos.workflows.parallel._values"),
    ("agentos.cli._keysfile", "agentos.workflows.parallel._addresses"),
    ("agentos.cli._keysfile", "agentos.workflows.parallel._core.events"),
    ("agentos.cli._lines", "agentos.workflows.parallel._core.events"),
    ("agentos.cli._lines", "agentos.workflows.parallel._core.progress"),
    ("agentos.cli._overview", "agentos.workflows.parallel._ledger.database"),
    ("agentos.cli._overview", "agentos.workflows.parallel._ledger.ownership"),
    ("agentos.cli._pool", "agentos.workflows.parallel._addresses"),
    ("agentos.cli._printed", "agentos.workflows.parallel._output"),
    ("agentos.cli._shared_state", "agentos.workflows.parallel._stores.snapshots"),
    ("agentos.cli._show", "agentos.workflows.parallel._logs"),
    ("agentos.cli._store", "agentos.workflows.parallel._addresses"),
    ("agentos.cli._store", "agentos.workflows.parallel._stores"),
    ("agentos.cli._texts", "agentos.workflows.parallel._core.progress"),
    ("agentos.cli._tokens", "agentos.workflows.parallel._fields"),
    ("agentos.cli._toml_table", "agentos.workflows.parallel._days"),
    ("agentos.cli._view", "agentos.workflows.parallel._core.events"),
    ("agentos.cli.control", "agentos.workflows.parallel._reports"),
    ("agentos.cli.keys", "agentos.workflows.parallel._stores.snapshots"),
    ("agentos.cli.keys", "agentos.workflows.parallel._stores.visits"),
    ("agentos.cli.look", "agentos.workflows.parallel._ledger.ownership"),
    ("agentos.cli.look", "agentos.workflows.parallel._logs"),
    ("agentos.cli.look", "agentos.workflows.parallel._verdicts.durations"),
    ("agentos.cli.run", "agentos.workflows.parallel._addresses"),
    ("agentos.cli.run", "agentos.workflows.parallel._options"),
}

DOCSTRINGS: set[Violation] = set()

PACKAGE_FILES: set[Violation] = {
    ("agentos.workflows.parallel._stores", "more or less than a docstring"),
    ("agentos.workflows.parallel.testing", "more or less than a docstring"),
}

PURE_CODE: set[Violation] = set()
