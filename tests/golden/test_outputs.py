"""Compares what each case prints with what was recorded."""

from __future__ import annotations

import difflib

import pytest

from .commands import CASES
from .recorded import EXPECTED, expected_file, record


@pytest.mark.parametrize("name", CASES)
def test_output_is_as_recorded(name: str) -> None:
    path = expected_file(name)
    expected = path.read_text() if path.exists() else ""
    found = record(name)
    if found != expected:
        lines = (text.splitlines(keepends=True) for text in (expected, found))
        difference = "".join(difflib.unified_diff(*lines, fromfile=f"expected/{path.name}", tofile="found", n=4))
        pytest.fail(f"{difference}\nIf this is meant: python -m tests.golden {name}", pytrace=False)


def test_every_recorded_file_has_a_case() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == set(CASES)
