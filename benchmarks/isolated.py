"""Run one benchmark in a process of its own: it is not affected by modules, memory or a crash of the others.

`python -m benchmarks.isolated FILE NAME [ROW…]` measures and pickles an `Outcome` into the file.
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
from .machine_load import OtherLoad
from .measuring import Row

ROOT = Path(__file__).parent.parent
# Seconds until a benchmark is killed; several times its usual duration.
TIMEOUT = 15 * 60.0
TIMEOUTS = {"legal_speed": 45 * 60.0}


class Outcome(NamedTuple):
    """The result of a benchmark. With an error, `rows` are those that were measured before it."""

    rows: list[Row]
    seconds: float
    others: float  # share of the machine's processors that other programs used, 0 to 1
    error: str = ""  # name of the exception, or a short description
    message: str = ""  # printed, but not written to the page: it may contain paths of this machine


def module_of(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def run_isolated(name: str, only: Sequence[str], limit: float | None = None) -> Outcome:
    """Run a benchmark and return its outcome. Processes that it left behind are killed, and its files are removed."""
    limit = limit or TIMEOUTS.get(name, TIMEOUT)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=disk.PREFIX, dir=disk.parent(), ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "outcome"
        environment = {**os.environ, disk.VARIABLE: folder}
        command = [sys.executable, "-m", "benchmarks.isolated", str(path), name, *only]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
        try:
            status = process.wait(limit)
            failure = ("ended without a result", f"exit status {status}")
        except subprocess.TimeoutExpired:
            failure = ("took too long", f"was ended after {limit:.0f} s")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if path.exists():
            outcome: Outcome = pickle.loads(path.read_bytes())
            return outcome
    return Outcome([], time.monotonic() - start, 0.0, *failure)


def measured(name: str, only: Sequence[str]) -> Outcome:
    """Measure in this process."""
    module = module_of(name)
    rows: list[Row] = []
    failure: tuple[str, ...] = ()
    start = time.monotonic()
    with OtherLoad() as others:
        try:
            rows.extend(module.rows(only) if only else module.rows())
        except Exception as error:
            traceback.print_exc()
            failure = (type(error).__name__, str(error))
    return Outcome(rows, time.monotonic() - start, others.share, *failure)


def main(path: str, name: str, *only: str) -> None:
    outcome = measured(name, only)
    part = Path(f"{path}.part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(path)  # atomic: the parent never reads a partial file
    sys.stdout.flush()
    os._exit(0)  # without joining threads that still wait


if __name__ == "__main__":
    # Import it under its own name: a class of `__main__` could not be unpickled by the parent.
    from benchmarks import isolated

    isolated.main(*sys.argv[1:])
