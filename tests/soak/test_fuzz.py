"""Check the properties of `tests/*/test_*_properties.py` with random inputs, for a share of the soak time."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter

import pytest

from tests.cli import test_item_properties
from tests.items import test_path_properties
from tests.keys import test_keys_file_properties
from tests.providers import test_verdict_properties
from tests.redaction import test_redaction_properties
from tests.runs import test_exception_properties
from tests.support.properties import PROPERTIES
from tests.support.texts import scratch
from tests.terminal import test_output_properties
from tests.workers import test_report_properties

from .shares import seconds

# Examples of one property before the next: few enough for every property to have a turn in a short run.
EXAMPLES_PER_TURN = 100
MODULES = (
    test_exception_properties,
    test_item_properties,
    test_keys_file_properties,
    test_output_properties,
    test_path_properties,
    test_redaction_properties,
    test_report_properties,
    test_verdict_properties,
)


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
