"""The command as people type it."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pexpect

from agentos import __version__

AGENTOS = str(Path(sys.executable).with_name("agentos"))


def test_help_and_version_answer() -> None:
    out = subprocess.run([AGENTOS, "--help"], capture_output=True, text=True, check=True).stdout
    assert "demo" in out
    out = subprocess.run([AGENTOS, "--version"], capture_output=True, text=True, check=True).stdout
    assert out.startswith(f"agentos {__version__} ")
    assert sqlite3.sqlite_version in out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentos.cli import main; main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("agentos.workflows.parallel", "asyncio", "multiprocessing", "http.server", "rich", "redis"):
        assert f"'{name}'" not in out


def test_wrong_usage_is_status_2_and_says_what_to_type() -> None:
    done = subprocess.run([AGENTOS, "dmeo"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such command" in done.stderr


def test_the_demo_shows_progress_cool_downs_and_what_was_measured() -> None:
    child = pexpect.spawn(AGENTOS, ["demo"], encoding="utf-8", timeout=60, dimensions=(50, 200))
    child.expect("Starting parallel execution of 60 items with 8 workers over 4 credentials")
    child.expect(r"Cooling down credential key-\d for 1.0 s: rate_limited")
    child.expect(r"Progress: 60/60 \(100.0%\)")
    child.expect("Succeeded: 60")
    child.expect(r"60 of 60 items succeeded in ([\d.]+) s. The legal minimum for 60 requests is 5.0 s.")
    assert child.match is not None
    assert 5.0 <= float(child.match.group(1)) < 20
    child.expect(r"answered 429 (\d+) times")
    assert child.match is not None
    assert int(child.match.group(1)) > 0
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_the_demo_can_be_interrupted() -> None:
    child = pexpect.spawn(AGENTOS, ["demo"], encoding="utf-8", timeout=60, dimensions=(50, 200))
    child.expect("Progress: 10/60")
    child.sendintr()
    child.expect("Received signal 2")
    child.expect("Execution stopped early: interrupted")
    child.expect(r"Interrupted with (\d+) items unfinished")
    assert child.match is not None
    assert 30 <= int(child.match.group(1)) <= 50
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_a_closed_pipe_does_not_hang_the_demo() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{AGENTOS} demo | head -1"], capture_output=True, text=True, check=False, timeout=60
    )
    assert re.match(r"A provider on http://127\.0\.0\.1:\d+", done.stdout)
