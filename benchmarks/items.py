"""Overhead per item on threads: 20,000 no-op items on 10 workers, without a pool and with one of 16 keys."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed

from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator

from .measuring import Row, at_most, measure, per_operation

ITEMS = 20_000
WORKERS = 10


def no_op(item: int, credential: str | None = None) -> int:
    return item


def run_ours(pool: CredentialCoordinator | None) -> None:
    with ParallelCoordinator(WORKERS, pool, reporter=None).stream(range(ITEMS), no_op) as results:
        done = sum(result.success for result in results)
    assert done == ITEMS


def run_executor(count: int = ITEMS) -> None:
    with ThreadPoolExecutor(WORKERS) as executor:
        futures = [executor.submit(no_op, item) for item in range(count)]
        done = sum(1 for future in as_completed(futures) if future.result() is not None)
    assert done == count


def rows() -> Iterator[Row]:
    pool = CredentialCoordinator([f"key-{number}" for number in range(16)])
    without_pool, with_pool, executor = measure(
        {
            "no pool": per_operation(lambda: run_ours(None), ITEMS),
            "16 keys": per_operation(lambda: run_ours(pool), ITEMS),
            "ThreadPoolExecutor, as_completed": per_operation(run_executor, ITEMS),
        }
    )
    yield at_most(0.8, "per item, threads, no pool", without_pool, executor)
    yield at_most(1.0, "per item, threads, pool of 16 keys", with_pool, executor)
