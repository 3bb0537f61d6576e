"""Draw the scenario of a history from its seed: keys and declared limits, the provider's real limits, runs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from agentos.limits.declaration import Limits
from agentos.testing import Concurrency, Rule, SimulatedProvider, SlidingWindow, TokenBucket
from agentos.testing.rules import DailyQuota, TokensPerMinute

# 2026-11-16 12:00:00 UTC, and half a minute before the day ends.
NOON, MIDNIGHT = 1_794_830_400.0, 1_794_873_570.0
# "machine": an SQLite file and sockets; "server": Redis, through which messages can get lost.
STORES = ("machine", "server", "server", "memory")
KINDS = ("mixed", "mixed", "mixed", "requests", "tokens", "day", "learned", "hidden_group")


@dataclass
class Key:
    id: str
    group: str
    provider: str
    scopes: frozenset[str]
    limits: Limits


@dataclass
class RunPlan:
    """The options of one run."""

    items: int
    workers: int
    retries: int
    keys: list[str]  # ids of the keys that its process declares
    timeout: float | None


@dataclass
class Scenario:
    """Everything that is fixed before the first step."""

    store: str  # one of STORES
    kind: str  # one of KINDS: which limits the keys declare
    epoch: float
    ttl: float
    keys: dict[str, Key]
    runs: list[RunPlan]
    provider: SimulatedProvider
    failure_probability: float
    mean_fault_interval: float  # seconds
    models: list[str | None] = field(default_factory=lambda: [None])
    slow_answer_share: float = 0.05  # share of answers that take 1 to 30 s


def make_scenario(rng: random.Random) -> Scenario:
    store, kind = rng.choice(STORES), rng.choice(KINDS)
    store = store if kind != "hidden_group" else rng.choice(["machine", "memory"])
    keys = {key.id: key for key in _keys(rng, kind)}
    models: list[str | None] = [None] if rng.random() < 0.6 else [None, "m1", "m2"]
    runs = [_run(rng, list(keys), kind) for _ in range(rng.randint(1, 3) if kind != "hidden_group" else 1)]
    return Scenario(
        store=store,
        kind=kind,
        epoch=MIDNIGHT if kind == "day" else NOON,
        ttl=rng.choice([4.0, 6.0, 15.0]),
        keys=keys,
        runs=runs,
        provider=_provider(rng, kind, keys),
        failure_probability=0.0 if kind == "hidden_group" else rng.choice([0.0, 0.05, 0.2]),
        mean_fault_interval=60.0 if kind == "hidden_group" else rng.choice([0.3, 1.0, 4.0]),
        models=models if kind != "hidden_group" else [None],
        slow_answer_share=0.0 if kind == "hidden_group" else 0.05,
    )


def make_limits(rng: random.Random, kind: str) -> Limits:
    max_concurrent = rng.choice([1, 1, 2, 4])
    limited = rng.choice(["requests", "tokens", "day", "learned"]) if kind == "mixed" else kind
    if limited == "requests":
        return Limits(requests_per_minute=rng.choice([20, 60, 300]), burst=rng.choice([None, 1, 5]),
                      max_concurrent=max_concurrent)  # fmt: skip
    if limited == "tokens":
        per_minute = rng.choice([None, 120])
        return Limits(
            tokens_per_minute=rng.choice([500, 2000]), requests_per_minute=per_minute, max_concurrent=max_concurrent
        )
    if limited == "day":
        return Limits(requests_per_day=rng.choice([5, 15, 40]), max_concurrent=max_concurrent)
    return Limits(max_concurrent=max_concurrent)


def _keys(rng: random.Random, kind: str) -> list[Key]:
    if kind == "hidden_group":  # declared as two quota groups; the provider has one limit for both
        return [Key(f"k{n}", f"g{n}", "p", frozenset(), Limits(max_concurrent=4)) for n in range(2)]
    count = rng.randint(1, 5)
    groups = max(1, count - rng.randint(0, 2))
    keys = []
    for n in range(count):
        scopes = frozenset({"m1"}) if n and rng.random() < 0.1 else frozenset()
        keys.append(Key(f"k{n}", f"g{n % groups}", rng.choice(["p", "p", "q"]), scopes, make_limits(rng, kind)))
    return keys


def _run(rng: random.Random, keys: list[str], kind: str) -> RunPlan:
    own_keys = keys if rng.random() < 0.7 or kind == "hidden_group" else rng.sample(keys, rng.randint(1, len(keys)))
    own_keys = sorted({"k0", *own_keys})  # k0 serves every model
    return RunPlan(
        items=400 if kind == "hidden_group" else rng.randint(3, 40),
        workers=16 if kind == "hidden_group" else rng.randint(1, 8),
        retries=rng.randint(0, 3),
        keys=own_keys,
        timeout=None if kind == "hidden_group" else rng.choice([None, 5.0, 20.0]),
    )


def _provider(rng: random.Random, kind: str, keys: dict[str, Key]) -> SimulatedProvider:
    groups = {key.id: "hidden_group" if kind == "hidden_group" else key.group for key in keys.values()}
    limits: dict[str, list[Rule]] = {}
    for key in keys.values():
        limits.setdefault(groups[key.id], _rules(rng, key.limits))
    if kind == "hidden_group":
        limits["hidden_group"] = [TokenBucket(10.0, 10.0)]
    return SimulatedProvider(
        list(keys),
        limits=limits,
        groups=groups,
        headers=rng.choice(["on", "off", "off"]) if kind != "hidden_group" else "off",
        style=rng.choice(["openai", "anthropic", "gemini"]),
        retry_after=rng.choice(["seconds", "seconds", None]) if kind != "hidden_group" else "seconds",
        clock=lambda: 0.0,
    )


def _rules(rng: random.Random, limits: Limits) -> list[Rule]:
    """Return the provider's real limits: those declared, sometimes 30 % less; a token bucket if none is declared."""
    factor = rng.choice([1.0, 1.0, 0.7])
    rules: list[Rule] = []
    if limits.requests_per_minute is not None:
        rules.append(SlidingWindow(max(1, int(limits.requests_per_minute * factor))))
    if limits.tokens_per_minute is not None:
        rules.append(TokensPerMinute(limits.tokens_per_minute))
    if limits.requests_per_day is not None:
        rules.append(DailyQuota(limits.requests_per_day))
    if not rules:
        rules.append(TokenBucket(rng.choice([1.0, 5.0, 20.0]), rng.choice([1, 5, 20])))
    if rng.random() < 0.2:
        rules.append(Concurrency(rng.choice([1, 2, 4])))
    return rules
