"""Compares the output of each case with the recorded output."""

from __future__ import annotations

import difflib

import pytest

from .commands import CASES
from .recorded import EXPECTED, expected_file, record


@pytest.mark.parametrize("name", CASES)
def test_output_is_as_recorded(name: str) -> None:
    path = expected_file(name)
    expected = path.read_text() if path.exists() else ""
    actual = record(name)
    if actual != expected:
        lines = (text.splitlines(keepends=True) for text in (expected, actual))
        difference = "".join(difflib.unified_diff(*lines, fromfile=f"expected/{path.name}", tofile="actual", n=4))
        pytest.fail(f"{difference}\nIf the change is intended: python -m tests.golden {name}", pytrace=False)


def test_every_recorded_file_has_a_case() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == set(CASES)
