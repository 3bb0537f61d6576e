"""Histories in virtual time, each decided by its seed. More of them: `make soak`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentos.limits._windows import Window

from .situations import ALL, Situations
from .world import simulate

STEPS = 800
# Together they meet every situation twice; where changed rules lead them elsewhere, others are asked, up to LAST.
SEEDS = (3, 7, 14, 21, 26, 38, 55, 58, 69, 72, 76, 87, 98, 99, 100, 156)
LAST = 300


def test_nothing_that_goes_wrong_breaks_a_promise() -> None:
    """Invariants 1 to 6, 8, 11 to 17, 19, 21 and 23, after every step."""
    situations = Situations()
    for seed in SEEDS:
        simulate(seed, STEPS, situations)
    for seed in range(200, LAST):
        if not situations.missing():
            break
        simulate(seed, STEPS, situations)
    assert not situations.missing(), "some situations never occurred"


def test_a_seed_decides_everything_in_every_process() -> None:
    """Also what must not matter: the order of sets, which each process has its own way with."""
    seen = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation", "7", "--steps", "300"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        seen.add(done.stdout)
    assert len(seen) == 1
    assert "trace" in seen.pop()


def test_a_broken_promise_names_its_seed_and_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Window, "ready_at", lambda *_: 0.0)  # limits are not kept any more
    with pytest.raises(AssertionError, match="within a minute") as caught:
        for seed in SEEDS:
            simulate(seed, STEPS)
    (note,) = caught.value.__notes__
    assert "python -m tests.simulation" in note


def test_every_situation_has_one_name() -> None:
    assert len(set(ALL)) == len(ALL)
