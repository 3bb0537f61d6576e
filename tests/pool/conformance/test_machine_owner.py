"""Faults of the owner of a pool on one machine, and of its members, with real processes and an independent judge."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.pool.shared._machine import owner_lock
from tests.conftest import BUSY, eventually

from .faulty_owner import STEPS
from .members import PATIENCE, Process, Processes, keys

JUDGE = Path(__file__).with_name("judge.py")
MEMBERS = 8
TTL = 0.6
SILENCE = 0.6  # seconds after which members of these tests replace an owner that does not answer
MIN_LIMITED = 40  # leases of the key with 60 requests a minute, of which the judge finds one too many
IN_TIME = 3.0 + BUSY  # seconds until the next lease after a take-over


class Pool:
    """A pool with many processes, whose owners have faults."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self.path = folder / "pool.db"
        self.store = f"sqlite:///{self.path}"
        self.log = folder / "leases.log"
        self.owners = folder / "owners.log"
        self.keys = [
            *keys(1, requests_per_minute=60, burst=60),
            {**keys(2)[1], "limits": {"max_concurrent": 1}},
            {**keys(3)[2], "limits": {"max_concurrent": 3}},
        ]
        self.members: list[Process] = []

    def open(self, *, ttl: float = TTL, steps: str = "", signals: str = "SIGKILL", grants: int = 12,
             faults: int = 10_000) -> Process:  # fmt: skip
        """Start one more member. `steps`: at which the owners that it starts have a fault."""
        constants: list[tuple[str, str, Any]] = [
            ("agentos.pool.shared._member.member_messages", "SILENCE_SECONDS", SILENCE),
            # A newcomer may meet one stopped owner after another: the test gives up, not the newcomer.
            ("agentos.pool.shared._member.member", "LOST_SECONDS", PATIENCE),
            ("agentos.pool.shared.shared_store", "OPEN_SECONDS", PATIENCE),
        ]
        if steps:
            command = [sys.executable, "-m", "tests.pool.conformance.faulty_owner", str(self.owners), steps, signals]
            constants.append(
                ("agentos.pool.shared._owner.owner_child", "OWNER_COMMAND", [*command, str(grants), str(faults)])
            )
        member = self._processes.open(self.store, self.keys, ttl, constants=constants)
        self.members.append(member)
        return member

    def work(self, member: Process, threads: int = 2) -> None:
        member.do("log_work", log=str(self.log), threads=threads, hold=0.004)

    def faults(self) -> list[tuple[int, str]]:
        """Return the process and the signal of each owner that has had its fault."""
        lines = self.owners.read_text().splitlines() if self.owners.exists() else []
        fields = [line.split(maxsplit=3) for line in lines]
        return [(int(pid), name) for what, pid, name, _ in fields if what == "fault"]

    def end(self) -> None:
        """End the work. Nothing failed, and no lease is left."""
        assert [error for member in self.members if member.is_alive for error in member.do("end_work")] == []
        last = next(member for member in self.members if member.is_alive)
        eventually(lambda: [state["live_leases"] for state in last.do("states")] == [0, 0, 0])
        assert last.do("get_stats")["waiting"] == 0

    def judgement(self) -> dict[str, int]:
        """Return the number of leases per key; raise if the judge finds fault."""
        limits = [
            f"{key['id']}:{key['limits'].get('max_concurrent', 1)}:{key['limits'].get('requests_per_minute', 0)}"
            for key in self.keys
        ]
        command = [sys.executable, "-I", str(JUDGE), str(self.log), *limits]
        *problems, counts = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        assert problems == []
        return {name: int(count) for name, _, count in (part.partition("=") for part in counts.split()[1:])}

    def note(self) -> owner_lock.Note | None:
        return owner_lock.read_note(self.path)

    def owner_pid(self) -> int:
        """Return the process of the owner, once it runs."""
        eventually(lambda: (note := self.note()) is not None and note.pid != 0)
        note = self.note()
        assert note is not None
        return note.pid

    def kill_stopped_owners(self) -> None:
        """Leave no stopped owner behind if a test has failed."""
        for pid, _ in self.faults():
            with contextlib.suppress(OSError):
                if str(self.owners).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():  # not another process
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def pool(processes: Processes, tmp_path: Path) -> Iterator[Pool]:
    pool = Pool(processes, tmp_path)
    yield pool
    pool.kill_stopped_owners()


def is_running(pid: int) -> bool:
    """Return whether a process exists and is no zombie (its parent, process 1, may not collect it)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def resume_later(pool: Pool, seconds: float, should_end: Callable[[], bool]) -> None:
    """Let stopped owners continue after some seconds."""
    stopped: dict[int, float] = {}
    while not should_end():
        now = time.monotonic()
        for pid, name in pool.faults():
            if name == "SIGSTOP" and now - stopped.setdefault(pid, now) > seconds:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        time.sleep(0.05)


@contextlib.contextmanager
def in_background(call: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Run a call until the block ends; its last argument becomes the question whether it has."""
    ended = threading.Event()
    thread = threading.Thread(target=call, args=(*arguments, ended.is_set), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def check_many_take_overs(pool: Pool, **options: Any) -> None:
    """Let owners fail again and again while eight members work; `options` are those of `Pool.open`."""
    for _ in range(MEMBERS):
        pool.work(pool.open(grants=40, **options))
    eventually(lambda: len(pool.faults()) >= 20)
    pool.end()
    counts = pool.judgement()
    assert counts["key-0"] >= MIN_LIMITED
    assert counts["key-1"] > 20
    assert counts["key-2"] > 20


def test_many_take_overs_pass_no_limit_and_lose_nothing(pool: Pool) -> None:  # invariants 1, 2, 13, 16, 47
    check_many_take_overs(pool, steps=",".join(STEPS), signals="SIGKILL")


def check_killed_and_stopped_processes(pool: Pool, steps: Iterable[str], ttl: float) -> None:
    """Kill and stop members while owners kill and stop themselves."""
    chance = random.Random(7)
    options = {"steps": ",".join(steps), "signals": "SIGKILL,SIGSTOP", "grants": 60, "ttl": ttl}
    for _ in range(MEMBERS):
        pool.work(pool.open(**options))
    with in_background(resume_later, pool, 2 * ttl):
        for n in range(4):
            count = len(pool.faults())
            victim = chance.choice([member for member in pool.members if member.is_alive])
            if n % 2:
                victim.kill()
                pool.work(pool.open(**options))
            else:
                victim.pause()
                stopped_at = time.monotonic()
                eventually(lambda at=stopped_at: time.monotonic() - at > 2 * ttl)
                victim.resume()
            eventually(lambda count=count: len(pool.faults()) > count)
        pool.end()
        stopped = {pid for pid, name in pool.faults() if name == "SIGSTOP"}
        eventually(lambda: not any(map(is_running, stopped)))  # a replaced owner ends when it continues
    assert pool.judgement()["key-0"] >= MIN_LIMITED


def test_killed_and_stopped_processes_pass_no_limit(pool: Pool) -> None:  # invariants 1, 2, 12, 13, 14, 47
    # An owner that is stopped in its journal holds it: that has a test of its own.
    check_killed_and_stopped_processes(pool, (step for step in STEPS if step != "in journal"), TTL)


def check_fault_at_step(pool: Pool, step: str, signal_name: str) -> None:
    """Let two owners have a fault at a step of a grant; each request is granted once, and counted once."""
    member = pool.open(ttl=30, steps=step, signals=signal_name, grants=1, faults=2)
    for n in range(3):
        member.lease(f"{n}")
    granted = [member.granted(f"{n}", 2 * SILENCE + IN_TIME + 3.0) for n in range(3)]
    assert [message["about"] for message in granted] == ["granted"] * 3
    assert len({(message["key"], message["fence"]) for message in granted}) == 3
    eventually(lambda: pool.faults())
    for pid, name in pool.faults():
        if name == "SIGSTOP":
            os.kill(pid, signal.SIGCONT)
            # It can commit nothing and ends, unless it was not missed: then it goes on.
            eventually(lambda pid=pid: not is_running(pid) or member.do("owner_pid") == pid)
    eventually(lambda: sum(state["live_leases"] for state in member.do("states")) == 3)
    for n in range(3):
        member.end(f"{n}")
    eventually(lambda: sum(state["live_leases"] for state in member.do("states")) == 0)
    assert sum(state["requests"] for state in member.do("states")) == 3  # none was counted twice


@pytest.mark.parametrize("step", STEPS)
def test_owner_killed_at_step_of_grant_grants_once(pool: Pool, step: str) -> None:  # invariants 13, 16, 47
    check_fault_at_step(pool, step, "SIGKILL")


@pytest.mark.parametrize("step", [step for step in STEPS if step != "in journal"])  # that has a test of its own
def test_owner_stopped_at_step_of_grant_grants_once(pool: Pool, step: str) -> None:  # invariants 13, 16, 47
    check_fault_at_step(pool, step, "SIGSTOP")


def test_death_of_member_that_started_owner_changes_nothing(pool: Pool) -> None:
    first, second = pool.open(), pool.open()
    pid = pool.owner_pid()
    second.lease("a")
    second.granted("a")
    first.kill()
    second.lease("b")
    assert second.granted("b", IN_TIME)["about"] == "granted"
    assert pool.owner_pid() == pid
    assert is_running(pid)


def test_member_has_lease_soon_after_owner_is_killed(pool: Pool) -> None:
    first, second = pool.open(ttl=30), pool.open(ttl=30)
    first.lease("held")
    held = first.granted("held")
    os.kill(pool.owner_pid(), signal.SIGKILL)
    killed_at = time.monotonic()
    second.lease("next")
    granted = second.granted("next")
    assert granted["at"] - killed_at < IN_TIME
    assert (granted["key"], granted["fence"]) != (held["key"], held["fence"])
    assert sum(state["live_leases"] for state in second.do("states")) == 2
    assert not first.has_heard("StoreUnreachable")


def test_stopped_owner_is_replaced_and_commits_nothing(pool: Pool) -> None:  # invariants 13, 47
    member = pool.open(ttl=30)
    old = pool.owner_pid()
    os.kill(old, signal.SIGSTOP)
    try:
        for n in range(3):
            member.lease(f"{n}")
        granted = [member.granted(f"{n}", SILENCE + IN_TIME) for n in range(3)]
        assert len({(message["key"], message["fence"]) for message in granted}) == 3
        assert pool.owner_pid() != old
    finally:
        os.kill(old, signal.SIGCONT)
    eventually(lambda: not is_running(old))
    assert sum(state["live_leases"] for state in member.do("states")) == 3
    assert pool.owner_pid() != old


def test_newcomer_replaces_stopped_owner(pool: Pool) -> None:
    pool.open(ttl=30)
    old = pool.owner_pid()
    os.kill(old, signal.SIGSTOP)
    try:
        newcomer = pool.open(ttl=30)
        newcomer.lease("a")
        assert newcomer.granted("a", IN_TIME)["about"] == "granted"
    finally:
        os.kill(old, signal.SIGCONT)
    eventually(lambda: not is_running(old))


def test_owner_stopped_in_transaction_is_named_and_grants_nothing(pool: Pool) -> None:
    member = pool.open(ttl=30, steps="in journal", signals="SIGSTOP", grants=1, faults=1)
    member.lease("a", timeout=30)
    eventually(lambda: pool.faults())
    ((pid, _),) = pool.faults()
    try:
        lost = member.wait_for_event("StoreUnreachable")
        assert f"process {pid}" in lost["reason"]
        assert not member.has_heard("granted", "a")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert member.granted("a", IN_TIME)["about"] == "granted"
    assert sum(state["live_leases"] for state in member.do("states")) == 1


def test_stopped_owner_loses_no_lease_of_its_members(pool: Pool) -> None:
    member = pool.open(ttl=0.4)
    member.lease("a")
    fence = member.granted("a")["fence"]
    pid = pool.owner_pid()
    os.kill(pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    eventually(lambda: time.monotonic() - stopped_at > 0.5)  # longer than the time to live, shorter than the patience
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: [state["fence"] for state in member.do("states") if state["live_leases"]] == [fence])


def test_last_member_leaves_no_process_and_no_file(pool: Pool) -> None:
    members = [pool.open() for _ in range(3)]
    pid = pool.owner_pid()
    note = pool.note()
    assert note is not None
    assert Path(note.socket).stat().st_mode & 0o077 == 0
    for path in pool.path.parent.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    members[0].kill()
    members[1].stop()
    members[2].do("close")
    eventually(lambda: not is_running(pid))
    assert list(pool.path.parent.iterdir()) == [pool.path]
    assert not Path(note.socket).exists()
    pool.members = []


def test_death_of_parent_is_noticed_while_forked_child_lives(pool: Pool) -> None:  # invariant 12
    parent, second = pool.open(ttl=30), pool.open(ttl=30)
    names = ["a", "b", "c", "d", "e"]
    for name in names:
        parent.lease(name)
        parent.granted(name)
    child = parent.do("fork_and_stay")
    second.lease("x")
    eventually(lambda: second.do("get_stats")["waiting"] == 1)
    parent.kill()
    try:
        assert second.granted("x", IN_TIME)["about"] == "granted"
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("timeout", [20, None])
@pytest.mark.parametrize("method", ["lease", "reserve"])
def test_interrupted_wait_leaks_nothing(pool: Pool, method: str, timeout: float | None) -> None:  # invariant 9
    first, second = pool.open(ttl=30), pool.open(ttl=30)
    for n in range(5):
        first.lease(f"{n}")
        first.granted(f"{n}")
    assert second.do("interrupt", method=method, timeout=timeout) == "KeyboardInterrupt"
    assert second.do("get_stats")["waiting"] == 0
    for n in range(5):
        first.end(f"{n}")
    eventually(lambda: sum(state["live_leases"] for state in first.do("states")) == 0)
