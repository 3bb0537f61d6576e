"""Type checkers accept a correct program, infer the types of its results, and find every mistake in a wrong one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "typed"
ROOT = Path(__file__).parents[2]


def mypy_lines(file: Path) -> set[int]:
    """Return the lines of a program in which mypy, in strict mode, reports an error."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty", "--config-file="]
    done = subprocess.run([*command, str(file)], capture_output=True, text=True, cwd=ROOT)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == bool(errors), done.stdout + done.stderr
    return {int(line.split(":")[1]) for line in errors}


def pyright_lines(file: Path) -> set[int]:
    """Return the lines in which pyright, in strict mode, reports an error. Skip where it cannot run: it needs Node, and
    downloads itself when it is first used."""
    program = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if program is None or shutil.which("node") is None:
        pytest.skip("pyright or Node is not installed")
    version = subprocess.run([program, "--version"], capture_output=True, text=True)
    if version.returncode:
        pytest.skip("pyright cannot be downloaded")
    command = [program, "--outputjson", "--pythonpath", sys.executable, str(file)]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, cwd=ROOT).stdout)
    assert report["summary"]["filesAnalyzed"] == 1
    found = report["generalDiagnostics"]
    return {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}


def refused_lines(file: Path) -> set[int]:
    return {number for number, line in enumerate(file.read_text().splitlines(), start=1) if "# refused:" in line}


@pytest.mark.parametrize("name", ["accepted.py", "refused.py"])
def test_mypy_finds_the_mistakes_and_no_others(name: str) -> None:
    assert mypy_lines(PROGRAMS / name) == refused_lines(PROGRAMS / name)


@pytest.mark.parametrize("name", ["accepted.py", "refused.py"])
def test_pyright_finds_the_mistakes_and_no_others(name: str) -> None:
    assert pyright_lines(PROGRAMS / name) == refused_lines(PROGRAMS / name)
