"""Members whose owner ends with them: processes in a PID namespace of their own, as in a container."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import BUSY, eventually

from .members import Process, Processes, keys
from .test_machine_owner import is_running

# Namespaces for processes without rights, too. The first process there is a child of `unshare`, which dies with it.
NAMESPACE = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
TTL = 30.0
SOON = 5.0 + BUSY  # seconds: far less than the time to live


def has_namespaces() -> bool:
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not has_namespaces(), reason="needs PID namespaces (unshare of util-linux)"
)


def in_container(store: str) -> Process:
    """Return a member that is the first process of a PID namespace: everything there ends with it."""
    process = Process(prefix=NAMESPACE)
    process.do("open", keys=keys(1, requests_per_minute=60, tokens_per_minute=1000), store=store, ttl=TTL)
    return process


def test_container_that_ends_leaves_no_lease(shared_store: str) -> None:  # invariants 12, 39
    """The owner is killed with the namespace: what it did at last must be in the journal before."""
    for _ in range(3):
        process = in_container(shared_store)
        process.lease("a", tokens=10)
        process.granted("a", SOON)
        process.do("settle", name="a", tokens=200)
        process.stop()  # its pool is closed at its exit
    last = in_container(shared_store)
    (state,) = last.do("states")
    assert state["live_leases"] == 0
    assert state["tokens"] == 3 * 200
    last.stop()


def test_killed_container_leaves_no_lease(tmp_path: Path) -> None:  # invariant 12
    store = f"sqlite:///{tmp_path / 'pool.db'}"
    fences = []
    for _ in range(3):
        process = in_container(store)
        process.lease("a")
        fences.append(process.granted("a", SOON)["fence"])
        process.kill()
        process.stop()
    assert fences == sorted(set(fences))


def test_other_container_continues_when_that_with_owner_is_killed(tmp_path: Path) -> None:  # invariants 1, 12
    """Both count their processes from 1 on."""
    store = f"sqlite:///{tmp_path / 'pool.db'}"
    first, second = in_container(store), in_container(store)
    first.lease("held")
    fence = first.granted("held", SOON)["fence"]
    second.lease("next")
    eventually(lambda: second.do("get_stats")["waiting"] == 1)
    assert not second.has_heard("granted", "next")
    first.kill()
    first.stop()
    assert second.granted("next", SOON)["fence"] > fence
    second.stop()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Return a folder in which a socket has its place: the path of one has at most a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="pool-") as folder:
        yield Path(folder)


def test_container_that_mounts_folder_elsewhere_shares_the_pool(processes: Processes, short_path: Path) -> None:
    """The owner notes the path of its socket as it sees it."""
    folder, elsewhere = short_path / "folder", short_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    outside = processes.open(f"sqlite:///{folder / 'pool.db'}", keys(1), TTL)
    outside.lease("held")
    outside.granted("held")
    hidden = 'mount --bind "$0" "$1" && mount -t tmpfs none "$0" && shift && exec "$@"'
    inside = Process(prefix=[*NAMESPACE, "--mount", "sh", "-c", hidden, str(folder), str(elsewhere)])
    inside.do("open", keys=keys(1), store=f"sqlite:///{elsewhere / 'pool.db'}", ttl=TTL)
    assert [state["live_leases"] for state in inside.do("states")] == [1]
    inside.lease("next")
    outside.end("held")
    assert inside.granted("next", SOON)["about"] == "granted"
    inside.stop()


def test_stopped_member_keeps_lease_when_owner_is_killed(processes: Processes, tmp_path: Path) -> None:  # invariant 1
    """Only the end of a process frees its lock: a stopped one may go on with its request."""
    store = f"sqlite:///{tmp_path / 'pool.db'}"
    holder = processes.open(store, keys(1), TTL)
    other = processes.open(store, keys(1), TTL)
    holder.lease("held")
    holder.granted("held")
    owner = other.do("owner_pid")
    holder.pause()
    os.kill(owner, signal.SIGKILL)
    eventually(lambda: other.do("owner_pid") != owner)
    # A new owner on a loaded machine may need more than the second for which an answer is waited for.
    eventually(lambda: [state["live_leases"] for state in other.do("states")] == [1])
    other.lease("next")
    holder.kill()
    assert other.granted("next", SOON)["about"] == "granted"


def test_member_killed_with_owner_frees_lease_despite_child(processes: Processes, tmp_path: Path) -> None:
    """A forked child has a copy of every descriptor of its parent."""
    store = f"sqlite:///{tmp_path / 'pool.db'}"
    holder = processes.open(store, keys(1), TTL)
    holder.lease("held")
    holder.granted("held")
    child = holder.do("fork_and_stay")
    owner = holder.do("owner_pid")
    os.kill(owner, signal.SIGSTOP)  # it notices nothing
    holder.kill()
    os.kill(owner, signal.SIGKILL)
    try:
        other = processes.open(store, keys(1), TTL)
        other.lease("next")
        assert other.granted("next", SOON)["about"] == "granted"
        assert is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
