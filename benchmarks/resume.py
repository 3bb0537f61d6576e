"""Resuming a ledger of finished items with ten left: until the first new item starts, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agentos.workflows.parallel import ParallelCoordinator

from .items import WORKERS, no_op
from .measuring import Row
from .memory import own_peak_mb

COUNTS = (100_000, 300_000, 1_000_000)
LEFT = 10
MOST_SECONDS = 8.0
MOST_MB = 250


def build(path: str, count: int) -> None:
    with ParallelCoordinator(WORKERS, ledger=path, reporter=None).stream(range(count - LEFT), no_op) as results:
        assert sum(result.success for result in results) == count - LEFT


def resume(path: str, count: int) -> tuple[float, float]:
    """Seconds until the first new item starts, and the peak of memory above that of the interpreter."""
    interpreter = own_peak_mb()
    started: list[float] = []

    def worker(item: int, _credential: str | None) -> int:
        started.append(time.perf_counter())
        return item

    start = time.perf_counter()
    with ParallelCoordinator(WORKERS, ledger=path, reporter=None).stream(range(count), worker) as results:
        seen = sum(1 for _ in results)
    assert (seen, len(started)) == (count, LEFT)
    return min(started) - start, own_peak_mb() - interpreter


def measured(folder: Path, count: int) -> tuple[float, float]:
    for step in ("build", "resume"):
        command = [sys.executable, "-m", "benchmarks.resume", step, str(folder / f"{count}.db"), str(count)]
        done = subprocess.run(command, cwd=Path(__file__).parent.parent, check=True, stdout=subprocess.PIPE, text=True)
    seconds, megabytes = map(float, done.stdout.split())
    return seconds, megabytes


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        figures = {count: measured(Path(folder), count) for count in COUNTS}
    per_100_000 = {count: seconds / count * 100_000 for count, (seconds, _) in figures.items()}
    few = per_100_000[COUNTS[0]]
    for count, (seconds, megabytes) in figures.items():
        yield Row(
            f"resume, {count:,} items on record",
            f"{seconds:.2f} s, {per_100_000[count]:.2f} s per 100,000, +{megabytes:.0f} MB",
            "itself with 100,000 items",
            f"{few:.2f} s per 100,000",
            per_100_000[count] / few,
            f"<= {MOST_SECONDS:.0f} s, +{MOST_MB} MB",
            seconds <= MOST_SECONDS and megabytes <= MOST_MB,
        )


if __name__ == "__main__":
    _, step, path, count = sys.argv
    if step == "build":
        build(path, int(count))
    else:
        print(*resume(path, int(count)))
