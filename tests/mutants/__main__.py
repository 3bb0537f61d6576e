"""Plant the bugs one by one and print which test detected each: `python -m tests.mutants [WORD …]`.

With words, only bugs whose sentence or file contains one of them are planted. The exit status is 1 if no test detects a
bug, or if a test fails without one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from . import Mutant
from .planted import MUTANTS

ROOT = Path(__file__).parents[2]
# Files and folders that the named tests need.
COPIED = ("src", "tests", "pyproject.toml")
MAX_CONCURRENT = 2
# Seconds until the tests of one bug are killed: a test that waits for an event that the bug suppresses never ends.
TIMEOUT = 45.0
# Exit statuses of pytest.
PASSED, FAILED = 0, 1
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (\S+::[^\[\s]+)", re.MULTILINE)


class Trial(NamedTuple):
    """The outcome of one planted bug."""

    mutant: Mutant
    detected_by: str | None  # name of a test; None: all tests passed
    seconds: float


class TrialError(Exception):
    """The tests could not be run, or fail without a planted bug: the trials would prove nothing."""


def main(words: Sequence[str]) -> int:
    """Plant the chosen bugs and print a line for each. Return the exit status."""
    mutants = [m for m in MUTANTS if not words or any(word in f"{m.bug} {m.place}" for word in words)]
    if not mutants:
        print("no planted bug contains one of these words in its sentence or its path")
        return 1
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            original = Path(folder) / "original"
            copy(ROOT, original)
            check_without_bugs(original, mutants)
            trials = print_trials(mutants, try_all(original, Path(folder), mutants))
    except (TrialError, ValueError) as error:
        print(error)
        return 1
    survivors = [trial.mutant for trial in trials if trial.detected_by is None]
    for mutant in survivors:
        print(f"\nNot detected: {mutant.bug} ({mutant.place})\n{diff(mutant)}")
    count = len(trials) - len(survivors)
    print(f"\n{count} of {len(trials)} planted bugs were detected, in {time.monotonic() - start:.0f} s")
    return 1 if survivors else 0


def diff(mutant: Mutant) -> str:
    lines = [f"- {line}" for line in mutant.old.splitlines()] + [f"+ {line}" for line in mutant.new.splitlines()]
    return "\n".join(lines)


# --- trials -----------------------------------------------------------------------------------------------------------


def copy(project: Path, folder: Path) -> None:
    folder.mkdir()
    for name in COPIED:
        if (project / name).is_dir():
            shutil.copytree(project / name, folder / name)
        else:
            shutil.copy2(project / name, folder / name)


def check_without_bugs(folder: Path, mutants: Sequence[Mutant]) -> None:
    """Run all named tests on the unchanged copy. Raise `TrialError` if one fails."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    whole_files = {test for test in tests if "::" not in test}
    tests = [test for test in tests if test in whole_files or test.partition("::")[0] not in whole_files]
    status, output = run_tests(folder, tests, "-p", "xdist", "-n", str(MAX_CONCURRENT), timeout=10 * TIMEOUT)
    if status != PASSED:
        raise TrialError(f"{output}\nThese tests fail without a planted bug. Repair them first.")


def try_all(original: Path, folder: Path, mutants: Sequence[Mutant]) -> Iterator[Trial]:
    """Yield the outcomes in the order of the bugs, each as soon as it is known."""
    with ThreadPoolExecutor(MAX_CONCURRENT) as workers:
        yield from workers.map(lambda mutant: try_one(original, folder, mutant), mutants)


def try_one(original: Path, folder: Path, mutant: Mutant) -> Trial:
    """Run the bug's tests on a copy that contains it."""
    start = time.monotonic()
    mutated = Path(tempfile.mkdtemp(dir=folder)) / "copy"
    try:
        copy(original, mutated)
        plant(mutated, mutant)
        status, output = run_tests(mutated, mutant.tests, timeout=TIMEOUT)
    finally:
        shutil.rmtree(mutated.parent)
    detected_by = None
    if status is None:
        detected_by = f"{short(mutant.tests[0])} (timeout)" if len(mutant.tests) == 1 else "a test (timeout)"
    elif status == FAILED:
        match = _FAILED_TEST.search(output)
        detected_by = short(match[1]) if match else "a test"
    elif status != PASSED:  # for example an import error: any test would fail, which proves nothing
        raise TrialError(f"{output}\nThe tests could not be run with this planted bug: {mutant.bug}")
    return Trial(mutant, detected_by, time.monotonic() - start)


def plant(folder: Path, mutant: Mutant) -> None:
    path = folder / mutant.path
    path.write_text(mutant.applied(path.read_text()))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(folder: Path, tests: Sequence[str], *options: str, timeout: float) -> tuple[int | None, str]:
    """Run pytest and return its exit status (None after a timeout) and its output."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}",
        "PYTHONHASHSEED": "0",
        # Installed plugins take seconds to import, and no named test needs one.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    check_imports(folder, environment)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *tests]
    # A file, not a pipe: a process that a test leaves behind would keep the pipe open, and a failure would look like a
    # timeout.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(process)
        output.seek(0)
        return status, output.read()


def check_imports(folder: Path, environment: dict[str, str]) -> None:
    """Raise `TrialError` unless `agentos` is imported from the copy: another installation could shadow it."""
    python = subprocess.run(
        [sys.executable, "-c", "import agentos; print(agentos.__file__)"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if not Path(python.stdout.strip()).is_relative_to(folder):
        raise TrialError(f"{python.stdout.strip()} is imported instead of the copy in {folder}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill pytest and every process that its tests left in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def short(node: str) -> str:
    return node.removeprefix("tests/").rpartition("::")[2] or node


# --- output -----------------------------------------------------------------------------------------------------------


def print_trials(mutants: Sequence[Mutant], trials: Iterator[Trial]) -> list[Trial]:
    """Print a table row for each outcome as soon as it is known. Return all outcomes."""
    bug_width, path_width = max(len(m.bug) for m in mutants), max(len(m.place) for m in mutants)
    print(f"{'bug':{bug_width}}  {'file':{path_width}}  seconds  detected by", flush=True)
    outcomes = []
    for trial in trials:
        bug, path = f"{trial.mutant.bug:{bug_width}}", f"{trial.mutant.place:{path_width}}"
        print(f"{bug}  {path}  {trial.seconds:7.1f}  {trial.detected_by or 'NO TEST'}", flush=True)
        outcomes.append(trial)
    return outcomes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
