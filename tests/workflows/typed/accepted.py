"""A program whose types all fit: the checkers infer the worker's type for every result."""

# pyright: strict
from __future__ import annotations

from typing import assert_type

from agentos.workflows.parallel import (
    Command,
    CredentialCoordinator,
    Ledger,
    ParallelCoordinator,
    ProgressStats,
    RecordedItem,
    Reporter,
    RunPlan,
    WorkflowResult,
)


def count_words(text: str, key: str | None) -> int:
    return len(text.split())


async def ask(question: dict[str, str], key: str) -> list[str]:
    return [question["id"], key]


def print_event(event: object) -> None:
    print(event)


def synchronous(pool: CredentialCoordinator) -> None:
    report: Reporter = print_event
    coordinator = ParallelCoordinator(
        "auto", pool, workers="processes", admission="lease", on_changed="rerun", reporter=report
    )
    stats, results = coordinator.execute_parallel(["a b", "c"], count_words, run_id="words", retry_failed=True)
    assert_type(stats, ProgressStats)
    assert_type(results, list[WorkflowResult[int]])
    for result in results:
        if result.value is not None:
            assert_type(result.value, int)
    _, answers = coordinator.execute_parallel([{"id": "a"}], ask)
    assert_type(answers, list[WorkflowResult[list[str]]])
    with coordinator.stream(["a"], count_words, item_id_func=str.upper, tokens_func=len) as stream:
        for result in stream:
            assert_type(result, WorkflowResult[int])
    coordinator.execute_parallel(["a"], Command(["echo", "{id}"]))
    assert_type(coordinator.plan(100, item_seconds=2.0), RunPlan)


async def asynchronous() -> None:
    coordinator = ParallelCoordinator(3, CredentialCoordinator.from_env("OPENAI_API_KEY*"))
    _, results = await coordinator.execute_parallel_async([{"id": "a"}], ask)
    assert_type(results, list[WorkflowResult[list[str]]])
    async with coordinator.astream([{"id": "a"}], ask) as stream:
        async for result in stream:
            assert_type(result, WorkflowResult[list[str]])


def read(path: str) -> None:
    with Ledger.open(path) as ledger:
        for item in ledger.items("failed"):
            assert_type(item, RecordedItem)
