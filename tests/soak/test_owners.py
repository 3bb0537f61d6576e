"""Hundreds of take-overs of a pool on one machine, judged by a process that shares no code with the program."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import eventually
from tests.pool.conformance.faulty_owner import STEPS
from tests.pool.conformance.members import Processes
from tests.pool.conformance.test_machine_owner import TTL, Pool, in_background, resume_later

TAKE_OVERS = 200


def test_hundreds_of_take_overs_pass_no_limit(tmp_path: Path) -> None:  # invariants 1, 2, 13, 16, 47
    processes = Processes()
    pool = Pool(processes, tmp_path)
    steps = ",".join(step for step in STEPS if step != "in journal")
    try:
        for _ in range(16):
            pool.work(pool.open(steps=steps, signals="SIGKILL,SIGKILL,SIGSTOP", grants=60))
        with in_background(resume_later, pool, 2 * TTL):
            eventually(lambda: len(pool.faults()) >= TAKE_OVERS, timeout=600)
            pool.end()
        print(f"{len(pool.faults())} take-overs, {pool.judgement()}")
    finally:
        pool.kill_stopped_owners()
        processes.stop()
