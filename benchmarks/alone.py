"""One benchmark in a process of its own: none pays for what another has loaded, and none takes the others with it.

`python -m benchmarks.alone FILE NAME [ROW…]` measures and leaves an `Outcome` in the file.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from . import disk
from .bystanders import Bystanders
from .measuring import Row

ROOT = Path(__file__).parent.parent
# Seconds: several times what each takes.
LIMIT = 15 * 60.0
LIMITS = {"legal_speed": 45 * 60.0}


class Outcome(NamedTuple):
    """What came of a benchmark. With an error, `rows` are those that were measured before it."""

    rows: list[Row]
    seconds: float
    others: float  # the share of the machine that other programs used
    error: str = ""  # what kind of error
    message: str = ""  # what it said: not for the page, it may name files of this machine


def module_of(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def run_alone(name: str, only: Sequence[str], limit: float | None = None) -> Outcome:
    """Whatever it has left running is ended with it, and its files are removed."""
    limit = limit or LIMITS.get(name, LIMIT)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=disk.PREFIX, dir=disk.parent(), ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "outcome"
        environment = {**os.environ, disk.VARIABLE: folder}
        command = [sys.executable, "-m", "benchmarks.alone", str(path), name, *only]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            status = process.wait(limit)
            failed = ("ended without a result", f"exit status {status}")
        except subprocess.TimeoutExpired:
            failed = ("took too long", f"was ended after {limit:.0f} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if path.exists():
            outcome: Outcome = pickle.loads(path.read_bytes())
            return outcome
    return Outcome([], time.monotonic() - start, 0.0, *failed)


def measured(name: str, only: Sequence[str]) -> Outcome:
    module = module_of(name)
    rows: list[Row] = []
    failed: tuple[str, ...] = ()
    start = time.monotonic()
    with Bystanders() as others:
        try:
            rows.extend(module.rows(only) if only else module.rows())
        except Exception as error:
            traceback.print_exc()
            failed = (type(error).__name__, str(error))
    return Outcome(rows, time.monotonic() - start, others.share, *failed)


def main(path: str, name: str, *only: str) -> None:
    outcome = measured(name, only)
    part = Path(f"{path}.part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(path)  # whole, or not at all
    sys.stdout.flush()
    os._exit(0)  # whatever threads still wait


if __name__ == "__main__":
    # By its own name: what is pickled here is read by whoever imports this module.
    from benchmarks import alone

    alone.main(*sys.argv[1:])
