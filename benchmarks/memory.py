"""Peak resident memory after 1,000,000 items through `stream()` against 10,000, each in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentos.workflows.parallel import ParallelCoordinator

from .items import WORKERS, no_op
from .measuring import Row

MANY = 1_000_000
FEW = 10_000
MOST_MB_MORE = 20
KINDS = ("generator", "range")


def stream_items(kind: str, count: int) -> None:
    items: Iterable[int] = range(count) if kind == "range" else (number for number in range(count))
    with ParallelCoordinator(WORKERS, reporter=None).stream(items, no_op) as results:
        done = sum(result.success for result in results)
    assert done == count


def own_peak_mb() -> float:
    # Linux lets a child's ru_maxrss start at its parent's peak, which would hide any growth below that.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024**2 if sys.platform == "darwin" else peak / 1024


def peak_mb(kind: str, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.memory", kind, str(count)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def rows() -> Iterator[Row]:
    for kind in KINDS:
        # One round only: a peak does not depend on how busy the machine is.
        few, many = peak_mb(kind, FEW), peak_mb(kind, MANY)
        yield Row(
            f"peak memory, 1,000,000 items from a {kind}",
            f"{many:.1f} MB ({many - few:+.1f} MB)",
            "itself with 10,000 items",
            f"{few:.1f} MB",
            many / few,
            f"<= +{MOST_MB_MORE} MB",
            many - few <= MOST_MB_MORE,
        )


if __name__ == "__main__":
    stream_items(sys.argv[1], int(sys.argv[2]))
    print(own_peak_mb())
