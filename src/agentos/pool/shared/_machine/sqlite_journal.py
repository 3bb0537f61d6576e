"""SqliteJournal: the journal of a pool that the processes of one machine share.

One process writes: the owner. It holds the lock (`owner_lock`), and every transaction checks the epoch: a member that
replaces an owner which does not answer raises the epoch, so that the old owner can commit nothing more. Commits survive
a killed process and, up to the last checkpoint of SQLite, a power failure.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from agentos.clock import boot_id, wall_time

from .._owner.clocks import PoolClock
from .._owner.entries import FORMAT
from ..transport import MAX_OWNERS, Deposed, JournalMissing, Loaded, OwnerStart
from . import pool_file
from .journal_file import (
    Meta,
    check_format,
    connect,
    epoch_at,
    errors,
    is_damage,
    is_pool,
    next_epoch,
    pool_time,
    read_content,
    read_meta,
    read_owners,
    sealed,
    transaction,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    identity TEXT NOT NULL,
    epoch INTEGER NOT NULL,    -- raised by every owner, and by a member that replaces one
    boot TEXT NOT NULL,        -- the start of the machine in which `clock` is valid
    clock REAL NOT NULL        -- the pool's clock minus the boot clock
);
CREATE TABLE IF NOT EXISTS owners (
    epoch INTEGER PRIMARY KEY,
    position INTEGER NOT NULL   -- when it became the writer
);
CREATE TABLE IF NOT EXISTS batches (
    position INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    entries BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS snapshot (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL,
    at REAL NOT NULL,
    state BLOB NOT NULL
);
"""
_APPEND = "INSERT INTO batches SELECT ?, ?, ? FROM meta WHERE epoch = ?"
# Seconds between two looks whether the open files are still those at the path: three calls of the system.
FILE_CHECK_SECONDS = 0.05
# Files of a journal in WAL mode, by what follows the path.
_PARTS = ("", "-wal", "-shm")


class SqliteJournal:
    """The journal in a file. One thread uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.epoch = 0
        self.identity = ""
        self._position = 0
        self._owners: list[tuple[int, int]] = []  # the last owners: epoch, and position at its start
        self._database: sqlite3.Connection | None = None
        self._files: tuple[tuple[int, int] | None, ...] = ()  # that are open
        self._size = 0
        self._check_at = 0.0  # when the files are looked at again
        self.clock = PoolClock(0.0)

    def load(self) -> Loaded:
        """Become the writer: raise the epoch and read everything."""
        with errors(self.path):
            database = self._open()
            with transaction(database):
                meta = read_meta(database)
                is_new = meta is None
                if meta is None:
                    meta = self._create(database)
                check_format(meta, self.path)
                snapshot, batches, position, last_at = read_content(database)
                now = pool_time(meta, last_at)
                self.clock = PoolClock(now)
                self.epoch, self.identity, self._position = next_epoch(meta.epoch), meta.identity, position
                database.execute(
                    "UPDATE meta SET format = ?, epoch = ?, boot = ?, clock = ?",
                    (FORMAT, self.epoch, boot_id(), self.clock.offset),
                )
                self._owners = [*read_owners(database), (self.epoch, position)][-MAX_OWNERS:]
                self._write_owners(database)
            self._note_files()
            if is_new:
                _sync_folder(self.path)
            owners = [OwnerStart(str(epoch), start) for epoch, start in self._owners]
            return Loaded(meta.identity, position, snapshot, batches, now, 0.0, owners)

    def _write_owners(self, database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM owners")
        database.executemany("INSERT INTO owners VALUES (?, ?)", self._owners)

    def commit(self, at: float, entries: bytes) -> None:
        """Append entries. Raises `Deposed`, `StoreLost` and `JournalMissing`."""
        row = (self._position + 1, at, sealed(entries), self.epoch)
        try:
            if at >= self._check_at:
                self._check_at = at + FILE_CHECK_SECONDS
                self._check_file()
            assert self._database is not None
            # One statement is one transaction: half the cost of four. It inserts nothing if the epoch has changed.
            if self._database.execute(_APPEND, row).rowcount != 1:
                raise Deposed
        except (sqlite3.Error, OSError):
            with errors(self.path), self._damage():
                raise
        self._position += 1

    def save(self, at: float, snapshot: bytes, position: int) -> None:
        """Replace the entries up to a position by a snapshot. Raises as `commit`."""
        with errors(self.path), self._damage():
            self._check_file()
            assert self._database is not None
            with transaction(self._database) as database:
                self._check_epoch(database)
                self._write_snapshot(database, at, snapshot, position)

    def _write_snapshot(self, database: sqlite3.Connection, at: float, snapshot: bytes, position: int) -> None:
        database.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)", (position, at, sealed(snapshot)))
        database.execute("DELETE FROM batches WHERE position <= ?", (position,))

    def rewrite(self, at: float, snapshot: bytes, position: int, is_current: Callable[[], bool]) -> None:
        """Create the file again from the owner's memory, after it was removed, damaged or replaced; what is found in
        its place is moved aside. Raises as `save`; `is_current`: whether this owner has the lock."""
        with errors(self.path):
            with contextlib.suppress(sqlite3.Error):
                self._close()
            if self.path.exists():
                if not is_current() or epoch_at(self.path) > self.epoch:
                    raise Deposed
                pool_file.set_aside(self.path)
            try:
                self._create_again(at, snapshot, position, is_current)
            except (OSError, sqlite3.Error):
                pool_file.remove(self.path)  # else the next attempt would find a damaged file
                raise

    def _create_again(self, at: float, snapshot: bytes, position: int, is_current: Callable[[], bool]) -> None:
        with transaction(self._open()) as database:
            if not is_current():
                raise Deposed
            database.execute(
                "INSERT INTO meta VALUES (1, ?, ?, ?, ?, ?)",
                (FORMAT, self.identity, self.epoch, boot_id(), self.clock.offset),
            )
            self._write_snapshot(database, at, snapshot, position)
            self._write_owners(database)
            self._position = position
        self._note_files()

    def is_replaced(self) -> bool:
        """Return whether the files at the path are not those that are open, or were truncated."""
        files, size = _files(self.path)
        if files != self._files or size < self._size:
            return True
        self._size = size
        return False

    def _note_files(self) -> None:
        self._files, self._size = _files(self.path)

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._close()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        pool_file.prepare(self.path)
        database = connect(self.path)
        self._database = database
        if not is_pool(database):  # else nothing is written: the file may be damaged
            database.execute(f"PRAGMA application_id = {pool_file.APPLICATION_ID}")  # before WAL: in the file's header
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
        return database

    def _create(self, database: sqlite3.Connection) -> Meta:
        clock = PoolClock(wall_time())
        meta = Meta(FORMAT, secrets.token_hex(8), 0, boot_id(), clock.offset)
        database.execute("INSERT INTO meta VALUES (1, ?, ?, ?, ?, ?)", meta)
        return meta

    def _check_file(self) -> None:
        if self.is_replaced():
            raise JournalMissing

    def _check_epoch(self, database: sqlite3.Connection) -> None:
        row = database.execute("SELECT epoch FROM meta").fetchone()
        if row is None or row[0] != self.epoch:
            raise Deposed

    def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            database.close()

    @contextlib.contextmanager
    def _damage(self) -> Iterator[None]:
        """A journal that was damaged under its owner is written anew from the owner's memory."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            if is_damage(error):
                raise JournalMissing from None
            raise


def _files(path: Path) -> tuple[tuple[tuple[int, int] | None, ...], int]:
    """Return the identities of a journal's files, and the size of the first one."""
    files: list[tuple[int, int] | None] = []
    size = 0
    for part in _PARTS:
        try:
            found = os.stat(f"{path}{part}")  # noqa: PTH116 - twenty times a second: a path object costs more
        except FileNotFoundError:
            files.append(None)
            continue
        files.append((found.st_dev, found.st_ino))
        if not part:
            size = found.st_size
    return tuple(files), size


def _sync_folder(path: Path) -> None:
    """Make a new file survive a power failure."""
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
