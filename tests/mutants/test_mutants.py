"""The planted bugs fit the source and the suite as they are; `make mutants` tries them."""

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
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_a_planted_bug_can_be_planted_and_the_tests_that_notice_it_are_there(mutant: Mutant) -> None:
    mutated = mutant.applied((ROOT / mutant.path).read_text())
    if mutant.path.suffix == ".py":
        ast.parse(mutated)
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert not name or name in functions(ROOT / file), test


def test_every_planted_bug_has_a_sentence_of_its_own() -> None:
    assert len({mutant.bug for mutant in MUTANTS}) == len(MUTANTS) >= 36


@pytest.mark.parametrize("text", ["", "here here"])
def test_a_planted_bug_that_is_out_of_date_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="out of date"):
        Mutant("It is here", "_core/pool.py", "here", "there", ()).applied(text)
