"""Checks the arguments of a forecast, and makes it with the rules of the pool."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from agentos.plans.plan import RunPlan, make_plan, with_cost
from agentos.pool.lease_pool import LeasePool
from agentos.pool.simulation import Work

from .options import seconds, whole_number


def forecast(
    items: int | Iterable[Any],
    pool: LeasePool | None,
    workers: int,
    *,
    item_seconds: float,
    tokens: int,
    tokens_func: Callable[[Any], int] | None,
    requests_per_item: float,
    item_cost: float | None = None,
    budget: float | None = None,
) -> RunPlan:
    """Return the plan of a run. Raise `ValueError` for a wrong argument."""
    whole_number("tokens", tokens, 0)
    if isinstance(items, int):
        if tokens_func is not None:
            raise ValueError("tokens_func needs the items themselves, not their number; for a number pass tokens=")
        count = whole_number("items", items, 0)
        needs: tuple[int, ...] = (tokens,)
    elif tokens_func is not None:
        needs = tuple(whole_number("tokens_func", tokens_func(item), 0) for item in items)
        count = len(needs)
    else:
        count, needs = sum(1 for _ in items), (tokens,)
    if seconds("item_seconds", item_seconds) in (None, math.inf):
        raise ValueError(f"item_seconds must be a number of seconds, not {item_seconds!r}")
    if not isinstance(requests_per_item, int | float) or not 1 <= requests_per_item < math.inf:
        raise ValueError(f"requests_per_item must be a number from 1, not {requests_per_item!r}")
    credentials = None if pool is None else pool.forecasts()
    plan = make_plan(credentials, Work(count, workers, item_seconds, needs or (0,)), requests_per_item)
    return with_cost(plan, item_cost, budget)
