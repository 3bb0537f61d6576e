"""`litellm.Router` on an event loop: a deployment per key with its requests per minute, and retries.

The settings are the best of those that were tried. With the default cool-down of 5 s hundreds of items fail, because an
item that finds all deployments cooling down is not retried.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

from .asyncio_items import each
from .job import Job, Tally

RETRIES = 10
COOL_DOWN_SECONDS = 1


def prepare(job: Job) -> Callable[[Tally], None]:
    return prepare_router(job, "simple-shuffle", max_parallel_requests=job.concurrent)


def prepare_router(job: Job, strategy: str, **options: Any) -> Callable[[Tally], None]:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # otherwise the import downloads a price list
    import litellm
    import openai.resources.chat  # noqa: F401 - otherwise the first request imports it, which takes a second

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    logging.disable(logging.ERROR)  # it logs each refusal, which would be measured
    deployments = [deployment(job, key, options) for key in job.keys]

    async def work(tally: Tally) -> None:
        router = litellm.Router(
            model_list=deployments, routing_strategy=strategy, num_retries=RETRIES, cooldown_time=COOL_DOWN_SECONDS
        )

        async def ask(item: int) -> None:
            await router.acompletion("model", [{"role": "user", "content": f"item {item}"}])

        await each(job, ask, tally)

    return lambda tally: asyncio.run(work(tally))


def deployment(job: Job, key: str, options: dict[str, Any]) -> dict[str, Any]:
    # A model whose price it knows: it is slower for unknown models.
    params = {"model": "openai/gpt-4o-mini", "api_key": key, "api_base": f"{job.base_url}/v1"}
    return {"model_name": "model", "litellm_params": {**params, "rpm": int(job.rate * 60), **options}}
