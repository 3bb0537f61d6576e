"""A fixed part of the sweep over unknown limits; `make soak` runs all of it."""

from __future__ import annotations

import random

import pytest

from . import sweep

# Cells that were stuck far below their limit, or refused again and again: a first refusal right after slow start, no
# store, a hint in whole seconds, slow answers, a limit far above or below the first estimate.
FORMERLY_STUCK = [
    *(sweep.Cell(50.0, 50, 4, milliseconds / 1000 + 0.002, "exact") for milliseconds in (26, 27, 28, 29)),
    *(sweep.Cell(50.0, 50, 4, milliseconds / 1000 + 0.002, "whole") for milliseconds in (26, 27, 28, 29)),
    sweep.Cell(0.1, 1, 64, 5.0, "whole"),
    sweep.Cell(0.1, 2, 64, 5.0, "exact"),
    sweep.Cell(0.5, 20, 64, 5.0, "exact"),
    sweep.Cell(0.5, 1, 16, 5.0, "exact"),
    sweep.Cell(2.0, 2, 4, 1.0, "absent"),
    sweep.Cell(2.0, 1, 16, 5.0, "exact"),
    sweep.Cell(2.0, 100, 64, 0.001, "exact"),
    sweep.Cell(10.0, 1, 16, 1.0, "absent"),
    sweep.Cell(10.0, 100, 64, 1.0, "exact"),
    sweep.Cell(10.0, 2, 64, 5.0, "exact"),
    sweep.Cell(10.0, 20, 64, 5.0, "absent"),
    sweep.Cell(50.0, 1, 16, 0.02, "whole"),
    sweep.Cell(50.0, 1, 64, 1.0, "exact", seed=3),
    sweep.Cell(50.0, 20, 64, 1.0, "absent"),
    sweep.Cell(200.0, 5, 16, 0.001, "exact"),
    sweep.Cell(200.0, 2, 4, 0.001, "whole"),
]


@pytest.mark.parametrize("cell", FORMERLY_STUCK, ids=str)
def test_unknown_limit_is_reached_with_few_refusals(cell: sweep.Cell) -> None:
    figures = sweep.measure(cell)
    assert figures.share >= sweep.MIN_SHARE
    assert figures.refusals <= sweep.MAX_REFUSALS


@pytest.mark.parametrize("seed", range(60))
def test_random_latencies_around_one_limit(seed: int) -> None:
    """The limit of the benchmark: 50/s, a second's worth stored, 4 requests at once, answers after 20 to 32 ms."""
    cell = sweep.Cell(50.0, 50, 4, 0.02 + 0.0002 * seed, sweep.HINTS[seed % 3], seed=seed)
    assert sweep.measure(cell).is_met


@pytest.mark.parametrize("cell", [sweep.Cell(10.0, 10, 4, 0.02, hint) for hint in sweep.HINTS], ids=str)
@pytest.mark.parametrize("factor", [0.25, 3.0])
def test_changed_limit_is_followed(cell: sweep.Cell, factor: float) -> None:
    client = sweep.Client(cell)
    client.run(300.0)
    client.provider.rate *= factor
    client.run(900.0)
    served = sum(at > 600.0 for at in client.served_at)
    assert served >= 0.85 * 300.0 * factor * cell.rate


def test_rate_that_is_not_used_does_not_grow() -> None:
    client = sweep.Client(sweep.Cell(50.0, 50, 4, 0.02, "exact"))
    client.run(60.0)
    client.provider = sweep.Bucket(1e9, 1e9)  # from now on, only concurrency limits
    client.run(600.0)
    estimate = client.pool.credentials["key"].group.pace.estimators[None].estimate
    assert estimate is not None
    assert estimate < 5 * 4 / 0.02


def test_ideal_client_is_never_faster_than_the_limit() -> None:
    cell = sweep.Cell(10.0, 5, 4, 0.02, "exact")
    assert len(sweep.ideal_client(cell, 100.0)) == pytest.approx(5 + 1000, abs=2)


def test_bucket_that_is_empty_at_the_start_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program has used the limit up. Once, every second request was refused for ever."""

    class EmptiedBucket(sweep.Bucket):
        def __init__(self, rate: float, size: float) -> None:
            super().__init__(rate, size)
            self.level = 0.02 * size

    monkeypatch.setattr(sweep, "Bucket", EmptiedBucket)
    for cell in (sweep.Cell(65.1, 92, 12, 0.0286, "exact", True, 29745), sweep.Cell(20.0, 20, 16, 0.1, "exact", True)):
        figures = sweep.measure(cell)
        assert figures.is_met, sweep.worst([figures])


@pytest.mark.parametrize(
    "cell",
    [
        sweep.Cell(3.65, 13, 2, 0.1, "whole", seed=5380),
        sweep.Cell(6.94, 100, 16, 0.005, "whole", seed=19497),
        sweep.Cell(8.54, 20, 2, 0.005, "whole", seed=40041),
    ],
    ids=str,
)
def test_whole_second_waits_never_pass_for_other_reasons(cell: sweep.Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait refills the bucket for several requests. Once, the probe took that for a rate that does not matter: up
    to 978 refusals per 1,000, for ever."""

    class EmptyBucket(sweep.Bucket):
        def __init__(self, rate: float, size: float) -> None:
            super().__init__(rate, size)
            self.level = 0.0

    monkeypatch.setattr(sweep, "Bucket", EmptyBucket)
    figures = sweep.measure(cell)
    assert figures.is_met, sweep.worst([figures])


def test_random_refusals_do_not_slow_a_key_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request in seven is refused for a millisecond, at any rate."""
    chance = random.Random(1)

    class Moody(sweep.Bucket):
        def wait(self, now: float) -> float:
            return 0.001 if chance.random() < 1 / 7 else 0.0

    monkeypatch.setattr(sweep, "Bucket", Moody)
    client = sweep.Client(sweep.Cell(1.0, 1, 3, 0.0002, "exact"))
    client.run(25.0)
    assert len(client.served_at) > 5_000
