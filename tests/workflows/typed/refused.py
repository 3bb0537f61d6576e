"""A program with one mistake in each marked line. It is read by type checkers and never runs."""

# pyright: strict
from __future__ import annotations

from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator, WorkflowResult


def count_words(text: str, key: str) -> int:
    return len(text.split()) + len(key)


def too_few(text: str) -> int:
    return len(text)


pool = CredentialCoordinator.from_file("keys.toml")
coordinator = ParallelCoordinator("auto", pool)
ParallelCoordinator("all", pool)  # refused: a literal
ParallelCoordinator(3, ["sk-one"])  # refused: a list of keys is no pool
ParallelCoordinator(3, pool, workers="fibres")  # refused: a literal
ParallelCoordinator(3, pool, on_changed="ignore")  # refused: a literal
coordinator.execute_parallel([1, 2], count_words)  # refused: items of another type
coordinator.execute_parallel(["a"], too_few)  # refused: one parameter
coordinator.execute_parallel(["a"], count_words, runid="x")  # refused: a misspelt option
wrong: list[WorkflowResult[str]] = coordinator.execute_parallel(["a"], count_words)[1]  # refused: values are int
