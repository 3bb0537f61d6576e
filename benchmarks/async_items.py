"""Overhead per async item: 20,000 no-op coroutines, 800 at once, over 8 credentials of 100 leases each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator

from .measuring import Row, at_most, measure, per_operation

ITEMS = 20_000
AT_ONCE = 800
KEYS = 8


async def no_op(item: int, credential: str | None = None) -> int:
    return item


def run_ours(pool: CredentialCoordinator) -> None:
    coordinator = ParallelCoordinator(AT_ONCE, pool, max_parallelism=AT_ONCE, reporter=None)
    _, results = coordinator.execute_parallel(range(ITEMS), no_op)
    assert sum(result.success for result in results) == ITEMS


async def gather() -> list[int]:
    semaphore = asyncio.Semaphore(AT_ONCE)

    async def limited(item: int) -> int:
        async with semaphore:
            return await no_op(item)

    return await asyncio.gather(*(limited(item) for item in range(ITEMS)))


def run_gather() -> None:
    assert len(asyncio.run(gather())) == ITEMS


def rows() -> Iterator[Row]:
    limits = Limits(max_concurrent=AT_ONCE // KEYS)
    pool = CredentialCoordinator([Credential(f"key-{number}", limits=limits) for number in range(KEYS)])
    ours, peer = measure(
        {
            "ours": per_operation(lambda: run_ours(pool), ITEMS),
            "asyncio.gather, Semaphore(800)": per_operation(run_gather, ITEMS),
        }
    )
    yield at_most(2.0, "per item, async, 8 credentials x 100 leases", ours, peer)
