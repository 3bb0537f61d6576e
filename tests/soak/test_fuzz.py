"""Check the properties of `tests/*/test_*_properties.py` with random inputs, for a share of the soak time."""

from __future__ import annotations

import importlib
import itertools
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.properties import PROPERTIES
from tests.support.texts import scratch

from .shares import seconds

# Examples of one property before the next: few enough for every property to have a turn in a short run.
EXAMPLES_PER_TURN = 100
TESTS = Path(__file__).parents[1]
MODULES = [
    f"tests.{path.parent.name}.{path.stem}"
    for path in sorted(TESTS.glob("*/test_*_properties.py"))
    if "@holds_for(" in path.read_text()
]


def test_no_input_breaks_a_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(scratch()))
    for module in MODULES:
        importlib.import_module(module)
    assert {property_.check.__module__ for property_ in PROPERTIES} >= set(MODULES)
    end = time.monotonic() + seconds(0.3)
    examples: Counter[str] = Counter()
    for property_ in itertools.cycle(PROPERTIES):
        number = random.randrange(2**32)
        try:
            examples[property_.name] += property_.explore(number, EXAMPLES_PER_TURN)
        except BaseException:
            print(f"{property_.name} failed with seed {number}")
            raise
        if time.monotonic() > end and len(examples) == len(PROPERTIES):
            break
    for name, count in sorted(examples.items()):
        print(f"{count:8,} examples of {name}")
    print(f"{sum(examples.values()):8,} examples of {len(PROPERTIES)} properties")
