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
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentos.clock import boot_id, boot_time, wall_time

from .._owner.clocks import PoolClock
from .._owner.entries import FORMAT
from ..transport import MAX_OWNERS, Deposed, JournalMissing, Loaded, OwnerStart, StoreLost, StoreRefused
from . import pool_file

T = TypeVar("T")

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
# How SQLite says that a file is damaged, if not by the class of the error.
_DAMAGES = ("no such table", "unsupported file format", "Could not decode to UTF-8")
_APPEND = "INSERT INTO batches SELECT ?, ?, ? FROM meta WHERE epoch = ?"
# Seconds to wait for a transaction of another process: a member that replaces an owner, or a command that looks.
BUSY_SECONDS = 2.0
# Epochs are at least the microseconds since 1970: a file that was created again has a higher one than the owner of the
# file that was removed.
EPOCHS_PER_SECOND = 1e6
# Seconds between two looks whether the open files are still those at the path: three calls of the system.
FILE_CHECK_SECONDS = 0.05
# Files of a journal in WAL mode, by what follows the path.
_PARTS = ("", "-wal", "-shm")


class _Meta(NamedTuple):
    format: int
    identity: str
    epoch: int
    boot: str
    clock: float


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
        with _errors(self.path):
            database = self._open()
            with _transaction(database):
                meta = _read_meta(database)
                is_new = meta is None
                if meta is None:
                    meta = self._create(database)
                _check_format(meta, self.path)
                snapshot, batches, position, last_at = _read_content(database)
                now = _pool_time(meta, last_at)
                self.clock = PoolClock(now)
                self.epoch, self.identity, self._position = _next_epoch(meta.epoch), meta.identity, position
                database.execute(
                    "UPDATE meta SET format = ?, epoch = ?, boot = ?, clock = ?",
                    (FORMAT, self.epoch, boot_id(), self.clock.offset),
                )
                self._owners = [*_read_owners(database), (self.epoch, position)][-MAX_OWNERS:]
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
        row = (self._position + 1, at, _sealed(entries), self.epoch)
        try:
            if at >= self._check_at:
                self._check_at = at + FILE_CHECK_SECONDS
                self._check_file()
            assert self._database is not None
            # One statement is one transaction: half the cost of four. It inserts nothing if the epoch has changed.
            if self._database.execute(_APPEND, row).rowcount != 1:
                raise Deposed
        except (sqlite3.Error, OSError):
            with _errors(self.path), self._damage():
                raise
        self._position += 1

    def save(self, at: float, snapshot: bytes, position: int) -> None:
        """Replace the entries up to a position by a snapshot. Raises as `commit`."""
        with _errors(self.path), self._damage():
            self._check_file()
            assert self._database is not None
            with _transaction(self._database) as database:
                self._check_epoch(database)
                self._write_snapshot(database, at, snapshot, position)

    def _write_snapshot(self, database: sqlite3.Connection, at: float, snapshot: bytes, position: int) -> None:
        database.execute("INSERT OR REPLACE INTO snapshot VALUES (1, ?, ?, ?)", (position, at, _sealed(snapshot)))
        database.execute("DELETE FROM batches WHERE position <= ?", (position,))

    def rewrite(self, at: float, snapshot: bytes, position: int, is_current: Callable[[], bool]) -> None:
        """Create the file again from the owner's memory, after it was removed, damaged or replaced; what is found in
        its place is moved aside. Raises as `save`; `is_current`: whether this owner has the lock."""
        with _errors(self.path):
            with contextlib.suppress(sqlite3.Error):
                self._close()
            if self.path.exists():
                if not is_current() or _epoch_at(self.path) > self.epoch:
                    raise Deposed
                pool_file.set_aside(self.path)
            try:
                self._create_again(at, snapshot, position, is_current)
            except (OSError, sqlite3.Error):
                pool_file.remove(self.path)  # else the next attempt would find a damaged file
                raise

    def _create_again(self, at: float, snapshot: bytes, position: int, is_current: Callable[[], bool]) -> None:
        with _transaction(self._open()) as database:
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
        if not _is_pool(database):  # else nothing is written: the file may be damaged
            database.execute(f"PRAGMA application_id = {pool_file.APPLICATION_ID}")  # before WAL: in the file's header
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
        return database

    def _create(self, database: sqlite3.Connection) -> _Meta:
        clock = PoolClock(wall_time())
        meta = _Meta(FORMAT, secrets.token_hex(8), 0, boot_id(), clock.offset)
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
            if _is_damage(error):
                raise JournalMissing from None
            raise


def _next_epoch(epoch: int) -> int:
    return max(epoch + 1, int(wall_time() * EPOCHS_PER_SECOND))


@contextlib.contextmanager
def raised_epoch(path: Path) -> Iterator[None]:
    """Raise the epoch in a transaction, unless the block raises. Without a journal there is nothing to raise: an owner
    that creates it again has a higher epoch. Raises `StoreLost` and `StoreRefused`."""
    if not path.exists():
        yield
        return
    with _errors(path), contextlib.closing(connect(path)) as database, _transaction(database):
        yield
        meta = _read_meta(database)
        if meta is not None:
            database.execute("UPDATE meta SET epoch = ?", (_next_epoch(meta.epoch),))


def read(path: Path) -> Loaded | None:
    """Return the content of a journal without changing it; None if there is none. Raises `StoreLost` and
    `StoreRefused`."""
    if not path.exists():
        return None
    with _errors(path), contextlib.closing(connect(path)) as database:
        if not _is_pool(database):
            return None
        database.execute("BEGIN")
        meta = _read_meta(database)
        if meta is None:
            return None
        _check_format(meta, path)
        snapshot, batches, position, last_at = _read_content(database)
        return Loaded(meta.identity, position, snapshot, batches, _pool_time(meta, last_at))


def connect(path: Path) -> sqlite3.Connection:
    """Open the file of a pool."""
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _is_pool(database: sqlite3.Connection) -> bool:
    return bool(database.execute("PRAGMA application_id").fetchone()[0] == pool_file.APPLICATION_ID)


def _read_meta(database: sqlite3.Connection) -> _Meta | None:
    """Return None if the journal is new: its creation may have been interrupted."""
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return None
    rows = _rows(database, "SELECT format, identity, epoch, boot, clock FROM meta", _Meta)
    return rows[0] if rows else None


def _read_owners(database: sqlite3.Connection) -> list[tuple[int, int]]:
    return _rows(database, "SELECT epoch, position FROM owners ORDER BY epoch", tuple[int, int])


def _rows(database: sqlite3.Connection, query: str, kind: type[T], *parameters: object) -> list[T]:
    """Return the rows of a query. Raises `sqlite3.DatabaseError` for a value that no owner writes: changed bytes may be
    a valid database."""
    try:
        return msgspec.convert(database.execute(query, parameters).fetchall(), list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise sqlite3.DatabaseError(str(error)) from None


def _read_content(database: sqlite3.Connection) -> tuple[bytes | None, list[tuple[float, bytes]], int, float]:
    position, last_at, snapshot = 0, 0.0, None
    saved = _rows(database, "SELECT position, at, state FROM snapshot", tuple[int, float, bytes])
    if saved:
        position, last_at, snapshot = saved[0][0], saved[0][1], _opened(saved[0][2])
        if snapshot is None:
            raise sqlite3.DatabaseError("the snapshot has a wrong checksum")
    query = "SELECT position, at, entries FROM batches WHERE position > ? ORDER BY position"
    rows = _rows(database, query, tuple[int, float, Any], position)
    if rows:
        position, last_at = rows[-1][0], rows[-1][1]
    # A batch with a wrong checksum is passed on as one that cannot be read: the owner leaves it out, and waits.
    return snapshot, [(at, _opened(entries) or b"") for _, at, entries in rows], position, last_at


def _sealed(data: bytes) -> bytes:
    """Put a checksum before the data: SQLite has none, and changed bytes may be valid entries."""
    return zlib.crc32(data).to_bytes(4, "big") + data


def _opened(sealed: object) -> bytes | None:
    """Return the data behind a checksum; None if they are damaged."""
    if not isinstance(sealed, bytes) or sealed[:4] != zlib.crc32(sealed[4:]).to_bytes(4, "big"):
        return None
    return sealed[4:]


def _pool_time(meta: _Meta, last_at: float) -> float:
    """Return the pool's clock: it continues within one start of the machine. After a restart the wall clock decides,
    but it never goes back behind the last commit."""
    if meta.boot and meta.boot == boot_id():
        return max(last_at, boot_time() + meta.clock)
    return max(last_at, wall_time())


def _check_format(meta: _Meta, path: Path) -> None:
    if meta.format > FORMAT:
        raise StoreRefused(
            f"{path} was written by a newer version of agentos (format {meta.format}, this program reads {FORMAT}): "
            "upgrade agentos, or choose another store"
        )


@contextlib.contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def _is_damage(error: sqlite3.Error) -> bool:
    """A file that is no database, or a damaged one, raises the base class; so does a missing table or row."""
    return type(error) is sqlite3.DatabaseError or any(text in str(error) for text in _DAMAGES)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as `StoreLost`, and damage as `StoreRefused`."""
    try:
        yield
    except sqlite3.Error as error:
        damaged_or_lost = pool_file.damaged(path, str(error)) if _is_damage(error) else StoreLost(f"{path}: {error}")
        raise damaged_or_lost from None
    except UnicodeDecodeError:  # SQLite quotes a part of the file that is no text
        raise pool_file.damaged(path, "its schema is no text") from None
    except OSError as error:
        raise StoreLost(f"{path}: {error.strerror or error}") from None


def _epoch_at(path: Path) -> int:
    """Return the epoch of the journal at a path; 0 if it cannot be read."""
    try:
        with contextlib.closing(connect(path)) as database:
            meta = _read_meta(database)
            return 0 if meta is None else meta.epoch
    except (sqlite3.Error, UnicodeDecodeError):
        return 0


def find_damage(path: Path) -> str | None:
    """Return what is damaged in a journal that no owner uses; None if nothing is. Raises `StoreLost`."""
    try:
        with _errors(path), contextlib.closing(connect(path)) as database:
            (result,) = database.execute("PRAGMA integrity_check").fetchone()
            if result != "ok":
                return str(result)
            if _read_meta(database) is not None:
                _read_content(database)
    except StoreRefused as error:
        return str(error)
    return None


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
