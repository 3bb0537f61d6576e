"""The `agentos` command as it is typed."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from agentos import __version__

AGENTOS = str(Path(sys.executable).with_name("agentos"))


def test_help_and_version_exit_with_zero() -> None:
    out = subprocess.run([AGENTOS, "--help"], capture_output=True, text=True, check=True).stdout
    assert "demo" in out
    assert subprocess.run([AGENTOS, "-h"], capture_output=True, text=True, check=True).stdout == out
    out = subprocess.run([AGENTOS, "--version"], capture_output=True, text=True, check=True).stdout
    assert out.startswith(f"agentos {__version__} ")
    assert sqlite3.sqlite_version in out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from agentos.cli import main; main(['--help'], standalone_mode=False); print(sorted(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for name in ("agentos.workflows", "asyncio", "multiprocessing", "http.server", "wcwidth", "redis"):
        assert f"'{name}'" not in out


def test_report_command_loads_no_coordinator(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.touch()
    code = (
        "import sys; from agentos.cli import main; main(['report', 'usage', '--tokens', '5'], standalone_mode=False); "
        "print(sorted(sys.modules))"
    )
    environment = {**os.environ, "AGENTOS_REPORT": str(report)}
    out = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert report.read_text() == '{"usage": {"tokens": 5}}\n'
    ours = [name for name in out.split("'") if name.startswith("agentos.") and "agentos.cli" not in name]
    assert sorted(ours) == [
        "agentos.durations",
        "agentos.verdict",
        "agentos.workers",
        "agentos.workers.command",
        "agentos.workers.command.reports",
    ]
    for name in ("asyncio", "multiprocessing", "sqlite3", "msgspec", "wcwidth"):
        assert f"'{name}'" not in out


def test_wrong_usage_exits_with_2_and_a_hint() -> None:
    done = subprocess.run([AGENTOS, "dmeo"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "No such command 'dmeo'. Did you mean demo?" in done.stderr
    done = subprocess.run([AGENTOS, "rnu"], capture_output=True, text=True, check=False)
    assert done.stderr.endswith("Did you mean run?\n")
    done = subprocess.run([AGENTOS, "xyzzy"], capture_output=True, text=True, check=False)
    assert "There are run, resume, " in done.stderr


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_demo_leaves_a_run_that_commands_can_show(home: Path) -> None:
    child = pexpect.spawn(AGENTOS, ["demo"], encoding="utf-8", timeout=120, dimensions=(50, 160))
    child.expect(pexpect.EOF)
    child.wait()  # `close` would not wait for long
    child.close()
    assert child.exitstatus == 0
    printed = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", child.before)  # without colours and movements
    assert "key-4 is invalid, and key-5 is out of quota" in printed
    assert re.search("about .* to go", printed)
    assert re.search(r"key-5 +out of quota (?:until \d\d:\d\d|for \d+ s)", printed)
    assert re.search(r"key-4 +key refused for \d+ s", printed)
    assert "Succeeded: 58" in printed
    served = re.search(
        r"6\d requests were served in ([\d.]+) s; the limits of three valid keys allow [89]\.\d s at best", printed
    )
    assert served is not None
    assert 8.0 <= float(served.group(1)) < 60
    run_id = re.findall(r"agentos show (demo-[\w-]+)", printed)[-1]
    output = subprocess.run([AGENTOS, "show", run_id], capture_output=True, text=True, check=True).stdout
    assert "58 succeeded, 2 failed, 0 unfinished" in output
    assert "is empty: there is nothing to review" in output
    assert "demo-key" not in output
    logs = subprocess.run([AGENTOS, "logs", run_id, "document-13"], capture_output=True, text=True, check=True).stdout
    assert logs.endswith("document-13 is empty: there is nothing to review\n")


def test_demo_stops_on_ctrl_c(home: Path) -> None:
    child = pexpect.spawn(AGENTOS, ["demo", "--no-progress"], encoding="utf-8", timeout=120, dimensions=(50, 160))
    child.expect("document-05 reviewed")
    child.sendintr()
    child.expect("Received SIGINT")
    child.expect("Execution stopped early: interrupted")
    child.expect("Unfinished: ")
    child.expect(pexpect.EOF)
    child.wait()  # `close` would not wait for long
    child.close()
    assert child.exitstatus == 130


def test_demo_survives_a_closed_pipe(home: Path) -> None:
    short = "from agentos.cli import main; from agentos.cli.commands import demo; demo.ITEMS = 15; main(['demo'])"
    done = subprocess.run(
        ["/bin/sh", "-c", f'{sys.executable} -c "{short}" 2>/dev/null | head -1'],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert re.fullmatch(r"\[document-\d\d\] .*\n", done.stdout)
