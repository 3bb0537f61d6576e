"""What a run prints and reports, and that no secret is in it."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.events import Heartbeat
from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    CredentialCoordinator,
    JsonReporter,
    ParallelCoordinator,
    PlainReporter,
)
from tests.conftest import eventually

from .coordinators import KEYS, quiet


def test_plain_reporter_prints_progress_and_summary(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(item: str, _: Any) -> None:
        if item == "b":
            raise ValueError("went wrong")

    ParallelCoordinator(2).execute_parallel(["a", "b"], worker)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[COORDINATOR] Starting parallel execution of 2 items with 2 workers"
    assert [line for line in lines if "Progress" in line] == [
        "[COORDINATOR] Progress: 1/2 (50.0%)",
        "[COORDINATOR] Progress: 2/2 (100.0%)",
    ]
    assert "[COORDINATOR] Failed: b: ValueError: went wrong" in lines
    summary = lines.index("[COORDINATOR] Execution complete:")
    assert lines[summary + 1 : summary + 4] == ["  Total: 2", "  Succeeded: 1", "  Failed: 1"]
    assert lines[summary + 4].startswith("  Duration: ")
    assert not any("Bound by" in line for line in lines), "nothing bound so short a run"


def test_dry_run_prints_ids_and_executes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS)
    calls: list[Any] = []
    coordinator = ParallelCoordinator(2, pool)
    stats, results = coordinator.execute_parallel([1, 2], lambda *a: calls.append(a), lambda i: f"id-{i}", dry_run=True)
    out = capsys.readouterr().out
    assert "[COORDINATOR] Dry run mode" in out
    assert "  - id-1\n  - id-2" in out
    assert "Execution" not in out
    assert (stats.total, stats.completed, results, calls) == (2, 0, [], [])
    assert list(coordinator.stream([1, 2], lambda *a: calls.append(a), dry_run=True)) == []
    assert pool.get_available_count() == 3
    with pytest.raises(ValueError, match="'1'"):
        coordinator.execute_parallel([1, 1], print, dry_run=True)
    coordinator.execute_parallel(itertools.count(), print, dry_run=True)  # an endless input: the first ids only
    assert "  - 999" in capsys.readouterr().out


def test_item_id_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    ids = ["a\n[COORDINATOR] Execution complete:", "b\x1b[2J", "\ud800"]

    def worker(_item: str, _: Any) -> None:
        raise ValueError

    ParallelCoordinator(1).execute_parallel(ids, worker)
    out = capsys.readouterr().out
    assert out.count("\n[COORDINATOR] Execution complete:") == 1
    assert "\x1b" not in out
    assert "Progress: 3/3" in out


def test_reporter_none_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS[:1])
    quiet(3, pool).execute_parallel(range(5), lambda _i, _c: None)
    ParallelCoordinator(99, reporter=None)
    assert capsys.readouterr() == ("", "")


def test_run_goes_on_after_its_reporter_raises(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_event: Any) -> None:
        raise BrokenPipeError("no reader")

    stats, _ = ParallelCoordinator(2, reporter=broken).execute_parallel(range(5), lambda _i, _c: None)
    assert stats.success_count == 5
    assert capsys.readouterr().err.count("reporter failed") == 1


def test_errors_and_tracebacks_contain_no_secret() -> None:
    pool = CredentialCoordinator(KEYS)

    def worker(item: int, key: str) -> None:
        raise ValueError(f"cannot use {key!s} for {item}") from RuntimeError(str(key))

    _, results = quiet(2, pool).execute_parallel(range(3), worker)
    for result in results:
        assert result.error == f"cannot use **** for {result.item_id}"
        assert not any(key in repr(result) for key in KEYS)


def test_reported_input_errors_and_values_contain_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS)

    def items() -> Iterator[int]:
        yield 1
        raise RuntimeError(f"https://host/?key={KEYS[0]}")

    for reporter in (PlainReporter(), JsonReporter()):
        with pytest.raises(RuntimeError):
            ParallelCoordinator(1, pool, reporter=reporter).execute_parallel(
                items(), lambda _i, key: {"auth": str(key)}
            )
    out = capsys.readouterr().out
    assert "the input failed" in out
    assert "****" in out
    assert not any(key in out for key in KEYS)


def test_run_without_results_reports_heartbeats(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator(KEYS[:1], clock=clock)
    pool.mark_rate_limited(KEYS[0], 100)
    events: list[Any] = []

    def reporter(event: Any) -> None:
        events.append(event)
        PlainReporter()(event)

    def watch() -> None:
        eventually(lambda: pool.get_stats()["waiting"] > 0)
        clock.advance(30)
        eventually(lambda: any(isinstance(event, Heartbeat) for event in events))
        clock.advance(70)

    threading.Thread(target=watch, daemon=True).start()
    stats, _ = ParallelCoordinator(1, pool, clock=clock, reporter=reporter).execute_parallel([1], lambda *_: None)
    assert stats.success_count == 1
    out = capsys.readouterr().out
    assert re.search(
        r"Still working: 0 done, 0 running, 1 waiting, about \d+\.\d s to go; bound by the cool-down of ", out
    )
    assert "Bound by: the cool-down of key-" in out


def test_summary_names_the_bottleneck(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator(KEYS, clock=clock)
    ParallelCoordinator(1, pool, clock=clock).execute_parallel(range(5), lambda *_: clock.advance(1))
    assert "Bound by: 1 worker, not the keys" in capsys.readouterr().out
    ParallelCoordinator(8, pool, clock=clock).execute_parallel(range(20), lambda *_: clock.advance(1))
    assert "Bound by: max_concurrent: 3 requests at once on 3 keys, all in use" in capsys.readouterr().out
