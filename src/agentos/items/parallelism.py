"""How many items a run executes at once, what bounds that number, and what items take of the machine.

`ParallelBound` is a fact that the run hands on: to the rule that says what binds the run, the display, the summary and
the plan. The rule that decides the number is `agentos.runs._rules.auto_parallel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# What can bound the number of items at once (`ParallelBound.by`).
FIRST_ITEMS = "first items"  # few items start first, until it is known what they take
MEMORY = "memory"
CORES = "cores"
POOL = "keys"  # the credentials: as many leases as they admit at once
FIXED = "a fixed number"  # --parallel N, --max-parallelism N, or a limit of the process such as ulimit -n

# Requests for a lease that a run keeps open beyond its running items, at least. With them the number of running items
# follows the credentials at once, and the input is not read far ahead.
MIN_OPEN_REQUESTS = 8


def with_open_requests(running: int) -> int:
    """Return how many items may run or request a lease in a run whose credentials decide, while `running` items run."""
    return running + max(MIN_OPEN_REQUESTS, running // 4)


class ParallelBound(NamedTuple):
    """The number of items at once that is in force now, and the resource that bounds it."""

    at_once: int
    by: str  # "first items", "memory", "cores", "keys" or "a fixed number"
    item_bytes: float | None = None  # the peak of an item's memory: measured, or assumed while none has ended
    free_bytes: float | None = None  # memory for items: what is free, with what running items use
    is_assumed: bool = False  # `item_bytes` is an assumption
    item_cores: float | None = None  # processor time of an item per second
    cores: float | None = None  # processors that this process may use
    limit: str | None = None  # of a fixed number: the option or limit as a shell shows it

    def __str__(self) -> str:
        return f"{self.at_once} at once: bound by {self.resource}"

    @property
    def resource(self) -> str:
        """The resource with its figures, for people."""
        if self.by == MEMORY and self.item_bytes is not None and self.free_bytes is not None:
            assumed = " assumed until some have ended" if self.is_assumed else ""
            return f"memory, {bytes_text(self.item_bytes)} per item{assumed}, {bytes_text(self.free_bytes)} free"
        if self.by == CORES and self.cores is not None:
            each = "" if self.item_cores is None else f"{self.item_cores:.2g} of a core per item, "
            return f"cores, {each}{self.cores:g} in all"
        if self.by == FIRST_ITEMS:
            return "the first items, until their memory and processor time are known"
        if self.by == POOL:
            return "what the keys allow"
        return self.limit or self.by


class ItemUse(NamedTuple):
    """What one item takes of the machine."""

    bytes: float  # of a running item now, of an ended one its peak
    cpu_seconds: float
    seconds: float  # since its start


class MachineUse(NamedTuple):
    """The machine at one instant, and what the items of a run take of it."""

    free_bytes: float | None  # that can be used without swapping, within the limits of the process; None: not known
    cores: float  # processors that this process may use
    running: Sequence[ItemUse] = ()
    ended: Sequence[ItemUse] = ()  # items that have succeeded since the last look


def bytes_text(count: float) -> str:
    """Return a number of bytes with about two digits: 310 MB, 4.1 GB."""
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000.0
        if count < 999.5 or unit == "TB":
            break
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
