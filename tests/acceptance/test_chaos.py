"""Two runs, one pool, and a few faults in a row: the short form of `tests/soak/test_chaos.py`."""

from __future__ import annotations

import resource
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import DISK_FULL, KILLED, OUTAGE, OWNER_KILLED, RESTARTED, STOPPED, Fault, Limits, chaos
from tests.support.valkey import Valkey, running

ITEMS = 40  # of each
LIMITS = Limits(keys=4, per_minute=300, burst=5, max_concurrent=2)


@pytest.fixture
def server() -> Iterator[Valkey]:
    with running() as server:
        yield server


def test_two_runs_with_shared_keys_survive_every_fault(
    tmp_path: Path, server: Valkey
) -> None:  # invariants 1, 2, 12, 14, 16, 19, 20, 21, 28, 29
    faults = [Fault(10, KILLED, 0, 0.0), Fault(20, STOPPED, 1, OUTAGE), Fault(30, RESTARTED, 0, 0.2)]
    faults += [Fault(40, OWNER_KILLED, 0, 0.0)]
    has_limits = hasattr(resource, "prlimit")
    if has_limits:
        faults.append(Fault(45, DISK_FULL, 1, 0.0))
    with chaos(tmp_path, server, LIMITS, items=ITEMS, parallel=4, latency=0.05) as world:
        world.run(faults, limit=120.0)
        print(world.summary())
        world.judge()
    assert world.faults == {fault.kind: 1 for fault in faults}
    statuses = Counter(status for program in world.programs for status in program.statuses)
    assert statuses == {-signal.SIGKILL: 1, 0: 2} | ({3: 1} if has_limits else {})  # invariant 28
