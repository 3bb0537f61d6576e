"""Two versions of the program share a pool. The older one is installed from an earlier commit of this repository."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.support.earlier_version import PROTOCOL_4, install

from .members import Process, Processes, keys
from .test_machine_owner import JUDGE

TTL = 1.5
TAKE_OVERS = 6
Open = Callable[..., Process]


@pytest.fixture(scope="session")
def older_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the older version is installed."""
    return install(PROTOCOL_4, tmp_path_factory.mktemp("older"))


@pytest.fixture(scope="session")
def _older_processes(older_package: Path) -> Iterator[Processes]:
    processes = Processes(package=older_package)
    yield processes
    processes.stop()


@pytest.fixture(params=["older", "newer"])
def first(request: pytest.FixtureRequest) -> str:
    """Return which version opens the pool first, and so runs its owner."""
    return str(request.param)


@pytest.fixture
def versions(
    _older_processes: Processes, processes: Processes, older_package: Path, shared_store: str
) -> Iterator[dict[str, Open]]:
    """Return how a process of each version joins the pool."""

    def opener(of_version: Processes, is_older: bool) -> Open:
        def opened(credentials: list[dict[str, object]], ttl: float = TTL) -> Process:
            process = of_version.open(shared_store, credentials, ttl)
            package = Path(process.do("package"))
            assert package.is_relative_to(older_package) == is_older
            return process

        return opened

    yield {"older": opener(_older_processes, True), "newer": opener(processes, False)}
    _older_processes.park()


def other(version: str) -> str:
    return "newer" if version == "older" else "older"


def state_of(member: Process, key: str) -> dict[str, Any]:
    return next(state for state in member.do("states") if state["key_id"] == key)


def runs_owner(pid: int, older_package: Path) -> str:
    """Return the version of an owner, by the path from which it imports."""
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    return "older" if os.fsencode(older_package) in environment else "newer"


def test_versions_share_leases_limits_and_verdicts(
    versions: dict[str, Open], first: str, older_package: Path
) -> None:  # invariants 1, 2, 4, 5
    shared = [*keys(2), {**keys(3)[2], "limits": {"requests_per_minute": 5, "burst": 5, "max_concurrent": 9}}]
    owners = versions[first](shared)
    guest = versions[other(first)](shared)
    assert owners.do("owner_pid") == guest.do("owner_pid")
    if sys.platform == "linux":
        assert runs_owner(guest.do("owner_pid"), older_package) == first
    granted = []
    for n in range(7):  # one lease of each of two keys, and five requests a minute of the third
        member = (owners, guest)[n % 2]
        member.lease(f"lease {n}", tokens=10)
        granted.append(member.granted(f"lease {n}")["key"])
    assert sorted(granted) == ["key-0", "key-1"] + 5 * ["key-2"]
    assert owners.do("reserve_now") is False
    assert guest.do("reserve_now") is False
    guest.lease("waiter")  # is served by a release in the other version
    released = next(n for n in range(0, 7, 2) if granted[n] != "key-2")
    owners.end(f"lease {released}")
    assert guest.granted("waiter")["key"] == granted[released]
    guest.end("waiter", "RateLimited", retry_after=60)
    eventually(lambda: state_of(owners, granted[released])["cooled_until"] is not None)
    owners.call("quarantine", "key-2", "refused")
    eventually(lambda: state_of(guest, "key-2")["quarantined"] == "refused")
    guest.call("restore", "key-2")
    eventually(lambda: state_of(owners, "key-2")["quarantined"] is None)
    used = state_of(guest, "key-2")
    assert (used["requests"], used["tokens"]) == (5, 50)


def test_older_version_shares_the_rest_of_an_unreachable_provider(versions: dict[str, Open], first: str) -> None:
    """An older owner does not know the reason, and calls it a rate limit."""
    members = {version: versions[version](keys(1)) for version in (first, other(first))}
    members["newer"].lease("a")
    members["newer"].granted("a")
    members["newer"].do("unreachable", name="a", address="127.0.0.1:9")
    reason = "rate_limited" if first == "older" else "unreachable: 127.0.0.1:9"
    for member in members.values():
        eventually(lambda member=member: state_of(member, "key-0")["cooled_by"] == {"": reason})
        assert member.do("reserve_now") is False


def test_each_version_continues_the_journal_of_the_other(
    versions: dict[str, Open], first: str, older_package: Path
) -> None:  # invariants 1, 2, 5, 13, 46
    windows = [["requests", 50, "5h", "first-use"], ["tokens", 900, "1d", "00:00 UTC"]]
    limits = {"requests_per_minute": 5, "burst": 5, "windows": windows}
    shared = [*keys(1), {**keys(2)[1], "limits": limits}, keys(3)[2]]
    starter = versions[first](shared)
    survivor = versions[other(first)](shared)
    survivor.lease("kept")
    kept = survivor.granted("kept")
    starter.call("quarantine", "key-2", "refused")
    for n in range(5):
        starter.lease(f"used {n}", prefer="key-1")
        assert starter.granted(f"used {n}")["key"] == "key-1"
        starter.end(f"used {n}")
        starter.wait_for_end(f"used {n}")
    before = survivor.do("owner_pid")
    starter.kill()
    os.kill(before, signal.SIGKILL)
    eventually(lambda: survivor.do("owner_pid") != before)
    if sys.platform == "linux":
        assert runs_owner(survivor.do("owner_pid"), older_package) == other(first)
    assert survivor.do("reserve_now") is False  # held, used up, and quarantined
    assert state_of(survivor, "key-0")["live_leases"] == 1
    assert state_of(survivor, "key-1")["requests"] == 5
    assert state_of(survivor, "key-2")["quarantined"] == "refused"
    returned = versions[first](shared)  # a member of the version that ran the owner before
    assert returned.do("reserve_now") is False
    returned.lease("waiter")
    survivor.end("kept")
    assert returned.granted("waiter")["fence"] > kept["fence"]


def test_limits_hold_while_versions_take_over_from_each_other(
    versions: dict[str, Open], first: str, older_package: Path, tmp_path: Path
) -> None:  # invariants 1, 2, 13
    shared = [*keys(1, requests_per_minute=60, burst=60), {**keys(2)[1], "limits": {"max_concurrent": 1}}]
    members = [versions[version](shared) for _ in range(2) for version in (first, other(first))]
    log = tmp_path / "leases.log"
    for member in members:
        member.do("log_work", log=str(log), threads=2, hold=0.004)
    luck = random.Random(7)
    for _ in range(TAKE_OVERS):
        owner = members[0].do("owner_pid")
        enough = log.stat().st_size + luck.randrange(2_000)
        os.kill(owner, signal.SIGKILL)
        eventually(lambda before=owner: all(member.do("owner_pid") != before for member in members))
        eventually(lambda enough=enough: log.stat().st_size > enough)
    assert [error for member in members for error in member.do("end_work")] == []
    eventually(lambda: [state["live_leases"] for state in members[0].do("states")] == [0, 0])
    command = [sys.executable, "-I", str(JUDGE), str(log), "key-0:1:60", "key-1:1:0"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.count("\n") == 1
