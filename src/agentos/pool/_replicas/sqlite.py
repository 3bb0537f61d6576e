"""The log of a pool that all processes of one machine share, in an SQLite file.

It has a rollback journal, not a write-ahead log: several processes write, and SQLite before 3.51.3 can damage a WAL
file that several write and checkpoint. Nothing waits for the disk: the state must survive a killed process, not a power
cut.

The clock is the machine's monotonic one, which is the same for all processes and never steps, moved by as much as makes
it the time of day when the machine was started. A step of the wall clock changes nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from .log import Answer, Entry, Start, StoreLost, StoreRefused
from .neighbours import boot_id
from .states import rules_version

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pool (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch TEXT NOT NULL,
    rules TEXT NOT NULL,
    boot TEXT NOT NULL,
    ahead REAL NOT NULL,       -- of the monotonic clock, in seconds
    at REAL NOT NULL,          -- when it began
    position INTEGER NOT NULL, -- of the state
    state BLOB
);
CREATE TABLE IF NOT EXISTS log (
    position INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    ttl REAL NOT NULL,         -- of the leases of whoever said it
    batch BLOB NOT NULL
);
"""
BUSY_SECONDS = 5.0
# So many entries before the last kept state stay, for those who are a little behind.
KEPT_BEHIND = 4096
# Of parents, after a fork. To close them in the child could undo what the parent has locked.
_ABANDONED: list[sqlite3.Connection] = []


class _Known(NamedTuple):
    epoch: str
    is_ours: bool  # as far as the rules go
    ahead: float | None  # None: the machine was started anew
    at: float  # the last instant
    position: int
    state: bytes | None


class SqliteLog:
    poll_seconds: float | None = 0.025

    def __init__(self, path: Path, *, monotonic: Callable[[], float] = time.monotonic,
                 wall: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._path = path
        self._monotonic = monotonic
        self._wall = wall
        self._rules = rules_version()
        self._boot = boot_id()
        self._db: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None
        self._was_replaced = False  # the file, since the last exchange
        self._is_doubtful = False  # we have put a log in the place of one that others may still have leases in
        self._ahead: float | None = None
        self._version = -1

    def look(self) -> Start | None:
        if not self._path.exists():
            return None
        with self._transaction("DEFERRED") as db:
            known = self._known(db)
            if known is None or not known.is_ours:
                return None
            at = max(known.at, self._wall() if known.ahead is None else self._monotonic() + known.ahead)
            return Start(known.epoch, at, known.state, known.position, _after(db, known.position), is_doubtful=False)

    def load(self, ttl: float) -> Start:  # noqa: ARG002
        with self._transaction("IMMEDIATE") as db:
            self._was_replaced = False
            is_doubtful, self._is_doubtful = self._is_doubtful, False
            known = self._known(db)
            if known is None or not known.is_ours:
                return self._begin(db, 0.0 if known is None else known.at)
            self._ahead = known.ahead
            if self._ahead is None:
                self._ahead = max(known.at, self._wall()) - self._monotonic()
                db.execute("UPDATE pool SET boot = ?, ahead = ?", (self._boot, self._ahead))
            entries = _after(db, known.position)
            return Start(known.epoch, self._now(), known.state, known.position, entries, is_doubtful)

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:
        with self._transaction("DEFERRED" if batch is None else "IMMEDIATE") as db:
            row = db.execute("SELECT epoch FROM pool").fetchone()
            if row is None or row[0] != epoch or self._ahead is None:
                return Answer("" if row is None else row[0], 0.0, None)
            now = self._now()
            last = db.execute("SELECT max(position) FROM log").fetchone()[0] or 0
            if self._was_replaced or last < position:  # by an older copy: what was said since then is forgotten
                epoch = secrets.token_hex(8)
                db.execute("UPDATE pool SET epoch = ?", (epoch,))
                self._is_doubtful = True
                return Answer(epoch, now, None)
            if batch is not None:
                db.execute("INSERT INTO log (at, ttl, batch) VALUES (?, ?, ?)", (now, ttl, batch))
            found = db.execute(
                "SELECT at, batch, position FROM log WHERE position > ? ORDER BY position", (position,)
            ).fetchall()
            is_whole = not found or found[0][2] == position + 1
            return Answer(epoch, now, [(at, said) for at, said, _ in found] if is_whole else None)

    def has_news(self) -> bool:
        with self._open() as db:
            version = db.execute("PRAGMA data_version").fetchone()[0]
        has_changed, self._version = version != self._version, version
        return bool(has_changed)

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None:
        """Nobody tells: it is polled."""

    def keep(self, epoch: str, position: int, state: bytes) -> None:
        with self._transaction("IMMEDIATE") as db:
            kept = db.execute(
                "UPDATE pool SET position = ?, state = ? WHERE epoch = ? AND position < ?",
                (position, state, epoch, position),
            )
            if kept.rowcount:
                db.execute("DELETE FROM log WHERE position <= ?", (position - KEPT_BEHIND,))

    def abandon(self) -> None:
        if self._db is not None:
            _ABANDONED.append(self._db)
            self._db = None

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # --- inside ---------------------------------------------------------------------------------------------------

    def _known(self, db: sqlite3.Connection) -> _Known | None:
        """Another version's log only if nobody uses it any more."""
        row = db.execute("SELECT epoch, rules, boot, ahead, at, position, state FROM pool").fetchone()
        if row is None:
            return None
        epoch, rules, boot, ahead, at, position, state = row
        last_at, alive_until = db.execute("SELECT coalesce(max(at), 0), coalesce(max(at + ttl), 0) FROM log").fetchone()
        at = max(at, last_at)
        is_another_boot = boot != self._boot or self._monotonic() + ahead < at
        if rules != self._rules and not is_another_boot and self._monotonic() + ahead <= alive_until:
            raise StoreRefused("another version of agentos uses it: wait for its runs to end, or choose another store")
        return _Known(epoch, rules == self._rules, None if is_another_boot else ahead, at, position, state)

    def _begin(self, db: sqlite3.Connection, at: float) -> Start:
        """A new log, in the place of one that nobody can read or use any more."""
        was_known = self._ahead is not None
        self._ahead = max(at, self._wall()) - self._monotonic()
        epoch, now = secrets.token_hex(8), self._now()
        db.execute("DELETE FROM log")
        db.execute(
            "INSERT OR REPLACE INTO pool VALUES (1, ?, ?, ?, ?, ?, 0, NULL)",
            (epoch, self._rules, self._boot, self._ahead, now),
        )
        return Start(epoch, now, None, 0, [], is_doubtful=was_known)

    def _now(self) -> float:
        assert self._ahead is not None
        return self._monotonic() + self._ahead

    @contextlib.contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        with self._open() as db:
            db.execute("BEGIN " + kind)
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            if self._db is not None and _inode(self._path) != self._inode:
                self.close()  # the file was replaced or removed: what we have open is nobody's any more
                self._was_replaced = True
            if self._db is None:
                self._connect()
            assert self._db is not None
            yield self._db
        except (sqlite3.Error, OSError) as error:
            self.close()
            what = "it is a directory: name a file in it" if self._path.is_dir() else str(error)
            raise StoreLost(what) from None

    def _connect(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self._path.exists():
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        self._db = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = PERSIST")
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.executescript(_SCHEMA)
        self._inode = _inode(self._path)
        self._version = -1


def _after(db: sqlite3.Connection, position: int) -> list[Entry]:
    return db.execute("SELECT at, batch FROM log WHERE position > ? ORDER BY position", (position,)).fetchall()


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - at every exchange: a path object costs more than the call
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
