"""Finds the file with the expected output of a case, and records its output."""

from __future__ import annotations

from pathlib import Path

from .commands import CASES
from .machine import transcript
from .screen import ScreenCase, frame_and_end

EXPECTED = Path(__file__).with_name("expected")


def expected_file(name: str) -> Path:
    """Return the path of the file with the expected output of a case."""
    return EXPECTED / f"{name}.txt"


def record(name: str) -> str:
    """Run a case and return its output."""
    case = CASES[name]
    return frame_and_end(case) if isinstance(case, ScreenCase) else transcript(case)
