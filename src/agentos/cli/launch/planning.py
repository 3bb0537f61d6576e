"""Forecasts of a run on this machine, for `agentos plan` and `--dry-run`.

Both bound the items at once by the rule of the run itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agentos.items.parallelism import ParallelBound
from agentos.plans.plan import RunPlan
from agentos.runs.forecast import forecast
from agentos.runs.options import auto_option, expected_bound
from agentos.workflows.parallel import CredentialCoordinator, ParallelCoordinator


def bound_at_once(options: Mapping[str, Any], pool: CredentialCoordinator | None, *, is_command: bool) -> ParallelBound:
    """Return what would bound the items at once, beside the keys, of a run that finds their number by itself."""
    return expected_bound(pool, auto_option(options.get("max_parallelism")), is_command=is_command)


def plan_run(items: Any, coordinator: ParallelCoordinator, bound: ParallelBound | None, **arguments: Any) -> RunPlan:
    """Return the plan of a run. `bound`: see `bound_at_once`; None if the number of items at once is fixed.
    `arguments`: those of `ParallelCoordinator.plan`."""
    if bound is None:
        return coordinator.plan(items, **arguments)
    pool = coordinator.credential_coordinator
    workers = bound.at_once if pool is None else None
    fixed = {"tokens": 0, "tokens_func": None, **arguments}
    return forecast(items, pool, workers, at_most=bound, starts_at=time.time(), **fixed)
