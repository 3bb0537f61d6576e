"""Credentials with `max_concurrent = "auto"`, in virtual time, against a provider that shares no code with the pool."""

from __future__ import annotations

import math
import random
from heapq import heappop, heappush

import pytest

from agentos.limits.concurrency import START
from agentos.limits.declaration import AUTO, Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import OVERLOADED, RATE_LIMITED, Verdict

# Requests that the client would send at once.
DEMAND = 64
TOO_MANY = Verdict(RATE_LIMITED, window="concurrency")


class Client:
    """A pool with one key, and a provider that serves `true_limit` requests at once, and `rate` a second."""

    def __init__(self, true_limit: float, latency: float, rate: float = math.inf, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.true_limit, self.latency, self.rate = true_limit, latency, rate
        self.pool = Allocator()
        self.pool.add("key", "key", None, frozenset(), Limits(max_concurrent=AUTO), 0.0)
        self.now = 0.0
        self.busy = self.served = self.refused = self.peak = 0
        self._level, self._filled_at = 1.0, 0.0
        self._answers: list[tuple[float, int, LeaseRecord, Verdict | None]] = []
        self._sent = 0

    def run(self, until: float) -> None:
        for _ in range(DEMAND if not self._sent else 0):
            self._request()
        while True:
            wake_at = self.pool.next_wake_at()
            answer_at = self._answers[0][0] if self._answers else math.inf
            self.now = min(answer_at, math.inf if wake_at is None else wake_at)
            if self.now > until:
                return
            if answer_at <= self.now:
                _, _, record, verdict = heappop(self._answers)
                self.busy -= verdict is None
                self.pool.lease_end.end(record, self.now, verdict, success=verdict is None)
                self._request()
            else:
                self.pool.advance(self.now)
            served, self.pool.served = self.pool.served, []
            for other in served:
                self._send(other)

    def _request(self) -> None:
        record = LeaseRecord()
        if self.pool.request(record, self.now):
            self._send(record)

    def _send(self, record: LeaseRecord) -> None:
        assert record.state == LIVE
        self._sent += 1
        verdict = self._answer()
        seconds = self.latency * self.random.uniform(0.7, 1.3) if verdict is None else 0.005
        heappush(self._answers, (self.now + seconds, self._sent, record, verdict))

    def _answer(self) -> Verdict | None:
        if self.busy >= self.true_limit:
            self.refused += 1
            return TOO_MANY
        if self.rate != math.inf:
            self._level = min(self.rate, self._level + (self.now - self._filled_at) * self.rate)
            self._filled_at = self.now
            if self._level < 1.0 - 1e-9:
                self.refused += 1
                return Verdict(RATE_LIMITED, retry_after=(1.0 - self._level) / self.rate)
            self._level -= 1.0
        self.served += 1
        self.busy += 1
        self.peak = max(self.peak, self.busy)
        return None


def measure(client: Client) -> tuple[float, float]:
    """Return the share of the legal rate after a minute, and the refusals per 1,000 requests from the first one on."""
    client.run(60.0)
    before = client.served
    client.run(360.0)
    legal = min(client.rate, min(client.true_limit, DEMAND) / client.latency) * 300.0
    return (client.served - before) / legal, 1000.0 * client.refused / client.served


@pytest.mark.parametrize("latency", [0.1, 1.0])
@pytest.mark.parametrize("true_limit", [1, 4, 32, math.inf])
def test_true_limit_is_found_with_few_refusals(true_limit: float, latency: float) -> None:
    share, refusals = measure(Client(true_limit, latency))
    assert (share >= 0.9, refusals <= 30.0) == (True, True), (share, refusals)


@pytest.mark.parametrize(("true_limit", "rate"), [(8, 20.0), (8, 200.0)])
def test_concurrency_and_rate_are_learned_together(true_limit: float, rate: float) -> None:
    share, refusals = measure(Client(true_limit, 0.5, rate))
    assert (share >= 0.9, refusals <= 30.0) == (True, True), (share, refusals)


def test_refusal_for_concurrency_teaches_no_rate_and_no_cool_down() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(max_concurrent=AUTO), 0.0)
    records = [LeaseRecord() for _ in range(START)]
    assert [pool.request(record, 0.0) for record in records] == [True] * len(records)
    pool.lease_end.end(records[0], 0.1, TOO_MANY)
    credential = pool.credentials["key"]
    assert credential.max_concurrent == START - 1
    assert not credential.cooled
    assert credential.group.pace.learned_limits() == {}
    assert not pool.request(LeaseRecord(), 0.1)  # three are in flight


def test_named_wait_of_a_refusal_for_concurrency_is_obeyed() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(max_concurrent=AUTO), 0.0)
    records = [LeaseRecord(), LeaseRecord()]
    assert [pool.request(record, 0.0) for record in records] == [True] * len(records)
    pool.lease_end.end(records[0], 0.1, TOO_MANY._replace(retry_after=7.0))
    assert pool.credentials["key"].usable_at(None) == pytest.approx(7.1)


def test_overload_lowers_the_learned_number() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(max_concurrent=AUTO), 0.0)
    records = [LeaseRecord() for _ in range(START)]
    assert [pool.request(record, 0.0) for record in records] == [True] * len(records)
    pool.lease_end.end(records[0], 0.1, Verdict(OVERLOADED))
    assert pool.credentials["key"].max_concurrent == START // 2


def test_number_does_not_grow_while_the_rate_binds() -> None:
    pool = Allocator()
    pool.add("key", "key", None, frozenset(), Limits(max_concurrent=AUTO, requests_per_minute=60, burst=START), 0.0)
    for second in range(0, 400, 2 * START):
        records = [LeaseRecord() for _ in range(START)]
        assert [pool.request(record, second) for record in records] == [True] * START
        for record in records:
            pool.lease_end.end(record, second + 0.1, success=True)
    assert pool.credentials["key"].max_concurrent == START


def test_redeclared_credential_keeps_what_was_learned() -> None:
    client = Client(32, 0.1)
    client.run(30.0)
    learned = client.pool.credentials["key"].max_concurrent
    assert learned > START
    client.pool.redeclare("key", "group", None, frozenset(), Limits(max_concurrent=AUTO), client.now)
    credential = client.pool.credentials["key"]
    assert credential.max_concurrent == credential.group.pace.max_concurrent == learned


@pytest.mark.parametrize("value", ["many", 0, -1, 1.5, True, None])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a whole number from 1, or 'auto'"):
        Limits(max_concurrent=value)  # type: ignore[arg-type]
