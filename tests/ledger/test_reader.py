"""`Ledger`: reading a record, also while a run is writing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentos.workflows.parallel import (
    Ledger,
    LedgerError,
    RunBusy,
    Transient,
    current_item,
)

from .runs import Doubling, coordinator_of, counts_of


def test_items_are_iterated_by_outcome_in_pages(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(1000), Doubling(*range(0, 1000, 10)))
    with Ledger.open(path) as ledger:
        assert len(list(ledger.items())) == 1000
        assert {item.id for item in ledger.items("failed")} == {str(n) for n in range(0, 1000, 10)}
        assert sum(item.value for item in ledger.items("succeeded")) == sum(2 * n for n in range(1000) if n % 10)
        assert list(ledger.items("unfinished")) == []
        assert len(list(ledger.attempts())) == 1000
        with pytest.raises(ValueError, match="outcome must be"):
            list(ledger.items("lost"))


def test_reader_sees_reported_items_while_a_run_writes(path: Path) -> None:
    recorded_counts = []
    with coordinator_of(path).stream(range(3000), Doubling()) as results:
        for reported, result in enumerate(results, start=1):
            if reported % 500 == 0:
                with Ledger.open(path) as ledger:
                    assert ledger.item(result.item_id) is not None
                    recorded_counts.append(sum(1 for _ in ledger.items("succeeded")))
                    assert recorded_counts[-1] >= reported  # a result is reported after its commit
    assert recorded_counts == sorted(recorded_counts)


def test_unknown_run_error_names_the_recorded_runs(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(3), Doubling(), run_id="monday")
    with pytest.raises(LedgerError, match="no run 'friday': it has 'monday'"):
        Ledger.open(path, "friday")


def test_opening_a_ledger_does_not_release_its_lock(path: Path) -> None:
    """Closing any descriptor of the file would drop the locks of this process."""
    program = f"from agentos.workflows.parallel import Ledger; Ledger.open({str(path)!r}).close()"
    was_opened = threading.Event()
    with coordinator_of(path).stream(range(60), lambda item, _: was_opened.wait(30 if item >= 40 else 0)) as results:
        item_ids = []
        for result in results:
            item_ids.append(result.item_id)
            if len(item_ids) == 30:
                was_opened.set()
            if len(item_ids) in (10, 20):
                with Ledger.open(path) as ledger:
                    assert ledger.counts().succeeded >= len(item_ids)
                with pytest.raises(RunBusy):
                    coordinator_of(path).execute_parallel([1], Doubling())
                subprocess.run([sys.executable, "-c", program], check=True)
    assert len(item_ids) == 60
    assert counts_of(path) == (60, 0, 0)


def test_item_id_of_wrong_type_raises_type_error(path: Path) -> None:
    coordinator_of(path).execute_parallel([1], Doubling())
    with Ledger.open(path) as ledger, pytest.raises(TypeError, match="is a string, not int"):
        ledger.item(1)  # type: ignore[arg-type]


def test_pages_and_counts_use_their_indexes(path: Path) -> None:
    coordinator_of(path).execute_parallel([1], Doubling())
    from agentos.ledger import reader as module

    with Ledger.open(path) as ledger:
        for which, words in (
            ("failed", "INDEX failed"),
            ("unfinished", "INDEX unfinished"),
            (None, "INTEGER PRIMARY KEY"),
        ):
            query = (
                f"EXPLAIN QUERY PLAN {ledger._select} WHERE {module._CONDITIONS[which]} AND rowid > ? ORDER BY rowid"
            )
            plan = " ".join(str(row) for row in ledger._all(query, 1, 0))
            assert words in plan
            assert "TEMP B-TREE" not in plan


@pytest.mark.usefixtures("short_pauses")
def test_ids_outcomes_slowest_items_and_usage_are_read(path: Path) -> None:
    def worker(item: str, _credential: str | None) -> str:
        current_item().report_usage(tokens=10, cost=0.25)
        if item == "b" and current_item().attempt < 3:
            raise Transient("again")
        if item == "c":
            raise ValueError("bad")
        return item

    coordinator_of(path).execute_parallel(["a", "b", "c"], worker)
    with Ledger.open(path) as ledger:
        assert sorted(ledger.ids()) == ["a", "b", "c"]
        assert ledger.standing("a") == ("succeeded", 1)
        assert ledger.standing("c") == ("failed", 1)
        assert ledger.standing("d") is None
        slowest = ledger.slowest(2)  # which items these are depends on the machine
        durations = {item.id: item.duration or 0.0 for item in ledger.items()}
        assert slowest == sorted(durations.items(), key=lambda pair: -pair[1])[:2]
        assert len(slowest) == 2
        assert slowest[0][1] >= slowest[1][1] > 0
        usage = {item.id: (item.tokens, item.cost) for item in ledger.items()}
        assert usage == {"a": (10, 0.25), "b": (30, 0.75), "c": (10, 0.25)}
