"""Two runs of the whole program under every kind of fault, for minutes. `tests/support/chaos.py` lists the promises."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import KINDS, Limits, chaos, plan
from tests.support.valkey import Valkey, running

ITEMS = 1000  # of each of the two runs
# Number of faults of each kind. A fault that finds no process to act on is skipped.
ROUNDS = 4
# 32 requests a second for all keys: the runs take at least a minute, so the sliding windows count.
LIMITS = Limits(keys=8, per_minute=240, burst=4, max_concurrent=2)
TIMEOUT = 600.0  # seconds


@pytest.fixture
def server() -> Iterator[Valkey]:
    with running() as server:
        yield server


def test_two_runs_survive_every_fault_within_limits(tmp_path: Path, server: Valkey) -> None:
    seed = int(os.environ.get("AGENTOS_CHAOS_SEED") or random.randrange(2**32))
    print(f"AGENTOS_CHAOS_SEED={seed}")
    with chaos(tmp_path, server, LIMITS, items=ITEMS, parallel=8, latency=0.2, sigma=0.5) as world:
        world.run(plan(seed, 2 * ITEMS, ROUNDS), TIMEOUT)
        print(world.summary())
        world.judge()
    assert set(world.faults) == set(KINDS)
