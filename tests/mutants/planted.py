"""The list of all planted bugs."""

from __future__ import annotations

from . import Mutant, planted_access, planted_pool, planted_runs, planted_secrets, planted_shared, planted_verdicts

MUTANTS: tuple[Mutant, ...] = (
    *planted_pool.MUTANTS,
    *planted_shared.MUTANTS,
    *planted_runs.MUTANTS,
    *planted_secrets.MUTANTS,
    *planted_verdicts.MUTANTS,
    *planted_access.MUTANTS,
)
