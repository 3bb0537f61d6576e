"""A naive coordinator: one request per key, a refused key rests for a minute, and a thread without a key polls.

It stands for the first version that is usually written, and is more patient than most: a refused item is retried until
it succeeds, and a thread without a key polls without end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx

from .job import WORKERS, Job, Tally, headers_for

REST_SECONDS = 60.0
POLL_SECONDS = 0.5


class Keys:
    """Keys that are free, in use, or resting until an instant."""

    def __init__(self, keys: list[str]) -> None:
        self._lock = threading.Lock()
        self._free_at = dict.fromkeys(keys, 0.0)  # infinity while a thread uses it

    def take(self) -> str:
        while True:
            with self._lock:
                now = time.monotonic()
                for key, free_at in self._free_at.items():
                    if free_at <= now:
                        self._free_at[key] = float("inf")
                        return key
            time.sleep(POLL_SECONDS)

    def give_back(self, key: str, *, was_refused: bool) -> None:
        with self._lock:
            self._free_at[key] = time.monotonic() + REST_SECONDS if was_refused else 0.0


def prepare(job: Job) -> Callable[[Tally], None]:
    keys = Keys(job.keys)
    client = httpx.Client(limits=httpx.Limits(max_connections=WORKERS))

    def ask(item: int) -> bool:
        key = keys.take()
        response = client.post(job.url, headers=headers_for(key), json={"item": item})
        keys.give_back(key, was_refused=response.status_code == 429)
        return response.is_success

    def run(tally: Tally) -> None:
        def work(item: int) -> None:
            while not ask(item):
                pass
            tally.succeed()

        with ThreadPoolExecutor(WORKERS) as executor:
            for _ in executor.map(work, range(job.requests)):
                pass

    return run
