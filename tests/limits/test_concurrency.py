"""LearnedConcurrency against a provider with a true limit, in virtual time."""

from __future__ import annotations

import heapq
import random
from typing import NamedTuple

import pytest

from agentos.limits.concurrency import (
    FIRST_SUCCESSES,
    MAX_LEARNED,
    MIN_PROBE_SUCCESSES,
    MIN_SERVED_BELOW,
    MIN_SUSPICIONS,
    LearnedConcurrency,
)

# Requests that are served before the share and the refusals are measured.
WARM_UP = 100


class Answer(NamedTuple):
    at: float
    number: int
    granted_at: float
    at_once: int
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
            heapq.heappush(answers, Answer(now + duration, sent, now, in_flight, is_success))
        if in_flight < learned.limit and (not answers or pause < answers[0].at):
            now = pause
            continue
        now, _, granted_at, at_once, is_success = heapq.heappop(answers)
        if is_success:
            busy, served = busy - 1, served + 1
            if learned.record_success(granted_at, at_once, in_flight, now):
                learned.grow(now)
        else:
            refused, pause = refused + 1, now + min(1.0, latency)
            learned.record_refusal(granted_at, at_once, min(1.0, latency), now)
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


def succeed(learned: LearnedConcurrency, count: int, now: float) -> None:
    """Serve requests that were sent now with as many in flight as the limit admits."""
    for _ in range(count):
        if learned.record_success(now, learned.limit, learned.limit, now):
            learned.grow(now)


def test_limit_grows_while_nothing_is_refused() -> None:
    learned, limits = LearnedConcurrency(), []
    for second in range(6):
        limits.append(learned.limit)
        succeed(learned, FIRST_SUCCESSES, second)
    assert limits == [4, 5, 6, 7, 8, 10]
    succeed(learned, 10 * MAX_LEARNED, 20.0)
    assert learned.limit == MAX_LEARNED


def test_success_below_the_limit_proves_nothing() -> None:
    learned = LearnedConcurrency()
    for second in range(100):
        assert not learned.record_success(second, 3, 3, second)


def test_limit_that_something_else_holds_back_stays() -> None:
    learned = LearnedConcurrency()
    for second in range(100):
        if learned.record_success(second, 4, 4, second):
            learned.hold()
    assert learned.limit == 4


def test_refusals_of_one_moment_count_once() -> None:
    """Their order does not matter: one less than the smallest refused number is left."""
    learned = LearnedConcurrency(10)
    for at_once in (10, 8, 9):
        learned.record_refusal(1.0, at_once, 1.0, 2.0)
    assert learned.limit == 7


def test_refusals_without_a_success_between_halve() -> None:
    learned = LearnedConcurrency(32)
    for second, limit in enumerate((31, 15, 7, 3, 1, 1), 1):
        learned.record_refusal(second, learned.limit, 1.0, second)
        assert learned.limit == limit


def test_overload_halves_and_is_no_limit_of_the_account() -> None:
    learned = LearnedConcurrency(8)
    learned.record_overload(1.0, 2.0)
    learned.record_overload(1.5, 2.0)  # in flight together with the first
    assert (learned.limit, learned.is_met) == (4, False)
    succeed(learned, FIRST_SUCCESSES, 3.0)
    assert learned.limit == 5


def test_refused_number_is_probed_less_and_less_often() -> None:
    learned, probes = LearnedConcurrency(5), []
    learned.record_refusal(0.0, 5, 1.0, 0.0)
    for tenth in range(1, 20_000):
        now = tenth / 10
        if learned.record_success(now, learned.limit, learned.limit, now):
            learned.grow(now)
        if learned.limit == 5:
            probes.append(now)
            learned.record_refusal(now, 5, 1.0, now)
    assert probes == pytest.approx([30.0, 90.0, 210.0, 450.0, 930.0, 1530.0], abs=0.2)


def test_probe_that_is_served_raises_the_limit() -> None:
    learned = LearnedConcurrency(5)
    learned.record_refusal(0.0, 5, 0.0, 0.0)
    succeed(learned, MIN_PROBE_SUCCESSES, 1.0)
    assert (learned.limit, learned.is_met) == (5, True)
    succeed(learned, 5, 2.0)
    assert (learned.limit, learned.is_met) == (6, False)


def serve_one_less(learned: LearnedConcurrency, now: float) -> None:
    for _ in range(2 * MIN_SERVED_BELOW):
        learned.record_success(now, 4, 4, now)


def refuse(learned: LearnedConcurrency, at_once: int, now: float) -> int:
    return learned.suspect(now, at_once, now)


def test_number_that_is_always_refused_explains_refusals() -> None:
    learned = LearnedConcurrency(8)
    explained = []
    for second in range(MIN_SUSPICIONS):
        explained.append(refuse(learned, 5, second))
        serve_one_less(learned, second)
    assert explained == [0] * (MIN_SUSPICIONS - 1) + [5]
    learned.record_refusal(9.0, explained[-1], 1.0, 9.0)
    assert learned.limit == 4
    assert learned.explains(5)
    assert not learned.explains(4)


def test_number_that_is_also_served_explains_nothing() -> None:
    learned = LearnedConcurrency(8)
    for second in range(100):
        serve_one_less(learned, second)
        for _ in range(3):
            learned.record_success(second, 5, 5, second)
        assert not refuse(learned, 5, second + 0.5)


def test_single_refused_request_refutes_a_limit_at_once() -> None:
    learned = LearnedConcurrency(8)
    for second in range(100):
        assert not refuse(learned, 5 if second % 2 else 1, second)


def test_smallest_number_of_one_moment_is_suspected() -> None:
    learned = LearnedConcurrency(8)
    explained = []
    for second in range(MIN_SUSPICIONS):
        explained += [learned.suspect(second, at_once, second + 0.5) for at_once in (7, 6, 5)]
        serve_one_less(learned, second)
    assert set(explained) == {0, 5}


def test_burst_explains_nothing() -> None:
    """Each of its numbers occurs once."""
    learned = LearnedConcurrency(8)
    for second in range(100):
        for at_once in range(1, 5):
            learned.record_success(second, at_once, at_once, second)
        assert not refuse(learned, 5, second + 0.5)
