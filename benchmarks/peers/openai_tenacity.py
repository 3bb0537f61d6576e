"""The OpenAI SDK on threads, a random key for every attempt, and tenacity's random exponential back-off.

Back-off and number of attempts are those of the SDK vendor's cookbook: random, up to 60 s, six attempts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import openai
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from .job import WORKERS, Job, Tally

MAX_ATTEMPTS = 6


def prepare(job: Job) -> Callable[[Tally], None]:
    clients = [openai.OpenAI(api_key=key, base_url=f"{job.base_url}/v1", max_retries=0) for key in job.keys]
    retrying = Retrying(
        retry=retry_if_exception_type(openai.RateLimitError),
        wait=wait_random_exponential(min=1, max=60),
        stop=stop_after_attempt(MAX_ATTEMPTS),
    )

    def ask(item: int) -> None:
        message = {"role": "user", "content": f"item {item}"}
        random.choice(clients).chat.completions.create(model="sim-1", messages=[message])  # type: ignore[list-item]

    def run(tally: Tally) -> None:
        def work(item: int) -> None:
            try:
                retrying(ask, item)
            except Exception as error:
                tally.fail(error)
            else:
                tally.succeed()

        with ThreadPoolExecutor(WORKERS) as executor:
            for _ in executor.map(work, range(job.requests)):
                pass

    return run
