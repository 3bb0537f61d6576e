"""Sweep: one key with an unknown limit on requests at once, in virtual time, with the real pool.

The provider admits a number of requests at once, and besides as many per second as a bucket holds. It shares no code
with the pool. A refusal is answered after REFUSAL_SECONDS and asks for a wait of HINT_SECONDS; its text names the limit
on requests at once, or only says that there were too many. The figures are those of `sweep`.
"""

from __future__ import annotations

import math
import random
from bisect import bisect
from heapq import heappop, heappush
from typing import NamedTuple

from agentos.limits.declaration import AUTO, Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import RATE_LIMITED, Verdict

from . import sweep

# Requests that wait or run at the same time: more than any limit of the sweep but "none" admits.
DEMAND = 64
REFUSAL_SECONDS = 0.005
HINT_SECONDS = 1.0
# Requests over which the legal rate of two limits together is taken.
LEGAL_REQUESTS = 20_000
WARM_UP_SECONDS = 20.0
WARM_UP_REQUESTS = 100
WARM_UP_UNNAMED_REQUESTS = 3_000
WARM_UP_ANSWERS = 20
MEASURED_REQUESTS = 2_000
MEASURED_SECONDS = 15.0

MAX_REFUSALS = sweep.MAX_REFUSALS

AT_ONCE = (1, 2, 4, 8, 32, None)
LATENCIES = (0.02, 0.1, 0.5, 5.0)


class Cell(NamedTuple):
    """One provider."""

    at_once: int | None  # requests; None: any number
    latency: float  # mean seconds until an answer
    is_named: bool = True  # a refusal names the limit on requests at once
    rate: float | None = None  # requests per second, beside the limit on requests at once; a second's worth is stored
    hint: sweep.Hint = "exact"
    jitter: float = sweep.JITTER  # largest deviation from the mean latency, as share of it
    seed: int = 0

    def __str__(self) -> str:
        rate = "" if self.rate is None else f", {self.rate:g}/s"
        return (
            f"{self.at_once or 'any number'} at once, {self.latency:g} s{rate}, "
            f"{'named' if self.is_named else 'not named'}, {self.hint}, jitter {self.jitter:g}, seed {self.seed}"
        )


class Client(sweep.Client):
    """The pool with one key of which nothing is known, and the provider's answers."""

    def __init__(self, cell: Cell, stored: float | None = None) -> None:
        """`stored`: requests that the provider's bucket holds; None: a second's worth."""
        rate = 1e9 if cell.rate is None else cell.rate
        super().__init__(sweep.Cell(rate, stored or rate, DEMAND, cell.latency, cell.hint, seed=cell.seed))
        self.at_once = math.inf if cell.at_once is None else cell.at_once
        self.latency, self.jitter, self.is_named = cell.latency, cell.jitter, cell.is_named
        self.running = 0
        self.pool = Allocator()
        self.pool.add("key", "key", None, frozenset(), Limits(max_concurrent=AUTO), 0.0)

    def _answer(self, record: LeaseRecord, wait: float) -> None:
        verdict = None
        if wait:
            is_at_once = wait < 0.0
            window = "concurrency" if is_at_once and self.is_named else None
            verdict = Verdict(RATE_LIMITED, retry_after=self._hint(HINT_SECONDS if is_at_once else wait), window=window)
        else:
            self.running -= 1
        self.pool.lease_end.end(record, self.now, verdict, success=True)

    def _send(self, record: LeaseRecord) -> None:
        assert record.state == LIVE
        wait = -1.0 if self.running >= self.at_once else self.provider.wait(self.now)
        (self.refused_at if wait else self.served_at).append(self.now)
        self.running += not wait
        self._count += 1
        seconds = REFUSAL_SECONDS if wait else self.latency * self.random.uniform(1.0 - self.jitter, 1.0 + self.jitter)
        heappush(self._answers, (self.now + seconds, self._count, record, wait))


def legal_rate(cell: Cell) -> float:
    """Return requests per second: what a client reaches that knows all limits. Two limits together admit less than
    each of them where answers vary: while one request is slow, the bucket is full and its refill lost."""
    at_once = min(DEMAND, cell.at_once or DEMAND)
    if cell.rate is None:
        return at_once / cell.latency
    latencies = random.Random(cell.seed)
    ends = [0.0] * at_once
    full_at = 0.0  # the instant at which the provider's bucket, which stores a second's worth, is full again
    for _ in range(LEGAL_REQUESTS):
        start = max(heappop(ends), full_at + 1.0 / cell.rate - 1.0)
        full_at = max(full_at, start) + 1.0 / cell.rate
        heappush(ends, start + cell.latency * latencies.uniform(1.0 - cell.jitter, 1.0 + cell.jitter))
    return LEGAL_REQUESTS / max(ends)


def measure(cell: Cell) -> sweep.Figures:
    """Run one cell."""
    client, rate = Client(cell), legal_rate(cell)
    requests = WARM_UP_REQUESTS if cell.is_named else WARM_UP_UNNAMED_REQUESTS
    warm_up = max(WARM_UP_SECONDS, WARM_UP_ANSWERS * cell.latency, requests / rate)
    seconds = max(MEASURED_SECONDS, MEASURED_REQUESTS / rate)
    client.run(warm_up + seconds)
    count = len(client.served_at) - bisect(client.served_at, warm_up)
    refusals = 1000.0 * len(client.refused_at) / max(1, len(client.served_at))
    return sweep.Figures(cell, count / (rate * seconds), refusals)


def measure_cold(cell: Cell, requests: int) -> tuple[float, float]:
    """Return the share of the legal speed from the first request on until so many are served, and the refusals per
    1,000 of them."""
    assert cell.rate is not None
    client, until = Client(cell), 0.0
    while len(client.served_at) < requests:
        until += 1.0
        client.run(until)
    end = client.served_at[requests - 1]
    rounds = 0 if cell.at_once is None else math.ceil(requests / cell.at_once) - 1
    legal = max((requests - cell.rate) / cell.rate, rounds * cell.latency)
    return legal / end, 1000.0 * sum(at <= end for at in client.refused_at) / requests
