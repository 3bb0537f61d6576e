"""Runs of the real pool against the simulated provider, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, NamedTuple

from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import LeaseRecord
from agentos.pool.simulation import Simulation, Work
from agentos.providers import verdicts
from agentos.testing import Answer, Concurrency, SimulatedProvider, TokenBucket
from agentos.verdict import Verdict


class Ran(NamedTuple):
    share: float  # of the legal maximum
    refused: float  # answers with 429 per 1,000 requests
    provider: SimulatedProvider
    pool: Allocator
    told: list[Any]


def run(
    *,
    rate: float = 10.0,
    burst: float = 10.0,
    requests: int = 800,
    keys: int = 4,
    sharing: int = 0,
    limits: Limits | None = None,
    headers: str = "off",
    retry_after: str | None = "seconds",
    dead: Collection[str] = (),
    out_of_quota: Collection[str] = (),
    seed: int = 0,
) -> Ran:
    """Send `requests` requests over keys with a bucket each; the first `sharing` keys share one bucket."""
    jitter = random.Random(seed)
    names = [f"key-{number}" for number in range(keys)]
    now = 0.0
    provider = SimulatedProvider(
        names,
        limits=[TokenBucket(rate, burst), Concurrency(4)],
        groups={name: "together" if number < sharing else name for number, name in enumerate(names)},
        headers=headers,
        retry_after=retry_after,
        dead=dead,
        out_of_quota=out_of_quota,
        clock=lambda: now,
    )
    pool = Allocator()
    for name in names:
        pool.add(name, name, None, frozenset(), limits or Limits(max_concurrent=4), 0.0)
    answers: dict[int, Answer] = {}

    def send(record: LeaseRecord, at: float) -> float:
        nonlocal now
        now = max(now, at)
        assert record.credential is not None
        answer = answers[id(record)] = provider.ask(record.credential.id, now=now)
        return (0.02 if answer.status == 200 else 0.002) + jitter.uniform(0.001, 0.006)

    def receive(record: LeaseRecord, at: float) -> Verdict | None:
        nonlocal now
        now = max(now, at)
        answer = answers.pop(id(record))
        provider.finish(answer, now=now)
        verdict = verdicts.from_response(answer.status, answer.headers, answer.body, now=now)
        if answer.status == 200 and headers == "on":
            pool.feedback.observe(record, verdict, at)
        return verdict if verdict.kind else None

    simulation = Simulation(pool, Work(requests, 8 * keys, 0.02), latency=send, answer=receive)
    simulation.run(until=10_000.0)
    assert simulation.remaining == simulation.waiting == simulation.running == 0  # the simulation has ended
    limited_by = keys - max(0, sharing - 1) - len(dead) - len(out_of_quota)
    legal = (requests / limited_by - burst) / rate
    return Ran(legal / simulation.ended_at, provider.limited * 1000 / requests, provider, pool, simulation.events)
