"""Checks the arguments of a forecast, and makes it with the rules of the pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from agentos.items.parallelism import ParallelBound
from agentos.limits.amounts import Detail, detail_of
from agentos.plans.plan import RunPlan, make_plan, with_cost
from agentos.pool.lease_pool import LeasePool
from agentos.pool.simulation import Work

from .options import seconds, whole_number

# Items at once in the plan of a run whose credentials decide that number, at most.
MAX_AUTO_WORKERS = 100_000


def forecast(
    items: int | Iterable[Any],
    pool: LeasePool | None,
    workers: int | None,
    *,
    item_seconds: float,
    tokens: int,
    tokens_func: Callable[[Any], int] | None,
    requests_per_item: float,
    item_cost: float | None = None,
    budget: float | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    scope: str | None = None,
    starts_at: float | None = None,
    at_most: ParallelBound | None = None,
) -> RunPlan:
    """Return the plan of a run. Raise `ValueError` for a wrong argument. `workers`: None if the credentials decide how
    many items run at once. `at_most`: what bounds that number beside them. `starts_at`: epoch seconds."""
    count, needs = _needs(items, tokens, tokens_func)
    if seconds("item_seconds", item_seconds) in (None, math.inf):
        raise ValueError(f"item_seconds must be a number of seconds, not {item_seconds!r}")
    if not isinstance(requests_per_item, int | float) or not 1 <= requests_per_item < math.inf:
        raise ValueError(f"requests_per_item must be a number from 1, not {requests_per_item!r}")
    for name, amount in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        if amount is not None:
            whole_number(name, amount, 0)
    needs = tuple(max(need, (input_tokens or 0) + (output_tokens or 0)) for need in needs)
    detail = _detail(needs, input_tokens, output_tokens, item_cost)
    at_once = workers or (MAX_AUTO_WORKERS if at_most is None else at_most.at_once)
    work = Work(
        count,
        at_once,
        item_seconds,
        needs or (0,),
        workers is None,
        detail,
        scope,
        workers_by=None if at_most is None else at_most.by,
        workers_detail=None if at_most is None else at_most.resource,
    )
    plan = make_plan(None if pool is None else pool.forecasts(), work, requests_per_item)
    return replace(with_cost(plan, item_cost, budget), starts_at=starts_at)


def _needs(
    items: int | Iterable[Any], tokens: int, tokens_func: Callable[[Any], int] | None
) -> tuple[int, tuple[int, ...]]:
    """Return the number of items, and their tokens: one figure if it is the same for all."""
    whole_number("tokens", tokens, 0)
    if isinstance(items, int):
        if tokens_func is not None:
            raise ValueError("tokens_func needs the items themselves, not their number; for a number pass tokens=")
        return whole_number("items", items, 0), (tokens,)
    if tokens_func is None:
        return sum(1 for _ in items), (tokens,)
    needs = tuple(whole_number("tokens_func", tokens_func(item), 0) for item in items)
    return len(needs), (needs[0],) if len(set(needs)) == 1 else needs


def _detail(
    needs: tuple[int, ...], input_tokens: int | None, output_tokens: int | None, cost: float | None
) -> Detail | None:
    """Return the tokens of each item by direction, and its cost. Items that differ in their tokens have no common
    detail, unless a direction is given for all."""
    if input_tokens is None and output_tokens is None and len(needs) != 1:
        return None
    return detail_of(max(needs, default=0), input_tokens, output_tokens, cost)
