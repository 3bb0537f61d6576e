"""Planted bugs fit the present source and tests. Whether the tests detect them is checked by `make mutants`."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from . import Mutant
from .planted import MUTANTS

ROOT = Path(__file__).parents[2]


@cache
def functions(path: Path) -> set[str]:
    """Return the names of the top-level functions of a file."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_planted_bug_fits_source_and_names_existing_tests(mutant: Mutant) -> None:
    mutated = mutant.applied((ROOT / mutant.path).read_text())
    if mutant.path.suffix == ".py":
        ast.parse(mutated)
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert not name or name in functions(ROOT / file), test


def test_planted_bugs_have_distinct_sentences() -> None:
    assert len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS) >= 36


@pytest.mark.parametrize("text", ["", "here here"])
def test_outdated_planted_bug_raises(text: str) -> None:
    with pytest.raises(ValueError, match="out of date"):
        Mutant("A bug", "pool/lease.py", "here", "there", ()).applied(text)
