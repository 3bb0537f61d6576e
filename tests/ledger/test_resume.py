"""A launch that continues a run: which items run, and which recorded results are returned."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentos.events import RunEnded, RunResumed
from agentos.workflows.parallel import (
    CredentialCoordinator,
    Ledger,
    ParallelCoordinator,
    WorkflowResult,
    current_item,
)

from .runs import KEYS, Doubling, by_id, coordinator_of, counts_of, is_recorded


def test_same_call_again_returns_recorded_results(path: Path) -> None:
    worker = Doubling()
    _, first = coordinator_of(path).execute_parallel(range(50), worker)
    assert not any(is_recorded(result) for result in first)
    stats, second = coordinator_of(path).execute_parallel(range(50), worker)
    assert len(worker.calls) == 50
    assert {key: result.value for key, result in by_id(second).items()} == {str(n): 2 * n for n in range(50)}
    assert all(is_recorded(result) for result in second)
    assert (stats.total, stats.completed, stats.success_count, stats.recorded) == (50, 50, 50, 50)


def test_larger_input_runs_new_items_only(path: Path) -> None:
    worker = Doubling()
    coordinator_of(path).execute_parallel(range(20), worker)
    stats, results = coordinator_of(path).execute_parallel(range(30), worker)
    assert sorted(worker.calls[20:]) == list(range(20, 30))
    assert {key for key, result in by_id(results).items() if is_recorded(result)} == {str(n) for n in range(20)}
    assert (stats.completed, stats.recorded) == (30, 20)


def test_items_are_identified_by_id_not_position(path: Path) -> None:  # invariant 22
    worker = Doubling()
    coordinator_of(path).execute_parallel(range(20), worker)
    _, results = coordinator_of(path).execute_parallel(list(range(19, 9, -1)), worker)
    assert len(worker.calls) == 20
    assert {result.item_id: result.value for result in results} == {str(n): 2 * n for n in range(10, 20)}


def test_recorded_failure_runs_again_with_retry_failed_only(path: Path) -> None:
    worker = Doubling(3)
    coordinator_of(path).execute_parallel(range(5), worker)
    stats, results = coordinator_of(path).execute_parallel(range(5), worker)
    failed = by_id(results)["3"]
    assert len(worker.calls) == 5
    assert (failed.success, failed.error) == (False, "3 is bad")
    assert is_recorded(failed)
    assert failed.metadata["error_type"] == "ValueError"
    assert "in __call__" in failed.metadata["traceback"]
    assert (stats.failed, stats.success_count) == (1, 4)

    worker.failing.clear()
    stats, results = coordinator_of(path, retry_failed=True).execute_parallel(range(5), worker)
    assert worker.calls[5:] == [3]
    assert by_id(results)["3"].value == 6
    assert (stats.failed, stats.success_count, stats.recorded) == (0, 5, 4)
    with Ledger.open(path) as ledger:
        assert ledger.counts().succeeded == 5
        assert [(a.launch, a.n, a.verdict) for a in ledger.attempts("3")] == [(1, 1, "failed"), (3, 1, "succeeded")]


def test_retry_failed_of_the_call_overrides_the_option(path: Path) -> None:
    worker = Doubling(1)
    coordinator = coordinator_of(path)
    for retry_failed in (None, False, True):
        coordinator.execute_parallel([1], worker, retry_failed=retry_failed)
    assert worker.calls == [1, 1]


def test_recorded_failures_do_not_halt_next_launch(path: Path) -> None:
    worker = Doubling(0, 1)
    coordinator_of(path).execute_parallel(range(2), worker)
    stats, _ = coordinator_of(path, halt="now,fail=1").execute_parallel(range(10), worker)
    assert (stats.stopped, stats.completed) == (None, 10)


def test_changed_input_fails_and_record_stays(path: Path) -> None:  # invariant 22
    def worker(item: dict[str, Any], _credential: str | None) -> str:
        return str(item["text"])

    def run(text: str, **options: Any) -> WorkflowResult:
        _, results = coordinator_of(path, **options).execute_parallel(
            [{"id": "a", "text": text}], worker, lambda i: i["id"]
        )
        return results[0]

    assert run("one").value == "one"
    failed = run("two")
    assert not failed.success
    assert failed.metadata["error_type"] == "ChangedInput"
    assert "on_changed='rerun'" in str(failed.error)
    assert (run("one").value, is_recorded(run("one"))) == ("one", True)

    rerun = run("two", on_changed="rerun")
    assert (rerun.value, is_recorded(rerun)) == ("two", False)
    assert is_recorded(run("two"))
    assert run("one").metadata["error_type"] == "ChangedInput"
    with Ledger.open(path) as ledger:
        assert [attempt.launch for attempt in ledger.attempts("a")] == [1, 5]


def test_changed_long_input_fails(path: Path) -> None:
    def run(text: str) -> WorkflowResult:
        _, results = coordinator_of(path).execute_parallel([text], lambda *_: None, lambda _: "a")
        return results[0]

    run("x" * 100_000 + "1")
    assert is_recorded(run("x" * 100_000 + "1"))
    assert run("x" * 100_000 + "2").metadata["error_type"] == "ChangedInput"


def test_changed_input_inherits_no_checkpoint_or_file(path: Path) -> None:
    def leave(_item: str, _credential: str | None) -> None:
        current_item().checkpoint.save("old")
        current_item().workflow_db.write_text("old")
        raise ValueError

    def look(_item: str, _credential: str | None) -> Any:
        return [current_item().checkpoint.load(), current_item().workflow_db.exists()]

    coordinator_of(path).execute_parallel(["one"], leave, lambda _: "a")
    coordinator = coordinator_of(path, on_changed="rerun", retry_failed=True)
    _, results = coordinator.execute_parallel(["two"], look, lambda _: "a")
    assert results[0].value == [None, False]


def test_runs_in_one_ledger_share_no_items(path: Path) -> None:
    worker = Doubling()
    coordinator = coordinator_of(path)
    for run_id in ("monday", "tuesday", "monday"):
        coordinator.execute_parallel(range(3), worker, run_id=run_id)
    assert len(worker.calls) == 6
    with Ledger.open(path) as ledger:
        assert (ledger.run_id, ledger.run_ids()) == ("monday", ["monday", "tuesday"])
    with Ledger.open(path, "tuesday") as ledger:
        assert (ledger.counts().succeeded, len(ledger.launches())) == (3, 1)


def test_dry_run_creates_no_ledger(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(3), Doubling(), dry_run=True)
    assert list(path.parent.iterdir()) == []


def test_finished_run_leaves_the_ledger_file_only(path: Path) -> None:
    for count in (3, 5):
        coordinator_of(path).execute_parallel(range(count), Doubling())
        assert [entry.name for entry in path.parent.iterdir()] == ["run.db"]


def test_ledger_path_may_be_a_string_with_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ParallelCoordinator(ledger="~/run.db", reporter=None).execute_parallel([1], Doubling())
    assert (tmp_path / "run.db").exists()


@pytest.mark.parametrize("options", [{"ledger": 5}, {"ledger": ""}, {"on_changed": "maybe"}])
def test_wrong_ledger_option_raises_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ParallelCoordinator(**options)


def test_recorded_items_need_no_tokens_func(path: Path) -> None:
    def offline(_item: int) -> int:
        raise OSError("no tokenizer today")

    coordinator_of(path).execute_parallel(range(3), Doubling(1))
    stats, results = coordinator_of(path).execute_parallel(range(4), Doubling(), tokens_func=offline)
    assert stats.recorded == 3
    failed = by_id(results)
    assert (failed["1"].error, is_recorded(failed["1"])) == ("1 is bad", True)
    assert "no tokenizer today" in str(failed["3"].error)
    assert counts_of(path) == (2, 2, 0)


def test_unrecordable_input_runs_once_it_can_be_recorded(path: Path) -> None:
    def run(payload: Any) -> WorkflowResult:
        _, results = coordinator_of(path).execute_parallel([payload], lambda item, _: item, lambda _: "a")
        return results[0]

    assert run(object()).metadata["error_type"] == "UnrecordableValue"
    assert (run(1).value, is_recorded(run(1))) == (1, True)
    assert run(2).metadata["error_type"] == "ChangedInput"
    assert run(object()).metadata["error_type"] == "ChangedInput"
    assert run(1).value == 1


def test_unrecordable_input_never_replaces_a_record(path: Path) -> None:
    coordinator_of(path).execute_parallel([1], lambda item, _: item, lambda _: "a")
    _, results = coordinator_of(path, on_changed="rerun").execute_parallel([object()], lambda *_: 2, lambda _: "a")
    assert not results[0].success
    assert counts_of(path) == (1, 0, 0)


def test_inputs_that_differ_in_a_key_are_equal(path: Path) -> None:
    for length in (10, 1000):
        for key, expected in ((KEYS[0], False), (KEYS[1] + "-longer", True)):
            item = {"id": str(length), "text": "x" * length, "key": key}
            pool = CredentialCoordinator([key])
            _, results = coordinator_of(path, pool).execute_parallel([item], lambda *_: 1, lambda item: item["id"])
            assert is_recorded(results[0]) is expected


def test_id_with_secret_fails_and_is_not_recorded(path: Path) -> None:
    pool = CredentialCoordinator(KEYS)
    _, results = coordinator_of(path, pool).execute_parallel([f"item of {KEYS[0]}", "fine"], lambda *_: 1)
    failed = next(result for result in results if not result.success)
    assert "contains a secret" in str(failed.error)
    assert KEYS[0].encode() not in path.read_bytes()
    assert counts_of(path) == (1, 0, 0)


def test_working_directory_may_change_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def worker(item: int, _credential: str | None) -> int:
        os.chdir(tmp_path / "elsewhere")
        current_item().checkpoint.save(item)
        return item

    coordinator = ParallelCoordinator(2, ledger="run.db", reporter=None)
    for expected in (0, 5):
        assert coordinator.execute_parallel(range(5), worker)[0].recorded == expected
    assert (tmp_path / "run.db").exists()


def test_symlink_opens_the_ledger_it_points_to(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "run.db")  # the first run creates it
    assert coordinator_of(link).execute_parallel(range(3), Doubling())[0].recorded == 0
    assert link.is_symlink()
    assert coordinator_of(tmp_path / "run.db").execute_parallel(range(3), Doubling())[0].recorded == 3
    with Ledger.open(link) as ledger:
        assert ledger.counts().succeeded == 3


def test_copied_ledger_can_be_resumed(path: Path, tmp_path: Path) -> None:
    worker = Doubling()
    coordinator_of(path).execute_parallel(range(5), worker)
    coordinator_of(path).execute_parallel(range(7), worker)
    shutil.copy(path, tmp_path / "copy.db")
    coordinator_of(tmp_path / "copy.db").execute_parallel(range(7), worker)
    assert len(worker.calls) == 7


def test_resume_reports_counts_of_recorded_items(path: Path) -> None:
    events: list[Any] = []
    worker = Doubling(1)
    coordinator = ParallelCoordinator(2, ledger=path, reporter=events.append, halt="soon,fail=1")
    coordinator.execute_parallel(range(1, 50), worker)
    assert not [event for event in events if isinstance(event, RunResumed)]
    end_event = next(event for event in events if isinstance(event, RunEnded))
    assert end_event.is_recorded
    events.clear()
    call_count = len(worker.calls)
    coordinator.execute_parallel(range(1, 50), worker, retry_failed=True)
    (resumed,) = [event for event in events if isinstance(event, RunResumed)]
    assert (resumed.run_id, resumed.launch, resumed.succeeded, resumed.failed) == ("main", 2, call_count - 1, 1)


@pytest.mark.parametrize("run_id", ["x" * 101])
def test_long_run_id_raises_value_error(path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="at most 100 characters"):
        coordinator_of(path).execute_parallel([1], Doubling(), run_id=run_id)
