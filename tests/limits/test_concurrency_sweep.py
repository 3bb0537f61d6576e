"""The limits on requests at once that are learned, against a provider with a true limit; `make soak` runs more."""

from __future__ import annotations

import pytest

from . import concurrency_sweep as sweep
from .concurrency_sweep import Cell

# The rows of the benchmark: 10 requests a second, 200 requests per key, from the first one on.
COLD_REQUESTS = 200
COLD_RATE = 10.0


# Share of a true limit that is reached although refusals give no reason, at least. Until the third refusal a rate is
# learned from them; refusals become rare before, above all where many may run at once.
MIN_UNNAMED_SHARE = 0.75


@pytest.mark.parametrize("latency", sweep.LATENCIES)
@pytest.mark.parametrize("at_once", sweep.AT_ONCE)
def test_true_limit_is_found_with_few_refusals(at_once: int | None, latency: float) -> None:
    figures = sweep.measure(Cell(at_once, latency))
    assert figures.is_met, figures


@pytest.mark.parametrize("latency", sweep.LATENCIES)
@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_limit_at_once_is_found_without_a_reason(at_once: int, latency: float) -> None:
    figures = sweep.measure(Cell(at_once, latency, is_named=False))
    assert figures.is_met, figures


@pytest.mark.parametrize("latency", [0.1, 0.5, 5.0])
@pytest.mark.parametrize("at_once", [8, 32])
def test_large_limit_is_approached_without_a_reason(at_once: int, latency: float) -> None:
    figures = sweep.measure(Cell(at_once, latency, is_named=False))
    assert figures.share >= MIN_UNNAMED_SHARE, figures
    assert figures.refusals <= sweep.MAX_REFUSALS, figures


@pytest.mark.parametrize("latency", [0.02, 0.5])
@pytest.mark.parametrize("at_once", [1, 4, 32, None])
def test_few_refusals_from_the_first_request_on(at_once: int | None, latency: float) -> None:
    shares, refusals = [], []
    for seed in range(8):
        share, per_1000 = sweep.measure_cold(Cell(at_once, latency, rate=COLD_RATE, seed=seed), COLD_REQUESTS)
        shares.append(share)
        refusals.append(per_1000)
    assert sum(shares) / len(shares) >= 0.9
    assert sum(refusals) / len(refusals) <= 30.0


@pytest.mark.parametrize("rate", [2.0, 10.0])
@pytest.mark.parametrize("latency", [0.1, 1.0])
def test_limit_on_the_rate_is_none_at_once(rate: float, latency: float) -> None:
    """Refusals that give no reason, and no limit on requests at once."""
    client = sweep.Client(Cell(None, latency, is_named=False, rate=rate))
    client.run(600.0)
    assert not client.pool.credentials["key"].concurrency.is_met
    assert len(client.served_at) >= 0.9 * rate * 600.0


def test_burst_that_is_refused_is_no_limit_at_once() -> None:
    """Requests that start together after a wait empty the bucket: their last one is refused each time."""
    client = sweep.Client(Cell(None, 0.889, is_named=False, rate=127.0, hint="whole", seed=1), stored=2.0)
    client.run(120.0)
    assert not client.pool.credentials["key"].concurrency.is_met


def test_both_limits_are_learned_without_a_reason() -> None:
    """Four at once let five a second through; ten a second are admitted. Then answers take a tenth of the time."""
    client = sweep.Client(Cell(4, 0.8, is_named=False, rate=10.0))
    client.run(600.0)
    before = len(client.served_at)
    client.latency = 0.08
    client.run(900.0)
    assert before >= 0.85 * 600.0 * 4 / 0.8
    assert len(client.served_at) - before >= 0.9 * 300.0 * 10.0
