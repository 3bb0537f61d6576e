"""Free memory, cores, and what sessions of processes take."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos.workers.machine import Machine

GB = 2**30
HOLD = (
    "import os, sys, time; memory = bytearray(int(sys.argv[1])); memory[::4096] = b'x' * len(memory[::4096]); "
    "os.write(1, str(os.getpid()).encode() + bytes([10])); time.sleep(600)"
)
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


class Files:
    """A faked /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        self.write("proc/meminfo", f"MemTotal: {64 * 2**20} kB\nMemAvailable: {16 * 2**20} kB\n", root)

    def write(self, name: str, text: str, root: Path | None = None) -> None:
        path = (root or self.proc.parent) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def machine(self) -> Machine:
        return Machine(self.proc, self.cgroups)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_free_memory_is_what_the_machine_tells(files: Files) -> None:
    assert files.machine().free_bytes() == 16 * GB


def test_free_memory_is_unknown_without_proc(tmp_path: Path) -> None:
    assert Machine(tmp_path / "none", tmp_path / "none").free_bytes() is None


@pytest.mark.parametrize("limit", ["memory.max", "memory.high"])
def test_free_memory_stays_below_a_limit_of_cgroup_v2(files: Files, limit: str) -> None:
    files.write("proc/self/cgroup", "0::/user/run\n")
    files.write("cgroup/user/run/memory.current", str(3 * GB))
    files.write("cgroup/user/run/memory.max", "max")
    files.write(f"cgroup/user/run/{limit}", str(4 * GB))
    assert files.machine().free_bytes() == GB
    files.write("cgroup/user/run/memory.stat", f"anon 1\ninactive_file {GB // 2}\nactive_file {GB // 2}\n")
    assert files.machine().free_bytes() == 1.75 * GB  # page cache is given back first


def test_free_memory_stays_below_the_limit_of_a_cgroup_above(files: Files) -> None:
    files.write("proc/self/cgroup", "0::/user/run\n")
    files.write("cgroup/user/run/memory.current", str(GB))
    files.write("cgroup/user/run/memory.max", "max")
    files.write("cgroup/user/memory.current", str(2 * GB))
    files.write("cgroup/user/memory.max", str(5 * GB))
    assert files.machine().free_bytes() == 3 * GB


def test_free_memory_in_a_container_is_below_its_root_cgroup(files: Files) -> None:
    """The path in /proc is that of the host, and does not exist in the container."""
    files.write("proc/self/cgroup", "0::/kubepods/pod-1\n")
    files.write("cgroup/memory.current", str(GB))
    files.write("cgroup/memory.max", str(2 * GB))
    assert files.machine().free_bytes() == GB


def test_free_memory_stays_below_a_limit_of_cgroup_v1(files: Files) -> None:
    files.write("proc/self/cgroup", "4:memory:/docker/x\n1:cpu,cpuacct:/docker/x\n0::/\n")
    files.write("cgroup/memory/docker/x/memory.limit_in_bytes", str(4 * GB))
    files.write("cgroup/memory/docker/x/memory.usage_in_bytes", str(3 * GB))
    files.write("cgroup/memory/docker/x/memory.stat", f"total_inactive_file {GB}\n")
    files.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    files.write("cgroup/memory/memory.usage_in_bytes", str(60 * GB))
    assert files.machine().free_bytes() == 2 * GB


def test_cores_stay_below_a_quota(files: Files) -> None:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert files.machine().cores() == count
    files.write("proc/self/cgroup", "0::/run\n")
    files.write("cgroup/run/cpu.max", "50000 100000")
    assert files.machine().cores() == 0.5
    files.write("cgroup/run/cpu.max", "max 100000")
    assert files.machine().cores() == count
    files.write("proc/self/cgroup", "3:cpu,cpuacct:/run\n")
    files.write("cgroup/cpu,cpuacct/run/cpu.cfs_quota_us", "75000")
    files.write("cgroup/cpu,cpuacct/run/cpu.cfs_period_us", "100000")
    assert files.machine().cores() == 0.75


@pytest.fixture
def session() -> Iterator[int]:
    """The leader of a session with two children, one of which has left the session, that hold 50 MB each."""
    script = f'"{sys.executable}" -c "{HOLD}" 50000000 & setsid "{sys.executable}" -c "{HOLD}" 50000000 & wait'
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        children = [int(process.stdout.readline()) for _ in range(2)]
        try:
            yield process.pid
        finally:
            for pid in (*children, process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@linux
def test_session_counts_all_of_its_processes(session: int) -> None:
    use = Machine().sessions([session])[session]
    assert 100e6 < use.bytes < 200e6
    assert use.cpu_seconds > 0


@linux
def test_session_that_has_ended_takes_nothing() -> None:
    process = subprocess.Popen(["true"], start_new_session=True)
    process.wait()
    assert Machine().sessions([process.pid])[process.pid].bytes == 0
    assert Machine().sessions([]) == {}
