"""Runs with a ledger, through the public API: nothing is lost, nothing is done twice, nothing is leaked."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentos.events import RunEnded, RunResumed, RunStopping
from agentos.items import sources as _items
from agentos.items.attempt import Attempt
from agentos.items.duplicates import RecentIds
from agentos.items.file_names import database_name
from agentos.ledger import _batch as batch
from agentos.ledger import _database as database
from agentos.ledger import _writer as writer
from agentos.ledger import record
from agentos.limits import backoff
from agentos.runs._attempt_context import RunContext
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Interrupted,
    Ledger,
    LedgerError,
    ParallelCoordinator,
    RateLimited,
    RunBusy,
    Transient,
    UnrecordableValue,
    WorkflowResult,
    current_item,
)
from tests.conftest import BUSY, eventually
from tests.support import workers

KEYS = ["sk-alpha-000000", "sk-bravo-111111", "sk-charlie-222222"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)


class Doubling:
    """A worker that remembers what it was called with, and fails where it is told to."""

    def __init__(self, *failing: Any) -> None:
        self.failing = set(failing)
        self.calls: list[Any] = []

    def __call__(self, item: Any, _credential: str | None) -> Any:
        self.calls.append(item)
        if item in self.failing:
            raise ValueError(f"{item} is bad")
        return item * 2


def quiet(path: Path, pool: CredentialCoordinator | None = None, **options: Any) -> ParallelCoordinator:
    return ParallelCoordinator(4, pool, ledger=path, reporter=None, **options)


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    assert len({result.item_id for result in results}) == len(results)
    return {result.item_id: result for result in results}


def is_recorded(result: WorkflowResult) -> bool:
    return result.metadata.get("recorded") is True


def assert_whole(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


# --- resume -------------------------------------------------------------------------------------------------------


def test_the_same_call_again_executes_nothing_and_returns_what_is_on_record(path: Path) -> None:
    worker = Doubling()
    _, first = quiet(path).execute_parallel(range(50), worker)
    assert not any(is_recorded(result) for result in first)
    stats, second = quiet(path).execute_parallel(range(50), worker)
    assert len(worker.calls) == 50
    assert {key: result.value for key, result in by_id(second).items()} == {str(n): 2 * n for n in range(50)}
    assert all(is_recorded(result) for result in second)
    assert (stats.total, stats.completed, stats.success_count, stats.recorded) == (50, 50, 50, 50)


def test_a_larger_input_runs_only_what_is_new(path: Path) -> None:
    worker = Doubling()
    quiet(path).execute_parallel(range(20), worker)
    stats, results = quiet(path).execute_parallel(range(30), worker)
    assert sorted(worker.calls[20:]) == list(range(20, 30))
    assert {key for key, result in by_id(results).items() if is_recorded(result)} == {str(n) for n in range(20)}
    assert (stats.completed, stats.recorded) == (30, 20)


def test_identity_is_the_id_and_never_the_position(path: Path) -> None:  # invariant 22
    worker = Doubling()
    quiet(path).execute_parallel(range(20), worker)
    _, results = quiet(path).execute_parallel(list(range(19, 9, -1)), worker)
    assert len(worker.calls) == 20
    assert {result.item_id: result.value for result in results} == {str(n): 2 * n for n in range(10, 20)}


def test_a_failure_on_record_is_returned_and_tried_again_only_if_asked(path: Path) -> None:
    worker = Doubling(3)
    quiet(path).execute_parallel(range(5), worker)
    stats, results = quiet(path).execute_parallel(range(5), worker)
    failed = by_id(results)["3"]
    assert len(worker.calls) == 5
    assert (failed.success, failed.error) == (False, "3 is bad")
    assert is_recorded(failed)
    assert failed.metadata["error_type"] == "ValueError"
    assert "in __call__" in failed.metadata["traceback"]
    assert (stats.failed, stats.success_count) == (1, 4)

    worker.failing.clear()
    stats, results = quiet(path, retry_failed=True).execute_parallel(range(5), worker)
    assert worker.calls[5:] == [3]
    assert by_id(results)["3"].value == 6
    assert (stats.failed, stats.success_count, stats.recorded) == (0, 5, 4)
    with Ledger.open(path) as ledger:
        assert ledger.counts().succeeded == 5
        assert [(a.launch, a.n, a.verdict) for a in ledger.attempts("3")] == [(1, 1, "failed"), (3, 1, "succeeded")]


def test_whether_to_retry_can_be_said_with_the_call(path: Path) -> None:
    worker = Doubling(1)
    coordinator = quiet(path)
    for retry_failed in (None, False, True):
        coordinator.execute_parallel([1], worker, retry_failed=retry_failed)
    assert worker.calls == [1, 1]


def test_failures_on_record_do_not_halt_the_next_launch(path: Path) -> None:
    worker = Doubling(0, 1)
    quiet(path).execute_parallel(range(2), worker)
    stats, _ = quiet(path, halt="now,fail=1").execute_parallel(range(10), worker)
    assert (stats.stopped, stats.completed) == (None, 10)


def test_a_changed_input_is_reported_and_refused_and_the_record_stays(path: Path) -> None:  # invariant 22
    def worker(item: dict[str, Any], _credential: str | None) -> str:
        return str(item["text"])

    def run(text: str, **options: Any) -> WorkflowResult:
        _, results = quiet(path, **options).execute_parallel([{"id": "a", "text": text}], worker, lambda i: i["id"])
        return results[0]

    assert run("one").value == "one"
    refused = run("two")
    assert not refused.success
    assert refused.metadata["error_type"] == "ChangedInput"
    assert "on_changed='rerun'" in str(refused.error)
    assert (run("one").value, is_recorded(run("one"))) == ("one", True)

    again = run("two", on_changed="rerun")
    assert (again.value, is_recorded(again)) == ("two", False)
    assert is_recorded(run("two"))
    assert run("one").metadata["error_type"] == "ChangedInput"
    with Ledger.open(path) as ledger:
        assert [attempt.launch for attempt in ledger.attempts("a")] == [1, 5]


def test_a_changed_long_input_is_found_too(path: Path) -> None:
    def run(text: str) -> WorkflowResult:
        _, results = quiet(path).execute_parallel([text], lambda *_: None, lambda _: "a")
        return results[0]

    run("x" * 100_000 + "1")
    assert is_recorded(run("x" * 100_000 + "1"))
    assert run("x" * 100_000 + "2").metadata["error_type"] == "ChangedInput"


def test_a_changed_input_does_not_inherit_checkpoints_or_files(path: Path) -> None:
    def leave(_item: str, _credential: str | None) -> None:
        current_item().checkpoint.save("old")
        current_item().workflow_db.write_text("old")
        raise ValueError

    def look(_item: str, _credential: str | None) -> Any:
        return [current_item().checkpoint.load(), current_item().workflow_db.exists()]

    quiet(path).execute_parallel(["one"], leave, lambda _: "a")
    coordinator = quiet(path, on_changed="rerun", retry_failed=True)
    _, results = coordinator.execute_parallel(["two"], look, lambda _: "a")
    assert results[0].value == [None, False]


def test_runs_with_different_ids_share_a_ledger_and_nothing_else(path: Path) -> None:
    worker = Doubling()
    coordinator = quiet(path)
    for run_id in ("monday", "tuesday", "monday"):
        coordinator.execute_parallel(range(3), worker, run_id=run_id)
    assert len(worker.calls) == 6
    with Ledger.open(path) as ledger:
        assert (ledger.run_id, ledger.run_ids()) == ("monday", ["monday", "tuesday"])
    with Ledger.open(path, "tuesday") as ledger:
        assert (ledger.counts().succeeded, len(ledger.launches())) == (3, 1)


def test_a_dry_run_makes_no_ledger(path: Path) -> None:
    quiet(path).execute_parallel(range(3), Doubling(), dry_run=True)
    assert list(path.parent.iterdir()) == []


def test_nothing_but_the_ledger_is_left_beside_it(path: Path) -> None:
    for count in (3, 5):
        quiet(path).execute_parallel(range(count), Doubling())
        assert [entry.name for entry in path.parent.iterdir()] == ["run.db"]


def test_a_home_folder_and_a_plain_string_are_paths_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ParallelCoordinator(ledger="~/run.db", reporter=None).execute_parallel([1], Doubling())
    assert (tmp_path / "run.db").exists()


@pytest.mark.parametrize("options", [{"ledger": 5}, {"ledger": ""}, {"on_changed": "maybe"}])
def test_a_wrong_option_is_a_value_error(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ParallelCoordinator(**options)


# --- streams, endless inputs, duplicates --------------------------------------------------------------------------


def test_a_stream_yields_new_and_recorded_results_in_constant_memory_form(path: Path) -> None:
    worker = Doubling()
    quiet(path).execute_parallel(range(1000), worker)
    with quiet(path).stream((n for n in range(1010)), worker) as results:
        seen = list(results)
    assert len(worker.calls) == 1010
    assert len(by_id(seen)) == 1010
    assert sum(is_recorded(result) for result in seen) == 1000
    assert results.stats.total == 1010


def test_new_work_does_not_wait_for_recorded_results_to_be_taken(path: Path) -> None:
    quiet(path).execute_parallel(range(20_000), Doubling())
    started = threading.Event()

    def worker(_item: int, _credential: str | None) -> None:
        started.set()

    with quiet(path).stream(range(20_001), worker):  # nobody takes any result
        assert started.wait(10 * BUSY)


def test_what_was_listed_but_not_started_is_not_in_the_ledger(path: Path) -> None:
    with quiet(path).stream(itertools.count(), Doubling()) as results:
        taken = [next(results) for _ in range(10)]
    with Ledger.open(path) as ledger:
        assert ledger.counts().total < 50_000
        assert all(ledger.item(result.item_id) is not None for result in taken)


def test_a_generator_that_blocks_after_recorded_items_does_not_hold_back_what_it_gave(path: Path) -> None:
    quiet(path).execute_parallel(range(100), Doubling())
    go_on, done = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        yield from range(101)
        go_on.wait(30)

    def worker(_item: int, _credential: str | None) -> None:
        done.set()

    with quiet(path).stream(items(), worker) as results:
        assert done.wait(10)
        seen = {next(results).item_id for _ in range(101)}  # the recorded ones too
        go_on.set()
        assert list(results) == []
    assert len(seen) == 101


@pytest.mark.parametrize("between", [0, 1000])
def test_a_repeated_id_in_a_stream_is_always_found(path: Path, monkeypatch: pytest.MonkeyPatch, between: int) -> None:
    monkeypatch.setattr(_items, "RecentIds", lambda: RecentIds(most=100))  # else it takes 100,000 items to get past it

    def items() -> Iterator[int]:
        yield 0
        yield from range(1, between + 1)
        yield 0

    calls = []
    with quiet(path).stream(items(), lambda item, _: calls.append(item)) as results:
        failed = [result for result in results if not result.success]
    assert [(result.item_id, "an id names one item" in str(result.error)) for result in failed] == [("0", True)]
    assert calls.count(0) == 1
    with Ledger.open(path) as ledger:
        assert ledger.counts().failed == 0  # the record is that of the first


def test_a_repeated_id_is_found_also_when_its_result_is_on_record(path: Path) -> None:
    worker = Doubling()
    quiet(path).execute_parallel(range(3), worker)
    _, results = quiet(path).execute_parallel(iter([0, 1, 1]), worker)
    assert sorted((r.item_id, r.success) for r in results) == [("0", True), ("1", False), ("1", True)]
    assert len(worker.calls) == 3


def test_a_recorded_id_that_comes_again_much_later_is_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_items, "RecentIds", lambda: RecentIds(most=1))
    worker = Doubling()
    quiet(path).execute_parallel(range(3), worker)
    _, results = quiet(path).execute_parallel(iter([0, 1, 2, 0]), worker)
    assert sorted((r.item_id, r.success) for r in results) == [("0", False), ("0", True), ("1", True), ("2", True)]
    assert len(worker.calls) == 3


def test_async_runs_and_their_twins_resume_too(path: Path) -> None:
    calls = []

    async def worker(item: int, _credential: str | None) -> int:
        calls.append(item)
        await asyncio.sleep(0)
        await current_item().checkpoint.asave({"item": item})
        return item + int(current_item().checkpoint.load()["item"])

    async def twice() -> list[WorkflowResult]:
        await quiet(path).execute_parallel_async(range(30), worker)
        async with quiet(path).astream(range(40), worker) as results:
            return [result async for result in results]

    seen = by_id(asyncio.run(twice()))
    assert {key: result.value for key, result in seen.items()} == {str(n): 2 * n for n in range(40)}
    assert sum(is_recorded(result) for result in seen.values()) == 30
    assert len(calls) == 40
    quiet(path).execute_parallel(range(40), worker)
    assert len(calls) == 40


@pytest.mark.parametrize(
    "item_id",
    ["../../etc", "a\0b", "CON", "dot.", "\u202eright", "lone \udcff", "nfd e\u0301", "\u00e9", "x" * 10_000, ""],
)
def test_an_id_may_be_anything(path: Path, item_id: str) -> None:
    def worker(_item: str, _credential: str | None) -> str:
        current_item().checkpoint.save(1)
        return str(current_item().workflow_db.parent)

    others = ["nfd \u00e9", "e\u0301"]
    for expected in (False, True):
        _, results = quiet(path).execute_parallel([item_id, *others], worker, lambda item: item)
        assert {is_recorded(result) for result in results} == {expected}
        assert {result.value for result in results} == {f"{path}-files/main"}
    with Ledger.open(path) as ledger:
        found = ledger.item(item_id)
        assert found is not None
        assert (found.id, found.input) == (item_id, item_id)
        assert [attempt.item_id for attempt in ledger.attempts(item_id)] == [item_id]
        assert item_id in [attempt.item_id for attempt in ledger.attempts()]


# --- what is on record --------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_short_pauses")
def test_every_attempt_is_on_record_with_its_number_credential_verdict_and_use(path: Path) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="one"), Credential(KEYS[1], id="two")])

    def worker(_item: str, _credential: str | None) -> str:
        here = current_item()
        here.report_usage(requests=2, tokens=100, cost=0.25)
        if here.attempt == 1:
            raise RateLimited(retry_after=0.01)
        if here.attempt == 2:
            raise Transient(f"server error with {_credential}")
        return "done"

    _, results = quiet(path, pool).execute_parallel(["a"], worker)
    with Ledger.open(path) as ledger:
        attempts = list(ledger.attempts())
        assert [(a.item_id, a.launch, a.n) for a in attempts] == [("a", 1, n) for n in (1, 2, 3)]
        assert [a.verdict for a in attempts] == ["rate_limited", "transient", "succeeded"]
        assert {a.credential_id for a in attempts} == {"one", "two"}
        assert {(a.requests, a.tokens, a.cost) for a in attempts} == {(2, 100, 0.25)}
        assert attempts[1].error == "server error with ****"
        for attempt in attempts:
            assert attempt.ended_at is not None
            assert time.time() - 60 < attempt.started_at <= attempt.ended_at <= time.time()
            assert attempt.waited >= 0
        totals = {total.credential_id: total for total in ledger.credentials()}
        assert sum(total.attempts for total in totals.values()) == 3
        assert sum(total.succeeded for total in totals.values()) == 1
        assert sum(total.tokens for total in totals.values()) == 300
        assert sum(total.requests for total in totals.values()) == 6
        assert sum(total.cost for total in totals.values()) == 0.75
        item = ledger.item("a")
        assert item is not None
        assert (item.outcome, item.value, item.attempts, item.launch) == ("succeeded", "done", 3, 1)
        assert item.credential_id == results[0].credential_id == attempts[2].credential_id
        assert item.duration == results[0].duration


def test_an_attempt_that_reports_nothing_counts_as_what_was_reserved(path: Path) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="one")])
    quiet(path, pool).execute_parallel(range(3), Doubling(), tokens_func=lambda _: 40)
    with Ledger.open(path) as ledger:
        total = ledger.credentials()[0]
    assert (total.attempts, total.requests, total.tokens, total.cost) == (3, 3, 120, 0.0)


def test_the_wait_for_a_credential_is_on_record(path: Path) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="one")])
    pause = threading.Event()
    quiet(path, pool).execute_parallel(range(2), lambda *_: pause.wait(0.1))
    with Ledger.open(path) as ledger:
        waits = sorted(attempt.waited for attempt in ledger.attempts())
    assert waits[1] >= 0.09
    assert waits[0] < waits[1]


def test_a_running_item_is_on_record_before_it_ends(path: Path) -> None:
    go_on = threading.Event()
    with quiet(path).stream(["a"], lambda *_: go_on.wait(30)) as results:
        eventually(lambda: path.exists() and _counts(path) == (0, 0, 1))
        with Ledger.open(path) as ledger:
            (attempt,) = ledger.attempts()
            assert (attempt.ended_at, attempt.verdict, attempt.n) == (None, None, 1)
            assert [item.outcome for item in ledger.items()] == ["unfinished"]
        go_on.set()
        list(results)
    assert _counts(path) == (1, 0, 0)


def _counts(path: Path) -> tuple[int, int, int]:
    try:
        with Ledger.open(path) as ledger:
            counts = ledger.counts()
    except LedgerError:
        return (-1, -1, -1)
    return counts.succeeded, counts.failed, counts.unfinished


def test_items_are_iterated_by_outcome_and_in_pages(path: Path) -> None:
    quiet(path).execute_parallel(range(1000), Doubling(*range(0, 1000, 10)))
    with Ledger.open(path) as ledger:
        assert len(list(ledger.items())) == 1000
        assert {item.id for item in ledger.items("failed")} == {str(n) for n in range(0, 1000, 10)}
        assert sum(item.value for item in ledger.items("succeeded")) == sum(2 * n for n in range(1000) if n % 10)
        assert list(ledger.items("unfinished")) == []
        assert len(list(ledger.attempts())) == 1000
        with pytest.raises(ValueError, match="outcome must be"):
            list(ledger.items("lost"))


def test_a_reader_sees_only_whole_batches_while_a_run_is_writing(path: Path) -> None:
    seen = []
    with quiet(path).stream(range(3000), Doubling()) as results:
        for reported, result in enumerate(results, start=1):
            if reported % 500 == 0:
                with Ledger.open(path) as ledger:
                    assert ledger.item(result.item_id) is not None
                    seen.append(sum(1 for _ in ledger.items("succeeded")))
                    assert seen[-1] >= reported  # what was reported is on record
    assert seen == sorted(seen)


def test_a_result_of_fifty_megabytes_comes_back_whole(path: Path) -> None:
    text = "äx" * 17_000_000
    for expected in (False, True):
        _, results = quiet(path).execute_parallel(["a"], lambda *_: {"text": text})
        assert is_recorded(results[0]) is expected
        assert results[0].value == {"text": text}


def test_large_recorded_results_are_fetched_a_few_at_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet(path).execute_parallel(range(50), lambda *_: "x" * 300_000)
    from agentos.ledger import recorded_results

    monkeypatch.setattr(recorded_results, "PAGE_SIZE", 1_000_000)
    with quiet(path).stream(range(50), Doubling()) as results:
        first = next(results)
        assert len(results._recorded_results._page) < 5
        assert len({first.item_id, *(result.item_id for result in results)}) == 50


def test_a_result_that_cannot_be_recorded_fails_its_item_only_and_says_what_to_return(path: Path) -> None:
    _, results = quiet(path).execute_parallel(range(4), lambda item, _: object() if item == 2 else item)
    failed = by_id(results)["2"]
    assert [result.item_id for result in results if not result.success] == ["2"]
    assert failed.metadata["error_type"] == "UnrecordableValue"
    assert "of type object" in str(failed.error)
    assert "use plain data" in str(failed.error)
    with Ledger.open(path) as ledger:
        assert [item.error for item in ledger.items("failed")] == [failed.error]


def test_an_input_that_cannot_be_recorded_fails_its_item_before_it_starts(path: Path) -> None:
    calls = []
    items = [1, object(), 3]
    for expected in (2, 2):
        stats, results = quiet(path).execute_parallel(
            items, lambda item, _: calls.append(item), lambda item: str(type(item).__name__ + str(items.index(item)))
        )
        failed = [result for result in results if not result.success]
        assert [(result.item_id, result.metadata["error_type"]) for result in failed] == [
            ("object1", "UnrecordableValue")
        ]
        assert len(calls) == expected
        assert (stats.completed, stats.failed) == (3, 1)
    assert _counts(path) == (2, 1, 0)


def test_an_exception_that_cannot_be_pickled_arrives_with_its_text(path: Path) -> None:
    coordinator = quiet(path, workers="processes")
    for _ in range(2):
        _, results = coordinator.execute_parallel(["unpicklable", "loses", "fine"], workers.fail_with)
        errors = {key: result.error for key, result in by_id(results).items()}
        assert errors == {"unpicklable": "the text of it", "loses": "lost arguments", "fine": None}
    assert all(is_recorded(result) for result in results)


def test_no_secret_of_the_pool_is_in_any_file(path: Path) -> None:
    awkward = 'sk-"quoted\\and-slashed"-4242'
    secrets = [*KEYS, awkward]
    pool = CredentialCoordinator(secrets)
    barrier = threading.Barrier(4)

    def worker(item: dict[str, Any], credential: str | None) -> Any:
        barrier.wait(10)
        here = current_item()
        here.checkpoint.save({"used": f"Bearer {credential}", credential: 1})
        if item["n"] % 2:
            raise ValueError(f"refused: {credential}", {"key": credential})
        return {"key": credential, "nested": [f"x{credential}y"]}

    items = [{"n": n, "note": f"use {secret}"} for n, secret in enumerate(secrets)]
    for _ in range(2):
        quiet(path, pool).execute_parallel(items, worker, lambda item: str(item["n"]))
    for file in path.parent.rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        for secret in secrets:
            assert secret.encode() not in data
            assert json.dumps(secret)[1:-1].encode() not in data
    with Ledger.open(path) as ledger:
        first = ledger.item("0")
        assert first is not None
        assert first.input == {"n": 0, "note": "use ****"}
        assert first.value == {"key": "****", "nested": ["x****y"]}
        assert ledger.counts().failed == 2


def test_a_short_secret_does_not_garble_results(path: Path) -> None:
    pool = CredentialCoordinator(["a", "12"])
    quiet(path, pool).execute_parallel(["banana"], lambda *_: {"a": "banana", "n": 12})
    _, results = quiet(path, pool).execute_parallel(["banana"], Doubling())
    assert results[0].value == {"a": "banana", "n": 12}


# --- checkpoints and files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_checkpoints_and_files_are_there_in_the_next_launch_and_gone_with_success(path: Path, kind: str) -> None:
    coordinator = quiet(path, workers=kind, retry_failed=True)
    coordinator.execute_parallel(["a", "b"], workers.leave_half_way)
    files = path.with_name("run.db-files") / "main"
    assert len(list(files.iterdir())) == 2
    _, results = coordinator.execute_parallel(["a", "b"], workers.leave_half_way)
    assert {key: result.value for key, result in by_id(results).items()} == {
        "a": [{"step": 1, "of": "a"}, "half", 1],
        "b": [{"step": 1, "of": "b"}, "half", 1],
    }
    assert not files.parent.exists()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM checkpoints").fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM files").fetchone() == (0,)
    connection.close()


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_checkpoint_is_there_in_the_next_attempt(path: Path, kind: str) -> None:
    _, results = quiet(path, workers=kind).execute_parallel(["a"], workers.remember)
    assert (results[0].value, results[0].attempts) == ({"step": 1}, 2)


def test_a_checkpoint_is_plain_data_also_when_it_has_not_left_the_process(path: Path) -> None:
    def worker(_item: str, _credential: str | None) -> Any:
        current_item().checkpoint.save((1, {"a": (2,)}))
        return current_item().checkpoint.load()

    _, results = quiet(path).execute_parallel(["a"], worker)
    assert results[0].value == [1, {"a": [2]}]


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_checkpoint_that_cannot_be_recorded_is_told_to_the_worker(path: Path, kind: str) -> None:
    _, results = quiet(path, workers=kind).execute_parallel(["a"], workers.save_a_function)
    assert "the checkpoint, of type function, cannot be recorded" in results[0].value


def test_a_checkpoint_is_on_record_when_save_returns(path: Path) -> None:
    def worker(_item: str, _credential: str | None) -> Any:
        current_item().checkpoint.save("here")
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT saved FROM checkpoints").fetchall()
        items = connection.execute("SELECT id, input, outcome FROM items").fetchall()
        connection.close()
        return [rows, items]

    _, results = quiet(path).execute_parallel(["a"], worker)
    assert results[0].value == [[('"here"',)], [("a", '"a"', None)]]


def test_the_files_of_an_item_that_succeeded_just_before_a_crash_are_removed_later(path: Path) -> None:
    quiet(path).execute_parallel(["a"], Doubling())
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO files VALUES (1, 'a', 'left.db')")
    connection.close()
    folder = path.with_name("run.db-files") / "main"
    folder.mkdir(parents=True)
    for name in ("left.db", "left.db-wal", "other.db"):
        (folder / name).touch()
    quiet(path).execute_parallel(["a"], Doubling())
    assert [entry.name for entry in folder.iterdir()] == ["other.db"]


def test_a_file_that_nothing_is_on_record_about_is_removed_at_last(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch is killed before it is on record that the item has a file, the next before that is removed."""
    folder = path.with_name("run.db-files") / "main"
    folder.mkdir(parents=True)
    (folder / database_name("a")).touch()
    with monkeypatch.context() as patch:
        patch.setattr(RunContext, "forget", lambda *_: None)
        patch.setattr(record.RunRecord, "_end_launch", lambda *_: None)
        quiet(path).execute_parallel(["a"], Doubling())
    assert (folder / database_name("a")).exists()
    quiet(path).execute_parallel(["a"], Doubling())
    assert [entry.name for entry in path.parent.iterdir()] == ["run.db"]


# --- stopping -----------------------------------------------------------------------------------------------------


def test_after_a_shutdown_with_stuck_workers_all_that_ended_is_on_record_and_the_rest_is_named(path: Path) -> None:
    stuck = threading.Event()  # invariant 25

    def worker(item: int, _credential: str | None) -> int:
        if item >= 10:
            stuck.wait(60)
        return item

    coordinator = quiet(path, grace_seconds=0.2)
    stream = coordinator.stream(range(100), worker)
    seen = [next(stream) for _ in range(10)]
    eventually(lambda: stream.stats.running == 4)
    start = time.monotonic()
    coordinator.request_shutdown()
    seen += list(stream)
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    stuck.set()
    assert sorted(int(result.item_id) for result in seen) == list(range(10))
    assert sorted(map(int, coordinator.get_checkpoints())) == list(range(10, 100))
    with Ledger.open(path) as ledger:
        assert ledger.counts().succeeded == 10
        unfinished = list(ledger.items("unfinished"))
        assert [item.id for item in unfinished] == ["10", "11", "12", "13"]
        assert {attempt.verdict for item in unfinished for attempt in ledger.attempts(item.id)} == {"interrupted"}
        assert ledger.launches()[0].stopped == "interrupted"
    stats, results = quiet(path).execute_parallel(range(100), lambda item, _: item)
    assert (stats.completed, stats.recorded) == (100, 10)
    assert {key: result.value for key, result in by_id(results).items()} == {str(n): n for n in range(100)}


def test_checkpoints_of_a_resumed_run_do_not_name_what_is_on_record(path: Path) -> None:
    quiet(path).execute_parallel(range(0, 100, 2), Doubling())
    coordinator = quiet(path, grace_seconds=5)
    running = threading.Event()

    def worker(_item: int, _credential: str | None) -> None:
        running.set()
        while not current_item().should_stop:
            time.sleep(0.001)
        raise Interrupted

    with coordinator.stream(range(100), worker) as results:
        assert running.wait(60)
    assert results.stats.stopped == "left early"
    assert sorted(map(int, coordinator.get_checkpoints())) == list(range(1, 100, 2))


def test_an_interrupted_item_is_no_failure_and_runs_again(path: Path) -> None:
    def stops(_item: int, _credential: str | None) -> None:
        while not current_item().should_stop:
            time.sleep(0.001)
        raise Interrupted

    coordinator = quiet(path)
    with coordinator.stream(["a"], stops) as results:
        eventually(lambda: results.stats.running == 1)
    assert _counts(path) == (0, 0, 1)
    _, results_again = coordinator.execute_parallel(["a"], Doubling())
    assert results_again[0].value == "aa"


def test_resuming_is_announced_and_so_is_what_is_left(path: Path) -> None:
    events: list[Any] = []
    worker = Doubling(1)
    coordinator = ParallelCoordinator(2, ledger=path, reporter=events.append, halt="soon,fail=1")
    coordinator.execute_parallel(range(1, 50), worker)
    assert not [event for event in events if isinstance(event, RunResumed)]
    ended = next(event for event in events if isinstance(event, RunEnded))
    assert ended.is_recorded
    events.clear()
    done = len(worker.calls)
    coordinator.execute_parallel(range(1, 50), worker, retry_failed=True)
    (resumed,) = [event for event in events if isinstance(event, RunResumed)]
    assert (resumed.run_id, resumed.launch, resumed.succeeded, resumed.failed) == ("main", 2, done - 1, 1)


# --- what can go wrong with the file ------------------------------------------------------------------------------


def test_a_second_run_on_the_same_ledger_is_refused_and_names_the_first(path: Path) -> None:  # invariant 27
    go_on = threading.Event()
    with quiet(path).stream(["a"], lambda *_: go_on.wait(30)) as results:
        with pytest.raises(RunBusy) as caught:
            quiet(path).execute_parallel(["b"], Doubling())
        assert caught.value.pid == os.getpid()
        go_on.set()
        list(results)
    quiet(path).execute_parallel(["b"], Doubling())


def damage(kind: str, path: Path) -> None:
    data = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "cut to the header":
        path.write_bytes(data[:50])
    elif kind == "foreign":
        path.write_bytes(b"These are my notes. " * 100)
    elif kind == "another program's":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (a)")
        connection.commit()
        connection.close()
    elif kind == "newer":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif kind == "scrambled":
        path.write_bytes(data[:4096] + bytes(len(data) - 4096))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "is empty"),
        ("cut off", "damaged"),
        ("cut to the header", "damaged|not a ledger"),
        ("foreign", "not a ledger"),
        ("another program's", "another program"),
        ("newer", "newer version"),
        ("scrambled", "damaged"),
    ],
)
def test_a_file_that_is_no_whole_ledger_is_refused_and_left_as_it_is(path: Path, kind: str, words: str) -> None:
    quiet(path).execute_parallel(range(2000), Doubling())
    damage(kind, path)
    before = path.read_bytes()
    worker = Doubling()
    with pytest.raises(LedgerError, match=words):
        quiet(path).execute_parallel(range(2000), worker)
    assert worker.calls == []
    assert path.read_bytes() == before
    assert not path.with_name("run.db-lock").exists()
    with pytest.raises(LedgerError, match=words), Ledger.open(path) as ledger:
        list(ledger.items())


def test_a_folder_that_is_not_there_or_a_path_that_is_a_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no folder"):
        quiet(tmp_path / "none" / "run.db").execute_parallel([1], Doubling())
    with pytest.raises(LedgerError, match="is not a file"):
        quiet(tmp_path).execute_parallel([1], Doubling())
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(tmp_path / "run.db")


def as_nobody(call: Callable[[], str]) -> str:
    """What a call says when it is made by somebody who is not root, in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            told = call()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, encoding="utf-8") as file:
        return file.read()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_folder_or_file_that_may_not_be_written_is_a_clear_error_and_can_be_read() -> None:
    folder = Path(tempfile.mkdtemp())  # not pytest's, which is for its owner only
    path = folder / "run.db"
    folder.chmod(0o755)
    try:
        quiet(path).execute_parallel([1], Doubling())
        folder.chmod(0o555)
        path.chmod(0o444)
        for name in ("new.db", "run.db"):
            told = as_nobody(lambda name=name: str(quiet(folder / name).execute_parallel([2], Doubling())))
            assert told.startswith(f"LedgerError: the ledger {folder / name} cannot be written")
            assert "Permission denied" in told
        assert as_nobody(lambda: str(Ledger.open(path).counts().succeeded)) == "1"
        assert [entry.name for entry in folder.iterdir()] == ["run.db"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_ledger_whose_file_is_gone_but_not_its_rest_is_not_started_anew(path: Path) -> None:
    quiet(path).execute_parallel(range(3), Doubling())
    path.rename(path.with_name("elsewhere"))
    path.with_name("run.db-wal").write_bytes(b"something")
    with pytest.raises(LedgerError, match="-wal is still there"):
        quiet(path).execute_parallel(range(3), Doubling())


def run_until_it_stops(
    path: Path, harm: Callable[[], None], **options: Any
) -> tuple[LedgerError, list[WorkflowResult]]:
    """A run whose ledger comes to harm in the middle; returns its error, and what it had reported."""
    coordinator = quiet(path, grace_seconds=5, **options)
    seen: list[WorkflowResult] = []
    pause = threading.Event()
    with pytest.raises(LedgerError) as caught:
        for result in coordinator.stream(range(20_000), lambda item, _: pause.wait(0.002) or item):
            seen.append(result)
            if len(seen) == 20:
                harm()
    assert len(seen) < 20_000
    left = set(coordinator.get_checkpoints())
    assert left | {result.item_id for result in seen} == {str(n) for n in range(20_000)}
    assert not left & {result.item_id for result in seen}
    return caught.value, seen


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_a_ledger_that_is_removed_while_in_use_stops_the_run(path: Path, suffix: str) -> None:  # invariant 28
    error, _ = run_until_it_stops(path, lambda: Path(f"{path}{suffix}").unlink())
    assert "removed or replaced while in use" in str(error)


def test_a_ledger_that_is_replaced_while_in_use_stops_the_run(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    quiet(other).execute_parallel(["a"], Doubling())
    before = other.read_bytes()
    error, _ = run_until_it_stops(path, lambda: other.replace(path))
    assert "removed or replaced while in use" in str(error)
    assert path.read_bytes() == before


def test_a_full_disk_stops_the_run_and_the_next_launch_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = database.connect_writer

    def with_little_room(path: Path) -> sqlite3.Connection:
        connection = plain(path)
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 10}")  # SQLite then answers as it does on a full disk
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(database, "connect_writer", with_little_room)
        error, seen = run_until_it_stops(path, lambda: None)
    assert "the disk is full" in str(error)
    assert_whole(path)
    with Ledger.open(path) as ledger:
        on_record = {item.id for item in ledger.items("succeeded")}
        assert ledger.launches()[0].ended_at is None
    assert {result.item_id for result in seen} <= on_record
    stats, _ = quiet(path).execute_parallel(range(1000), Doubling())
    assert (stats.completed, stats.stopped) == (1000, None)


def test_another_program_that_keeps_the_ledger_locked_stops_the_run(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    others: list[sqlite3.Connection] = []

    def lock() -> None:
        others.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        others[0].execute("BEGIN IMMEDIATE")

    error, _ = run_until_it_stops(path, lock)
    others[0].close()
    assert "locked by another program" in str(error)
    with Ledger.open(path) as ledger:
        assert ledger.counts().failed == 0


def test_a_launch_that_was_taken_over_cannot_write(path: Path) -> None:  # invariant 23
    def take_over() -> None:
        connection = sqlite3.connect(path, isolation_level=None, timeout=10)
        connection.execute("INSERT INTO launches (run, launch, pid, host, started_at) VALUES (1, 2, 1, 'x', 0)")
        connection.close()

    error, seen = run_until_it_stops(path, take_over)
    assert "taken over by a later launch" in str(error)
    with Ledger.open(path) as ledger:
        assert {result.item_id for result in seen} <= {item.id for item in ledger.items("succeeded")}


def test_a_checkpoint_that_cannot_be_written_is_told_to_its_worker(path: Path) -> None:
    told: list[str] = []

    def worker(_item: int, _credential: str | None) -> None:
        path.unlink()
        try:
            current_item().checkpoint.save(1)
        except LedgerError as error:
            told.append(str(error))
            raise

    with pytest.raises(LedgerError, match="removed or replaced"):
        quiet(path).execute_parallel(["a"], worker)
    assert told == ["the checkpoint was not saved: the run is over"]


def test_a_run_that_cannot_start_leaves_the_ledger_free(path: Path) -> None:
    with pytest.raises(Exception, match="top level of a module"):
        quiet(path, workers="processes").execute_parallel([1], lambda *_: None)
    with pytest.raises(ValueError, match="two items have the id"):
        quiet(path).execute_parallel([1, 1], Doubling())
    assert quiet(path).execute_parallel([1], Doubling())[0].completed == 1


def test_a_ledger_names_its_runs_when_asked_for_one_that_it_has_not(path: Path) -> None:
    quiet(path).execute_parallel(range(3), Doubling(), run_id="monday")
    with pytest.raises(LedgerError, match="no run 'friday': it has 'monday'"):
        Ledger.open(path, "friday")


# --- recording itself ---------------------------------------------------------------------------------------------


def test_results_that_wait_for_their_commit_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_WAITING", 50)
    may_write = threading.Event()
    plain = batch.Batch.write

    def held_up(self: batch.Batch, *args: Any) -> None:
        may_write.wait(30)
        plain(self, *args)

    monkeypatch.setattr(batch.Batch, "write", held_up)
    worker = Doubling()
    with quiet(path).stream(range(1000), worker) as results:
        eventually(lambda: len(worker.calls) >= 50)
        assert results.stats.completed == 0  # the workers' places were free, but nothing is told before its commit
        may_write.set()
        assert len(list(results)) == 1000


def test_a_place_is_free_before_its_result_is_on_record(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GATHER_SECONDS", 60.0)
    worker = Doubling()
    with ParallelCoordinator(1, ledger=path, reporter=None).stream(itertools.count(), worker) as results:
        eventually(lambda: len(worker.calls) > 10)
        assert results.stats.completed == 0
        start = time.monotonic()
    assert time.monotonic() - start < 1 + BUSY  # and the end does not wait for others to join


def test_a_batch_with_an_outcome_that_is_there_already_is_refused_whole(path: Path) -> None:  # invariants 19, 23
    quiet(path).execute_parallel([1, 2], Doubling())
    before = path.read_bytes()
    connection = database.connect_writer(path)
    late = batch.Batch(1, 1, 0.0)
    from agentos.items.item import Item

    for item_id in ("3", "1"):
        item = Item(item_id, None)
        item.to_be_recorded()
        late.item_ended(item, None, WorkflowResult(item_id, False, "late", attempts=0), None)
    connection.execute("BEGIN")
    with pytest.raises(RuntimeError, match="1 items have an outcome on record already"):
        late.write(connection, str)
    connection.rollback()
    connection.close()
    assert path.read_bytes() == before


def late_failure(launch: int) -> batch.Batch:
    from agentos.items.item import Item

    late, item = batch.Batch(1, launch, 0.0), Item("1", None)
    item.to_be_recorded()
    late.item_ended(item, None, WorkflowResult("1", False, "late", attempts=0), None)
    return late


def test_a_success_is_written_over_by_no_launch(path: Path) -> None:  # invariants 19, 23
    quiet(path).execute_parallel([1], Doubling())
    connection = database.connect_writer(path)
    with pytest.raises(RuntimeError, match="1 items have an outcome on record already"):
        late_failure(2).write(connection, str)
    connection.close()


def test_a_failed_outcome_is_written_over_by_a_later_launch_only(path: Path) -> None:  # invariants 19, 23
    quiet(path).execute_parallel([2], Doubling())
    connection = database.connect_writer(path)
    late_failure(1).write(connection, str)
    with pytest.raises(RuntimeError, match="1 items have an outcome on record already"):
        late_failure(1).write(connection, str)
    late_failure(2).write(connection, str)
    connection.close()


def test_an_older_attempt_writes_over_nothing(path: Path) -> None:  # invariant 23
    from agentos.items.item import Item

    quiet(path).execute_parallel([], Doubling())
    connection = database.connect_writer(path)
    item = Item("a", None)
    item.to_be_recorded()
    for number in (2, 1):
        item.attempts = number
        attempt = Attempt(item, RunContext("run", None), 0.0)
        attempt.waited = 0.0
        said = batch.Batch(1, 1, 0.0)
        said.attempt_ended(attempt, "transient", f"of attempt {number}")
        said.saved(attempt, f'"of attempt {number}"', threading.Event())
        said.write(connection, str)
    assert connection.execute("SELECT n, error FROM items").fetchall() == [(2, "of attempt 2")]
    assert connection.execute("SELECT n, saved FROM checkpoints").fetchall() == [(2, '"of attempt 2"')]
    connection.close()


def test_a_failure_is_told_as_the_reason_why_the_run_stopped(path: Path) -> None:
    events: list[Any] = []
    coordinator = ParallelCoordinator(2, ledger=path, reporter=events.append)
    pause = threading.Event()
    with pytest.raises(LedgerError):
        for _ in coordinator.stream(range(10_000), lambda *_: pause.wait(0.002)):
            if path.exists():
                path.unlink()
    (stopping,) = [event for event in events if isinstance(event, RunStopping)]
    assert "removed or replaced" in stopping.reason
    ended = events[-1]
    assert isinstance(ended, RunEnded)
    assert "removed or replaced" in ended.stats.stopped
    assert ended.stats.completed < 10_000


def test_unrecordable_and_busy_are_ledger_words_that_programs_can_catch() -> None:
    assert issubclass(RunBusy, LedgerError)
    assert issubclass(UnrecordableValue, TypeError)


def test_a_ledger_can_be_copied_when_no_run_is_writing(path: Path, tmp_path: Path) -> None:
    worker = Doubling()
    quiet(path).execute_parallel(range(5), worker)
    quiet(path).execute_parallel(range(7), worker)
    shutil.copy(path, tmp_path / "copy.db")
    quiet(tmp_path / "copy.db").execute_parallel(range(7), worker)
    assert len(worker.calls) == 7


# --- one item's oddity is its own ---------------------------------------------------------------------------------


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.usefixtures("_short_pauses")
@pytest.mark.parametrize(
    "error", [ValueError("caf\udce9.txt"), Transient("caf\udce9"), BadText()], ids=["lone", "transient", "no text"]
)
def test_an_exception_with_an_odd_text_fails_its_item_only(path: Path, error: Exception) -> None:
    def worker(item: int, _credential: str | None) -> int:
        if item == 1:
            raise error
        return item

    for _ in range(2):
        _, results = quiet(path).execute_parallel(range(3), worker)
        assert [result.item_id for result in results if not result.success] == ["1"]
    assert _counts(path) == (2, 1, 0)


@pytest.mark.parametrize("tokens", [2**64, Decimal(5)], ids=["huge", "decimal"])
def test_odd_numbers_of_use_are_recorded_as_numbers(path: Path, tokens: Any) -> None:
    _, results = quiet(path).execute_parallel(["a"], lambda *_: current_item().report_usage(tokens=tokens))
    assert results[0].success
    with Ledger.open(path) as ledger:
        (attempt,) = ledger.attempts()
        assert attempt.tokens == min(int(tokens), 2**63 - 1)


def test_a_worker_that_makes_a_folder_of_its_file_harms_nobody(path: Path) -> None:
    def worker(item: int, _credential: str | None) -> int:
        current_item().workflow_db.mkdir()
        return item

    for _ in range(2):
        stats, _ = quiet(path).execute_parallel(range(3), worker)
        assert stats.success_count == 3
    assert [entry.name for entry in path.parent.iterdir()] == ["run.db"]


def test_what_is_on_record_needs_no_tokens_and_no_scope(path: Path) -> None:
    def offline(_item: int) -> int:
        raise OSError("no tokenizer today")

    quiet(path).execute_parallel(range(3), Doubling(1))
    stats, results = quiet(path).execute_parallel(range(4), Doubling(), tokens_func=offline)
    assert stats.recorded == 3
    failed = by_id(results)
    assert (failed["1"].error, is_recorded(failed["1"])) == ("1 is bad", True)
    assert "no tokenizer today" in str(failed["3"].error)
    assert _counts(path) == (2, 2, 0)


def test_an_input_that_could_not_be_recorded_is_tried_again_when_it_can_and_then_compared(path: Path) -> None:
    def run(given: Any) -> WorkflowResult:
        _, results = quiet(path).execute_parallel([given], lambda item, _: item, lambda _: "a")
        return results[0]

    assert run(object()).metadata["error_type"] == "UnrecordableValue"
    assert (run(1).value, is_recorded(run(1))) == (1, True)
    assert run(2).metadata["error_type"] == "ChangedInput"
    assert run(object()).metadata["error_type"] == "ChangedInput"
    assert run(1).value == 1


def test_an_unrecordable_input_does_not_replace_a_record_even_when_it_may_run_again(path: Path) -> None:
    quiet(path).execute_parallel([1], lambda item, _: item, lambda _: "a")
    _, results = quiet(path, on_changed="rerun").execute_parallel([object()], lambda *_: 2, lambda _: "a")
    assert not results[0].success
    assert _counts(path) == (1, 0, 0)


def test_an_input_is_the_same_with_another_key_of_the_pool_in_it(path: Path) -> None:
    for length in (10, 1000):
        for key, expected in ((KEYS[0], False), (KEYS[1] + "-longer", True)):
            item = {"id": str(length), "text": "x" * length, "key": key}
            pool = CredentialCoordinator([key])
            _, results = quiet(path, pool).execute_parallel([item], lambda *_: 1, lambda item: item["id"])
            assert is_recorded(results[0]) is expected


def test_an_id_with_a_secret_in_it_is_refused_and_not_written_down(path: Path) -> None:
    pool = CredentialCoordinator(KEYS)
    _, results = quiet(path, pool).execute_parallel([f"item of {KEYS[0]}", "fine"], lambda *_: 1)
    refused = next(result for result in results if not result.success)
    assert "contains a secret" in str(refused.error)
    assert KEYS[0].encode() not in path.read_bytes()
    assert _counts(path) == (1, 0, 0)


# --- paths, readers and ends --------------------------------------------------------------------------------------


def test_a_program_may_change_its_folder_during_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_link_to_a_ledger_is_that_ledger(tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(tmp_path / "run.db")  # which is made with the first run
    assert quiet(link).execute_parallel(range(3), Doubling())[0].recorded == 0
    assert link.is_symlink()
    assert quiet(tmp_path / "run.db").execute_parallel(range(3), Doubling())[0].recorded == 3
    with Ledger.open(link) as ledger:
        assert ledger.counts().succeeded == 3


def test_looking_at_a_ledger_from_within_and_from_outside_does_not_disturb_its_run(path: Path) -> None:
    """Closing any descriptor of the file would drop the locks of this process."""
    look = f"from agentos.workflows.parallel import Ledger; Ledger.open({str(path)!r}).close()"
    looked = threading.Event()
    with quiet(path).stream(range(60), lambda item, _: looked.wait(30 if item >= 40 else 0)) as results:
        seen = []
        for result in results:
            seen.append(result.item_id)
            if len(seen) == 30:
                looked.set()
            if len(seen) in (10, 20):
                with Ledger.open(path) as ledger:
                    assert ledger.counts().succeeded >= len(seen)
                with pytest.raises(RunBusy):
                    quiet(path).execute_parallel([1], Doubling())
                subprocess.run([sys.executable, "-c", look], check=True)
    assert len(seen) == 60
    assert _counts(path) == (60, 0, 0)


def test_a_last_commit_that_comes_too_late_does_not_keep_the_ledger_for_ever(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "LAST_COMMIT_SECONDS", 0.05)
    started, go_on = threading.Event(), threading.Event()

    def worker(_item: int, _credential: str | None) -> None:
        started.set()
        go_on.wait(30)

    coordinator = quiet(path, grace_seconds=0.05)
    stream = coordinator.stream(["a"], worker)
    assert started.wait(60)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    coordinator.request_shutdown()
    with pytest.raises(LedgerError, match="did not take the last results in time"):
        list(stream)
    other.close()
    go_on.set()
    eventually(lambda: not path.with_name("run.db-lock").exists())
    assert quiet(path).execute_parallel(["a"], Doubling())[0].completed == 1


def test_every_running_item_is_on_record_also_when_a_newer_one_has_saved(path: Path) -> None:
    go_on = threading.Event()

    def worker(item: int, _credential: str | None) -> None:
        if item == 2:
            current_item().checkpoint.save(1)
        go_on.wait(30)

    with quiet(path).stream(range(3), worker) as results:
        eventually(lambda: path.exists() and _counts(path) == (0, 0, 3))
        go_on.set()
        list(results)


def test_a_resume_that_is_stopped_while_it_sifts_counts_what_it_returns(path: Path) -> None:
    quiet(path).execute_parallel(range(20_000), Doubling())
    coordinator = quiet(path)

    def worker(_item: int, _credential: str | None) -> None:  # should one begin before that
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    stream = coordinator.stream(range(40_000), worker)
    coordinator.request_shutdown()
    returned = sum(1 for _ in stream)
    assert stream.stats.completed == stream.stats.recorded == returned
    assert len(coordinator.get_checkpoints()) == 20_000


def test_a_slow_id_function_does_not_hold_up_a_shutdown(path: Path) -> None:
    quiet(path).execute_parallel(range(200), Doubling())
    coordinator = quiet(path, grace_seconds=0.1)
    is_slow = False
    reading = threading.Event()

    def slow_id(item: int) -> str:
        if is_slow:
            reading.set()
            time.sleep(0.2)
        return str(item)

    stream = coordinator.stream(range(200), Doubling(), slow_id)
    is_slow = True
    reading.wait(60)
    start = time.monotonic()
    coordinator.request_shutdown()
    list(stream)
    assert time.monotonic() - start < 1 + BUSY  # to read them all would take 40 s


def test_checkpoints_name_changed_items_that_were_to_run_again(path: Path) -> None:
    quiet(path).execute_parallel([{"id": n, "v": 1} for n in range(100)], lambda *_: 1, lambda i: str(i["id"]))
    coordinator = quiet(path, on_changed="rerun")
    with coordinator.stream(
        [{"id": n, "v": n % 2} for n in range(100)], lambda *_: 2, lambda i: str(i["id"])
    ) as results:
        done = {next(results).item_id}
    done |= {result.item_id for result in results}
    left = set(coordinator.get_checkpoints())
    assert left | done >= {str(n) for n in range(0, 100, 2)}
    assert not left & {str(n) for n in range(1, 100, 2)}
    assert set(coordinator.get_checkpoints()) == left


def test_a_stale_attempt_cannot_save(path: Path) -> None:  # invariant 23
    entered, may_save = threading.Event(), threading.Event()
    told: list[str] = []

    def worker(_item: str, _credential: str | None) -> Any:
        here = current_item()
        if here.attempt == 1:
            late = threading.Thread(target=save_late, args=(here,))
            late.start()
            threads.append(late)
            raise Transient("once")
        here.checkpoint.save("two")
        may_save.set()
        threads[0].join(60)
        return here.checkpoint.load()

    def save_late(here: Any) -> None:
        entered.set()
        may_save.wait(60)
        try:
            here.checkpoint.save("one")
        except LedgerError as error:
            told.append(str(error))

    threads: list[threading.Thread] = []
    _, results = quiet(path).execute_parallel(["a"], worker)
    assert results[0].value == "two"
    assert "attempt 1 is not the newest" in told[0]


@pytest.mark.parametrize("give_up_after", [0.0001, 0.001, 0.01])
def test_who_gives_up_waiting_for_a_recorded_result_loses_none(path: Path, give_up_after: float) -> None:
    quiet(path).execute_parallel(range(30), lambda *_: "x" * 500_000)

    async def take() -> list[str]:
        seen = []
        async with quiet(path).astream(range(30), lambda *_: None) as results:
            while True:
                try:
                    seen.append((await asyncio.wait_for(anext(results), give_up_after)).item_id)
                except TimeoutError:
                    await asyncio.sleep(0.001)
                except StopAsyncIteration:
                    return seen

    assert sorted(map(int, asyncio.run(asyncio.wait_for(take(), 60)))) == list(range(30))


def test_a_reader_of_recorded_results_can_be_cancelled_at_any_time(path: Path) -> None:
    quiet(path).execute_parallel(range(20), lambda *_: "x" * 1_000_000)

    async def cancelled(after: float) -> None:
        task = asyncio.ensure_future(quiet(path).execute_parallel_async(range(20), lambda *_: None))
        await asyncio.sleep(after)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    for number in range(12):
        asyncio.run(cancelled(number * 0.005))
    assert quiet(path).execute_parallel(range(20), Doubling())[0].recorded == 20


def test_a_worker_process_may_save_from_many_tasks_at_once(path: Path) -> None:
    _, results = quiet(path, workers="processes").execute_parallel(["a", "b"], workers.save_many)
    assert [(result.error, result.value) for result in results] == [(None, True), (None, True)]


@pytest.mark.parametrize("reporter", [None, lambda _event: None], ids=["silent", "told"])
def test_large_results_that_nobody_takes_hold_the_run_up(path: Path, reporter: Any) -> None:
    worker = Doubling()
    coordinator = ParallelCoordinator(4, ledger=path, reporter=reporter)
    with coordinator.stream((str(n) * 250_000 for n in range(10**6)), worker, lambda item: item[:6]) as results:
        next(results)
        eventually(lambda: results._driver.outbox.is_full())
        assert len(worker.calls) < 400


@pytest.mark.parametrize("run_id", ["x" * 101])
def test_a_run_id_that_is_too_long_is_a_value_error(path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="at most 100 characters"):
        quiet(path).execute_parallel([1], Doubling(), run_id=run_id)


def test_an_id_that_is_no_string_is_a_type_error(path: Path) -> None:
    quiet(path).execute_parallel([1], Doubling())
    with Ledger.open(path) as ledger, pytest.raises(TypeError, match="is a string, not int"):
        ledger.item(1)  # type: ignore[arg-type]


def test_pages_and_counts_use_their_indexes(path: Path) -> None:
    quiet(path).execute_parallel([1], Doubling())
    from agentos.ledger import reader as module

    with Ledger.open(path) as ledger:
        for which, words in (
            ("failed", "INDEX failed"),
            ("unfinished", "INDEX unfinished"),
            (None, "INTEGER PRIMARY KEY"),
        ):
            query = f"EXPLAIN QUERY PLAN {module._ITEM} WHERE {module._WHICH[which]} AND rowid > ? ORDER BY rowid"
            plan = " ".join(str(row) for row in ledger._all(query, 1, 0))
            assert words in plan
            assert "TEMP B-TREE" not in plan


@pytest.mark.usefixtures("_short_pauses")
def test_a_look_at_ids_standing_and_the_slowest_needs_no_values(path: Path) -> None:
    def worker(item: str, _credential: str | None) -> str:
        current_item().report_usage(tokens=10, cost=0.25)
        if item == "b" and current_item().attempt < 3:
            raise Transient("again")
        if item == "c":
            raise ValueError("bad")
        return item

    quiet(path).execute_parallel(["a", "b", "c"], worker)
    with Ledger.open(path) as ledger:
        assert sorted(ledger.ids()) == ["a", "b", "c"]
        assert ledger.standing("a") == ("succeeded", 1)
        assert ledger.standing("c") == ("failed", 1)
        assert ledger.standing("d") is None
        slowest = ledger.slowest(2)
        assert slowest[0][0] == "b"
        assert len(slowest) == 2
        assert slowest[0][1] >= slowest[1][1] > 0
        used = {item.id: (item.tokens, item.cost) for item in ledger.items()}
        assert used == {"a": (10, 0.25), "b": (30, 0.75), "c": (10, 0.25)}
