"""`agentos report` with any arguments, and reading a report file with any content."""

from __future__ import annotations

import json
import math
import re
from itertools import accumulate
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example
from hypothesis import strategies as st

from agentos.cli import main
from agentos.workers.command.reports import KINDS, MAX_BYTES, MAX_MESSAGE, VARIABLE, WAITING, read_reports
from tests.support.properties import holds_for
from tests.support.texts import NUMBERS, ODD, fuzzy, json_values, mutated, scratch

AMOUNTS = st.sampled_from(
    [*NUMBERS, "30", "1e15", "1e16", "1.5", "2026-11-16T09:30:00Z", "0001-01-01", "9999-12-31"]
) | fuzzy(8)
OPTIONS = ["--retry-after", "--until", "--message", "--requests", "--tokens", "--cost"]
ARGUMENTS = st.tuples(
    st.sampled_from([*KINDS, "usage", "usage"]) | fuzzy(8),
    st.lists(st.tuples(st.sampled_from(OPTIONS), AMOUNTS | fuzzy(1200)), max_size=3),
    st.lists(fuzzy(6) | st.sampled_from(["--", "-h", "--help", "--retry-after"]), max_size=1),
).map(lambda parts: [parts[0], *(word for pair in parts[1] for word in pair), *parts[2]])


def report(arguments: list[str], path: str | None) -> int:
    done = CliRunner().invoke(main, ["report", *arguments], env={VARIABLE: path})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code


@holds_for(examples=25, arguments=ARGUMENTS)
@example(arguments=["usage", "--tokens", "9" * 400])
@example(arguments=["usage", "--cost", "1e308"])
@example(arguments=["rate-limited", "--until", "0001-01-01"])
@example(arguments=["transient", "--message", "\U0010ffff" * 20_000])
def test_report_is_refused_or_read_back_unchanged(arguments: list[str]) -> None:
    path = scratch() / "report"
    before = b'{"verdict": "transient"}\n'
    path.write_bytes(before)
    status = report(arguments, str(path))
    assert status in (0, 2)
    content = path.read_bytes()
    if status == 2 or "-h" in arguments or "--help" in arguments:
        assert content == before
    else:
        assert content.startswith(before)
        assert content.count(b"\n") == 2
        assert read_reports(path)[0] == {"verdict": "transient"}
        assert read_reports(path)[1:] == [json.loads(content[len(before) :])]
        is_sound(read_reports(path)[1])


@holds_for(
    examples=10,
    path=st.none() | fuzzy(20).map(lambda name: re.sub("[\0\ud800-\udfff]", "", name)) | st.sampled_from(
        ["/", ".", "/dev/full", "/dev/null/x", "a" * 5000, "/proc/self/mem", "\udcff"]),
)  # fmt: skip
def test_report_never_creates_a_file(path: str | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(scratch())
        there = set(scratch().iterdir())
        assert report(["transient"], path) == 2
        assert set(scratch().iterdir()) == there


# --- reading --------------------------------------------------------------------------------------------------------


def is_sound(report: dict[str, Any]) -> None:
    if "usage" in report:
        assert report.keys() == {"usage"}
        assert report["usage"]
        for name, amount in report["usage"].items():
            assert name in ("requests", "tokens", "cost")
            assert math.isfinite(amount)
            assert amount >= 0
            assert name == "cost" or isinstance(amount, int)
    else:
        assert report["verdict"] in KINDS.values()
        assert report.keys() <= {"verdict", "retry_after", "until", "message"}
        times = [report[name] for name in ("retry_after", "until") if name in report]
        assert not times or report["verdict"] in WAITING
        assert all(math.isfinite(time) and time >= 0 for time in times)
        assert len(report.get("message", "")) <= MAX_MESSAGE


REPORTS = st.sampled_from(
    [
        {"verdict": "rate_limited", "retry_after": 30.0},
        {"verdict": "quota_exhausted", "until": 1794821400.0, "message": "no more\n today"},
        {"verdict": "permanent", "message": "x" * MAX_MESSAGE},
        {"usage": {"requests": 2, "tokens": 1200, "cost": 0.02}},
    ]
)
NUMBER = st.integers() | st.floats() | st.sampled_from([10**400, -1, True, None, "5", 1e308, [], 2**63])
NAMES = st.sampled_from(["verdict", "usage", "retry_after", "until", "message", "tokens", "cost"])
PIECES = [piece.encode("utf-8", "surrogatepass") for piece in [*ODD, *NUMBERS]]
GARBAGE = (
    json_values(NAMES, NUMBER | st.sampled_from([*KINDS.values(), "", "no"])).map(
        lambda report: json.dumps(report).encode()
    )
    | mutated(REPORTS.map(lambda report: json.dumps(report).encode()), PIECES)
    | st.binary(max_size=30)
    | st.sampled_from([b"[" * 5000, b'{"usage": ' * 2000, b"\0" * 500])
)


@holds_for(examples=40, lines=st.lists(REPORTS | GARBAGE.map(lambda line: line.replace(b"\n", b"")), max_size=8))
def test_valid_reports_are_read_among_garbage(lines: list[Any]) -> None:
    path = scratch() / "read"
    written = [json.dumps(line).encode() if isinstance(line, dict) else line for line in lines]
    path.write_bytes(b"\n".join(written))
    reports = read_reports(path)
    for report in reports:
        is_sound(report)
    remaining = iter(reports)
    ends = accumulate(len(line) + 1 for line in written)
    expected = [report for report, end in zip(lines, ends, strict=True) if isinstance(report, dict) and end < MAX_BYTES]
    assert all(report in remaining for report in expected)  # in their order


@holds_for(
    examples=10,
    written=st.lists(REPORTS, min_size=1, max_size=4),
    size=st.integers(0, MAX_BYTES + 400),
    cut=st.integers(0, 120),
)
def test_huge_or_truncated_file_yields_its_first_lines(written: list[dict[str, Any]], size: int, cut: int) -> None:
    path = scratch() / "long"
    lines = b"".join(json.dumps(report).encode() + b"\n" for report in written)
    content = lines * (size // len(lines) + 1)
    path.write_bytes(content[: max(len(lines), len(content) - cut)])
    reports = read_reports(path)
    assert reports[: len(written)] == written
    assert all(report == written[index % len(written)] for index, report in enumerate(reports))
    assert len(reports) * min(len(json.dumps(report)) for report in written) <= MAX_BYTES
