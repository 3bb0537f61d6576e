"""What a history is about: keys and their limits, what the provider really allows, runs and their items."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from agentos.limits.declaration import Limits
from agentos.testing import Concurrency, Rule, SimulatedProvider, SlidingWindow, TokenBucket
from agentos.testing.rules import DailyQuota, TokensPerMinute

# 2026-11-16 12:00:00 UTC, and half a minute before the day ends.
NOON, MIDNIGHT = 1_794_830_400.0, 1_794_873_570.0
STORES = ("told", "told", "polled", "memory")
KINDS = ("mixed", "mixed", "mixed", "requests", "tokens", "day", "learned", "together")


@dataclass
class Key:
    id: str
    group: str
    provider: str
    scopes: frozenset[str]
    limits: Limits


@dataclass
class Planned:
    """One run."""

    items: int
    workers: int
    retries: int
    keys: list[str]  # those that its process has
    timeout: float | None


@dataclass
class Setting:
    store: str  # told (as Redis does), polled (as SQLite), memory
    kind: str
    epoch: float
    ttl: float
    keys: dict[str, Key]
    runs: list[Planned]
    provider: SimulatedProvider
    chance_of_failure: float
    faults_every: float  # seconds, on average
    models: list[str | None] = field(default_factory=lambda: [None])
    slow_share: float = 0.05  # of the answers take long


def make_setting(chance: random.Random) -> Setting:
    store, kind = chance.choice(STORES), chance.choice(KINDS)
    store = store if kind != "together" else chance.choice(["told", "memory"])
    keys = {key.id: key for key in _keys(chance, kind)}
    models: list[str | None] = [None] if chance.random() < 0.6 else [None, "m1", "m2"]
    runs = [_run(chance, list(keys), kind) for _ in range(chance.randint(1, 3) if kind != "together" else 1)]
    return Setting(
        store=store,
        kind=kind,
        epoch=MIDNIGHT if kind == "day" else NOON,
        ttl=chance.choice([4.0, 6.0, 15.0]),
        keys=keys,
        runs=runs,
        provider=_provider(chance, kind, keys),
        chance_of_failure=0.0 if kind == "together" else chance.choice([0.0, 0.05, 0.2]),
        faults_every=60.0 if kind == "together" else chance.choice([0.3, 1.0, 4.0]),
        models=models if kind != "together" else [None],
        slow_share=0.0 if kind == "together" else 0.05,
    )


def limits_of(chance: random.Random, kind: str) -> Limits:
    most = chance.choice([1, 1, 2, 4])
    what = chance.choice(["requests", "tokens", "day", "learned"]) if kind == "mixed" else kind
    if what == "requests":
        return Limits(requests_per_minute=chance.choice([20, 60, 300]), burst=chance.choice([None, 1, 5]),
                      max_concurrent=most)  # fmt: skip
    if what == "tokens":
        per_minute = chance.choice([None, 120])
        return Limits(tokens_per_minute=chance.choice([500, 2000]), requests_per_minute=per_minute, max_concurrent=most)
    if what == "day":
        return Limits(requests_per_day=chance.choice([5, 15, 40]), max_concurrent=most)
    return Limits(max_concurrent=most)


def _keys(chance: random.Random, kind: str) -> list[Key]:
    if kind == "together":  # groups that were declared apart and have one limit
        return [Key(f"k{n}", f"g{n}", "p", frozenset(), Limits(max_concurrent=4)) for n in range(2)]
    count = chance.randint(1, 5)
    groups = max(1, count - chance.randint(0, 2))
    keys = []
    for n in range(count):
        scopes = frozenset({"m1"}) if n and chance.random() < 0.1 else frozenset()
        keys.append(Key(f"k{n}", f"g{n % groups}", chance.choice(["p", "p", "q"]), scopes, limits_of(chance, kind)))
    return keys


def _run(chance: random.Random, keys: list[str], kind: str) -> Planned:
    own = keys if chance.random() < 0.7 or kind == "together" else chance.sample(keys, chance.randint(1, len(keys)))
    own = sorted({"k0", *own})  # which serves everything
    return Planned(
        items=400 if kind == "together" else chance.randint(3, 40),
        workers=16 if kind == "together" else chance.randint(1, 8),
        retries=chance.randint(0, 3),
        keys=own,
        timeout=None if kind == "together" else chance.choice([None, 5.0, 20.0]),
    )


def _provider(chance: random.Random, kind: str, keys: dict[str, Key]) -> SimulatedProvider:
    groups = {key.id: "together" if kind == "together" else key.group for key in keys.values()}
    limits: dict[str, list[Rule]] = {}
    for key in keys.values():
        limits.setdefault(groups[key.id], _rules(chance, key.limits))
    if kind == "together":
        limits["together"] = [TokenBucket(10.0, 10.0)]
    return SimulatedProvider(
        list(keys),
        limits=limits,
        groups=groups,
        headers=chance.choice(["on", "off", "off"]) if kind != "together" else "off",
        style=chance.choice(["openai", "anthropic", "gemini"]),
        retry_after=chance.choice(["seconds", "seconds", None]) if kind != "together" else "seconds",
        clock=lambda: 0.0,
    )


def _rules(chance: random.Random, limits: Limits) -> list[Rule]:
    """What the provider really allows: what was declared, at times a little less, and where nothing was, something."""
    less = chance.choice([1.0, 1.0, 0.7])
    rules: list[Rule] = []
    if limits.requests_per_minute is not None:
        rules.append(SlidingWindow(max(1, int(limits.requests_per_minute * less))))
    if limits.tokens_per_minute is not None:
        rules.append(TokensPerMinute(limits.tokens_per_minute))
    if limits.requests_per_day is not None:
        rules.append(DailyQuota(limits.requests_per_day))
    if not rules:
        rules.append(TokenBucket(chance.choice([1.0, 5.0, 20.0]), chance.choice([1, 5, 20])))
    if chance.random() < 0.2:
        rules.append(Concurrency(chance.choice([1, 2, 4])))
    return rules
