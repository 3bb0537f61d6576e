"""Runs over HTTP whose duration a plan forecasts: bound by tokens of either direction, by requests at once, by all.

The provider has a process of its own and is not the simulation that makes the plan. Windows have WINDOW seconds instead
of a minute, so that a run meets them several times in half a minute.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import httpx

from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits, ParallelCoordinator, Window

from .peers.job import headers_for
from .simulator import Settings, Simulator

KEYS = [f"sim-key-{number}" for number in range(1, 5)]
WINDOW = 5
TOKENS = 200
MAX_TOKENS = 20
LATENCY = 0.1
WORKERS = 64
# What a request takes besides the latency: the round trip, and the thread that sends it.
ROUND_TRIP = 0.004
UNLIMITED = 1e6


class Planned(NamedTuple):
    """One run: what the keys allow, and how many requests it makes."""

    name: str
    requests: int
    limits: tuple[Limits, ...]  # of the keys in turn
    tokens: tuple[float | None, ...] = (None,)  # that the provider allows each of them in WINDOW seconds
    concurrent: int = 1_000  # requests at once that it allows


def _window(of: str, amount: float, **more: Any) -> Limits:
    return Limits(windows=(Window(of, amount, WINDOW),), **{"max_concurrent": 16, **more})


PLANNED = (
    Planned("input tokens", 480, (_window("input_tokens", 4_000),), (4_000,)),
    Planned("output tokens", 480, (_window("output_tokens", 4_000),), (4_000,)),
    Planned("requests at once", 1_600, (Limits(max_concurrent=2),), concurrent=2),
    Planned(
        "tokens, requests and requests at once, another for each key",
        700,
        (
            _window("input_tokens", 4_000),
            _window("output_tokens", 6_000),
            _window("requests", 30, burst=5),
            Limits(max_concurrent=1),
        ),
        (4_000, 6_000, None, None),
        16,
    ),
)


def coordinator_of(planned: Planned) -> ParallelCoordinator:
    credentials = [
        Credential(key, limits=planned.limits[number % len(planned.limits)]) for number, key in enumerate(KEYS)
    ]
    return ParallelCoordinator(WORKERS, CredentialCoordinator(credentials), max_parallelism=WORKERS, reporter=None)


def planned_seconds(planned: Planned) -> float:
    """Return the forecast."""
    return coordinator_of(planned).plan(planned.requests, item_seconds=LATENCY + ROUND_TRIP, tokens=TOKENS).seconds


def run_seconds(planned: Planned) -> tuple[float, int]:
    """Carry the run out; return its seconds, and how many requests the provider refused."""
    settings = Settings(
        KEYS,
        UNLIMITED,
        UNLIMITED,
        planned.concurrent,
        LATENCY,
        tokens={
            key: (amount, float(WINDOW))
            for number, key in enumerate(KEYS)
            if (amount := planned.tokens[number % len(planned.tokens)]) is not None
        },
    )
    tls = httpx.create_ssl_context()  # unused, but each client would create its own
    clients = threading.local()
    message = {"role": "user", "content": "word" * (TOKENS - MAX_TOKENS)}

    with Simulator(settings) as simulator:

        def ask(_item: int, key: str) -> None:
            if not hasattr(clients, "client"):
                clients.client = httpx.Client(verify=tls)
            body = {"model": "m", "max_tokens": MAX_TOKENS, "messages": [message]}
            url = simulator.base_url + "/v1/messages"
            clients.client.post(url, headers=headers_for(key), json=body).raise_for_status()

        coordinator = coordinator_of(planned)
        began = time.perf_counter()
        stats, _ = coordinator.execute_parallel(range(planned.requests), ask, tokens_func=lambda _: TOKENS)
        seconds = time.perf_counter() - began
        assert stats.success_count == planned.requests, stats
        return seconds, simulator.judge().refused
