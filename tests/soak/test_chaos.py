"""The whole program under every fault at once, for minutes: `tests/support/chaos.py` says what is promised."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import KINDS, Limits, chaos, plan
from tests.support.valkey import Valkey, running

ITEMS = 1000  # of each of the two runs
# Of each kind of fault; what finds nobody at work is left out.
ROUNDS = 4
# Together 32 requests a second, so at least a minute, and long enough for windows of a minute to count.
LIMITS = Limits(keys=8, per_minute=240, burst=4, max_concurrent=2)
SECONDS = 600.0


@pytest.fixture
def server() -> Iterator[Valkey]:
    with running() as server:
        yield server


def test_two_runs_of_a_thousand_items_survive_every_fault_and_pass_no_limit(tmp_path: Path, server: Valkey) -> None:
    seed = int(os.environ.get("AGENTOS_CHAOS_SEED") or random.randrange(2**32))
    print(f"AGENTOS_CHAOS_SEED={seed}")
    with chaos(tmp_path, server, LIMITS, items=ITEMS, parallel=8, latency=0.2, sigma=0.5) as world:
        world.run(plan(seed, 2 * ITEMS, ROUNDS), SECONDS)
        print(world.summary())
        world.judge()
    assert set(world.faults) == set(KINDS)
