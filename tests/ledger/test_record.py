"""What a run records about items and attempts, and in which order."""

from __future__ import annotations

import itertools
import json
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentos.items.attempt import Attempt
from agentos.ledger import _batch as batch
from agentos.ledger import _commit_thread as writer
from agentos.ledger import _database as database
from agentos.runs._parts import recorder
from agentos.runs._parts.attempt_context import RunContext
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
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

from .runs import KEYS, Doubling, by_id, coordinator_of, counts_of, is_recorded


@pytest.mark.usefixtures("short_pauses")
def test_every_attempt_is_recorded_with_credential_verdict_and_usage(path: Path) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="one"), Credential(KEYS[1], id="two")])

    def worker(_item: str, _credential: str | None) -> str:
        item = current_item()
        item.report_usage(requests=2, tokens=100, cost=0.25)
        if item.attempt == 1:
            raise RateLimited(retry_after=0.01)
        if item.attempt == 2:
            raise Transient(f"server error with {_credential}")
        return "done"

    _, results = coordinator_of(path, pool).execute_parallel(["a"], worker)
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


def test_attempt_without_reported_usage_records_the_reservation(path: Path) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="one")])
    coordinator_of(path, pool).execute_parallel(range(3), Doubling(), tokens_func=lambda _: 40)
    with Ledger.open(path) as ledger:
        total = ledger.credentials()[0]
    assert (total.attempts, total.requests, total.tokens, total.cost) == (3, 3, 120, 0.0)


def test_wait_for_credential_is_recorded(path: Path) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="one")])
    pause = threading.Event()
    coordinator_of(path, pool).execute_parallel(range(2), lambda *_: pause.wait(0.1))
    with Ledger.open(path) as ledger:
        waits = sorted(attempt.waited for attempt in ledger.attempts())
    assert waits[1] >= 0.09
    assert waits[0] < waits[1]


def test_running_item_is_recorded_as_unfinished(path: Path) -> None:
    may_end = threading.Event()
    with coordinator_of(path).stream(["a"], lambda *_: may_end.wait(30)) as results:
        eventually(lambda: path.exists() and counts_of(path) == (0, 0, 1))
        with Ledger.open(path) as ledger:
            (attempt,) = ledger.attempts()
            assert (attempt.ended_at, attempt.verdict, attempt.n) == (None, None, 1)
            assert [item.outcome for item in ledger.items()] == ["unfinished"]
        may_end.set()
        list(results)
    assert counts_of(path) == (1, 0, 0)


def test_running_items_are_recorded_despite_a_newer_checkpoint(path: Path) -> None:
    may_end = threading.Event()

    def worker(item: int, _credential: str | None) -> None:
        if item == 2:
            current_item().checkpoint.save(1)
        may_end.wait(30)

    with coordinator_of(path).stream(range(3), worker) as results:
        eventually(lambda: path.exists() and counts_of(path) == (0, 0, 3))
        may_end.set()
        list(results)


def test_result_of_fifty_megabytes_is_restored(path: Path) -> None:
    text = "äx" * 17_000_000
    for expected in (False, True):
        _, results = coordinator_of(path).execute_parallel(["a"], lambda *_: {"text": text})
        assert is_recorded(results[0]) is expected
        assert results[0].value == {"text": text}


def test_unrecordable_result_fails_its_item_only(path: Path) -> None:
    _, results = coordinator_of(path).execute_parallel(range(4), lambda item, _: object() if item == 2 else item)
    failed = by_id(results)["2"]
    assert [result.item_id for result in results if not result.success] == ["2"]
    assert failed.metadata["error_type"] == "UnrecordableValue"
    assert "of type object" in str(failed.error)
    assert "use plain data" in str(failed.error)
    with Ledger.open(path) as ledger:
        assert [item.error for item in ledger.items("failed")] == [failed.error]


def test_unrecordable_input_fails_its_item_before_it_starts(path: Path) -> None:
    calls = []
    items = [1, object(), 3]
    for expected in (2, 2):
        stats, results = coordinator_of(path).execute_parallel(
            items, lambda item, _: calls.append(item), lambda item: str(type(item).__name__ + str(items.index(item)))
        )
        failed = [result for result in results if not result.success]
        assert [(result.item_id, result.metadata["error_type"]) for result in failed] == [
            ("object1", "UnrecordableValue")
        ]
        assert len(calls) == expected
        assert (stats.completed, stats.failed) == (3, 1)
    assert counts_of(path) == (2, 1, 0)


def test_unpicklable_exception_keeps_its_text(path: Path) -> None:
    coordinator = coordinator_of(path, workers="processes")
    for _ in range(2):
        _, results = coordinator.execute_parallel(["unpicklable", "loses", "fine"], workers.fail_with)
        errors = {key: result.error for key, result in by_id(results).items()}
        assert errors == {"unpicklable": "the text of it", "loses": "lost arguments", "fine": None}
    assert all(is_recorded(result) for result in results)


def test_no_file_holds_a_secret_of_the_pool(path: Path) -> None:
    awkward = 'sk-"quoted\\and-slashed"-4242'
    secrets = [*KEYS, awkward]
    pool = CredentialCoordinator(secrets)
    barrier = threading.Barrier(4)

    def worker(item: dict[str, Any], credential: str | None) -> Any:
        if current_item().attempt == 1:
            barrier.wait(10)
        current_item().checkpoint.save({"used": f"Bearer {credential}", credential: 1})
        if item["n"] % 2:
            raise ValueError(f"refused: {credential}", {"key": credential})
        return {"key": credential, "nested": [f"x{credential}y"]}

    items = [{"n": n, "note": f"use {secret}"} for n, secret in enumerate(secrets)]
    for _ in range(2):
        coordinator_of(path, pool).execute_parallel(items, worker, lambda item: str(item["n"]))
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


def test_short_secret_is_not_redacted_in_results(path: Path) -> None:
    pool = CredentialCoordinator(["a", "12"])
    coordinator_of(path, pool).execute_parallel(["banana"], lambda *_: {"a": "banana", "n": 12})
    _, results = coordinator_of(path, pool).execute_parallel(["banana"], Doubling())
    assert results[0].value == {"a": "banana", "n": 12}


def test_uncommitted_results_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MAX_UNDELIVERED", 50)
    may_write = threading.Event()
    original_write = batch.Batch.write

    def delayed_write(self: batch.Batch, *args: Any) -> None:
        may_write.wait(30)
        original_write(self, *args)

    monkeypatch.setattr(batch.Batch, "write", delayed_write)
    worker = Doubling()
    with coordinator_of(path).stream(range(1000), worker) as results:
        eventually(lambda: len(worker.calls) >= 50)
        assert results.stats.completed == 0  # worker slots are free, but no result is reported before its commit
        may_write.set()
        assert len(list(results)) == 1000


def test_worker_slot_is_free_before_the_commit(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GATHER_SECONDS", 60.0)
    worker = Doubling()
    with ParallelCoordinator(1, ledger=path, reporter=None).stream(itertools.count(), worker) as results:
        eventually(lambda: len(worker.calls) > 10)
        assert results.stats.completed == 0
        start = time.monotonic()
    assert time.monotonic() - start < 1 + BUSY  # the end of the run skips the delay of a group commit


def test_batch_with_a_recorded_outcome_is_refused_entirely(path: Path) -> None:  # invariants 19, 23
    coordinator_of(path).execute_parallel([1, 2], Doubling())
    content = path.read_bytes()
    connection = database.connect_writer(path)
    late = batch.Batch(1, 1, 0.0)
    from agentos.items.item import Item

    for item_id in ("3", "1"):
        item = Item(item_id, None)
        item.prepare_record()
        late.item_ended(item, None, WorkflowResult(item_id, False, "late", attempts=0), None)
    connection.execute("BEGIN")
    with pytest.raises(RuntimeError, match="already recorded: the outcome of 1 item"):
        late.write(connection, str)
    connection.rollback()
    connection.close()
    assert path.read_bytes() == content


def late_failure(launch: int) -> batch.Batch:
    from agentos.items.item import Item

    late, item = batch.Batch(1, launch, 0.0), Item("1", None)
    item.prepare_record()
    late.item_ended(item, None, WorkflowResult("1", False, "late", attempts=0), None)
    return late


def test_recorded_success_is_never_overwritten(path: Path) -> None:  # invariants 19, 23
    coordinator_of(path).execute_parallel([1], Doubling())
    connection = database.connect_writer(path)
    with pytest.raises(RuntimeError, match="already recorded: the outcome of 1 item"):
        late_failure(2).write(connection, str)
    connection.close()


def test_recorded_failure_is_overwritten_by_later_launch_only(path: Path) -> None:  # invariants 19, 23
    coordinator_of(path).execute_parallel([2], Doubling())
    connection = database.connect_writer(path)
    late_failure(1).write(connection, str)
    with pytest.raises(RuntimeError, match="already recorded: the outcome of 1 item"):
        late_failure(1).write(connection, str)
    late_failure(2).write(connection, str)
    connection.close()


def test_older_attempt_overwrites_nothing(path: Path) -> None:  # invariant 23
    from agentos.items.item import Item

    coordinator_of(path).execute_parallel([], Doubling())
    connection = database.connect_writer(path)
    item = Item("a", None)
    item.prepare_record()
    for number in (2, 1):
        item.attempts = number
        attempt = Attempt(item, RunContext("run", None), 0.0)
        attempt.waited = 0.0
        new_batch = batch.Batch(1, 1, 0.0)
        new_batch.attempt_ended(attempt, "transient", f"of attempt {number}")
        new_batch.save_checkpoint(attempt, f'"of attempt {number}"')
        new_batch.write(connection, str)
    assert connection.execute("SELECT n, error FROM items").fetchall() == [(2, "of attempt 2")]
    assert connection.execute("SELECT n, saved FROM checkpoints").fetchall() == [(2, '"of attempt 2"')]
    connection.close()


class BadText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize(
    "error", [ValueError("caf\udce9.txt"), Transient("caf\udce9"), BadText()], ids=["lone", "transient", "no text"]
)
def test_exception_with_invalid_text_fails_its_item_only(path: Path, error: Exception) -> None:
    def worker(item: int, _credential: str | None) -> int:
        if item == 1:
            raise error
        return item

    for _ in range(2):
        _, results = coordinator_of(path).execute_parallel(range(3), worker)
        assert [result.item_id for result in results if not result.success] == ["1"]
    assert counts_of(path) == (2, 1, 0)


@pytest.mark.parametrize("tokens", [2**64, Decimal(5)], ids=["huge", "decimal"])
def test_unusual_token_counts_are_recorded_as_integers(path: Path, tokens: Any) -> None:
    _, results = coordinator_of(path).execute_parallel(["a"], lambda *_: current_item().report_usage(tokens=tokens))
    assert results[0].success
    with Ledger.open(path) as ledger:
        (attempt,) = ledger.attempts()
        assert attempt.tokens == min(int(tokens), 2**63 - 1)


def test_ledger_exceptions_have_catchable_bases() -> None:
    assert issubclass(RunBusy, LedgerError)
    assert issubclass(UnrecordableValue, TypeError)
