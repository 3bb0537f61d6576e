"""The journal in a file: positions, snapshots, and the epoch that stops an owner which was replaced."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from agentos.pool.shared._machine import journal_file, sqlite_journal
from agentos.pool.shared._machine.sqlite_journal import SqliteJournal
from agentos.pool.shared.transport import Deposed, StoreLost, StoreRefused


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
    with journal_file.raised_epoch(path):
        pass
    with pytest.raises(Deposed):
        journal.commit(100.0, b"too late")


def test_pool_clock_never_goes_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = loaded(path)
    far = journal.clock.now() + 1000.0
    journal.commit(far, b"entries")
    journal.close()
    assert SqliteJournal(path).load().now >= far
    monkeypatch.setattr(journal_file, "boot_id", lambda: "another start")
    assert SqliteJournal(path).load().now >= far


def with_changed_bits(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice([1, 5, 50])):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def with_random_part(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + chance.randbytes(len(data[start : start + 512])) + data[start + 512 :]


def with_empty_part(data: bytes, chance: random.Random) -> bytes:
    start = chance.randrange(len(data))
    return data[:start] + bytes(len(data[start : start + 4096])) + data[start + 4096 :]


@pytest.mark.parametrize("damage", [with_changed_bits, with_random_part, with_empty_part])
def test_damage_is_never_an_unexpected_error(path: Path, damage: Callable[[bytes, random.Random], bytes]) -> None:
    """Values of another type, missing values and names that are no text are damage, too: people are told to repair."""
    journal = loaded(path)
    for number in range(30):
        journal.commit(100.0 + number, b"entries %d" % number)
    journal.save(200.0, b"state" * 200, 15)
    journal.close()
    data = path.read_bytes()
    for seed in range(150):
        path.write_bytes(damage(data, random.Random(seed)))
        for use in (journal_file.read, journal_file.find_damage, loaded):
            with contextlib.suppress(StoreLost, StoreRefused):
                use(path)
        for part in ("-wal", "-shm"):
            path.with_name(path.name + part).unlink(missing_ok=True)


def test_missing_value_is_damage(path: Path) -> None:
    loaded(path).close()
    with contextlib.closing(journal_file.connect(path)) as database:
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '')")
    with contextlib.closing(journal_file.connect(path)) as database:
        database.execute("UPDATE meta SET clock = NULL")
    for use in (journal_file.read, loaded):
        with pytest.raises(StoreRefused, match="damaged"):
            use(path)
    assert journal_file.find_damage(path) is not None
