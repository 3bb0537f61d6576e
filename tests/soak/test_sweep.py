"""All cells of the sweep over unknown limits, and cells between them with new seeds."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor

from tests.limits import sweep

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
