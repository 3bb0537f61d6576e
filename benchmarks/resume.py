"""Resume a ledger in which all but ten items are done: time until the first new item starts, in a fresh process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agentos.workflows.parallel import ParallelCoordinator

from . import disk
from .items import WORKERS, no_op
from .measuring import Ratio, Row, Series, spread
from .memory import own_peak_mb

COUNTS = (100_000, 300_000, 1_000_000)
UNFINISHED = 10
ROUNDS = 3
MAX_SECONDS = 8.0
MAX_MB = 250


def build(path: str, count: int) -> None:
    with ParallelCoordinator(WORKERS, ledger=path, reporter=None).stream(range(count - UNFINISHED), no_op) as results:
        assert sum(result.success for result in results) == count - UNFINISHED


def resume(path: str, count: int) -> tuple[float, float]:
    """Return the seconds until the first new item starts, and the peak memory above that of the interpreter in MB."""
    interpreter = own_peak_mb()
    start_times: list[float] = []

    def worker(item: int, _credential: str | None) -> int:
        start_times.append(time.perf_counter())
        return item

    start = time.perf_counter()
    with ParallelCoordinator(WORKERS, ledger=path, reporter=None).stream(range(count), worker) as results:
        result_count = sum(1 for _ in results)
    assert (result_count, len(start_times)) == (count, UNFINISHED)
    return min(start_times) - start, own_peak_mb() - interpreter


def run_step(step: str, path: Path, count: int) -> str:
    command = [sys.executable, "-m", "benchmarks.resume", step, str(path), str(count)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def resumed(built: Path, count: int) -> tuple[float, float]:
    """Resume a copy of the ledger, because resuming finishes all items."""
    copy = built.with_name("copy.db")
    shutil.copy(built, copy)
    try:
        seconds, megabytes = map(float, run_step("resume", copy, count).split())
    finally:
        for file in built.parent.glob("copy.db*"):
            file.unlink()
    return seconds, megabytes


def rows() -> Iterator[Row]:
    per_100_000 = {count: Series("resume", []) for count in COUNTS}
    megabytes: dict[int, list[float]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory(prefix=disk.PREFIX, dir=disk.parent()) as folder:
        built = {count: Path(folder) / f"{count}.db" for count in COUNTS}
        for count, path in built.items():
            run_step("build", path, count)
        for _ in range(ROUNDS):
            for count, path in built.items():
                seconds, more = resumed(path, count)
                per_100_000[count].values.append(seconds / count * 100_000)
                megabytes[count].append(more)
    yield from (_row(count, per_100_000, max(megabytes[count])) for count in COUNTS)


def _row(count: int, per_100_000: dict[int, Series], megabytes: float) -> Row:
    few, many = per_100_000[COUNTS[0]], per_100_000[count]
    seconds = many.median * count / 100_000
    return Row(
        f"resume, {count:,} items on record",
        f"{seconds:.2f} s, {spread(many.values, _two_digits)} s per 100,000, +{megabytes:.0f} MB",
        f"itself with {COUNTS[0]:,} items",
        f"{spread(few.values, _two_digits)} s per 100,000",
        Ratio.of(many, few),
        f"<= {MAX_SECONDS:.0f} s, +{MAX_MB} MB",
        seconds <= MAX_SECONDS and megabytes <= MAX_MB,
    )


def _two_digits(value: float) -> str:
    return f"{value:.2f}"


if __name__ == "__main__":
    _, step, path, count = sys.argv
    if step == "build":
        build(path, int(count))
    else:
        print(*resume(path, int(count)))
