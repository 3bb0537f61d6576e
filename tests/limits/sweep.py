"""Sweep: one key with an unknown limit, in virtual time, over many limits, concurrencies, latencies and hints.

The pool is the real one. The provider is a token bucket of a few lines that shares no code with it. A *cell* is one
combination. Its figures are the share of what a client reaches that knows the limit, measured after the first minute or
the time of the first hundred requests (the later of both), and the refusals per 1,000 served requests, counted from the
first request on.
"""

from __future__ import annotations

import itertools
import math
import random
import zlib
from bisect import bisect
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import RATE_LIMITED, Verdict

Hint = Literal["exact", "whole", "absent"]

MIN_SHARE = 0.9
MAX_REFUSALS = 30.0
# The share is measured after this many seconds and this many requests at the legal rate,
WARM_UP_SECONDS = 60.0
WARM_UP_REQUESTS = 100
# over this many requests at the legal rate, and at least this many seconds.
MEASURED_REQUESTS = 3000
MEASURED_SECONDS = 60.0
# Latencies are spread evenly by this share around their mean.
JITTER = 0.25

RATES = (0.1, 0.5, 2.0, 10.0, 50.0, 200.0, 1000.0)
BUCKETS = (1, 2, 5, 20, 100)
CONCURRENCIES = (1, 4, 16, 64)
LATENCIES = (0.001, 0.02, 0.2, 1.0, 5.0)
HINTS: tuple[Hint, ...] = ("exact", "whole", "absent")


class Cell(NamedTuple):
    """One combination of a provider and a client."""

    rate: float  # requests per second
    bucket: float  # requests that the provider stores
    concurrency: int
    latency: float  # mean seconds until an answer
    hint: Hint  # Retry-After
    quick_refusals: bool = False  # refusals are answered after a few milliseconds, however long answers take
    seed: int = 0

    def __str__(self) -> str:
        refusals = ", refused at once" if self.quick_refusals else ""
        return (
            f"{self.rate:g}/s, stores {self.bucket:g}, {self.concurrency} at once, {self.latency:g} s, "
            f"{self.hint}{refusals}, seed {self.seed}"
        )


class Figures(NamedTuple):
    """What one cell reached."""

    cell: Cell
    share: float  # of the legal rate
    refusals: float  # per 1,000 served requests

    @property
    def is_met(self) -> bool:
        return self.share >= MIN_SHARE and self.refusals <= MAX_REFUSALS

    @property
    def badness(self) -> float:
        """Return how far the worse of both figures is from its target: 1 at the target."""
        return max((1.0 - self.share) / (1.0 - MIN_SHARE), self.refusals / MAX_REFUSALS)


class Bucket:
    """The provider: a token bucket, written down independently of the client."""

    def __init__(self, rate: float, size: float) -> None:
        self.rate = rate
        self.size = self.level = size
        self.at = 0.0

    def wait(self, now: float) -> float:
        """Admit a request and return 0, or return the seconds until one would be admitted."""
        self.level = min(self.size, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level >= 1.0 - 1e-9:
            self.level -= 1.0
            return 0.0
        return (1.0 - self.level) / self.rate


def full() -> list[Cell]:
    """Return all cells of the sweep."""
    axes = itertools.product(RATES, BUCKETS, CONCURRENCIES, LATENCIES, HINTS)
    return [Cell(*axis) for axis in axes]


def random_cells(seed: int, count: int) -> list[Cell]:
    """Return cells with values from anywhere within the axes of the sweep, evenly by their logarithms."""
    chance = random.Random(seed)

    def between(values: tuple[float, ...]) -> float:
        return float(f"{values[0] * (values[-1] / values[0]) ** chance.random():.3g}")

    return [
        Cell(
            between(RATES),
            round(between(BUCKETS)),
            round(between(CONCURRENCIES)),
            between(LATENCIES),
            chance.choice(HINTS),
            quick_refusals=chance.random() < 0.5,
            seed=chance.randrange(2**16),
        )
        for _ in range(count)
    ]


def legal_rate(cell: Cell) -> float:
    """Return requests per second: about what the ideal client reaches."""
    return min(cell.rate, cell.concurrency / cell.latency)


def duration(cell: Cell) -> float:
    return max(MEASURED_SECONDS, MEASURED_REQUESTS / legal_rate(cell))


class Client:
    """The pool, its requests, and the provider's answers."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.random = random.Random(zlib.crc32(repr(cell).encode()))
        self.provider = Bucket(cell.rate, cell.bucket)
        self.pool = Allocator()
        self.pool.add("key", "key", None, frozenset(), Limits(max_concurrent=cell.concurrency), 0.0)
        self.now = 0.0
        self.served_at: list[float] = []
        self.refused_at: list[float] = []
        self._answers: list[tuple[float, int, LeaseRecord, float]] = []
        self._count = self._requested = 0

    def run(self, until: float) -> None:
        """Go on until an instant. More requests wait all the time than can run."""
        while self._requested < self.cell.concurrency + 2:
            self._request()
        pool = self.pool
        while True:
            wake_at = pool.next_wake_at()
            answer_at = self._answers[0][0] if self._answers else math.inf
            self.now = min(answer_at, math.inf if wake_at is None else wake_at)
            if self.now > until:
                return
            if answer_at <= self.now:
                _, _, record, wait = heappop(self._answers)
                self._answer(record, wait)
                self._request()
            else:
                pool.advance(self.now)
            served, pool.served = pool.served, []
            for other in served:
                self._send(other)
            pool.events.clear()

    def _answer(self, record: LeaseRecord, wait: float) -> None:
        verdict = Verdict(RATE_LIMITED, retry_after=self._hint(wait)) if wait else None
        self.pool.lease_end.end(record, self.now, verdict, success=True)

    def _request(self) -> None:
        self._requested += 1
        record = LeaseRecord()
        record.waits_for_probe = True
        if self.pool.request(record, self.now):
            self._send(record)

    def _send(self, record: LeaseRecord) -> None:
        assert record.state == LIVE
        wait = self.provider.wait(self.now)
        (self.refused_at if wait else self.served_at).append(self.now)
        latency = 0.002 if wait and self.cell.quick_refusals else self.cell.latency
        self._count += 1
        seconds = latency * self.random.uniform(1.0 - JITTER, 1.0 + JITTER)
        heappush(self._answers, (self.now + seconds, self._count, record, wait))

    def _hint(self, wait: float) -> float | None:
        if self.cell.hint == "absent":
            return None
        return math.ceil(wait * 1000.0) / 1000.0 if self.cell.hint == "exact" else float(math.ceil(wait))


def ideal_client(cell: Cell, until: float) -> list[float]:
    """Return the instants at which a client sends that knows the limit and what the provider has stored."""
    jitter = random.Random(zlib.crc32(repr(cell).encode()))
    provider, slots = Bucket(cell.rate, cell.bucket), [0.0] * cell.concurrency
    sent, now = [], 0.0
    while now <= until:
        now = max(now, heappop(slots))
        wait = provider.wait(now)
        if wait:
            now += wait
            provider.wait(now)
        sent.append(now)
        heappush(slots, now + cell.latency * jitter.uniform(1.0 - JITTER, 1.0 + JITTER))
    return sent


def measure(cell: Cell) -> Figures:
    """Run one cell."""
    client = Client(cell)
    warm_up = max(WARM_UP_SECONDS, WARM_UP_REQUESTS / legal_rate(cell))
    until = warm_up + duration(cell)
    client.run(until)
    served, ideal = client.served_at, ideal_client(cell, until)
    count, legal = (len(instants) - bisect(instants, warm_up) for instants in (served, ideal))
    return Figures(cell, count / legal, 1000.0 * len(client.refused_at) / max(1, len(served)))


def worst(figures: Iterable[Figures], count: int = 10) -> str:
    """Return the worst cells as lines."""
    ordered = sorted(figures, key=lambda one: -one.badness)
    return "\n".join(f"{one.share:7.1%} {one.refusals:6.1f} per 1,000   {one.cell}" for one in ordered[:count])
