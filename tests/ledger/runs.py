"""Runs with a ledger, for tests: a worker that counts its calls, a silent coordinator, views of results."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentos.ledger import _database
from agentos.workflows.parallel import (
    CredentialCoordinator,
    Ledger,
    LedgerError,
    ParallelCoordinator,
    WorkflowResult,
)

KEYS = ["sk-alpha-000000", "sk-bravo-111111", "sk-charlie-222222"]


class Doubling:
    """A worker that returns twice the item, records its calls, and raises for the items in `failing`."""

    def __init__(self, *failing: Any) -> None:
        self.failing = set(failing)
        self.calls: list[Any] = []

    def __call__(self, item: Any, _credential: str | None) -> Any:
        self.calls.append(item)
        if item in self.failing:
            raise ValueError(f"{item} is bad")
        return item * 2


def coordinator_of(path: Path, pool: CredentialCoordinator | None = None, **options: Any) -> ParallelCoordinator:
    return ParallelCoordinator(4, pool, ledger=path, reporter=None, **options)


def fill_disk(patch: pytest.MonkeyPatch, free_pages: int) -> None:
    """Let SQLite raise the error of a full disk when a new connection has written this number of pages."""
    connect = _database.connect_writer

    def connect_with_little_room(path: Path) -> sqlite3.Connection:
        connection = connect(path)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + free_pages}")
        return connection

    patch.setattr(_database, "connect_writer", connect_with_little_room)


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    assert len({result.item_id for result in results}) == len(results)
    return {result.item_id: result for result in results}


def is_recorded(result: WorkflowResult) -> bool:
    return result.metadata.get("recorded") is True


def counts_of(path: Path) -> tuple[int, int, int]:
    try:
        with Ledger.open(path) as ledger:
            counts = ledger.counts()
    except LedgerError:
        return (-1, -1, -1)
    return counts.succeeded, counts.failed, counts.unfinished
