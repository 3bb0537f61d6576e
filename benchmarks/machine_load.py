"""Measure how much of the machine other programs use while a benchmark runs: they delay it."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Self

STAT = Path("/proc/stat")
# Columns of the first line that count busy time: user, nice, system, irq, softirq, steal.
WORKING = (0, 1, 2, 5, 6, 7)


class OtherLoad:
    """A `with` block; afterwards `share` is the share of all processors that other programs used, 0 if unknown.

    Own usage is that of this process and of child processes that have ended in the block.
    """

    share: float = 0.0

    def __enter__(self) -> Self:
        self._start = (time.monotonic(), _all_seconds(), _own_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        started_at, all_before, own_before = self._start
        if all_before is None or (now := _all_seconds()) is None:
            return
        passed = (time.monotonic() - started_at) * (os.cpu_count() or 1)
        self.share = max(0.0, (now - all_before) - (_own_seconds() - own_before)) / passed


def _all_seconds() -> float | None:
    if not STAT.exists():
        return None
    columns = STAT.read_text().splitlines()[0].split()[1:]
    return sum(int(columns[number]) for number in WORKING) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = (resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
