"""Simulated histories of new seeds, for a share of the soak time."""

from __future__ import annotations

import random
import time

from tests.simulation.situations import Situations
from tests.simulation.world import simulate

from .shares import seconds

STEPS = 1500


def test_new_seeds_keep_invariants_and_meet_every_situation() -> None:
    situations = Situations()
    start = time.monotonic()
    histories = steps = 0
    while time.monotonic() < start + seconds(0.4):
        steps += simulate(random.randrange(2**32), STEPS, situations).steps
        histories += 1
    rate = steps / (time.monotonic() - start)
    print(f"\n{histories:,} histories, {steps:,} steps, {rate:,.0f} steps a second\n{situations.table()}")
    assert not situations.missing(), "some situations never occurred: give it more time, or extend the simulation"
