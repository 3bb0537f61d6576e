"""A leaky bucket of `aiolimiter` per key with the declared limits; keys in turn; refused requests obey Retry-After."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import httpx
from aiolimiter import AsyncLimiter

from .asyncio_items import each
from .job import WORKERS, Job, Tally, headers_for


def prepare(job: Job) -> Callable[[Tally], None]:
    return lambda tally: asyncio.run(work(job, tally))


async def work(job: Job, tally: Tally) -> None:
    limiters = {key: AsyncLimiter(job.burst, job.burst / job.rate) for key in job.keys}
    at_once = {key: asyncio.Semaphore(job.concurrent) for key in job.keys}
    in_turn = itertools.cycle(job.keys)

    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=WORKERS)) as client:

        async def ask(item: int) -> None:
            key = next(in_turn)
            while True:
                async with limiters[key], at_once[key]:
                    response = await client.post(job.url, headers=headers_for(key), json={"item": item})
                if response.status_code != 429:
                    response.raise_for_status()
                    return
                await asyncio.sleep(float(response.headers["retry-after"]))

        await each(job, ask, tally)
