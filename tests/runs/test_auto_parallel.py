"""The number of items at once where none is given: bound by memory, cores, the keys, or an option."""

from __future__ import annotations

import random

import pytest

from agentos.items.parallelism import CORES, FIRST_ITEMS, FIXED, MEMORY, MIN_OPEN_REQUESTS, POOL, ItemUse, MachineUse
from agentos.runs._rules.auto_parallel import ASSUMED_BYTES, FIRST, MIN_ENDED, AutoParallel

GB = 1e9


def machine(free: float | None, running: int = 0, each: float = 0.0, *, cpu: float = 0.0, ended: int = 0,
            cores: float = 8) -> MachineUse:  # fmt: skip
    """A machine with `running` items and `ended` ones that take `each` bytes."""
    use = ItemUse(each, cpu * 10, 10.0)
    return MachineUse(free, cores, [use] * running, [use] * ended)


def grown(auto: AutoParallel, free: float, each: float, *, cpu: float = 0.0, cores: float = 8) -> AutoParallel:
    """Let a run grow until its number does not change: all items are busy, of one size, and some have ended."""
    for _ in range(30):
        running = auto.limit(1_000_000)
        auto.look(machine(free - running * each, running, each, cpu=cpu, ended=MIN_ENDED, cores=cores), running)
    return auto


def test_first_items_are_few_until_they_have_run() -> None:
    auto = AutoParallel(machine(100 * GB))
    assert (auto.bound.at_once, auto.bound.by) == (FIRST, FIRST_ITEMS)
    auto.look(MachineUse(99 * GB, 8, [ItemUse(1e6, 0, 0.1)] * FIRST), FIRST)
    assert auto.bound.at_once == FIRST
    auto.look(MachineUse(99 * GB, 8, [ItemUse(1e6, 0, 1.0)] * FIRST), FIRST)
    assert auto.bound.at_once == 2 * FIRST


def test_items_that_stay_unused_do_not_raise_the_number() -> None:
    auto = AutoParallel(machine(100 * GB))
    for _ in range(10):
        auto.look(machine(90 * GB, FIRST - 1), FIRST - 1)
    assert auto.bound.at_once == FIRST


def test_memory_bounds_by_an_assumed_peak_until_items_have_ended() -> None:
    auto = AutoParallel(machine(4 * GB))
    for _ in range(10):
        auto.look(machine(4 * GB, 3, 1e6), 3)
    assert auto.bound.by == MEMORY
    assert auto.bound.is_assumed
    assert auto.bound.item_bytes == ASSUMED_BYTES
    assert auto.bound.at_once == 3
    assert str(auto.bound) == "3 at once: bound by memory, 1.0 GB per item assumed until some have ended, 3.7 GB free"


def test_memory_bounds_by_the_measured_peak() -> None:
    auto = grown(AutoParallel(machine(4 * GB)), 4 * GB, 0.28 * GB)
    assert auto.bound.by == MEMORY
    assert auto.bound.at_once == 12
    assert str(auto.bound) == "12 at once: bound by memory, 308 MB per item, 3.7 GB free"


def test_memory_used_by_others_lowers_the_number() -> None:
    auto = grown(AutoParallel(machine(8 * GB)), 8 * GB, GB)
    assert auto.bound.at_once == 7
    auto.look(machine(0.5 * GB, 7, GB), 7)
    assert auto.bound.at_once == 6
    auto.look(machine(0.0, 1, GB), 1)
    assert auto.bound.at_once == 1  # at least one item runs


def test_an_item_larger_than_all_before_lowers_the_number() -> None:
    auto = grown(AutoParallel(machine(8 * GB)), 8 * GB, 0.1 * GB)
    assert auto.bound.at_once > 60
    auto.look(MachineUse(5 * GB, 8, [ItemUse(2 * GB, 0, 10)]), 1)
    assert auto.bound.at_once == 3


def test_unknown_memory_bounds_nothing() -> None:
    auto = AutoParallel(machine(None))
    for _ in range(10):
        auto.look(machine(None, auto.bound.at_once), auto.bound.at_once)
    assert auto.bound.at_once > 1000


def test_cores_bound_by_what_items_used() -> None:
    auto = grown(AutoParallel(machine(500 * GB)), 500 * GB, 1e6, cpu=0.25, cores=8)
    assert auto.bound.by == CORES
    assert auto.bound.at_once == 28
    assert str(auto.bound) == "28 at once: bound by cores, 0.25 of a core per item, 8 in all"


def test_items_that_only_calculate_settle_at_one_per_core() -> None:
    auto = AutoParallel(machine(500 * GB, cores=2))
    for _ in range(30):
        running = auto.bound.at_once
        auto.look(machine(400 * GB, running, 1e6, cpu=min(1.0, 2 / running), cores=2), running)
    assert auto.bound.at_once == 2


def test_leases_bound_and_the_number_follows_them_at_once() -> None:
    auto = AutoParallel(None, admitted=4)
    assert (auto.bound.at_once, auto.bound.by) == (4, POOL)
    assert auto.limit(0) == MIN_OPEN_REQUESTS
    assert auto.limit(4) == 4 + MIN_OPEN_REQUESTS  # the pool may grant more at any time
    assert auto.limit(400) == 500


def test_cap_holds_and_is_named() -> None:
    auto = AutoParallel(None, admitted=100, cap=10, cap_name="--max-parallelism 10")
    assert auto.limit(9) == 10
    assert str(auto.bound) == "10 at once: bound by --max-parallelism 10"
    assert auto.bound.by == FIXED


def test_gateway_adds_items_only_while_no_request_waits() -> None:
    auto = AutoParallel(None, admitted=4, has_leases=False)
    assert auto.limit(4) == 4
    auto.look(None, 4, admitted=4, is_waiting=True)
    assert auto.limit(4) == 4
    auto.look(None, 4, admitted=4)
    assert auto.limit(5) == 5
    auto.look(None, 4, admitted=4)  # the fifth has not started yet
    assert auto.limit(5) == 5
    auto.look(None, 5, admitted=16)  # more was learned
    assert auto.limit(16) == 16


@pytest.mark.parametrize("seed", range(20))
def test_random_items_of_bounded_size_never_exceed_the_memory(seed: int) -> None:
    """Items of up to 1 GB, which take their memory at any time after their start, on machines of 2 to 64 GB. The run
    starts as many as the rule allows, and looks every half second."""
    rng = random.Random(seed)
    total = rng.uniform(2, 64) * GB
    auto = AutoParallel(MachineUse(total, 64))
    running: list[tuple[float, float, float]] = []  # start, instant at which its memory is taken, end
    ended: list[ItemUse] = []
    for step in range(400):
        now = step * 0.5
        for item in [item for item in running if item[2] <= now]:
            running.remove(item)
            ended.append(ItemUse(GB, 0.0, item[2] - item[0]))
        uses = [ItemUse(GB if item[1] <= now else 1e7, 0.0, now - item[0]) for item in running]
        used = sum(use.bytes for use in uses)
        assert used <= total
        auto.look(MachineUse(total - used, 64, uses, ended), len(running))
        ended = []
        while len(running) < auto.limit(len(running)):
            takes = now + rng.uniform(0, 5)
            running.append((now, takes, takes + rng.uniform(0.5, 5)))
