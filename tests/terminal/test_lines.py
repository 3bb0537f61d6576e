"""Lines about a run where there is no live display."""

from __future__ import annotations

import io
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.bounds import LIMIT, Bound
from agentos.events import (
    CoolDownStarted,
    CredentialQuarantined,
    DryRun,
    Heartbeat,
    ItemEnded,
    RunEnded,
    RunStarted,
)
from agentos.terminal import lines as _lines
from agentos.terminal.lines import LinesReporter, json_output, progress_line
from agentos.verdict import RATE_LIMITED
from agentos.workflows.parallel import ProgressStats, WorkflowResult
from tests.conftest import eventually

START = 1_700_000_000.0


class StandingRun:
    """A run whose figures a test sets."""

    def __init__(self, stats: ProgressStats, bound: Bound | None = None) -> None:
        self.stats, self.present = stats, bound

    def bound(self) -> Bound | None:
        return self.present


def stats(completed: int = 120, failed: int = 2, total: int | None = 300, **more: Any) -> ProgressStats:
    return ProgressStats(total, completed, failed, completed - failed, START, START + 125, **more)


def lines_of(*events: Any, quiet: bool = False, **more: Any) -> list[str]:
    stream = io.StringIO()
    reporter = LinesReporter(stream, StandingRun(stats()), quiet=quiet, **more)
    for event in events:
        reporter(event)
    return stream.getvalue().splitlines()


FAILED = ItemEnded(WorkflowResult("a", False, "bad", metadata={"error_type": "ValueError"}), stats())
ENDED = RunEnded(stats(300, 2, stopped="interrupted"), 7, "3 workers, not the keys", True)


def test_failure_gets_line_and_success_none() -> None:
    assert lines_of(FAILED, ItemEnded(WorkflowResult("b", True), stats())) == [
        "[COORDINATOR] Failed: a: ValueError: bad"
    ]


def test_summary_names_command_that_continues() -> None:
    lines = lines_of(ENDED, go_on="agentos resume nightly")
    assert lines[0] == "[COORDINATOR] Execution stopped early: interrupted:"
    assert "  Unfinished: 7 (agentos resume nightly continues them)" in lines


def test_other_events_get_their_usual_lines() -> None:
    lines = lines_of(
        RunStarted("r", 300, 8, 4),
        CredentialQuarantined("key-1", "no such key"),
        CoolDownStarted("provider", "p", None, 60.0, RATE_LIMITED),
        CoolDownStarted("provider", "p", None, 1.0, RATE_LIMITED),  # over before the next line
        Heartbeat(stats(running=8), None),
    )
    assert lines == [
        "[COORDINATOR] Starting parallel execution of 300 items with 8 workers over 4 credentials",
        "[COORDINATOR] Credential key-1 is quarantined: no such key",
        "[COORDINATOR] Cooling down provider p for 60.0 s: rate-limited",
        "[COORDINATOR] 120/300 done, 2 failed, 8 running, about 3.1 minutes to go",
    ]


def test_quiet_reporter_writes_failures_and_summary() -> None:
    events = [RunStarted("r", 1, 1, 1), Heartbeat(stats(), None), FAILED, CredentialQuarantined("k", "r"), ENDED]
    assert [line for line in lines_of(*events, quiet=True) if line.startswith("[")] == [
        "[COORDINATOR] Failed: a: ValueError: bad",
        "[COORDINATOR] Execution stopped early: interrupted:",
    ]
    assert lines_of(DryRun(1, ["a"])) == []  # `agentos run --dry-run` prints the commands itself


def test_tick_writes_line_only_after_progress() -> None:
    stream = io.StringIO()
    run = StandingRun(stats(running=8), Bound(LIMIT, "tokens per minute", "credential team-a", 1, 1, 40_000))
    reporter = LinesReporter(stream, run)
    reporter.tick()
    reporter.tick()
    run.stats = stats(121, 0, None, running=7)
    run.present = None
    reporter.tick()
    reason = "tokens per minute on team-a (40,000)"
    assert stream.getvalue().splitlines() == [
        f"[COORDINATOR] 120/300 done, 2 failed, 8 running, about 3.1 minutes to go; bound by {reason}",
        "[COORDINATOR] 121 done, 7 running",
    ]
    run.stats = stats(122)
    reporter(ENDED)
    before = stream.getvalue()
    reporter.tick()
    assert stream.getvalue() == before


def test_ticker_writes_progress_until_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_lines, "PROGRESS_SECONDS", 0.001)
    stream = io.StringIO()
    run = StandingRun(stats(1, 0))
    with LinesReporter(stream, run) as reporter:
        eventually(lambda: "1/300 done" in stream.getvalue())
        run.stats = stats(2, 0)
        eventually(lambda: "2/300 done" in stream.getvalue())
        reporter(ENDED)
        assert reporter._ticker is not None
        reporter._ticker.join(60)
        assert not reporter._ticker.is_alive()


def test_quiet_reporter_starts_no_ticker() -> None:
    with LinesReporter(io.StringIO(), StandingRun(stats()), quiet=True) as reporter:
        assert reporter._ticker is None


def test_lines_are_redacted() -> None:
    stream = io.StringIO()
    reporter = LinesReporter(stream, StandingRun(stats()))
    reporter.redact_with(lambda text: text.replace("bad", "[redacted]"))
    reporter(FAILED)
    assert stream.getvalue() == "[COORDINATOR] Failed: a: ValueError: [redacted]\n"


def test_finished_run_shows_no_eta() -> None:
    assert progress_line(stats(300, 0)) == "[COORDINATOR] 300/300 done, 0 running"


# --- output as events ---------------------------------------------------------------------------------------------


def test_each_output_line_becomes_json_event() -> None:
    lines = json_output("a\ud800", "stderr", b"one\n\ntwo \xe2\x82\xac \xff\r\n").splitlines()
    assert [json.loads(line) for line in lines] == [
        {"event": "Output", "v": 1, "item_id": "a\ud800", "stream": "stderr", "line": text}
        for text in ("one", "", "two € \\xff\r")
    ]
    assert json_output("a", "stdout", b"") == b""


@given(st.binary())
def test_any_bytes_become_ascii_json_lines(data: bytes) -> None:
    output = json_output("a", "stdout", data)
    assert output.isascii()
    assert len(output.splitlines()) == len(data.removesuffix(b"\n").split(b"\n")) if data else not output
    for line in output.splitlines():
        assert json.loads(line)["event"] == "Output"


def test_progress_line_has_cost_budget_and_expectation() -> None:
    figures = stats(300, 100)
    figures.cost, figures.tokens, figures.budget, figures.expected_cost = 3.214, 1234, 20.0, 9.5
    assert "; cost 3.21 of 20.00, about 9.50 expected; 1,234 tokens" in progress_line(figures)


def test_summary_names_the_larger_budget_that_continues() -> None:
    figures = stats(3, 1)
    figures.stopped, figures.cost, figures.budget = "the budget of 20.00 is used up: 20.10 spent", 20.1, 20.0
    lines = LinesReporter(io.StringIO(), None, go_on="agentos resume r")
    text = lines._event_text(RunEnded(figures, 2, "1 worker"))
    assert text is not None
    assert "Unfinished: 2 (agentos resume r --budget 40.2 continues them)" in text
    figures.stopped, figures.budget_tokens = "the budget of 500 tokens is used up: 600 spent", 500
    figures.tokens = 600
    assert "--budget-tokens 1200 continues" in (lines._event_text(RunEnded(figures, 2, "1 worker")) or "")


def test_reporter_whose_thread_was_refused_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of `start` must not be replaced by one of `stop`."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    reporter = LinesReporter(io.StringIO(), StandingRun(stats()))
    with pytest.raises(RuntimeError, match="new thread"):
        reporter.start()
    reporter.stop()
