"""The ledger's SQLite file: atomic creation, validation before use, connections, errors as `LedgerError`."""

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

from ._checksums import MIGRATION, checkpoint_checksum, checksum_of

# "AgOS". SQLite stores this number in the file's header, to identify the program that a database belongs to.
APPLICATION_ID = 0x41674F53
SCHEMA_VERSION = 4
# Seconds that a statement waits for a lock of another program. The run stops after that.
BUSY_SECONDS = 10.0
# Prepared statements per connection: enough for all variants of a batch, see `_batch.STATEMENT_ROWS`.
CACHED_STATEMENTS = 64
# Rows per page; a page ends earlier when its texts exceed PAGE_SIZE characters.
PAGE_ROWS = 200
PAGE_SIZE = 4_000_000

# What follows the path of a ledger that SQLite cannot read.
DAMAGED = "is damaged ({}): restore it from a copy, or give another path to start over"


def count(connection: sqlite3.Connection, run: int) -> Counts:
    """Return the numbers of a run's items by outcome."""
    total, failed, unfinished = (
        connection.execute(f"SELECT count(*) FROM items WHERE run = ? {condition}", (run,)).fetchone()[0]
        for condition in ("", "AND outcome = 'failed'", "AND outcome IS NULL")
    )
    return Counts(total - failed - unfinished, failed, unfinished)


def check(path: Path) -> bool:
    """Return whether there is a ledger. Raise `LedgerError` if the file is not one.

    The file is opened by SQLite only: closing any descriptor of a file releases all POSIX locks that the process holds
    on it, and a second writer could start.
    """
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise LedgerError(f"the ledger {path} cannot be read: {error}") from error
    if not path.is_file():
        raise LedgerError(f"{path} is not a file: give the path of a file")
    if not stat.st_size:
        raise LedgerError(f"{path} is empty, so it is not a ledger. Restore it from a copy, or remove it to start over")
    try:
        with explained(path), contextlib.closing(_connect_existing(path)) as connection:
            application_id = connection.execute("PRAGMA application_id").fetchone()[0]
            version = connection.execute("PRAGMA user_version").fetchone()[0]
    except LedgerError as error:
        if getattr(error.__cause__, "sqlite_errorname", "") == "SQLITE_NOTADB":
            raise LedgerError(f"{path} is not a ledger and was not changed: give another path") from error
        raise
    if application_id != APPLICATION_ID:
        raise LedgerError(f"{path} is a database of another program and was not changed: give another path")
    if version > SCHEMA_VERSION:
        raise LedgerError(
            f"{path} was written by a newer version of agentos (schema {version}; this one reads {SCHEMA_VERSION}): "
            "use that version"
        )
    return True


def check_single_name(path: Path) -> None:
    """Raise `LedgerError` if the file has a second name (hard link). Lock and -wal file belong to a name, not to device
    and inode: a program that uses the other name would write to the same file at the same time."""
    stat = path.stat()
    if stat.st_nlink > 1:
        raise LedgerError(
            f"the ledger {path} has {stat.st_nlink} names (hard links to inode {stat.st_ino} of device {stat.st_dev}): "
            "another program may write to it by another name. Remove all names but one, or make copies of the file "
            f"(find FOLDER -inum {stat.st_ino} lists the names)"
        )


def create(path: Path) -> None:
    """Create an empty ledger: atomically, by a rename of a complete file."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        raise LedgerError(f"the ledger {path} is missing, but {wal.name} exists: restore the first, or remove both")
    new = path.with_name(path.name + "-new")
    with explained(path):
        for suffix in ("", "-wal", "-shm"):  # left by a launch that was killed during this
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        connection = _connect(new)
        try:
            # No other process opens this file before the rename: one sync at the end is enough.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("PRAGMA journal_mode = OFF")
            connection.executescript(f"BEGIN; {_schema()} COMMIT;")
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
    """Return the connection that writes, for one thread at a time."""
    connection = _connect(path)
    connection.execute("PRAGMA synchronous = FULL")  # WAL mode is stored in the file, see `create`
    add_functions(connection)
    return connection


def add_functions(connection: sqlite3.Connection) -> None:
    """Define the functions that statements of the writer call."""
    connection.create_function("row_checksum", -1, checksum_of, deterministic=True)
    connection.create_function("checkpoint_checksum", -1, checkpoint_checksum, deterministic=True)


def has_checksums(connection: sqlite3.Connection) -> bool:
    """Return whether rows have a column for their checksum. By the schema, as below: by the number in the header, one
    flipped bit would switch the checksums off."""
    query = "SELECT 1 FROM pragma_table_info('items') WHERE name = 'checksum'"
    return connection.execute(query).fetchone() is not None


def has_request_usage(connection: sqlite3.Connection) -> bool:
    """Return whether there is a table for the usage that a gateway counts."""
    return _has_table(connection, "request_usage")


def has_credential_usage(connection: sqlite3.Connection) -> bool:
    """Return whether there is a table for the usage by credential that a gateway counts."""
    return _has_table(connection, "credential_usage")


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a ledger to the current schema, in the current transaction. Rewrites all rows of version 1."""
    if not has_checksums(connection):
        for statement in MIGRATION:
            connection.execute(statement)
    if not has_request_usage(connection):
        connection.execute(_statement_of("CREATE TABLE request_usage"))
    if not has_credential_usage(connection):
        connection.execute(_statement_of("CREATE TABLE credential_usage"))
    if connection.execute("PRAGMA user_version").fetchone()[0] != SCHEMA_VERSION:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


def _schema() -> str:
    return resources.files(__package__).joinpath("schema.sql").read_text("utf-8")


def _statement_of(beginning: str) -> str:
    """Return the statement of the schema that begins like this."""
    schema = _schema()
    start = schema.index(beginning)
    return schema[start : schema.index(";", start)]


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection for a `with` block, to a file that `check` has accepted."""
    connection = connect_reader(path)
    try:
        yield connection
    finally:
        connection.close()


def connect_reader(path: Path) -> sqlite3.Connection:
    """Return a read-only connection. Any number of readers can work while a run is writing."""
    connection = _connect_existing(path)
    connection.execute("PRAGMA query_only = ON")
    return connection


def _connect_existing(path: Path) -> sqlite3.Connection:
    """Return a connection with write access if possible: the last connection that closes must be able to checkpoint
    the -wal file. On a read-only file or medium, return a connection that can only read."""
    uri = path.absolute().as_uri()
    modes = ["?mode=rw", "?mode=ro"]
    if not path.with_name(path.name + "-wal").exists():
        modes.append("?immutable=1")  # read-only medium: there can be no writer
    for mode in modes:
        connection = _connect(uri + mode, uri=True)
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
    """Raise a `LedgerError` that says what to do, for errors of SQLite and of the operating system."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"the ledger {path} {_explanation(error)}") from error
    except UnicodeDecodeError as error:  # a damaged schema, quoted in a message of SQLite
        raise LedgerError(f"the ledger {path} {DAMAGED.format('its schema cannot be read')}") from error
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be used: {error.strerror or error}") from error


def _explanation(error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        return "cannot be written: the disk is full. Free some space and run again to continue"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "is locked by another program: close that program and run again to continue"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return f"cannot be opened or written: the file or its folder is read-only ({error})"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or str(error).startswith(
        ("no such column", "no such table")
    ):
        return DAMAGED.format(error)
    if name.startswith("SQLITE_IOERR"):
        return f"cannot be read or written: {error}. Check the disk and run again to continue"
    return f"cannot be used: {error}"


def _sync(path: Path) -> None:
    """Write a file or a folder to disk. A rename survives a power failure only after a sync of the folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
