"""One launch of a run, as it is written down.

Three threads meet here. The run's role says what has happened (an attempt started, an attempt or an item ended); a
worker saves checkpoints and waits for them; the writer turns what has come together into one transaction. A result is
handed on to the run only after its COMMIT. A launch may write only while it is the newest of its run.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentos.clock import Clock
from agentos.errors import LedgerError
from agentos.items import codec
from agentos.items.attempt import Attempt
from agentos.items.file_names import database_name, remove_database
from agentos.items.item import INTERRUPTED, Item
from agentos.items.results import WorkflowResult
from agentos.redaction import json_text

from . import _database as database
from . import _process_groups as process_groups
from ._batch import Batch, storable, stored_id
from ._writer import Writer
from .ownership import Ownership

# Results that may wait for their commit before nothing new starts: so many, or so many characters of them.
MOST_WAITING = 20_000
MOST_WAITING_SIZE = 64_000_000
# When a run is ended at once, its last commit may take so long; what is not on record by then is not reported.
LAST_COMMIT_SECONDS = 0.8
# A folder whose last change is so long ago (nanoseconds) will show any further one: its clock ticks in milliseconds.
SETTLED_NS = 1_000_000_000
# Who waits for a commit looks up so often (seconds) whether there will be one.
LOOK_UP_SECONDS = 0.2

_COUNT_COMMIT = """UPDATE written SET commits = commits + 1
    WHERE (SELECT max(launch) FROM launches WHERE run = ?) = ?"""
_FINISHED_FILES = """SELECT name, item_id FROM files
    JOIN items ON items.run = files.run AND items.id = files.item_id
    WHERE files.run = ? AND outcome = 'succeeded'"""


class RunRecord:
    encode_result = staticmethod(codec.encode_result)

    def __init__(self, path: Path, run_id: str, clock: Clock, redact: Callable[[str], str]) -> None:
        """Opens the ledger, or makes it, and begins a launch. Raises `LedgerError` if that cannot be."""
        self.path = path
        self.run_id = run_id
        self._clock = clock
        self.redact = redact
        # Instants are kept as the clock on the wall shows them, but counted on the one that nobody can set.
        self._epoch_minus_now = clock.epoch() - clock.now()
        self.folder = path.with_name(path.name + "-files") / run_id  # for the files of this run's items
        self._waiting = self._waiting_size = 0  # results that are not on record yet; only the run's role touches these
        self._unwritten: list[Batch] = []
        self._owner = Ownership.take(path)
        try:
            with database.explained(path):
                self._open(database.check(path))
        except BaseException:
            self._owner.release(in_order=not self._owner.before)
            raise

    def _open(self, has_ledger: bool) -> None:
        if not has_ledger:
            self._owner.check_missing()
            database.create(self.path)
        self._connection = database.connect_writer(self.path)
        try:
            self._begin_launch()
        except BaseException:
            self._connection.close()
            raise

    def _begin_launch(self) -> None:
        execute, epoch = self._connection.execute, self._clock.epoch()
        ledger_id, self._commits = execute("SELECT ledger_id, commits FROM written").fetchone()
        self._owner.check(ledger_id, self._commits)
        if self._owner.before:
            self._check_integrity()
        execute("BEGIN IMMEDIATE")  # from here on there is a -wal file
        self._files = [(f"{self.path}{suffix}", os.stat(f"{self.path}{suffix}")) for suffix in ("", "-wal")]  # noqa: PTH116
        self._folder = str(self.path.parent)
        self._folder_changed_at = 0
        self._owner.announce(self.run_id, ledger_id)
        self._owner.saw_commits(self._commits)
        execute("INSERT OR IGNORE INTO runs (run_id, created_at) VALUES (?, ?)", (self.run_id, epoch))
        self.run: int = execute("SELECT run FROM runs WHERE run_id = ?", (self.run_id,)).fetchone()[0]
        self.launch: int = execute(
            "SELECT coalesce(max(launch), 0) + 1 FROM launches WHERE run = ?", (self.run,)
        ).fetchone()[0]
        execute(
            "INSERT INTO launches (run, launch, pid, host, started_at) VALUES (?, ?, ?, ?, ?)",
            (self.run, self.launch, os.getpid(), socket.gethostname(), epoch),
        )
        self._end_what_was_left()
        self.counts_before = database.count(self._connection, self.run)
        self._commit()

    def _check_integrity(self) -> None:
        """The launch before was killed, maybe with the whole machine."""
        told = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if told != "ok":
            raise LedgerError(f"the ledger {self.path} is damaged ({told}): restore it from a copy")

    def _end_what_was_left(self) -> None:
        execute, run = self._connection.execute, self.run
        for pgid, born in execute("SELECT pgid, born FROM processes WHERE run = ?", (run,)).fetchall():
            process_groups.end(pgid, born)
        execute("DELETE FROM processes WHERE run = ?", (run,))
        execute(
            "UPDATE items SET verdict = ? WHERE run = ? AND outcome IS NULL AND verdict IS NULL", (INTERRUPTED, run)
        )
        self._remove_finished_files()
        # Also of items that were killed before it was on record that they have one.
        self._leftovers = self._file_names()
        self.has_files = bool(self._leftovers)

    def _remove_finished_files(self) -> None:
        """Of items that succeeded just before their launch was killed, or that did not ask for them this time."""
        there = self._file_names()
        for name, _ in self._connection.execute(_FINISHED_FILES, (self.run,)).fetchall():
            if name in there:
                remove_database(self.folder / name)
        finished = f"SELECT item_id FROM ({_FINISHED_FILES})"
        self._connection.execute(f"DELETE FROM files WHERE run = ? AND item_id IN ({finished})", (self.run, self.run))

    def _file_names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()

    # --- in the run's role ----------------------------------------------------------------------------------------

    def start(
        self, on_recorded: Callable[[list[WorkflowResult], int], None], on_failed: Callable[[BaseException], None]
    ) -> None:
        """Both are called on the writer's thread: with results that are on record now, and the size of their values;
        or because nothing can be written any more."""
        self._on_recorded = on_recorded
        self._batch_lock = threading.Lock()  # guards _batch, which is replaced when it is written
        self._batch = self._new_batch()
        self._writer = Writer(self._write, on_failed)

    def is_full(self) -> bool:
        return self._waiting >= MOST_WAITING or self._waiting_size >= MOST_WAITING_SIZE

    def is_waiting(self) -> bool:
        """Whether something has ended that is not on record yet."""
        return self._waiting > 0

    def unwritten_ids(self) -> list[str]:
        """Of the items that have ended and will never be on record, because nothing can be written any more."""
        return [result.item_id for batch in (*self._unwritten, self._batch) for result in batch.results]

    def commit_now(self) -> None:
        """Nothing more will come for now: what is there need not wait."""
        self._writer.call_at_once()

    def attempt_started(self, attempt: Attempt) -> None:
        attempt.is_on_record = True
        with self._batch_lock:
            self._batch.attempt_started(attempt)
        self._writer.call()

    def attempt_ended(self, attempt: Attempt, verdict: str, error: str | None) -> None:
        """The attempt, but not its item."""
        with self._batch_lock:
            self._batch.attempt_ended(attempt, verdict, error)
        self._writer.call()

    def item_ended(self, item: Item, attempt: Attempt | None, result: WorkflowResult, value: str | None) -> None:
        self._waiting += 1
        with self._batch_lock:
            self._waiting_size += self._batch.item_ended(item, attempt, result, value)
            if self._leftovers and database_name(item.id) in self._leftovers:
                self._batch.file_requested(item.id, database_name(item.id))  # to be found if its removal is not reached
        self._writer.call()

    def results_delivered(self, results: list[WorkflowResult], size: int) -> None:
        """What `on_recorded` told has arrived in the role."""
        self._waiting -= len(results)
        self._waiting_size -= size

    def discard_item(self, item: Item) -> None:
        with self._batch_lock:
            self._batch.discard_item(item)
        self._writer.call()

    def close(self, stopped: str | None, *, at_once: bool = False) -> None:
        """Writes what is left, and that the launch has ended. Raises if it cannot: see `unwritten_ids`."""
        if not self._writer.close(LAST_COMMIT_SECONDS if at_once else None):
            threading.Thread(target=self._close_later, args=(stopped,), name="agentos-ledger-end", daemon=True).start()
            raise LedgerError(f"the ledger {self.path} did not take the last results in time: they are not reported")
        self._close(stopped, in_order=self._writer.error is None)
        if self._writer.error is not None:
            raise self._writer.error

    def _close_later(self, stopped: str | None) -> None:
        self._writer.close()
        with contextlib.suppress(LedgerError):  # nobody is there to be told any more
            self._close(stopped, in_order=self._writer.error is None)

    def abandon(self) -> None:
        """The run could not be started after all."""
        self._close("it could not be started", in_order=True)

    def _close(self, stopped: str | None, *, in_order: bool) -> None:
        is_ended = False
        try:
            if in_order:
                with database.explained(self.path):
                    self._end_launch(stopped)
            is_ended = in_order
        finally:
            self._connection.close()
            self._owner.release(in_order=is_ended)

    def _end_launch(self, stopped: str | None) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        self._remove_finished_files()
        for folder in (self.folder, self.folder.parent):
            with contextlib.suppress(OSError):  # it is not there, or not empty
                folder.rmdir()
        execute("DELETE FROM processes WHERE run = ?", (self.run,))
        execute(
            "UPDATE launches SET ended_at = ?, stopped = ? WHERE run = ? AND launch = ?",
            (self._clock.epoch(), storable(stopped), self.run, self.launch),
        )
        self._commit()

    # --- from any thread ------------------------------------------------------------------------------------------

    def load(self, item: Item) -> Any:
        """What the item has saved, in this launch or before."""
        if item.checkpoint is not None:
            return codec.decode(item.checkpoint)
        if not item.has_record:
            return None
        with database.explained(self.path), database.reading(self.path) as connection:
            query = "SELECT saved FROM checkpoints WHERE run = ? AND item_id = ?"
            row = connection.execute(query, (self.run, stored_id(item.id))).fetchone()
        return None if row is None else codec.decode(row[0])

    def save(self, attempt: Attempt, saved: str) -> None:
        """Returns when it is on record."""
        if attempt.attempt != attempt.item.attempts:
            raise LedgerError(f"the checkpoint was not saved: attempt {attempt.attempt} is not the newest of its item")
        saver = threading.Event()
        if not attempt.is_on_record:  # a checkpoint is worth nothing without the input that it belongs to
            self.attempt_started(attempt)
        saved = json_text.redact_json(saved, self.redact)
        with self._batch_lock:
            self._batch.saved(attempt, saved, saver)
        self._writer.call_at_once()
        while not saver.wait(LOOK_UP_SECONDS):
            if self._writer.is_ended:
                raise LedgerError("the checkpoint was not saved: the run is over") from self._writer.error
        if attempt.attempt == attempt.item.attempts:
            attempt.item.checkpoint = saved

    def file_requested(self, item_id: str, name: str) -> None:
        with self._batch_lock:
            self._batch.file_requested(item_id, name)
        self._writer.call()

    def process_started(self, pid: int) -> None:
        born = process_groups.born(pid)
        if born is not None:
            with self._batch_lock:
                self._batch.process_started(pid, born)
            self._writer.call()

    def process_ended(self, pid: int) -> None:
        with self._batch_lock:
            self._batch.process_ended(pid)

    # --- on the writer's thread -----------------------------------------------------------------------------------

    def _new_batch(self) -> Batch:
        return Batch(self.run, self.launch, self._epoch_minus_now)

    def _write(self) -> bool:
        with self._batch_lock:
            batch, self._batch = self._batch, self._new_batch()
        if batch.is_empty():
            return False
        self._unwritten = [batch]
        with database.explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                batch.write(self._connection, self.redact)
                self._commit()
            except (RuntimeError, ValueError, TypeError, OverflowError) as error:  # takes a bug of ours to happen
                raise LedgerError(f"the ledger {self.path} was not written: {error!r}") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()
        self._unwritten = []
        for saver in batch.savers:
            saver.set()
        if batch.results:
            self._on_recorded(batch.results, batch.size)
        return True

    def _commit(self) -> None:
        if self._connection.execute(_COUNT_COMMIT, (self.run, self.launch)).rowcount != 1:
            raise LedgerError(f"run {self.run_id} was taken over by a later launch: this one may not write any more")
        self._connection.execute("COMMIT")
        self._commits += 1
        self._owner.saw_commits(self._commits)
        self._check_files()

    def _check_files(self) -> None:
        """A file that was removed or replaced takes all that is written to it, and nobody ever sees it again. So this
        comes after a commit and before anything is told of it."""
        changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - a path object costs more than the call
        if changed_at == self._folder_changed_at and time.time_ns() - changed_at > SETTLED_NS:
            return
        for path, stat in self._files:
            if not _is_still(path, stat):
                raise LedgerError(f"the ledger {self.path} was removed or replaced while in use ({path})")
        self._folder_changed_at = changed_at


def _is_still(path: str, stat: os.stat_result) -> bool:
    try:
        return os.path.samestat(stat, os.stat(path))  # noqa: PTH116 - a path object costs more than the call
    except FileNotFoundError:
        return False
