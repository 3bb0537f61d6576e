"""Execution of items: each one runs with a credential and ends once."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Limits,
    RateLimited,
)

from .coordinators import KEYS, by_id, quiet


def test_run_returns_a_result_for_every_item() -> None:
    pool = CredentialCoordinator(KEYS)
    stats, results = quiet(3, pool).execute_parallel(
        range(20), lambda item, key: (item, str(key)), lambda i: f"item-{i}"
    )
    assert (stats.total, stats.completed, stats.success_count, stats.failed) == (20, 20, 20, 0)
    assert stats.completion_rate == 100
    assert stats.stopped is None
    assert stats.elapsed == stats.elapsed  # constant after the end
    outcomes = by_id(results)
    assert outcomes.keys() == {f"item-{n}" for n in range(20)}
    assert all(result.success and result.error is None and result.attempts == 1 for result in results)
    assert {result.value[1] for result in results} == set(KEYS)
    assert {result.credential_id for result in results} == {state.key_id for state in pool.states()}
    assert pool.get_available_count() == 3


def test_worker_without_pool_gets_none() -> None:
    _, results = quiet().execute_parallel(["a"], lambda _item, credential: credential)
    assert results[0].value is None
    assert results[0].credential_id is None


def test_exception_fails_its_own_item_only() -> None:
    def worker(item: str, _: Any) -> str:
        errors = {
            "e": ValueError("boom"),
            "s": SystemExit(3),
            "k": KeyboardInterrupt(),
            "m": MemoryError(),
            "n": OSError(),
        }
        if item in errors:
            raise errors[item]
        return item

    stats, results = quiet().execute_parallel(list("aebscknm"), worker)
    outcomes = by_id(results)
    assert (stats.success_count, stats.failed) == (3, 5)
    assert outcomes["e"].error == "boom"
    assert outcomes["e"].metadata["error_type"] == "ValueError"
    assert "raise errors[item]" in outcomes["e"].metadata["traceback"]
    assert outcomes["n"].error == "OSError"  # an exception without text: its type


def test_plain_worker_that_returns_a_coroutine_fails() -> None:
    async def work() -> None:
        return None

    _, results = quiet().execute_parallel([1], lambda _item, _credential: work())
    assert "async def" in (results[0].error or "")


def test_thousands_of_items_end_once_each() -> None:
    limits = Limits(max_concurrent=3, requests_per_minute=10**9, burst=10**9)  # high: nothing is learned
    pool = CredentialCoordinator([Credential(k, limits=limits) for k in KEYS])
    attempts: Counter[int] = Counter()
    lock = threading.Lock()

    def worker(item: int, _: str) -> None:
        with lock:
            attempts[item] += 1
            is_first = attempts[item] == 1
        if is_first and item % 7 == 0:
            raise RateLimited(retry_after=0.001)

    stats, results = quiet(20, pool, max_parallelism=20).execute_parallel(range(3000), worker)
    assert stats.success_count == 3000
    assert len(by_id(results)) == 3000
    assert sum(attempts.values()) == 3000 + len(range(0, 3000, 7))
    assert pool.get_stats()["reserved"] == 0


def test_coordinators_run_in_any_thread() -> None:
    results: list[Any] = []

    def run() -> None:
        results.append(quiet().execute_parallel(range(5), lambda item, _: item)[0].success_count)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [5, 5, 5, 5]
