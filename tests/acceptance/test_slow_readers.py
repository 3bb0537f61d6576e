"""Readers of the program's output that pause, stop reading or leave. They may delay output, and never fail an item."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUSY, eventually

from .program import AGENTOS, PATIENCE, Sandbox

# Bytes that each item prints: more than any pipe holds.
MUCH = 1_500_000
ITEMS = ("--item", "a", "--item", "b", "--item", "c")


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


class Unread:
    """The program with a pipe for stdout or stderr that is not read before `read_all`."""

    def __init__(self, sandbox: Sandbox, stream: str, *arguments: str) -> None:
        self._reading, writing = os.pipe()
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, stream: writing}
        self.process = subprocess.Popen(
            [*AGENTOS, *arguments], cwd=sandbox.path, env=sandbox.environ, stdin=subprocess.DEVNULL, **streams
        )
        os.close(writing)

    def read_all(self) -> bytes:
        with os.fdopen(self._reading, "rb", closefd=False) as reading:
            return reading.read()

    def __enter__(self) -> Unread:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._reading)


def succeeded(sandbox: Sandbox, run_id: str = "r") -> int:
    items = sandbox.agentos("show", run_id, "--json").stdout
    return int(json.loads(items)["succeeded"]) if items else 0


COMMAND = ("--timeout", "5", "--", "sh", "-c", f"head -c {MUCH} /dev/zero | tr '\\0' x; echo; echo end")
TO_STDERR = ("--timeout", "5", "--", "sh", "-c", f"(head -c {MUCH} /dev/zero | tr '\\0' x; echo; echo end) >&2")
FUNCTION = f"""
import sys

def work(item, credential):
    print("x" * {MUCH})
    print("end")

def work_stderr(item, credential):
    print("x" * {MUCH}, file=sys.stderr)
    print("end", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("stream", "arguments"),
    [
        ("stdout", COMMAND),
        ("stdout", ("--json", *COMMAND)),
        ("stderr", TO_STDERR),
        ("stdout", ("--timeout", "5", "worker:work")),
        ("stderr", ("--timeout", "5", "worker:work_stderr")),
    ],
    ids=["command", "json", "stderr", "function", "function stderr"],
)
def test_paused_reader_fails_no_item_and_loses_nothing(
    sandbox: Sandbox, stream: str, arguments: tuple[str, ...]
) -> None:
    sandbox.write("worker.py", FUNCTION)
    with Unread(sandbox, stream, "run", "--run-id", "r", *ITEMS, *arguments) as program:
        # All items end, and are on record, before the first byte is read.
        eventually(lambda: (sandbox.runs / "r" / "ended.json").exists(), PATIENCE)
        assert succeeded(sandbox) == 3
        output = program.read_all()
        assert program.process.wait(PATIENCE) == 0
    assert output.count(b"x") >= 3 * MUCH
    assert output.count(b"end") >= 3


def test_ctrl_c_ends_a_program_whose_reader_is_paused(sandbox: Sandbox) -> None:  # invariant 25
    sandbox.script(f"head -c {MUCH} /dev/zero; echo; echo $$ >> pids; exec sleep 600")
    with Unread(sandbox, "stdout", "run", "--grace", "0.2", *ITEMS, "--", "./command.sh") as program:
        sandbox.pids("pids", 3)
        began = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(PATIENCE) == 130
        assert time.monotonic() - began < 0.2 + 1 + BUSY


def test_ctrl_c_ends_the_wait_for_a_slow_reader(sandbox: Sandbox) -> None:
    with Unread(sandbox, "stdout", "run", "--run-id", "r", *ITEMS, *COMMAND) as program:
        eventually(lambda: (sandbox.runs / "r" / "ended.json").exists(), PATIENCE)
        program.process.send_signal(signal.SIGINT)
        assert program.process.wait(PATIENCE) == 130
    assert succeeded(sandbox) == 3


def test_output_beyond_the_backlog_is_left_out_and_counted(sandbox: Sandbox) -> None:
    sandbox.write(
        "small.py",
        "import sys\n"
        "from agentos.terminal import _backlog\n"
        "_backlog.MAX_MEMORY_BYTES, _backlog.MAX_FILE_BYTES = 1000, 100_000\n"
        "from agentos.cli import main\n"
        "main(sys.argv[1:], prog_name='agentos')\n",
    )
    ended = sandbox.runs / "r" / "ended.json"
    run = "$PYTHON small.py run --run-id r --item a -- seq 100000 2> errors"
    done = sandbox.shell(f"{run} | (until [ -e {ended} ]; do sleep 0.05; done; cat); echo ${{PIPESTATUS[0]}} > status")
    shown = done.stdout.splitlines()
    (message,) = [line for line in sandbox.lines("errors") if "left out" in line]
    count = int(message.split()[1])
    assert 0 < len(shown) < 100_000
    assert count + len(shown) == 100_000
    assert str(sandbox.runs / "r" / "logs") in message
    assert sandbox.lines("status") == ["3"]
    log = sandbox.agentos("logs", "r", "a").stdout
    assert log.splitlines() == [str(number) for number in range(1, 100_001)]


def test_closed_output_stops_the_run_on_request(sandbox: Sandbox) -> None:
    items = " ".join(f"--item {number}" for number in range(200))
    line = f"agentos run --run-id r --stop-on-closed-output --parallel 1 {items} -- sh -c 'echo {{id}}; sleep 0.05'"
    done = sandbox.shell(f"{line} | head -3; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.endswith("\n4\n")
    assert done.stderr.count("--stop-on-closed-output") == 1
    assert 3 <= succeeded(sandbox) < 100


@pytest.mark.parametrize("arguments", ["--help", "--version", "run --help", "runs"])
def test_full_disk_under_a_text_is_one_line(sandbox: Sandbox, arguments: str) -> None:
    done = sandbox.shell(f"agentos run --quiet --item a -- true; agentos {arguments} > /dev/full; echo $?")
    assert done.stdout == "3\n"
    assert done.stderr.endswith("Error: stdout: No space left on device\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["", "--json"])
def test_full_disk_under_stdout_is_exit_status_3(sandbox: Sandbox, option: str) -> None:
    done = sandbox.shell(f"agentos run {option} --run-id r --item a -- echo hello > /dev/full; echo $?")
    assert done.stdout == "3\n"
    assert succeeded(sandbox) == 1
