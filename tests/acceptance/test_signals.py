"""Ctrl-C, SIGTERM and SIGKILL against real programs, in a pseudo-terminal where that matters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pexpect
import pytest

from tests.conftest import BUSY, eventually
from tests.workers.test_processes import is_alive

PRELUDE = """
import asyncio, os, signal, sys, threading, time
from agentos.workflows.parallel import CredentialCoordinator, Interrupted, ParallelCoordinator, current_item

signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits "ignore"

def before():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

def ready():
    print("READY", flush=True)

def report(stats, results, coordinator):
    print("STOPPED", stats.stopped, flush=True)
    print("ENDED", sorted(r.item_id for r in results), flush=True)
    print("LEFT", coordinator.get_checkpoints(), flush=True)
"""


def script(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PRELUDE + textwrap.dedent(body))
    return path


def start(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def wait_ready(program: subprocess.Popen[str]) -> None:
    assert program.stdout is not None
    for line in program.stdout:
        if line.strip() == "READY":
            return
    raise AssertionError(program.communicate())


COOPERATIVE = """
handlers = before()
coordinator = ParallelCoordinator(2, reporter=None, grace_seconds=30)
assert before() == handlers  # making one changes nothing

def work(item, _):
    if item < 3:
        return item
    if item == 4:
        ready()
    while not current_item().should_stop:
        time.sleep(0.005)
    raise Interrupted

stats, results = coordinator.execute_parallel(range(8), work)
report(stats, results, coordinator)
assert before() == handlers
print("RESTORED")
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_ends_the_call_with_complete_counts(tmp_path: Path, signum: int) -> None:
    program = start(script(tmp_path, COOPERATIVE))
    wait_ready(program)
    program.send_signal(signum)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 0, err
    assert "STOPPED interrupted" in out
    assert "ENDED ['0', '1', '2']" in out
    assert "LEFT ['3', '4', '5', '6', '7']" in out
    assert "RESTORED" in out


STUCK = """
def work(item, _):
    if item == 1:
        ready()
    while True:
        time.sleep(3600)

coordinator = ParallelCoordinator(2, grace_seconds=0.5)
start = time.monotonic()
stats, results = coordinator.execute_parallel(range(4), work)
report(stats, results, coordinator)
"""


def test_stubborn_worker_delays_neither_call_nor_exit(tmp_path: Path) -> None:  # invariant 25
    program = start(script(tmp_path, STUCK))
    wait_ready(program)
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert time.monotonic() - began < 0.5 + 1 + BUSY
    assert program.returncode == 0, err
    assert "Received SIGINT" in out
    assert "LEFT ['0', '1', '2', '3']" in out


def test_second_signal_raises_keyboard_interrupt(tmp_path: Path) -> None:  # invariant 25
    body = STUCK.replace("grace_seconds=0.5", "grace_seconds=600")
    body = body.replace("stats, results =", "try:\n    stats, results =").replace(
        "report(stats, results, coordinator)",
        "except KeyboardInterrupt:\n    print('INTERRUPTED', before()[0] is signal.default_int_handler, flush=True)\n"
        "    print('PARTIAL', coordinator.partial_results, flush=True)",
    )
    program = start(script(tmp_path, body))
    wait_ready(program)
    program.send_signal(signal.SIGINT)
    assert program.stdout is not None
    assert "Received SIGINT" in program.stdout.readline()
    began = time.monotonic()
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert time.monotonic() - began < 1 + BUSY
    assert "INTERRUPTED True" in out, err
    assert "PARTIAL []" in out
    assert program.returncode == 0


def test_async_run_stops_on_the_first_signal(tmp_path: Path) -> None:
    body = """
    async def work(item, _):
        if item < 3:
            return item
        if item == 4:
            ready()
        await asyncio.Event().wait()

    async def main():
        coordinator = ParallelCoordinator(2, reporter=None)
        stats, results = await coordinator.execute_parallel_async(range(8), work)
        report(stats, results, coordinator)

    asyncio.run(main())
    """
    program = start(script(tmp_path, body))
    wait_ready(program)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert "STOPPED interrupted" in out, err
    assert "ENDED ['0', '1', '2']" in out
    assert "LEFT ['3', '4', '5', '6', '7']" in out
    assert program.returncode == 0, err


def test_run_in_another_thread_keeps_signal_handlers(tmp_path: Path) -> None:
    body = """
    handlers = before()

    def run():
        ParallelCoordinator(1, reporter=None).execute_parallel([1], lambda i, c: seen.append(before() == handlers))

    seen = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    print("SEEN", seen)
    """
    done = subprocess.run(
        [sys.executable, str(script(tmp_path, body))], capture_output=True, text=True, timeout=60, check=True
    )
    assert "SEEN [True]" in done.stdout


PROCESSES = """
from tests.support import workers

def main():
    folder = sys.argv[1]
    coordinator = ParallelCoordinator(1, workers="processes", grace_seconds=0.5)
    stats, results = coordinator.execute_parallel([folder], workers.hang_with_a_child)
    report(stats, results, coordinator)

if __name__ == "__main__":
    main()
"""


def _pids(folder: Path) -> list[int]:
    eventually(lambda: (folder / "pids").exists() and len((folder / "pids").read_text().split()) == 2, timeout=60)
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def _environment() -> dict[str, str]:
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def test_sigkill_of_the_run_kills_worker_processes(tmp_path: Path) -> None:  # invariant 25
    path = script(tmp_path, PROCESSES)
    program = subprocess.Popen(
        [sys.executable, str(path), str(tmp_path)], env=_environment(), stdout=subprocess.DEVNULL
    )
    pids = _pids(tmp_path)
    program.kill()
    program.wait(60)
    eventually(lambda: not any(is_alive(pid) for pid in pids))


def spawn(path: Path, folder: Path) -> pexpect.spawn:
    """Start a program with worker processes in a terminal."""
    arguments = [str(path), str(folder)]
    return pexpect.spawn(
        sys.executable, arguments, env=_environment(), encoding="utf-8", timeout=60, dimensions=(24, 200)
    )


def test_terminal_ctrl_c_spares_worker_processes(tmp_path: Path) -> None:
    path = script(tmp_path, PROCESSES)
    child = spawn(path, tmp_path)
    pids = _pids(tmp_path)
    assert all(is_alive(pid) for pid in pids)
    child.sendintr()
    child.expect("Received SIGINT")
    child.expect("STOPPED interrupted")
    child.expect("LEFT")
    child.expect(pexpect.EOF)
    assert "Traceback" not in (child.before or "")
    child.wait()  # `close` would not wait for long
    child.close()
    assert child.exitstatus == 0
    eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_second_terminal_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    path = script(tmp_path, PROCESSES.replace("grace_seconds=0.5", "grace_seconds=600"))
    child = spawn(path, tmp_path)
    pids = _pids(tmp_path)
    child.sendintr()
    child.expect("Received SIGINT")
    began = time.monotonic()
    child.sendintr()
    child.expect("KeyboardInterrupt")
    child.expect(pexpect.EOF)
    child.wait()
    child.close()
    assert time.monotonic() - began < 1 + BUSY
    eventually(lambda: not any(is_alive(pid) for pid in pids))
