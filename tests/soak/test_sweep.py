"""All cells of the sweep over unknown limits, and cells between them with new seeds."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.limits import concurrency_sweep, sweep

# Cells with values between those of the grid.
RANDOM_CELLS = 300


def measure_all(cells: Iterable[sweep.Cell]) -> list[sweep.Figures]:
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        return list(executor.map(sweep.measure, cells, chunksize=8))


def check(figures: list[sweep.Figures]) -> None:
    print(f"\n{len(figures):,} cells, the worst of them:\n{sweep.worst(figures)}")
    missed = [one for one in figures if not one.is_met]
    assert not missed, f"{len(missed)} cells:\n{sweep.worst(missed, len(missed))}"


def test_every_cell_reaches_its_limit_with_few_refusals() -> None:
    check(measure_all(sweep.full()))


def test_random_cells_reach_their_limit_with_few_refusals() -> None:
    check(measure_all(sweep.random_cells(random.randrange(2**32), RANDOM_CELLS)))


def test_every_number_at_once_is_learned_with_few_refusals() -> None:
    """With every hint, little and much jitter, and a limit on the rate besides. Refusals name the limit."""
    axes = itertools.product(
        concurrency_sweep.AT_ONCE, concurrency_sweep.LATENCIES, (None, 10.0), sweep.HINTS, (0.02, 0.25, 0.6, 1.0)
    )
    cells = [
        concurrency_sweep.Cell(at_once, latency, True, rate, hint, jitter, seed)
        for seed, (at_once, latency, rate, hint, jitter) in enumerate(axes)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as executor:
        check(list(executor.map(concurrency_sweep.measure, cells, chunksize=8)))
