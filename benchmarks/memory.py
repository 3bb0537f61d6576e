"""Peak resident memory after 1,000,000 items through `stream()` against 10,000, each in a process of its own."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from agentos.workflows.parallel import ParallelCoordinator

from .items import WORKERS, no_op
from .measuring import Ratio, Row, Series, spread

MANY = 1_000_000
FEW = 10_000
MAX_GROWTH_MB = 20
KINDS = ("generator", "range")
ROUNDS = 3  # a peak hardly depends on how busy the machine is


def stream_items(kind: str, count: int) -> None:
    items: Iterable[int] = range(count) if kind == "range" else (number for number in range(count))
    with ParallelCoordinator(WORKERS, reporter=None).stream(items, no_op) as results:
        done = sum(result.success for result in results)
    assert done == count


def own_peak_mb() -> float:
    # On Linux, ru_maxrss of a child starts at the peak of its parent, which would hide growth below it.
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
        few, many = Series("few", []), Series("many", [])
        for _ in range(ROUNDS):
            few.values.append(peak_mb(kind, FEW))
            many.values.append(peak_mb(kind, MANY))
        growth = many.median - few.median
        yield Row(
            f"peak memory, {MANY:,} items from a {kind}",
            f"{spread(many.values, _one_digit)} MB, {growth:+.1f} MB",
            f"itself with {FEW:,} items",
            f"{spread(few.values, _one_digit)} MB",
            Ratio.of(many, few),
            f"<= +{MAX_GROWTH_MB} MB",
            growth <= MAX_GROWTH_MB,
        )


def _one_digit(value: float) -> str:
    return f"{value:.1f}"


if __name__ == "__main__":
    stream_items(sys.argv[1], int(sys.argv[2]))
    print(own_peak_mb())
