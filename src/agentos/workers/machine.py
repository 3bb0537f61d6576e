"""Measure this machine: memory that is free within the limits of the process, its cores, and what sessions of processes
take of both. Linux tells all of it; elsewhere only the cores are known.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from agentos.items.parallelism import MachineUse

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
# Limits from here on are none: cgroup v1 writes "no limit" as a number of about 2**63.
NO_LIMIT = 2.0**60
# Fields of /proc/PID/stat after the name of the program: parent, session, and four times in clock ticks (its own, and
# those of children that it has waited for).
_PARENT, _SESSION, _TIMES = 1, 3, slice(11, 15)


class SessionUse(NamedTuple):
    """What all processes of a session, and their descendants, take now."""

    bytes: float
    cpu_seconds: float


class Machine:
    """Reads the files of one machine. `proc` and `cgroups`: where their file systems are."""

    def __init__(self, proc: Path = PROC, cgroups: Path = CGROUPS) -> None:
        self._proc = str(proc)
        self._limits = tuple(_memory_groups(proc / "self" / "cgroup", cgroups))
        self._quotas = tuple(_cpu_groups(proc / "self" / "cgroup", cgroups))
        self._tick = os.sysconf("SC_CLK_TCK")

    def use(self) -> MachineUse:
        """Return what is free, without items."""
        return MachineUse(self.free_bytes(), self.cores())

    def free_bytes(self) -> float | None:
        """Return the bytes that can be used without swapping; the smallest of what the machine and each cgroup above
        this process leave. None if nothing is known."""
        available = _fields(f"{self._proc}/meminfo").get("MemAvailable:")
        amounts = [] if available is None else [available * 1024]
        amounts += [free for group in self._limits if (free := group.free()) is not None]
        return min(amounts, default=None)

    def cores(self) -> float:
        """Return the processors that this process may use, by its affinity and by the quotas of its cgroups."""
        count = float(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
        return min([count, *(quota for group in self._quotas if (quota := group.quota()) is not None)])

    def sessions(self, leaders: Collection[int]) -> dict[int, SessionUse]:
        """Return what the sessions of these leaders take. A process that has left its session counts where its parent
        does. Takes about 10 µs per process of the machine."""
        if not leaders:
            return {}
        processes = dict(self._processes())
        bytes_ = dict.fromkeys(leaders, 0.0)
        seconds = dict.fromkeys(leaders, 0.0)
        for pid, fields in processes.items():
            leader = _leader_of(pid, processes, bytes_)
            if leader is not None:
                bytes_[leader] += self._bytes_of(pid)
                seconds[leader] += sum(map(int, fields[_TIMES])) / self._tick
        return {leader: SessionUse(bytes_[leader], seconds[leader]) for leader in leaders}

    def _processes(self) -> Iterator[tuple[int, list[bytes]]]:
        with contextlib.suppress(OSError):  # no such file system
            for name in os.listdir(self._proc):  # noqa: PTH208
                if name.isdecimal():
                    content = _read(f"{self._proc}/{name}/stat")  # b"" if it has ended meanwhile
                    if content:
                        yield int(name), content.rpartition(b")")[2].split()

    def _bytes_of(self, pid: int) -> float:
        """Return the memory of a process that no other process gives back: not the pages of files, such as programs and
        libraries, which processes share."""
        fields = _fields(f"{self._proc}/{pid}/status")
        return 1024 * (fields.get("RssAnon:", 0.0) + fields.get("RssShmem:", 0.0))


def _leader_of(pid: int, processes: dict[int, list[bytes]], leaders: Collection[int]) -> int | None:
    seen = set()
    while pid in processes and pid not in seen:
        session = int(processes[pid][_SESSION])
        if session in leaders:
            return session
        seen.add(pid)
        pid = int(processes[pid][_PARENT])
    return None


# --- cgroups ------------------------------------------------------------------------------------------------------


class _MemoryGroup(NamedTuple):
    """A cgroup with a limit on memory: its folder, and the names of its files and fields."""

    folder: Path
    limits: tuple[str, ...]
    current: str
    prefix: str  # of the fields for the group with all groups below it

    def free(self) -> float | None:
        """Return the bytes up to the limit, with those of the page cache that the system would give back first. None if
        there is no limit."""
        limits = [limit for name in self.limits if (limit := _number(self.folder / name)) is not None]
        current = _number(self.folder / self.current)
        if current is None or not limits or min(limits) >= NO_LIMIT:
            return None
        cache = _fields(str(self.folder / "memory.stat"))
        reclaimable = cache.get(f"{self.prefix}inactive_file", 0.0) + cache.get(f"{self.prefix}active_file", 0.0) / 2
        return max(0.0, min(limits) - current + reclaimable)


class _CpuGroup(NamedTuple):
    folder: Path
    is_v2: bool

    def quota(self) -> float | None:
        """Return the processors that the group may use; None if there is no quota."""
        if self.is_v2:
            words = _read(str(self.folder / "cpu.max")).split()
            return float(words[0]) / float(words[1]) if len(words) == 2 and words[0].isdigit() else None
        quota, period = _number(self.folder / "cpu.cfs_quota_us"), _number(self.folder / "cpu.cfs_period_us")
        return quota / period if quota is not None and period and quota > 0 else None


def _memory_groups(membership: Path, root: Path) -> Iterator[_MemoryGroup]:
    for controllers, path in _memberships(membership):
        if controllers == "":
            for folder in _upwards(root, path):
                yield _MemoryGroup(folder, ("memory.max", "memory.high"), "memory.current", "")
        elif "memory" in controllers.split(","):
            for folder in _upwards(root / "memory", path):
                yield _MemoryGroup(folder, ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_")


def _cpu_groups(membership: Path, root: Path) -> Iterator[_CpuGroup]:
    for controllers, path in _memberships(membership):
        if controllers == "":
            yield from (_CpuGroup(folder, True) for folder in _upwards(root, path))
        elif "cpu" in controllers.split(","):
            name = next((name for name in (controllers, "cpu") if (root / name).is_dir()), "cpu")
            yield from (_CpuGroup(folder, False) for folder in _upwards(root / name, path))


def _memberships(file: Path) -> Iterator[tuple[str, str]]:
    """Yield controllers ("" for cgroup v2) and path of each cgroup of this process."""
    for line in _read(str(file)).decode(errors="replace").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        yield controllers, path


def _upwards(root: Path, path: str) -> Iterator[Path]:
    """Yield the folders of a cgroup and of all above it that exist here: in a container its own may be the root."""
    folder = root / path.strip("/")
    while True:
        if folder.is_dir():
            yield folder
        if folder == root or root not in folder.parents:
            return
        folder = folder.parent


# --- files --------------------------------------------------------------------------------------------------------


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - faster than Path
            return file.read()
    except OSError:
        return b""


def _number(path: Path) -> float | None:
    """Return the number in a file; None if there is none, as for "max"."""
    try:
        return float(_read(str(path)))
    except ValueError:
        return None


def _fields(path: str) -> dict[str, float]:
    """Return the numbers in a file of lines with a name and a number, by name."""
    fields = {}
    for line in _read(path).decode(errors="replace").splitlines():
        name, *words = line.split()
        with contextlib.suppress(ValueError, IndexError):
            fields[name] = float(words[0])
    return fields
