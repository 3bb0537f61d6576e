"""`agentos stop` from another terminal, and `agentos report` from inside a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from agentos.cli import main
from agentos.home import run_status
from agentos.ledger.ownership import Owner
from agentos.workers.command import reports as _reports
from agentos.workers.command.reports import MAX_BYTES, read_reports

from .cli_runs import living, make_interrupted, make_run, prepare

AGENTOS = [sys.executable, "-m", "agentos.cli"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(_reports.VARIABLE, raising=False)


def agentos(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == status, (result.output, result.exception)
    return result


# --- stop ---------------------------------------------------------------------------------------------------------


def test_stop_is_the_first_ctrl_c_from_another_terminal() -> None:
    with living("alive") as run:
        done = subprocess.run([*AGENTOS, "stop", "alive", "--wait"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == (
            f"Told run alive (pid {run.pid}) to stop. Once more: at once.\n"
            "Run alive has ended: interrupted: agentos resume alive\n"
        )
        assert run.wait(30) == 0
    assert "run alive is not running: interrupted: agentos resume alive" in agentos("stop", "alive", status=1).stderr


def test_a_second_stop_is_the_second_ctrl_c() -> None:
    with living("alive", "stubborn") as run:
        agentos("stop", "alive")
        assert run.stdout is not None
        assert run.stdout.readline() == "told\n"
        assert "running" in agentos("runs").stdout  # it ignores that
        agentos("stop", "alive", "--wait")
        assert run.wait(30) != 0


def test_stop_of_what_is_not_running_says_how_it_stands() -> None:
    make_run("done", ["a"], lambda item, _: item)
    make_interrupted("half")
    prepare("waiting", ["a"])
    assert "run done is not running: finished" in agentos("stop", "done", status=1).stderr
    assert "agentos resume half" in agentos("stop", "half", status=1).stderr
    assert "not started" in agentos("stop", "waiting", status=1).stderr
    assert "there is no run" in agentos("stop", "none", status=2).stderr
    assert "no run id" in agentos("stop", "a/b", status=2).stderr


def test_a_run_on_another_machine_is_not_stopped_from_here(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare("far", ["a"])
    owner = Owner(os.getpid(), "elsewhere", 0.0, "far", is_here=False)
    monkeypatch.setattr(run_status, "owner_of", lambda _path: owner)
    told = agentos("stop", "far", status=1).stderr
    assert f"run far is running as pid {os.getpid()} on elsewhere: stop it there" in told


@pytest.mark.parametrize(
    ("error", "told"), [(ProcessLookupError, "has just ended"), (PermissionError, "belongs to another user")]
)
def test_what_cannot_be_signalled_is_told(monkeypatch: pytest.MonkeyPatch, error: type[OSError], told: str) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise error

    with living("alive"):
        monkeypatch.setattr(os, "kill", refuse)
        assert told in agentos("stop", "alive", status=1).stderr
        monkeypatch.undo()


# --- report -------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "report"
    path.touch()
    monkeypatch.setenv(_reports.VARIABLE, str(path))
    return path


def test_reports_are_read_as_they_were_made(file: Path) -> None:
    done = subprocess.run([*AGENTOS, "report", "rate-limited", "--retry-after", "30"], check=False, timeout=60)
    assert done.returncode == 0
    assert json.loads(file.read_text()) == {"verdict": "rate_limited", "retry_after": 30.0}
    agentos("report", "quota-exhausted", "--until", "2026-11-16T09:30:00Z", "--message", "no more \udcff\n today")
    agentos("report", "overloaded", "--until", "1794821400.5")
    for kind in ("auth-failed", "transient", "permanent"):
        agentos("report", kind)
    agentos("report", "usage", "--requests", "2", "--tokens", "1200", "--cost", "0.02")
    agentos("report", "usage", "--tokens", "0")
    assert read_reports(file) == [
        {"verdict": "rate_limited", "retry_after": 30.0},
        {"verdict": "quota_exhausted", "until": 1794821400.0, "message": "no more \udcff\n today"},
        {"verdict": "overloaded", "until": 1794821400.5},
        {"verdict": "auth_failed"},
        {"verdict": "transient"},
        {"verdict": "permanent"},
        {"usage": {"requests": 2, "tokens": 1200, "cost": 0.02}},
        {"usage": {"tokens": 0}},
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["ratelimited"], "is not one of"),
        (["rate-limited", "--retry-after", "-1"], "--retry-after must be a number from 0"),
        (["rate-limited", "--retry-after", "nan"], "--retry-after must be a number from 0"),
        (["rate-limited", "--until", "tomorrow"], "--until must be epoch seconds or like"),
        (["rate-limited", "--until", "9" * 400], "--until must be a number from 0"),
        (["rate-limited", "--tokens", "1"], "--tokens does not belong to rate-limited"),
        (["auth-failed", "--retry-after", "1"], "--retry-after does not belong to auth-failed"),
        (["usage"], "usage of what?"),
        (["usage", "--cost", "inf"], "--cost must be a number from 0"),
        (["usage", "--cost", "1e308"], "--cost must be a number from 0 to 1e+15"),
        (["usage", "--tokens", "9" * 400], "--tokens must be a number from 0"),
        (["usage", "--message", "x"], "--message does not belong to usage"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_and_not_written(file: Path, arguments: list[str], told: str) -> None:
    assert told in agentos("report", *arguments, status=2).stderr
    assert file.read_bytes() == b""


def test_outside_a_run_a_report_says_so() -> None:
    assert "for commands that a run has started" in agentos("report", "transient", status=2).stderr


def test_a_report_after_its_attempt_is_over_makes_no_file(file: Path) -> None:
    file.unlink()
    assert "cannot be written, so no attempt waits for it" in agentos("report", "transient", status=2).stderr
    assert not file.exists()


def test_many_commands_of_one_attempt_may_report_at_once(file: Path) -> None:
    programs = [subprocess.Popen([*AGENTOS, "report", "usage", "--tokens", str(n)]) for n in range(4)]
    assert [program.wait(60) for program in programs] == [0] * 4
    assert sorted(report["usage"]["tokens"] for report in read_reports(file)) == [0, 1, 2, 3]


# --- reading ------------------------------------------------------------------------------------------------------


def test_what_was_not_understood_was_not_said(file: Path) -> None:
    lines: list[Any] = [
        '{"verdict": "rate_limited", "retry_after": "soon", "until": -1, "message": 5}',
        '{"verdict": "permanent", "retry_after": 5}',
        '{"verdict": "unheard_of"}',
        '{"verdict": ["rate_limited"]}',
        '{"usage": {"tokens": 1e999, "requests": true, "cost": 2}}',
        '{"usage": {"tokens": ' + "9" * 400 + "}}",
        '{"usage": {"cost": 1e308}}',
        '{"usage": {}}',
        "[]",
        "{",
        "",
        '{"verdict": "transient"}',
    ]
    file.write_text("\n".join(lines))
    assert read_reports(file) == [
        {"verdict": "rate_limited"},
        {"verdict": "permanent"},
        {"usage": {"cost": 2.0}},
        {"verdict": "transient"},
    ]


def test_only_the_beginning_of_a_long_file_is_read(file: Path) -> None:
    line = b'{"verdict": "transient"}\n'
    file.write_bytes(line * (MAX_BYTES // len(line) + 100))
    assert len(read_reports(file)) == MAX_BYTES // len(line)


def test_whatever_is_in_the_place_of_the_file_reading_neither_fails_nor_waits(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("none", ".", "pipe", "nul\0"):
        assert read_reports(tmp_path / name) == []
    assert read_reports("/dev/zero") == []


@given(st.binary())
def test_any_bytes_can_be_read_as_reports(content: bytes) -> None:
    read, write = os.pipe()
    os.write(write, content)
    os.close(write)
    try:
        reports = read_reports(f"/dev/fd/{read}")
    finally:
        os.close(read)
    assert isinstance(reports, list)
