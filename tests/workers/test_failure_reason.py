"""The reason of a failed command is the line that states the error, which is often not the last one."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.workers.command._reason import MAX_REASON, reason_of
from agentos.workflows.parallel import Command, ParallelCoordinator

TRACEBACK = 'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\nValueError: no such item\n'


@pytest.mark.parametrize(
    ("stderr", "stdout", "reason"),
    [
        (f"{TRACEBACK}sys:1: ResourceWarning: unclosed file\n", "", "ValueError: no such item"),
        (f"{TRACEBACK}\nDuring handling of it:\n\nhttpx.ConnectError: refused\nbye", "", "httpx.ConnectError: refused"),
        ("x.c:3:5: error: expected ';'\nx.c:9:1: error: y\n2 errors generated.", "", "x.c:3:5: error: expected ';'"),
        (
            "error[E0432]: unresolved import\n --> x.rs\nFor more, try rustc",
            "",
            "error[E0432]: unresolved import",
        ),
        ("fatal: not a git repository\nhint: run git init", "", "fatal: not a git repository"),
        ("[ERROR] cannot connect\ncleaning up", "", "[ERROR] cannot connect"),
        ("cleaning up", "step 1\nError: disk full\nstep 2", "Error: disk full"),
        ("first\nlast\n\n", "said", "last"),
        ("found 0 errors\ndone", "", "done"),
        ("", "only this\n", "only this"),
        ("", "", ""),
    ],
)
def test_reason_is_the_error_line(stderr: str, stdout: str, reason: str) -> None:
    assert reason_of(stderr.encode(), stdout.encode()) == reason


def test_failed_command_states_its_exception() -> None:
    program = f"import sys; sys.stderr.write({TRACEBACK!r} + 'goodbye\\n'); sys.exit(3)"
    coordinator = ParallelCoordinator(1, reporter=None, retries=0)
    _, (result,) = coordinator.execute_parallel(["a"], Command([sys.executable, "-c", program.replace("{", "{{")]))
    assert result.error == "exit status 3: ValueError: no such item"


@given(st.binary(max_size=20_000), st.binary(max_size=2000))
def test_reason_of_any_output_is_one_short_line(stderr: bytes, stdout: bytes) -> None:
    reason = reason_of(stderr, stdout)
    assert len(reason) <= MAX_REASON
    assert len(reason.splitlines()) <= 1
