"""Known violations, per rule. The lists can only shrink: an entry that is no violation any more fails its test."""

from __future__ import annotations

from .imports import Violation


def assert_only_listed(violations: set[Violation], listed: set[Violation]) -> None:
    """Fail for a violation that is not listed, and for a listed one that does not occur."""
    new, gone = sorted(violations - listed), sorted(listed - violations)
    assert not new, "not allowed:\n" + "\n".join(f"    {pair}," for pair in new)
    assert not gone, "remove from exceptions.py, no violation any more:\n" + "\n".join(f"    {pair}," for pair in gone)


FLOORS: set[Violation] = {
    ("agentos.items.context", "agentos.workers.command.reports"),
    ("agentos.keys._toml_table", "agentos.workflows.parallel"),
    ("agentos.keys.check", "agentos.workflows.parallel"),
    ("agentos.keys.keys_file", "agentos.workflows.parallel"),
    ("agentos.ledger._batch", "agentos.runs._attempt_context"),
    ("agentos.ledger.record", "agentos.runs._attempt_context"),
    ("agentos.limits.pace", "agentos.pool._rules.records"),
    ("agentos.pool.lease", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.runs._admission", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.runs._attempt_context", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.runs._driver", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.runs._outcome", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.runs._progress", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.terminal.display", "agentos.workflows.parallel"),
    ("agentos.terminal.lines", "agentos.workflows.parallel"),
    ("agentos.terminal.view", "agentos.workflows.parallel"),
    ("agentos.workers.base", "agentos.runs._attempt_context"),
    ("agentos.workers.command._folders", "agentos.runs._attempt_context"),
    ("agentos.workers.command.runner", "agentos.runs._attempt_context"),
    ("agentos.workers.command.runner", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.workers.engines.connect", "agentos.home.run_folder"),
    ("agentos.workers.engines.connect", "agentos.workflows.parallel"),
    ("agentos.workers.engines.executor", "agentos.runs._attempt_context"),
    ("agentos.workers.engines.executor", "agentos.workflows.parallel.credential_coordinator"),
    ("agentos.workers.process.parent", "agentos.runs._attempt_context"),
    ("agentos.workers.tasks", "agentos.runs._attempt_context"),
    ("agentos.workers.threads", "agentos.runs._attempt_context"),
    ("agentos.workers.wire", "agentos.runs._attempt_context"),
}

DOORS: set[Violation] = {
    ("agentos.cli.commands.keys", "agentos.cli.launch._store"),
    ("agentos.cli.commands.keys", "agentos.pool._replicas.visits"),
    ("agentos.cli.commands.plan", "agentos.cli.launch._store"),
    ("agentos.cli.commands.plan", "agentos.cli.launch._tokens"),
    ("agentos.home.run_status", "agentos.ledger._database"),
    ("agentos.ledger._batch", "agentos.runs._attempt_context"),
    ("agentos.ledger.record", "agentos.runs._attempt_context"),
    ("agentos.limits.pace", "agentos.pool._rules.records"),
    ("agentos.pool._replicas.member", "agentos.limits._usage"),
    ("agentos.pool._replicas.shared_pool", "agentos.limits._usage"),
    ("agentos.pool.simulation", "agentos.limits._windows"),
    ("agentos.runs._admission", "agentos.pool._rules.records"),
    ("agentos.runs._attempt_context", "agentos.pool._rules.records"),
    ("agentos.runs._driver", "agentos.pool._rules.records"),
    ("agentos.workers.base", "agentos.runs._attempt_context"),
    ("agentos.workers.command._folders", "agentos.runs._attempt_context"),
    ("agentos.workers.command.runner", "agentos.runs._attempt_context"),
    ("agentos.workers.engines.executor", "agentos.runs._attempt_context"),
    ("agentos.workers.process.parent", "agentos.runs._attempt_context"),
    ("agentos.workers.tasks", "agentos.runs._attempt_context"),
    ("agentos.workers.threads", "agentos.runs._attempt_context"),
    ("agentos.workers.wire", "agentos.runs._attempt_context"),
    ("agentos.workflows.parallel.coordinator", "agentos.runs._driver"),
    ("agentos.workflows.parallel.coordinator", "agentos.runs._rules.scheduler"),
    ("agentos.workflows.parallel.credential_coordinator", "agentos.pool._rules.records"),
}

DOCSTRINGS: set[Violation] = set()

PACKAGE_FILES: set[Violation] = set()

PURE_CODE: set[Violation] = set()
