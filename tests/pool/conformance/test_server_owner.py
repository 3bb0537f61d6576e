"""Faults of the owner of a pool on a server, with real processes and an independent judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.valkey import Valkey

from .conftest import in_redis
from .faulty_owner import SERVER_STEPS
from .members import Processes
from .test_machine_owner import (
    TTL,
    Pool,
    check_fault_at_step,
    check_killed_and_stopped_processes,
    check_many_take_overs,
)


@pytest.fixture
def pool(processes: Processes, tmp_path: Path, common_server: Valkey) -> Iterator[Pool]:
    pool = Pool(processes, tmp_path)
    pool.store = in_redis(f"unix://{common_server.socket}")
    yield pool
    pool.kill_stopped_owners()


def test_many_take_overs_over_server_pass_no_limit(pool: Pool) -> None:  # invariants 1, 2, 13, 16, 47
    check_many_take_overs(pool, ttl=5, steps=",".join(SERVER_STEPS))


def test_killed_and_stopped_processes_over_server_pass_no_limit(pool: Pool) -> None:
    """invariants 1, 2, 12, 13, 14, 47"""
    check_killed_and_stopped_processes(pool, SERVER_STEPS, TTL)


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("step", SERVER_STEPS)
def test_fault_at_step_of_grant_over_server_grants_once(pool: Pool, step: str, signal_name: str) -> None:
    """invariants 13, 16, 47"""
    check_fault_at_step(pool, step, signal_name)
