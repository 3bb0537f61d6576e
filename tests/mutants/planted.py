"""The list of all planted bugs."""

from __future__ import annotations

from . import (
    Mutant,
    planted_access,
    planted_bounds,
    planted_budgets,
    planted_credentials,
    planted_dead_keys,
    planted_first_minutes,
    planted_gateway,
    planted_inherited,
    planted_limits,
    planted_pool,
    planted_runs,
    planted_secrets,
    planted_shared,
    planted_verdicts,
)

MUTANTS: tuple[Mutant, ...] = (
    *planted_pool.MUTANTS,
    *planted_shared.MUTANTS,
    *planted_runs.MUTANTS,
    *planted_secrets.MUTANTS,
    *planted_inherited.MUTANTS,
    *planted_verdicts.MUTANTS,
    *planted_credentials.MUTANTS,
    *planted_dead_keys.MUTANTS,
    *planted_gateway.MUTANTS,
    *planted_access.MUTANTS,
    *planted_budgets.MUTANTS,
    *planted_bounds.MUTANTS,
    *planted_limits.MUTANTS,
    *planted_first_minutes.MUTANTS,
)
