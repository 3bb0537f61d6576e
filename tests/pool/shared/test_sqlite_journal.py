"""The journal in a file: positions, snapshots, and the epoch that stops an owner which was replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.pool.shared._machine import sqlite_journal
from agentos.pool.shared._machine.sqlite_journal import SqliteJournal
from agentos.pool.shared.transport import Deposed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.db"


def loaded(path: Path) -> SqliteJournal:
    journal = SqliteJournal(path)
    journal.load()
    return journal


def test_batches_are_read_back_in_order(path: Path) -> None:
    journal = loaded(path)
    for number in range(3):
        journal.commit(100.0 + number, b"entries %d" % number)
    journal.close()
    content = SqliteJournal(path).load()
    assert content.position == 3
    assert [entries for _, entries in content.batches] == [b"entries 0", b"entries 1", b"entries 2"]


def test_snapshot_replaces_entries_up_to_its_position(path: Path) -> None:
    journal = loaded(path)
    journal.commit(100.0, b"first")
    journal.save(101.0, b"state", 1)
    journal.commit(102.0, b"second")
    journal.close()
    content = SqliteJournal(path).load()
    assert (content.position, content.snapshot, [e for _, e in content.batches]) == (2, b"state", [b"second"])


def test_owners_of_the_journal_are_kept(path: Path) -> None:  # invariant 48
    first = loaded(path)
    first.commit(100.0, b"entries")
    second = loaded(path)
    second.rewrite(101.0, b"state", 1, lambda: True)
    owners = SqliteJournal(path).load().owners
    assert [owner.position for owner in owners] == [0, 1, 1]
    assert [owner.nonce for owner in owners[:2]] == [str(first.epoch), str(second.epoch)]


def test_only_the_last_owners_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_journal, "MAX_OWNERS", 2)
    epochs = [loaded(path).epoch for _ in range(3)]
    assert [owner.nonce for owner in SqliteJournal(path).load().owners[:-1]] == [str(epochs[-1])]


def test_replaced_owner_can_neither_commit_nor_save(path: Path) -> None:  # invariant 47
    stale = loaded(path)
    stale.commit(100.0, b"mine")
    newer = loaded(path)
    with pytest.raises(Deposed):
        stale.commit(101.0, b"too late")
    with pytest.raises(Deposed):
        stale.save(101.0, b"too late", 1)
    newer.commit(102.0, b"next")
    assert SqliteJournal(path).load().position == 2


def test_raised_epoch_stops_owner(path: Path) -> None:
    journal = loaded(path)
    with sqlite_journal.raised_epoch(path):
        pass
    with pytest.raises(Deposed):
        journal.commit(100.0, b"too late")


def test_pool_clock_never_goes_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = loaded(path)
    far = journal.clock.now() + 1000.0
    journal.commit(far, b"entries")
    journal.close()
    assert SqliteJournal(path).load().now >= far
    monkeypatch.setattr(sqlite_journal, "boot_id", lambda: "another start")
    assert SqliteJournal(path).load().now >= far
