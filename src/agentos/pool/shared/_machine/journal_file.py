"""Read the file of a journal: its rows, their checksums, its epoch and its damages. For its owner, and for processes
that only look."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from agentos.clock import boot_id, boot_time, wall_time

from .._owner.entries import FORMAT
from ..transport import Loaded, StoreLost, StoreRefused
from . import pool_file

T = TypeVar("T")

# How SQLite says that a file is damaged, if not by the class of the error.
_DAMAGES = ("no such table", "unsupported file format", "Could not decode to UTF-8")
# Seconds to wait for a transaction of another process: a member that replaces an owner, or a command that looks.
BUSY_SECONDS = 2.0
# Epochs are at least the microseconds since 1970: a file that was created again has a higher one than the owner of the
# file that was removed.
EPOCHS_PER_SECOND = 1e6


class Meta(NamedTuple):
    format: int
    identity: str
    epoch: int
    boot: str
    clock: float


def next_epoch(epoch: int) -> int:
    return max(epoch + 1, int(wall_time() * EPOCHS_PER_SECOND))


@contextlib.contextmanager
def raised_epoch(path: Path) -> Iterator[None]:
    """Raise the epoch in a transaction, unless the block raises. Without a journal there is nothing to raise: an owner
    that creates it again has a higher epoch. Raises `StoreLost` and `StoreRefused`."""
    if not path.exists():
        yield
        return
    with errors(path), contextlib.closing(connect(path)) as database, transaction(database):
        yield
        meta = read_meta(database)
        if meta is not None:
            database.execute("UPDATE meta SET epoch = ?", (next_epoch(meta.epoch),))


def read(path: Path) -> Loaded | None:
    """Return the content of a journal without changing it; None if there is none. Raises `StoreLost` and
    `StoreRefused`."""
    if not path.exists():
        return None
    with errors(path), contextlib.closing(connect(path)) as database:
        if not is_pool(database):
            return None
        database.execute("BEGIN")
        meta = read_meta(database)
        if meta is None:
            return None
        check_format(meta, path)
        snapshot, batches, position, last_at = read_content(database)
        return Loaded(meta.identity, position, snapshot, batches, pool_time(meta, last_at))


def connect(path: Path) -> sqlite3.Connection:
    """Open the file of a pool."""
    return sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def is_pool(database: sqlite3.Connection) -> bool:
    return bool(database.execute("PRAGMA application_id").fetchone()[0] == pool_file.APPLICATION_ID)


def read_meta(database: sqlite3.Connection) -> Meta | None:
    """Return None if the journal is new: its creation may have been interrupted."""
    if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return None
    rows = _rows(database, "SELECT format, identity, epoch, boot, clock FROM meta", Meta)
    return rows[0] if rows else None


def read_owners(database: sqlite3.Connection) -> list[tuple[int, int]]:
    return _rows(database, "SELECT epoch, position FROM owners ORDER BY epoch", tuple[int, int])


def _rows(database: sqlite3.Connection, query: str, kind: type[T], *parameters: object) -> list[T]:
    """Return the rows of a query. Raises `sqlite3.DatabaseError` for a value that no owner writes: changed bytes may be
    a valid database."""
    try:
        return msgspec.convert(database.execute(query, parameters).fetchall(), list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise sqlite3.DatabaseError(str(error)) from None


def read_content(database: sqlite3.Connection) -> tuple[bytes | None, list[tuple[float, bytes]], int, float]:
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


def sealed(data: bytes) -> bytes:
    """Put a checksum before the data: SQLite has none, and changed bytes may be valid entries."""
    return zlib.crc32(data).to_bytes(4, "big") + data


def _opened(sealed: object) -> bytes | None:
    """Return the data behind a checksum; None if they are damaged."""
    if not isinstance(sealed, bytes) or sealed[:4] != zlib.crc32(sealed[4:]).to_bytes(4, "big"):
        return None
    return sealed[4:]


def pool_time(meta: Meta, last_at: float) -> float:
    """Return the pool's clock: it continues within one start of the machine. After a restart the wall clock decides,
    but it never goes back behind the last commit."""
    if meta.boot and meta.boot == boot_id():
        return max(last_at, boot_time() + meta.clock)
    return max(last_at, wall_time())


def check_format(meta: Meta, path: Path) -> None:
    if meta.format > FORMAT:
        raise StoreRefused(
            f"{path} was written by a newer version of agentos (format {meta.format}, this program reads {FORMAT}): "
            "upgrade agentos, or choose another store"
        )


@contextlib.contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
        database.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def is_damage(error: sqlite3.Error) -> bool:
    """A file that is no database, or a damaged one, raises the base class; so does a missing table or row."""
    return type(error) is sqlite3.DatabaseError or any(text in str(error) for text in _DAMAGES)


@contextlib.contextmanager
def errors(path: Path) -> Iterator[None]:
    """Raise errors of SQLite and of the system as `StoreLost`, and damage as `StoreRefused`."""
    try:
        yield
    except sqlite3.Error as error:
        damaged_or_lost = pool_file.damaged(path, str(error)) if is_damage(error) else StoreLost(f"{path}: {error}")
        raise damaged_or_lost from None
    except UnicodeDecodeError:  # SQLite quotes a part of the file that is no text
        raise pool_file.damaged(path, "its schema is no text") from None
    except OSError as error:
        raise StoreLost(f"{path}: {error.strerror or error}") from None


def epoch_at(path: Path) -> int:
    """Return the epoch of the journal at a path; 0 if it cannot be read."""
    try:
        with contextlib.closing(connect(path)) as database:
            meta = read_meta(database)
            return 0 if meta is None else meta.epoch
    except (sqlite3.Error, UnicodeDecodeError):
        return 0


def find_damage(path: Path) -> str | None:
    """Return what is damaged in a journal that no owner uses; None if nothing is. Raises `StoreLost`."""
    try:
        with errors(path), contextlib.closing(connect(path)) as database:
            (result,) = database.execute("PRAGMA integrity_check").fetchone()
            if result != "ok":
                return str(result)
            if read_meta(database) is not None:
                read_content(database)
    except StoreRefused as error:
        return str(error)
    return None
