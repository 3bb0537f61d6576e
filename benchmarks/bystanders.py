"""How busy other programs keep the machine while something is measured: whoever waits for a processor is late."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Self

STAT = Path("/proc/stat")
# The columns of its first line in which a processor works: user, nice, system, irq, softirq, steal.
WORKING = (0, 1, 2, 5, 6, 7)


class Bystanders:
    """In a `with` block; afterwards `share` of all processors was used by others, 0 where that cannot be told.

    What was measured are the processes that were started and have ended in the block.
    """

    share: float = 0.0

    def __enter__(self) -> Self:
        self._start = (time.monotonic(), _all_seconds(), _own_seconds())
        return self

    def __exit__(self, *_: object) -> None:
        started_at, every, own = self._start
        if every is None or (now := _all_seconds()) is None:
            return
        passed = (time.monotonic() - started_at) * (os.cpu_count() or 1)
        self.share = max(0.0, (now - every) - (_own_seconds() - own)) / passed


def _all_seconds() -> float | None:
    if not STAT.exists():
        return None
    columns = STAT.read_text().splitlines()[0].split()[1:]
    return sum(int(columns[number]) for number in WORKING) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
