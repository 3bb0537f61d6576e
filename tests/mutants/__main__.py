"""Plants the bugs one by one and tells which test noticed each: `python -m tests.mutants [WORDS …]`.

Only those are tried whose sentence or file has one of the words in it. Exits with 1 if a bug goes unnoticed, or if the
tests fail without one.
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
# What the named tests need.
COPIED = ("src", "tests", "pyproject.toml")
AT_ONCE = 2
# A test that waits for what a bug keeps from coming is not waited for longer than this (seconds).
TIMEOUT = 45.0
# Of pytest, as it ends.
PASSED, FAILED = 0, 1
_NOTICED = re.compile(r"^(?:FAILED|ERROR) (\S+::[^\[\s]+)", re.MULTILINE)


class Tried(NamedTuple):
    mutant: Mutant
    noticed_by: str | None
    seconds: float
    output: str


class Broken(Exception):
    """The tests could not be run as they are meant to."""


def main(words: Sequence[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.bug} {m.place}" for word in words)]
    if not chosen:
        print("no planted bug has these words in its sentence or its file")
        return 1
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            original = Path(folder) / "original"
            copy(ROOT, original)
            check_without_bugs(original, chosen)
            tried = show(chosen, try_all(original, Path(folder), chosen))
    except (Broken, ValueError) as error:
        print(error)
        return 1
    survivors = [each for each in tried if each.noticed_by is None]
    for each in survivors:
        print(f"\nUnnoticed: {each.mutant.bug} ({each.mutant.place})\n{diff(each.mutant)}")
    noticed = len(tried) - len(survivors)
    print(f"\n{noticed} of {len(tried)} planted bugs were noticed, in {time.monotonic() - began:.0f} s")
    return 1 if survivors else 0


def diff(mutant: Mutant) -> str:
    lines = [f"- {line}" for line in mutant.old.splitlines()] + [f"+ {line}" for line in mutant.new.splitlines()]
    return "\n".join(lines)


# --- trying -----------------------------------------------------------------------------------------------------------


def copy(project: Path, folder: Path) -> None:
    folder.mkdir()
    for name in COPIED:
        if (project / name).is_dir():
            shutil.copytree(project / name, folder / name)
        else:
            shutil.copy2(project / name, folder / name)


def check_without_bugs(folder: Path, mutants: Sequence[Mutant]) -> None:
    """Raises if the tests that are to notice something find fault without it."""
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    whole_files = {test for test in tests if "::" not in test}
    tests = [test for test in tests if test in whole_files or test.partition("::")[0] not in whole_files]
    status, output = run_tests(folder, tests, "-p", "xdist", "-n", str(AT_ONCE), timeout=10 * TIMEOUT)
    if status != PASSED:
        raise Broken(f"{output}\nThe tests do not pass without a planted bug: nothing can be told by them.")


def try_all(original: Path, folder: Path, mutants: Sequence[Mutant]) -> Iterator[Tried]:
    """In their order."""
    with ThreadPoolExecutor(AT_ONCE) as workers:
        yield from workers.map(lambda mutant: try_one(original, folder, mutant), mutants)


def try_one(original: Path, folder: Path, mutant: Mutant) -> Tried:
    began = time.monotonic()
    mutated = Path(tempfile.mkdtemp(dir=folder)) / "copy"
    try:
        copy(original, mutated)
        plant(mutated, mutant)
        status, output = run_tests(mutated, mutant.tests, timeout=TIMEOUT)
    finally:
        shutil.rmtree(mutated.parent)
    noticed_by = None
    if status is None:
        noticed_by = f"{short(mutant.tests[0])}, which hung" if len(mutant.tests) == 1 else "a test that hung"
    elif status == FAILED:
        found = _NOTICED.search(output)
        noticed_by = short(found[1]) if found else "a test"
    elif status != PASSED:  # a bug that keeps everything from being imported is none
        raise Broken(f"{output}\nThe tests could not be run with this planted bug: {mutant.bug}")
    return Tried(mutant, noticed_by, time.monotonic() - began, output)


def plant(folder: Path, mutant: Mutant) -> None:
    path = folder / mutant.path
    path.write_text(mutant.applied(path.read_text()))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def run_tests(folder: Path, tests: Sequence[str], *options: str, timeout: float) -> tuple[int | None, str]:
    """The status of pytest and what it printed; no status: it had not ended by then."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}",
        "PYTHONHASHSEED": "0",
        # What happens to be installed brings plugins along that take seconds to import, and none is needed.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    check_imports(folder, environment)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *options, *tests]
    # Not to a pipe: whatever tests leave behind would keep it open, and a test that failed be taken for one that hung.
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
    """The copy is what is tested, also where the project is installed in another way."""
    found = subprocess.run(
        [sys.executable, "-c", "import agentos; print(agentos.__file__)"],
        cwd=folder, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    if not Path(found.stdout.strip()).is_relative_to(folder):
        raise Broken(f"{found.stdout.strip()} is imported, and not the copy in {folder}")


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Also what its tests have started and left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def short(node: str) -> str:
    return node.removeprefix("tests/").rpartition("::")[2] or node


# --- showing ----------------------------------------------------------------------------------------------------------


def show(mutants: Sequence[Mutant], all_tried: Iterator[Tried]) -> list[Tried]:
    """Each as it is known, under one another."""
    bugs, places = max(len(m.bug) for m in mutants), max(len(m.place) for m in mutants)
    print(f"{'bug':{bugs}}  {'where':{places}}  seconds  noticed by", flush=True)
    tried = []
    for each in all_tried:
        by = each.noticed_by or "NOBODY"
        print(f"{each.mutant.bug:{bugs}}  {each.mutant.place:{places}}  {each.seconds:7.1f}  {by}", flush=True)
        tried.append(each)
    return tried


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
