"""Long random tests (`make soak MINUTES=5`): promises of the suite with new random seeds, for longer."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from agentos.limits import backoff, cool_downs
from agentos.workflows.parallel import (
    AuthFailed,
    Credential,
    CredentialCoordinator,
    Interrupted,
    Limits,
    Overloaded,
    ParallelCoordinator,
    Permanent,
    RateLimited,
    Transient,
    current_item,
)
from tests.acceptance.forks import Fork
from tests.acceptance.test_crashes import crashing, forked, kill_again_and_again
from tests.conftest import eventually
from tests.pool.shared.test_restore import check_journal, check_restored
from tests.pool.test_allocator_machine import PoolMachine
from tests.runs.test_scheduler import SchedulerMachine

from .shares import seconds

KILLS = 1000

__all__ = ["forked"]  # a fixture


def test_pool_and_scheduler_rules_hold_in_random_histories() -> None:
    end = time.monotonic() + seconds(0.1)
    rounds = 0
    while time.monotonic() < end:
        for machine in (PoolMachine, SchedulerMachine):
            run_state_machine_as_test(
                machine,
                settings=settings(
                    max_examples=10, stateful_step_count=60, deadline=None, derandomize=False, database=None
                ),
            )
        rounds += 1
    print(f"{rounds} rounds of 2 x 10 histories of 60 steps")


def test_restored_owners_equal_living_ones_in_new_histories() -> None:
    end = time.monotonic() + seconds(0.1)
    rounds = 0
    while time.monotonic() < end:
        seed = random.randrange(2**32)
        check_restored(seed)
        check_journal(seed)
        rounds += 1
    print(f"{rounds} histories of 2 x 120 steps")


def test_run_survives_a_thousand_kills(tmp_path: Path, forked: Callable[..., Fork]) -> None:
    kills = rounds = 0
    while kills < KILLS:
        seed = random.randrange(2**32)
        folder = tmp_path / str(rounds)
        folder.mkdir()
        kind = random.choice(["threads"] * 4 + ["processes"])
        try:
            start = forked if kind == "threads" else crashing
            kills += kill_again_and_again(folder, kind, 10, random.Random(seed), start)
        except BaseException:
            print(f"failed with seed {seed} in {folder}")
            raise
        rounds += 1
    print(f"{kills} kills of {rounds} runs, nothing lost")


def test_random_runs_lose_no_item_and_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)
    monkeypatch.setitem(cool_downs.DEFAULT_COOL_DOWN, "auth_failed", 0.001)
    end = time.monotonic() + seconds(0.1)
    situations: Counter[str] = Counter()
    while time.monotonic() < end:
        seed = random.randrange(2**32)
        try:
            one_random_run(random.Random(seed), situations)
        except BaseException:
            print(f"seed {seed}")
            raise
    print(dict(situations))
    assert situations.keys() >= {"ok", "limited", "transient", "permanent", "overloaded", "refused", "stopped", "async"}


def one_random_run(chance: random.Random, situations: Counter[str]) -> None:
    pool = CredentialCoordinator(
        [
            Credential(f"sk-soak-{n}", quota_group=f"g{n % 3}", limits=Limits(max_concurrent=chance.randint(1, 4)))
            for n in range(chance.randint(1, 6))
        ]
    )
    max_workers = chance.randint(1, 12)
    coordinator = ParallelCoordinator(
        max_workers, pool, max_parallelism=12, reporter=None, grace_seconds=5, retries=chance.randint(0, 2), max_wait=5
    )
    count = chance.randint(0, 400)
    stop_at = chance.choice([None, None, chance.randint(0, max(count, 1))])
    ends = 0

    def step(_item: int) -> None:
        nonlocal ends
        ends += 1
        if ends == stop_at:
            situations["stopped"] += 1
            coordinator.request_shutdown()
        if current_item().should_stop and chance.random() < 0.5:
            raise Interrupted
        outcome = chance.random()
        kinds: list[tuple[float, str, BaseException]] = [
            (0.04, "limited", RateLimited(retry_after=0.002)),
            (0.07, "transient", Transient()),
            (0.09, "permanent", Permanent()),
            (0.095, "overloaded", Overloaded(retry_after=0.001)),
            (0.105, "refused", AuthFailed()),
            (0.12, "bug", ValueError()),
        ]
        for limit, name, error in kinds:
            if outcome < limit:
                situations[name] += 1
                raise error
        situations["ok"] += 1

    def worker(item: int, _: Any) -> None:
        step(item)

    async def async_worker(item: int, _: Any) -> None:
        if chance.random() < 0.1:
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))])
        step(item)

    is_async = chance.random() < 0.5
    situations["async" if is_async else "threads"] += 1
    items: Any = range(count) if chance.random() < 0.5 else iter(range(count))
    is_sized = isinstance(items, range)
    stats, results = coordinator.execute_parallel(items, async_worker if is_async else worker)
    ids = [result.item_id for result in results] + coordinator.get_checkpoints()
    assert len(ids) == len(set(ids)), "an item ended twice"
    if stats.stopped is None or is_sized:
        assert set(ids) == {str(n) for n in range(count)}
    assert stats.completed == len(results) == stats.success_count + stats.failed
    eventually(lambda: pool.get_stats()["reserved"] == 0)
    assert pool.get_stats()["waiting"] == 0
