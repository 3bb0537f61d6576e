"""Process all items of a job on an event loop, WORKERS at a time. Shared by the asynchronous clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .job import WORKERS, Job, Tally


async def each(job: Job, ask: Callable[[int], Awaitable[object]], tally: Tally) -> None:
    semaphore = asyncio.Semaphore(WORKERS)

    async def work(item: int) -> None:
        async with semaphore:
            try:
                await ask(item)
            except Exception as error:
                tally.fail(error)
            else:
                tally.succeed()

    await asyncio.gather(*(work(item) for item in range(job.requests)))
