"""LearnedConcurrency against a provider with a true limit, in virtual time."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

import pytest

from agentos.limits.concurrency import MAX_LEARNED, LearnedConcurrency

# Requests that are served before the share and the refusals are measured.
WARM_UP = 100


class Answer(NamedTuple):
    at: float
    number: int
    granted_at: float
    is_success: bool


class Measured(NamedTuple):
    limit: int
    share: float  # of what the true limit admits
    refusals: float  # per 1,000 requests, from the first one on


def send_as_fast_as_admitted(
    true_limit: int, latency: float, seconds: float, later: tuple[float, int] | None = None
) -> Measured:
    """Keep as many requests in flight as the learned limit admits. The provider serves `true_limit` at once and refuses
    more within 20 ms; `later`: the instant of a change, and the true limit from then on."""
    learned, generator, now, pause = LearnedConcurrency(), random.Random(7), 0.0, 0.0
    in_flight = busy = sent = served = refused = 0
    answers: list[Answer] = []
    measured_from, served_before = 0.0, 0
    while now < seconds:
        if later is not None and now >= later[0]:
            true_limit, measured_from, served_before, later = later[1], now, served, None
        while in_flight < learned.limit and now >= pause:
            sent, in_flight = sent + 1, in_flight + 1
            is_success = busy < true_limit
            busy += is_success
            duration = latency * generator.uniform(0.7, 1.3) if is_success else 0.02
            heapq.heappush(answers, Answer(now + duration, sent, now, is_success))
        if in_flight < learned.limit and (not answers or pause < answers[0].at):
            now = pause
            continue
        now, _, granted_at, is_success = heapq.heappop(answers)
        if is_success:
            busy, served = busy - 1, served + 1
            learned.record_success(granted_at, in_flight, now)
        else:
            refused, pause = refused + 1, now + min(1.0, latency)
            learned.record_refusal(granted_at, in_flight, now)
        in_flight -= 1
        if served == WARM_UP and is_success:
            measured_from, served_before = now, served
    share = (served - served_before) / (now - measured_from) * latency / true_limit
    return Measured(learned.limit, share, 1000 * refused / sent)


@pytest.mark.parametrize("latency", [0.05, 1.0, 5.0])
@pytest.mark.parametrize("true_limit", [1, 2, 3, 4, 5, 8, 32, 100])
def test_true_limit_is_reached_with_few_refusals(true_limit: int, latency: float) -> None:
    measured = send_as_fast_as_admitted(true_limit, latency, 1000 * latency)
    assert measured.limit in (true_limit, true_limit + 1)  # one more during a probe
    assert measured.share >= 0.9
    assert measured.refusals <= 30


@pytest.mark.parametrize(("before", "after"), [(4, 32), (32, 4), (1, 8), (8, 1)])
def test_changed_limit_is_followed(before: int, after: int) -> None:
    measured = send_as_fast_as_admitted(before, 1.0, 6000.0, later=(500.0, after))
    assert measured.share >= 0.85
    assert measured.refusals <= 30


def test_without_refusals_the_limit_doubles_per_round() -> None:
    learned, now = LearnedConcurrency(), 0.0
    limits = []
    for _ in range(10):
        now += 1.0
        limits.append(learned.limit)
        for _ in range(learned.limit):
            learned.record_success(now, learned.limit, now)
    assert limits == [4, 8, 16, 32, 64, 128, 256, 512, 1000, MAX_LEARNED]


def test_success_below_the_limit_proves_nothing() -> None:
    learned = LearnedConcurrency()
    for second in range(100):
        assert not learned.record_success(second, 3, second)
    assert learned.limit == 4


def test_refusals_of_one_moment_halve_once() -> None:
    learned = LearnedConcurrency()
    for _ in range(4):
        learned.record_refusal(1.0, 4, 2.0)
    assert learned.limit == 2
