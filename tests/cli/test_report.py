"""`agentos report`, and the reading of its file by an attempt."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.workers.command import reports
from agentos.workers.command.reports import MAX_BYTES, read_reports

from .cli_runs import (
    AGENTOS,
    agentos,
)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "report"
    path.touch()
    monkeypatch.setenv(reports.VARIABLE, str(path))
    return path


def test_reports_are_read_as_written(file: Path) -> None:
    process = subprocess.run([*AGENTOS, "report", "rate-limited", "--retry-after", "30"], check=False, timeout=60)
    assert process.returncode == 0
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
    ("arguments", "message"),
    [
        (["ratelimited"], "is not one of"),
        (["rate-limited", "--retry-after", "-1"], "is not a duration"),
        (["rate-limited", "--retry-after", "nan"], "is not a duration"),
        (["rate-limited", "--until", "tomorrow"], "--until must be epoch seconds or like"),
        (["rate-limited", "--until", "9" * 400], "--until must be a number from 0"),
        (["rate-limited", "--tokens", "1"], "--tokens does not belong to rate-limited"),
        (["auth-failed", "--retry-after", "1"], "--retry-after does not belong to auth-failed"),
        (["usage"], "usage needs --requests"),
        (["usage", "--cost", "inf"], "--cost must be a number from 0"),
        (["usage", "--cost", "1e308"], "--cost must be a number from 0 to 1e+15"),
        (["usage", "--tokens", "9" * 400], "--tokens must be a number from 0"),
        (["usage", "--message", "x"], "--message does not belong to usage"),
    ],
)
def test_invalid_report_is_refused_and_not_written(file: Path, arguments: list[str], message: str) -> None:
    assert message in agentos("report", *arguments, status=2).stderr
    assert file.read_bytes() == b""


def test_report_outside_run_is_refused() -> None:
    assert "works only in a command of a run" in agentos("report", "transient", status=2).stderr


def test_report_after_attempt_creates_no_file(file: Path) -> None:
    file.unlink()
    assert "cannot be written, so the report is lost" in agentos("report", "transient", status=2).stderr
    assert not file.exists()


def test_concurrent_reports_are_all_recorded(file: Path) -> None:
    programs = [subprocess.Popen([*AGENTOS, "report", "usage", "--tokens", str(n)]) for n in range(4)]
    assert [program.wait(60) for program in programs] == [0] * 4
    assert sorted(report["usage"]["tokens"] for report in read_reports(file)) == [0, 1, 2, 3]


# --- reading ------------------------------------------------------------------------------------------------------


def test_invalid_lines_and_fields_are_ignored(file: Path) -> None:
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


def test_long_report_file_is_read_up_to_limit(file: Path) -> None:
    line = b'{"verdict": "transient"}\n'
    file.write_bytes(line * (MAX_BYTES // len(line) + 100))
    assert len(read_reports(file)) == MAX_BYTES // len(line)


def test_reading_non_files_neither_fails_nor_blocks(tmp_path: Path) -> None:
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
