"""The properties of `tests/fuzz` with inputs by chance, for as long as was asked for: `make soak MINUTES=5`."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter

import pytest

from tests.fuzz import test_items, test_keys_file, test_paths, test_redaction, test_reports, test_verdicts
from tests.fuzz.properties import PROPERTIES
from tests.fuzz.texts import scratch

from .shares import seconds

# So many of each before the next one's turn: few enough for all of them to have one in a short run.
EXAMPLES_PER_TURN = 100
MODULES = (test_items, test_keys_file, test_paths, test_redaction, test_reports, test_verdicts)


def test_no_input_breaks_a_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(scratch()))
    assert {property_.check.__module__ for property_ in PROPERTIES} == {module.__name__ for module in MODULES}
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
