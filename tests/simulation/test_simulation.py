"""Histories of fixed seeds keep all invariants and meet every situation. `make soak` draws new seeds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentos.limits._windows import Rolling

from .situations import ALL, Situations
from .world import simulate

STEPS = 800
# If changed rules make a situation rare, further seeds up to MAX_SEED are tried, too.
SEEDS = range(120)
MAX_SEED = 500


def test_faults_break_no_invariant() -> None:
    """Invariants 1 to 6, 8, 11 to 17, 19, 21, 23, 47 and 48, after every step."""
    situations = Situations()
    for seed in SEEDS:
        simulate(seed, STEPS, situations)
    for seed in range(len(SEEDS), MAX_SEED):
        if not situations.missing():
            break
        simulate(seed, STEPS, situations)
    assert not situations.missing(), "some situations never occurred"


def test_history_depends_on_seed_only() -> None:
    """The order of sets depends on the process's hash seed; the history does not."""
    outputs = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "7", "--steps", "300"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        outputs.add(done.stdout)
    assert len(outputs) == 1
    assert "trace" in outputs.pop()


def test_broken_invariant_names_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rolling, "ready_at", lambda *_: 0.0)  # the window admits every request
    with pytest.raises(AssertionError, match="within a minute") as caught:
        for seed in SEEDS:
            simulate(seed, STEPS)
    (note,) = caught.value.__notes__
    assert "python -m tests.simulation" in note


def test_situation_names_are_distinct() -> None:
    assert len(set(ALL)) == len(ALL)
