"""A real LangGraph with its SQLite checkpointer in an item's own file: interrupted in its second node, it continues
there after a resume."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "langgraph_resume.py"
PROGRAM = f"""
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background inherits "ignore"
sys.argv = [{str(EXAMPLE)!r}, sys.argv[1]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(ledger: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-W", "ignore", "-c", PROGRAM, str(ledger)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1)


def nodes(told: list[str]) -> Counter[str]:
    """How often each node ran on each topic."""
    # Not by lines: two threads that print at the same time may share one.
    return Counter(": ".join(found) for found in re.findall(r"(research|write|review): +(\w+)", "\n".join(told)))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_graph_that_was_interrupted_in_its_second_node_continues_there(
    tmp_path: Path, signum: signal.Signals
) -> None:
    ledger = tmp_path / "run.db"
    program = start(ledger)
    assert program.stdout is not None
    told = []
    for line in program.stdout:
        told.append(line)
        if sum("write:" in line for line in told) == 2:
            program.send_signal(signum)
            break
    rest, _ = program.communicate(timeout=60)
    told += rest.splitlines()
    assert program.returncode == (130 if signum == signal.SIGINT else -signal.SIGKILL)
    assert nodes(told) == {f"{node}: {topic}": 1 for topic in ("owls", "moles") for node in ("research", "write")}
    assert len(list((tmp_path / "run.db-files" / "main").glob("*.db"))) == 2

    again, _ = start(ledger).communicate(timeout=60)
    ran = nodes(again.splitlines())
    for topic in ("owls", "moles"):
        assert (ran[f"research: {topic}"], ran[f"write: {topic}"], ran[f"review: {topic}"]) == (0, 1, 1)
    assert ran["research: voles"] == 1
    assert all(f"{topic}: fine" in again for topic in ("owls", "moles", "voles"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.db"]
