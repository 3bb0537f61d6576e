"""Faults of the file of a pool that the processes of a machine share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentos import errors
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool._replicas import member
from agentos.pool._replicas import sqlite as sqlite_store
from tests.conftest import BUSY, eventually

from .test_redis_faults import TTL, Pool


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "pool.db"
    member._close_all()


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_deleted_file_is_recreated_and_keeps_leases(path: Path) -> None:  # invariants 1, 13
    holder, second = Pool(url(path)), Pool(url(path))
    with holder.pool.lease() as lease:
        path.unlink()
        deleted_at = time.monotonic()
        assert second.fence() > lease.fence
        assert (
            time.monotonic() - deleted_at > 0.9 * TTL
        )  # by then the first member has lost its lease, or knows the new file
    assert holder.fence() > lease.fence
    assert path.exists()


def test_idle_member_that_finds_file_gone_waits(path: Path) -> None:
    # invariant 1
    idle, holder = Pool(url(path), ttl=0.3), Pool(url(path), ttl=20)
    with holder.pool.lease():
        idle.pool.get_stats()
        long_ago = time.monotonic() + 0.4
        eventually(lambda: time.monotonic() > long_ago)
        path.unlink()
        assert idle.is_refused(0.3)
        assert idle.pool.get_stats()["rate_limited"] == 1


def test_file_replaced_by_older_copy_is_another_pool(path: Path) -> None:  # invariant 13
    first = Pool(url(path))
    first.fence()
    copied = path.with_name("copied.db")
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(copied)) as target:
        source.backup(target)
    with first.pool.lease() as lease:
        shutil.move(copied, path)
        newcomer = Pool(url(path))
        assert newcomer.fence() > 0
    assert first.fence() > lease.fence


@pytest.mark.parametrize("part", ["all", "first page", "middle"])
def test_damaged_file_is_refused_and_unchanged(path: Path, part: str) -> None:
    with Pool(url(path)).pool as pool:
        pool.release(pool.reserve(timeout=20))
    data = bytearray(path.read_bytes())
    span = {"all": slice(None), "first page": slice(20, 2000), "middle": slice(4096, None)}[part]
    data[span] = os.urandom(len(data[span]))
    path.write_bytes(data)
    with pytest.raises(errors.StoreError, match="cannot be used"):
        Pool(url(path))
    assert path.read_bytes() == data


def test_file_damaged_in_use_counts_as_lost(path: Path) -> None:
    first = Pool(url(path))
    first.fence()
    assert first.pool.get_stats()["reserved"] == 0  # all changes are written
    good = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\0" * len(good))
    assert first.is_refused()
    eventually(lambda: first.events_of(StoreUnreachable))
    with path.open("r+b") as file:
        file.write(good)
    assert first.fence()
    assert first.events_of(StoreReached)


def test_read_only_folder_raises_at_once(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(errors.StoreError, match="cannot be used"):
        Pool(url(file / "pool.db"))
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        return  # root may write everywhere
    with pytest.raises(errors.StoreError, match="cannot be used"):
        Pool(url(folder / "pool.db"))


def test_locked_file_grants_nothing_until_unlocked(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:  # invariant 10
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.3)
    first = Pool(url(path), ttl=5)
    program = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('BEGIN EXCLUSIVE'); print('busy', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        assert first.is_refused()
        eventually(lambda: first.events_of(StoreUnreachable))
        began = time.monotonic()
        assert first.pool.reserve_credential() is None
        assert time.monotonic() - began < BUSY
        assert busy.stdin is not None
        busy.stdin.close()
        busy.wait()
    assert first.fence()
    assert first.events_of(StoreReached)


def test_file_is_private_and_does_not_grow(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(member, "KEEP_EVERY", 8)
    monkeypatch.setattr(member, "KEEP_PER_CREDENTIAL", 0)
    monkeypatch.setattr(sqlite_store, "KEPT_BEHIND", 4)
    behind, first = Pool(url(path), ttl=30, count=2), Pool(url(path), ttl=30, count=2)
    assert path.stat().st_mode & 0o077 == 0
    with behind.pool.lease():
        for _ in range(20):
            fence = first.fence()
        with contextlib.closing(sqlite3.connect(path)) as db:
            assert db.execute("SELECT count(*) FROM log").fetchone()[0] < 20
        late = Pool(url(path), ttl=30, count=2)
        assert late.fence() > fence
        eventually(lambda: behind.pool.get_stats()["reserved"] == 1)
    eventually(lambda: first.pool.get_stats()["reserved"] == 0)


def test_pool_of_another_version_in_use_is_refused(path: Path) -> None:
    with Pool(url(path), ttl=30).pool as pool, pool.lease():
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("UPDATE pool SET rules = 'another'")
        with pytest.raises(errors.StoreError, match="another version"):
            Pool(url(path))
