"""The ledger's file: made whole or not at all, recognised before it is touched, and its errors in plain words."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from agentos.errors import LedgerError
from agentos.items.results import Counts

# "AgOS" in the file's header, where SQLite keeps the name of the program that a database belongs to.
APPLICATION_ID = 0x41674F53
SCHEMA_VERSION = 1
# Another program that looks at the ledger may hold it up for so long (seconds) before the run stops.
BUSY_SECONDS = 10.0
# Enough for all sizes of all statements of a batch: see `batch._insert`.
CACHED_STATEMENTS = 64
# Rows that are fetched at a time, at the most; and fewer if they are large (characters).
PAGE_ROWS = 200
PAGE_SIZE = 4_000_000


def count(connection: sqlite3.Connection, run: int) -> Counts:
    total, failed, unfinished = (
        connection.execute(f"SELECT count(*) FROM items WHERE run = ? {which}", (run,)).fetchone()[0]
        for which in ("", "AND outcome = 'failed'", "AND outcome IS NULL")
    )
    return Counts(total - failed - unfinished, failed, unfinished)


def check(path: Path) -> bool:
    """Whether there is a ledger. Raises if there is something else.

    Only SQLite may open the file: when a program closes any descriptor of a file, it loses all locks on it, and another
    process would believe that nobody is writing.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from error
    if not path.is_file():
        raise LedgerError(f"{path} is not a file: a ledger is one. Give another path")
    if not stat.st_size:
        raise LedgerError(f"{path} is empty: a ledger never is. Restore it from a copy, or remove it to start anew")
    try:
        with explained(path), contextlib.closing(_connect_to_look(path)) as connection:
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except LedgerError as error:
        if getattr(error.__cause__, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise LedgerError(f"{path} is not a ledger, and was left alone: give another path") from error
        raise
    if application_id != APPLICATION_ID:
        raise LedgerError(f"{path} is a database of another program, and was left alone: give another path")
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} was written by a newer version of agentos (schema {version}; this one knows {SCHEMA_VERSION}): "
            "use that version"
        )
    return True


def create(path: Path) -> None:
    """Makes the file beside its place and moves it there, so that a ledger is never seen half made."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        raise LedgerError(f"the ledger {path} is gone, but {wal.name} is still there: restore it, or remove that too")
    new = path.with_name(path.name + "-new")
    with explained(path):
        for suffix in ("", "-wal", "-shm"):  # of a launch that was killed while it made one
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        connection = _connect(new)
        try:
            # Nobody sees it yet: it is synced once, when it is whole.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = OFF")
            schema = resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
            connection.executescript(f"BEGIN; {schema} COMMIT;")
            connection.execute("INSERT INTO written VALUES (?, 0)", (secrets.token_hex(8),))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute("PRAGMA journal_mode = WAL")
        finally:
            connection.close()
        _sync(new)
        new.rename(path)
        _sync(path.parent)


def connect_writer(path: Path) -> sqlite3.Connection:
    """The one connection that writes, to be used by one thread at a time."""
    connection = _connect(path)
    connection.execute("PRAGMA synchronous = FULL")  # it is in WAL mode since it was made
    return connection


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """For a look at a ledger that is known to be one. Any number may look while a run is writing."""
    connection = connect_reader(path)
    try:
        yield connection
    finally:
        connection.close()


def connect_reader(path: Path) -> sqlite3.Connection:
    connection = _connect_to_look(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect_to_look(path: Path) -> sqlite3.Connection:
    """Opened so that it can tidy up: whoever is the last to close a ledger moves what is left in the -wal file to its
    place. Where that is not allowed, the ledger can still be read."""
    uri = path.absolute().as_uri()
    ways = ["?mode=rw", "?mode=ro"]
    if not path.with_name(path.name + "-wal").exists():
        ways.append("?immutable=1")  # on a medium that cannot be written; nobody can be writing there
    for way in ways:
        connection = _connect(uri + way, uri=True)
        try:
            connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            problem = error
        except sqlite3.DatabaseError:
            connection.close()
            raise
        else:
            return connection
    raise problem


def _connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=CACHED_STATEMENTS,
        uri=uri,
    )


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the system into a `LedgerError` that says what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} {_explanation(error)}") from error
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be used: {error.strerror or error}") from error


def _explanation(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return "cannot be written: the disk is full. Make room and run again to continue"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "is locked by another program that has it open: close that and run again to continue"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return f"cannot be opened or written: the file or its folder is read-only ({error})"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"is damaged ({error}): restore it from a copy, or give another path to start anew"
    if name.startswith("SQLITE_IOERR"):
        return f"cannot be read or written: {error}. See to the disk and run again to continue"
    return f"cannot be used: {error}"


def _sync(path: Path) -> None:
    """Of a file, or of a folder: a new name survives a power cut only when its folder was written too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
