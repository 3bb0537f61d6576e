"""Coordinators without output, keys, and results by item, for the tests of runs."""

from __future__ import annotations

from typing import Any

from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator, WorkflowResult

KEYS = ["sk-alpha-000000", "sk-bravo-111111", "sk-charlie-222222"]


def quiet(
    max_workers: int | None = 3, pool: CredentialCoordinator | None = None, **options: Any
) -> ParallelCoordinator:
    """Return a coordinator that reports nothing."""
    return ParallelCoordinator(max_workers, pool, reporter=None, **options)


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    """Return results by item id; fail if an item has two."""
    assert len({result.item_id for result in results}) == len(results)
    return {result.item_id: result for result in results}
