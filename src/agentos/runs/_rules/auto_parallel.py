"""AutoParallel: how many items of a run may be executed at once, if no number is given.

The credentials bound a run by their leases: each item needs one. `AutoParallel` adds two bounds. The machine: few
commands start first, then as many as memory and cores allow by what the commands so far have taken; where memory gets
short, nothing new starts, and no command is ended. And, in a run with a gateway, whose items hold no lease: one more
item is added only while no request waits for a credential.
"""

from __future__ import annotations

from collections import deque
from math import ceil

from agentos.items.parallelism import (
    CORES,
    FIRST_ITEMS,
    FIXED,
    MEMORY,
    POOL,
    ItemUse,
    MachineUse,
    ParallelBound,
    with_open_requests,
)

# Items that are started before it is known what they take.
FIRST = 4
# Bytes that an item is assumed to take until MIN_ENDED items have succeeded: an agent with its tools takes about that.
ASSUMED_BYTES = 1e9
MIN_ENDED = 3
# Ended items whose peaks are remembered: one item that took much more than all others does not bound the run for ever.
REMEMBERED_ITEMS = 64
# The next item may take this much more than the largest so far.
PEAK_MARGIN = 1.1
# Memory that stays free: this share, but not more bytes than that.
FREE_SHARE = 0.1
MAX_FREE_BYTES = 256e6
# Share of the cores that items may use, by what they used so far. Below 1: with items that only calculate, the number
# settles at one per core.
CORES_SHARE = 0.9
# Seconds that items must have run, in sum, before their use of the cores counts: starting a program is busier.
MIN_SECONDS = 2.0
# More items at once than any machine or pool admits.
MAX_ITEMS = 100_000


class AutoParallel:
    """The number of items at once of one run. Pure: every fact is an argument.

    `machine`: None for items that run inside this process. `admitted`: requests at once that the credentials admit,
    None without credentials. `has_leases`: each item holds a lease, so that the pool bounds the run by itself. `cap`:
    the most items at once that options and limits of the process allow, `cap_name` as a shell writes it.
    """

    def __init__(self, machine: MachineUse | None, *, admitted: int | None = None, has_leases: bool = True,
                 cap: int | None = None, cap_name: str = "") -> None:  # fmt: skip
        self._machine = machine
        self._admitted = admitted
        self._has_leases = has_leases and admitted is not None
        self._cap = ParallelBound(MAX_ITEMS if cap is None else cap, FIXED, limit=cap_name)
        self._first = FIRST
        self._through_gateway = max(1, admitted or 1)  # items whose requests go through a gateway
        self._ended: deque[ItemUse] = deque(maxlen=REMEMBERED_ITEMS)
        self._limit, self.bound = self._decide()

    def limit(self, running: int) -> int:
        """Return how many items may run or request a lease at once, while `running` items run."""
        if not self._has_leases:
            return self._limit
        return min(self._limit, with_open_requests(running))

    def look(self, machine: MachineUse | None, running: int, *, admitted: int | None = None,
             is_waiting: bool = False) -> None:  # fmt: skip
        """Decide the number anew. `running`: items. `admitted`: requests at once that the credentials admit now.
        `is_waiting`: a request through the gateway waits for a credential."""
        self._machine, self._admitted = machine, admitted
        if machine is not None:
            self._ended.extend(machine.ended)
            if running >= self._first and self._is_known(machine):
                self._first = min(2 * self._first, MAX_ITEMS)
        if running >= self._through_gateway and not is_waiting:
            self._through_gateway += max(1, self._through_gateway // 4)
        self._through_gateway = max(self._through_gateway, admitted or 1)
        self._limit, self.bound = self._decide()

    def expected(self) -> ParallelBound:
        """Return the smallest bound beside the credentials once the first items are known: for a plan, which simulates
        the credentials."""
        bounds = [self._cap, *([] if self._machine is None else self._machine_bounds(self._machine))]
        return min((bound for bound in bounds if bound.by != FIRST_ITEMS), key=lambda bound: bound.at_once)

    def _is_known(self, machine: MachineUse) -> bool:
        """Return whether something is known about the items: one has ended, or they have run for a while."""
        return bool(self._ended) or sum(use.seconds for use in machine.running) >= MIN_SECONDS

    def _decide(self) -> tuple[int, ParallelBound]:
        """Return the number and the smallest of all bounds, which is that of the pool where leases bound the run.

        At least one item runs: else the run would never end.
        """
        bounds = [self._cap]
        if self._machine is not None:
            bounds += self._machine_bounds(self._machine)
        if self._admitted is not None and not self._has_leases:
            bounds.append(ParallelBound(self._through_gateway, POOL))
        bound = min(bounds, key=lambda bound: bound.at_once)
        if self._has_leases and self._admitted is not None and self._admitted <= bound.at_once:
            return bound.at_once, ParallelBound(self._admitted, POOL)
        return bound.at_once, bound

    def _machine_bounds(self, machine: MachineUse) -> list[ParallelBound]:
        bounds = [ParallelBound(self._first, FIRST_ITEMS)]
        if machine.free_bytes is not None:
            each, is_assumed = self._item_bytes(machine)
            total = max(0.0, machine.free_bytes) + sum(use.bytes for use in machine.running)
            free = total - min(total * FREE_SHARE, MAX_FREE_BYTES)
            bounds.append(ParallelBound(_at_least_one(free / each), MEMORY, each, free, is_assumed))
        each_cores = self._item_cores(machine)
        if each_cores:
            count = max(ceil(machine.cores), _at_least_one(machine.cores * CORES_SHARE / each_cores))
            bounds.append(ParallelBound(count, CORES, item_cores=each_cores, cores=machine.cores))
        return bounds

    def _item_bytes(self, machine: MachineUse) -> tuple[float, bool]:
        """Return what the next item may take, and whether that is an assumption."""
        largest = max((use.bytes for use in (*self._ended, *machine.running)), default=0.0)
        is_assumed = len(self._ended) < MIN_ENDED and largest * PEAK_MARGIN < ASSUMED_BYTES
        return (ASSUMED_BYTES if is_assumed else max(largest * PEAK_MARGIN, 1.0)), is_assumed

    def _item_cores(self, machine: MachineUse) -> float | None:
        """Return the processor time of an item per second; None if items have not run long enough."""
        uses = (*self._ended, *machine.running)
        seconds = sum(use.seconds for use in uses)
        return None if seconds < MIN_SECONDS else sum(use.cpu_seconds for use in uses) / seconds


def _at_least_one(count: float) -> int:
    return max(1, int(min(count, MAX_ITEMS)))
