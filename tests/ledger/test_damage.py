"""Flipped bits in a ledger: a damaged row is named, all other rows stay readable, and no wrong value is returned."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentos.workflows.parallel import Ledger, LedgerError, WorkflowResult, current_item

from .runs import Doubling, by_id, coordinator_of

ITEMS = [f"item-{number:03d}" for number in range(110)]


def describe(item: str, _credential: Any) -> dict[str, Any]:
    if item == "item-007":
        raise ValueError("bad luck")
    return {"text": f"value of {item}", "number": int(item[-3:])}


def build(path: Path) -> dict[str, Any]:
    """Run all items; return what the ledger has, by id."""
    coordinator_of(path).execute_parallel(ITEMS, describe)
    with Ledger.open(path) as ledger:
        return {item.id: item for item in ledger.items()}


def flip(path: Path, offset: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def flip_in(path: Path, text: str, bit: int = 0) -> None:
    """Flip a bit in the middle of the last occurrence of a text."""
    data = path.read_bytes()
    flip(path, data.rindex(text.encode()) + len(text) // 2, bit)


def cells(path: Path) -> list[int]:
    """Return the offsets of all bytes near the values of items: records with their headers and rows."""
    data, offsets = path.read_bytes(), []
    for item in ITEMS:
        middle = data.rindex(f'"value of {item}"'.encode()) if item != "item-007" else data.rindex(b"bad luck")
        offsets += range(max(0, middle - 120), middle + 30)
    return offsets


def refusal(error: LedgerError) -> str:
    assert "damaged" in str(error), error
    return "refused"


def outcome_of_reading(path: Path, intact: dict[str, Any]) -> str:
    """Return "refused", "damaged" or "intact"; fail if an item differs from the recorded one without being named."""
    try:
        with Ledger.open(path) as ledger:
            items = list(ledger.items())
            ledger.counts()
            assert sum(1 for item in ledger.items("succeeded") if item.outcome != "succeeded") == 0
    except LedgerError as error:
        return refusal(error)
    for item in items:
        assert item.outcome == "damaged" or item == intact[item.id], item
    assert len(items) >= len(intact) - 1, len(items)
    return "damaged" if any(item.outcome == "damaged" for item in items) else "intact"


def outcome_of_resuming(path: Path, intact: dict[str, Any]) -> str:
    worker = Doubling()
    try:
        results: list[WorkflowResult] = coordinator_of(path).execute_parallel(ITEMS, worker)[1]
    except LedgerError as error:
        return refusal(error)
    for item_id, result in by_id(results).items():
        if item_id in worker.calls or result.metadata.get("error_type") == "DamagedRecord":
            continue
        assert (result.success, result.value) == (
            intact[item_id].outcome == "succeeded",
            intact[item_id].value,
        ), result
    return "resumed"


@pytest.mark.parametrize("seed", range(11))
def test_flipped_bit_never_returns_a_wrong_value(path: Path, seed: int) -> None:
    intact = build(path)
    data, offsets, chosen = path.read_bytes(), cells(path), random.Random(seed)
    outcomes = []
    for _ in range(10):
        path.write_bytes(data)
        flip(path, chosen.choice(offsets), chosen.randrange(8))
        outcomes.append(outcome_of_reading(path, intact))
        outcome_of_resuming(path, intact)
    assert "damaged" in outcomes


def test_damaged_row_is_named_and_others_stay_readable(path: Path) -> None:
    intact = build(path)
    flip_in(path, '"value of item-050"')
    with Ledger.open(path) as ledger:
        items = {item.id: item for item in ledger.items()}
        damaged = list(ledger.items("damaged"))
        assert ledger.item("item-050") == damaged[0]
        assert len(list(ledger.items("succeeded"))) == 108
    assert [item.id for item in damaged] == ["item-050"]
    assert "row" in (damaged[0].error or "")
    assert damaged[0].value is None
    assert all(item == intact[item_id] for item_id, item in items.items() if item_id != "item-050")


def test_text_that_is_not_utf8_damages_its_own_row_only(path: Path) -> None:
    build(path)
    flip_in(path, '"value of item-050"', bit=7)
    with Ledger.open(path) as ledger:
        assert [item.id for item in ledger.items() if item.outcome == "damaged"] == ["item-050"]
        assert len(list(ledger.ids())) == 110


def test_resume_fails_the_damaged_item_and_retry_runs_it(path: Path) -> None:
    build(path)
    flip_in(path, '"value of item-050"')
    worker = Doubling()
    results = by_id(coordinator_of(path).execute_parallel(ITEMS, worker)[1])
    assert worker.calls == []
    assert results["item-050"].metadata["error_type"] == "DamagedRecord"
    assert "retry_failed" in (results["item-050"].error or "")
    assert sum(result.success for result in results.values()) == 108
    coordinator_of(path).execute_parallel(ITEMS, worker, retry_failed=True)
    assert sorted(worker.calls) == ["item-007", "item-050"]
    with Ledger.open(path) as ledger:
        assert list(ledger.items("damaged")) == []
        assert ledger.counts().succeeded == 110


def test_damaged_input_is_not_reported_as_changed(path: Path) -> None:
    build(path)
    flip_in(path, '"item-050"{"number"'[:10])  # the input stands just before the value
    results = by_id(coordinator_of(path).execute_parallel(ITEMS, Doubling())[1])
    assert results["item-050"].metadata["error_type"] == "DamagedRecord"


def test_damaged_checkpoint_raises_in_the_worker(path: Path) -> None:
    def stop(item: str, _credential: Any) -> None:
        current_item().checkpoint.save({"page": "seventeen"})
        raise ValueError("no")

    def load(item: str, _credential: Any) -> Any:
        return current_item().checkpoint.load()

    coordinator_of(path, retries=0).execute_parallel(["a"], stop)
    flip_in(path, "seventeen")
    result = coordinator_of(path, retry_failed=True, retries=0).execute_parallel(["a"], load)[1][0]
    assert not result.success
    assert "checkpoint of item 'a' is damaged" in (result.error or "")


def remove_checksums(path: Path) -> None:
    """Turn the ledger into one that was written before rows had checksums."""
    connection = sqlite3.connect(path)
    for table in ("items", "checkpoints"):
        connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
    connection.execute("DROP TABLE request_usage")
    connection.execute("DROP TABLE credential_usage")
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("version", [0, 1, 3, -4])
def test_damaged_schema_version_switches_no_checksum_off(path: Path, version: int) -> None:
    """One flipped bit makes 0 of the 4 in the header."""
    build(path)
    flip_in(path, '"value of item-050"')
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with Ledger.open(path) as ledger:
        assert [item.id for item in ledger.items("damaged")] == ["item-050"]
    coordinator_of(path).execute_parallel(ITEMS, Doubling())
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)


def test_ledger_without_checksums_can_be_read_and_continued(path: Path) -> None:
    intact = build(path)
    remove_checksums(path)
    with Ledger.open(path) as ledger:
        assert {item.id: item for item in ledger.items()} == intact
    worker = Doubling()
    results = coordinator_of(path).execute_parallel([*ITEMS, "new"], worker, retry_failed=True)[1]
    assert sorted(worker.calls) == ["item-007", "new"]
    assert sum(result.success for result in results) == 111
    flip_in(path, "newnew")
    flip_in(path, '"value of item-050"')
    with Ledger.open(path) as ledger:
        assert [item.id for item in ledger.items("damaged")] == ["item-050", "new"]
