"""Histories in virtual time, from new seeds, for as long as `make soak` is told."""

from __future__ import annotations

import random
import time

from tests.simulation.situations import Situations
from tests.simulation.world import simulate

from .shares import seconds

STEPS = 1500


def test_no_history_breaks_a_promise_and_every_situation_occurs() -> None:
    situations = Situations()
    began = time.monotonic()
    histories = steps = 0
    while time.monotonic() < began + seconds(0.4):
        steps += simulate(random.randrange(2**32), STEPS, situations).steps
        histories += 1
    rate = steps / (time.monotonic() - began)
    print(f"\n{histories:,} histories, {steps:,} steps, {rate:,.0f} steps a second\n{situations.table()}")
    assert not situations.missing(), "some situations never occurred: more time, or a simulator that avoids them"
