"""Ours: `execute_parallel` on threads, each with an httpx client that does not know limits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator, current_item

from .job import WORKERS, Job, Tally, headers_for


def limits_of(job: Job) -> Limits:
    if job.knows == "limits":
        assert job.concurrent is not None
        return Limits(requests_per_minute=job.rate * 60, burst=job.burst, max_concurrent=job.concurrent)
    return Limits(max_concurrent="auto" if job.concurrent is None else job.concurrent)


def prepare(job: Job) -> Callable[[Tally], None]:
    pool = CredentialCoordinator([Credential(key, limits=limits_of(job)) for key in job.keys])
    if job.concurrent is None:
        coordinator = ParallelCoordinator("auto", pool, reporter=None)
    else:
        coordinator = ParallelCoordinator(WORKERS, pool, max_parallelism=WORKERS, reporter=None)
    tls = httpx.create_ssl_context()  # unused, but each client would create its own
    ready = [httpx.Client(verify=tls) for _ in range(WORKERS)]
    clients = threading.local()

    def ask(item: int, key: str) -> str:
        client = getattr(clients, "client", None)
        if client is None:
            client = clients.client = ready.pop() if ready else httpx.Client(verify=tls)
        response = client.post(job.url, headers=headers_for(key), json={"item": item})
        response.raise_for_status()
        if job.knows == "headers":
            current_item().observe(response)
        return response.text

    def run(tally: Tally) -> None:
        _, results = coordinator.execute_parallel(range(job.requests), ask)
        for result in results:
            if result.success:
                tally.succeed()
            else:
                tally.fail(result.error)

    return run
