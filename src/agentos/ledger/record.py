"""`RunRecord`: writes one launch of a run to the ledger.

Three kinds of threads use it. The run's thread adds events (an attempt started, an attempt or an item ended); workers
save checkpoints and block until these are committed; the writer thread commits all pending events in one transaction. A
result is delivered to the run after its COMMIT only. The number of the launch is a fencing token: every transaction of
a launch that is not the newest of its run fails.
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
from agentos.items.results import Spent, WorkflowResult
from agentos.redaction import json_text

from . import _database as database
from . import _process_groups as process_groups
from ._batch import Batch, encode_id, to_valid_text
from ._checksums import SET_VERDICT, check_checkpoint, fetch_all
from ._commit_thread import CommitThread
from ._spent import read_spent
from .ownership import Ownership, Stop, read_stop

# Seconds for the last commit of a run that is killed. Results that are not committed by then are not reported.
LAST_COMMIT_SECONDS = 0.8
# Nanoseconds after which another change of a folder gets another timestamp on every file system: the coarsest count
# whole seconds.
SETTLED_NS = 1_000_000_000
# Interval in seconds at which a thread that waits for its commit checks whether the writer has ended.
WRITER_CHECK_SECONDS = 0.2

_COUNT_COMMIT = """UPDATE written SET commits = commits + 1
    WHERE (SELECT max(launch) FROM launches WHERE run = ?) = ?"""
_FINISHED_FILES = """SELECT name, item_id FROM files
    JOIN items ON items.run = files.run AND items.id = files.item_id
    WHERE files.run = ? AND outcome = 'succeeded'"""


class RunRecord:
    """The record of one launch, open for writing."""

    encode_result = staticmethod(codec.encode_result)

    def __init__(self, path: Path, run_id: str, clock: Clock, redact: Callable[[str], str]) -> None:
        """Open or create the ledger, and begin a launch. Raise `RunBusy` if another run writes to it, and `LedgerError`
        if it cannot be used."""
        self.path = path
        self.run_id = run_id
        self._clock = clock
        self.redact = redact
        # Instants are recorded as epoch seconds but measured with the monotonic clock, which is never adjusted.
        self._epoch_minus_now = clock.epoch() - clock.now()
        self.folder = path.with_name(path.name + "-files") / run_id  # holds the files of this run's items
        self._unwritten: list[Batch] = []
        self._owner = Ownership.take(path)
        try:
            with database.explained(path):
                self._open(database.check(path))
        except BaseException:
            self._owner.release(in_order=not self._owner.earlier_note)
            raise

    def _open(self, has_ledger: bool) -> None:
        if not has_ledger:
            self._owner.check_missing()
            database.create(self.path)
        database.check_single_name(self.path)
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
        if self._owner.earlier_note:
            self._check_integrity()
        execute("BEGIN IMMEDIATE")  # creates the -wal file
        database.migrate(self._connection)
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
        stop = read_stop(self._owner.earlier_note)
        if stop is not None:
            execute(
                "UPDATE launches SET ended_at = ?, stopped = ? WHERE run = ? AND launch = ? AND ended_at IS NULL",
                (stop.at, stop.reason, stop.run, stop.launch),
            )
        self._clean_up_after_earlier_launches()
        self.counts_before = database.count(self._connection, self.run)
        self._commit()

    def _check_integrity(self) -> None:
        """Raise `LedgerError` if the file is damaged. The launch before was killed, perhaps by a power failure."""
        problem = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problem != "ok":
            raise LedgerError(f"the ledger {self.path} is damaged ({problem}): restore it from a copy")

    def _clean_up_after_earlier_launches(self) -> None:
        execute, run = self._connection.execute, self.run
        for pgid, born in execute("SELECT pgid, born FROM processes WHERE run = ?", (run,)).fetchall():
            process_groups.end(pgid, born)
        execute("DELETE FROM processes WHERE run = ?", (run,))
        execute(f"{SET_VERDICT} WHERE run = ?2 AND outcome IS NULL AND verdict IS NULL", (INTERRUPTED, run))
        self._remove_finished_files()
        # Includes files of items whose launch was killed before the files were recorded.
        self._leftovers = self._file_names()
        self.has_files = bool(self._leftovers)

    def _remove_finished_files(self) -> None:
        """Remove files of items that succeeded: just before their launch was killed, or without using them again."""
        existing = self._file_names()
        for name, _ in self._connection.execute(_FINISHED_FILES, (self.run,)).fetchall():
            if name in existing:
                remove_database(self.folder / name)
        finished = f"SELECT item_id FROM ({_FINISHED_FILES})"
        self._connection.execute(f"DELETE FROM files WHERE run = ? AND item_id IN ({finished})", (self.run, self.run))

    def _file_names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()

    # --- the run's thread -----------------------------------------------------------------------------------------

    def start(
        self, on_recorded: Callable[[list[WorkflowResult[Any]], int], None], on_failed: Callable[[BaseException], None]
    ) -> None:
        """Start the writer thread. It calls `on_recorded` with committed results and their size, or `on_failed` once,
        when nothing can be written any more."""
        self._on_recorded = on_recorded
        self._batch_lock = threading.Lock()  # guards _batch, which is replaced when it is written
        self._batch = self._new_batch()
        self._commit_thread = CommitThread(self._write, on_failed)

    def unwritten_ids(self) -> list[str]:
        """Return the ids of items that have ended but can no longer be recorded, because the writer has failed."""
        return [result.item_id for batch in (*self._unwritten, self._batch) for result in batch.results]

    def commit_now(self) -> None:
        """Commit pending events without the delay of a group commit. Returns at once."""
        self._commit_thread.request_now()

    def attempt_started(self, attempt: Attempt) -> None:
        """Record a running attempt."""
        attempt.is_on_record = True
        with self._batch_lock:
            self._batch.attempt_started(attempt)
        self._commit_thread.request()

    def spent_before(self) -> Spent:
        """Return what earlier launches of the run have spent. Called before `start`."""
        with database.explained(self.path):
            return read_spent(self._connection, self.run)

    def usage_changed(self, attempt: Attempt, on_durable: Callable[[], None]) -> None:
        """Record what a running attempt has used so far; `on_durable` is called after the commit, by the writer's
        thread. Called from any thread."""
        with self._batch_lock:
            self._batch.usage_changed(attempt)
            self._batch.on_commit.append(on_durable)
        self._commit_thread.request_now()

    def attempt_ended(self, attempt: Attempt, verdict: str, error: str | None) -> None:
        """Record the end of an attempt that did not end its item."""
        with self._batch_lock:
            self._batch.attempt_ended(attempt, verdict, error)
        self._commit_thread.request()

    def item_ended(self, item: Item, attempt: Attempt | None, result: WorkflowResult[Any], value: str | None) -> int:
        """Record the outcome of an item; return its size in characters. `attempt` is None for an item that was not
        started."""
        with self._batch_lock:
            size = self._batch.item_ended(item, attempt, result, value)
            if self._leftovers and database_name(item.id) in self._leftovers:
                # If this launch is killed before it removes the file, the next one does.
                self._batch.file_requested(item.id, database_name(item.id))
        self._commit_thread.request()
        return size

    def discard_item(self, item: Item) -> None:
        """Delete the record of an item whose input has changed."""
        with self._batch_lock:
            self._batch.discard_item(item)
        self._commit_thread.request()

    def close(self, stopped: str | None, *, at_once: bool = False) -> None:
        """Commit pending events and the end of the launch. Raise `LedgerError` if that fails: see `unwritten_ids`."""
        if not self._commit_thread.close(LAST_COMMIT_SECONDS if at_once else None):
            threading.Thread(target=self._close_later, args=(stopped,), name="agentos-ledger-end", daemon=True).start()
            raise LedgerError(f"the ledger {self.path} did not record the last results in time: they are not reported")
        self._close(stopped, in_order=self._commit_thread.error is None)
        if self._commit_thread.error is not None:
            raise self._commit_thread.error

    def _close_later(self, stopped: str | None) -> None:
        self._commit_thread.close()
        with contextlib.suppress(LedgerError):  # the run has ended: there is no caller to raise to
            self._close(stopped, in_order=self._commit_thread.error is None)

    def abandon(self) -> None:
        """End the launch of a run that could not be started."""
        self._close("could not be started", in_order=True)

    def _close(self, stopped: str | None, *, in_order: bool) -> None:
        is_ended = False
        try:
            if in_order:
                with database.explained(self.path):
                    self._end_launch(stopped)
            is_ended = in_order
        finally:
            if not is_ended:
                self._owner.note_stop(Stop(self.run, self.launch, self._clock.epoch(), stopped or "not recorded"))
            self._connection.close()
            self._owner.release(in_order=is_ended)

    def _end_launch(self, stopped: str | None) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        self._remove_finished_files()
        for folder in (self.folder, self.folder.parent):
            with contextlib.suppress(OSError):  # missing, or not empty
                folder.rmdir()
        execute("DELETE FROM processes WHERE run = ?", (self.run,))
        execute(
            "UPDATE launches SET ended_at = ?, stopped = ? WHERE run = ? AND launch = ?",
            (self._clock.epoch(), to_valid_text(stopped), self.run, self.launch),
        )
        self._commit()

    # --- any thread -----------------------------------------------------------------------------------------------

    def load(self, item: Item) -> Any:
        """Return the checkpoint of the item, of this launch or an earlier one; None if there is none."""
        if item.checkpoint is not None:
            return codec.decode(item.checkpoint)
        if not item.has_record:
            return None
        with database.explained(self.path), database.reading(self.path) as connection:
            query = "SELECT run, item_id, launch, n, saved, checksum FROM checkpoints WHERE run = ? AND item_id = ?"
            rows = fetch_all(connection, query, (self.run, encode_id(item.id)))
        if not rows:
            return None
        *columns, checksum = rows[0]
        check_checkpoint(item.id, tuple(columns), checksum)
        return codec.decode(columns[-1])

    def save(self, attempt: Attempt, checkpoint: str) -> None:
        """Record a checkpoint, given as JSON; block until it is committed. Raise `LedgerError` if the attempt is not
        the newest of its item, or the run has ended."""
        if attempt.attempt != attempt.item.attempts:
            raise LedgerError(f"the checkpoint was not saved: its item has a newer attempt than {attempt.attempt}")
        committed = threading.Event()
        if not attempt.is_on_record:  # a checkpoint can be used only with the input that it belongs to
            self.attempt_started(attempt)
        checkpoint = json_text.redact_json(checkpoint, self.redact)
        with self._batch_lock:
            self._batch.save_checkpoint(attempt, checkpoint)
            self._batch.on_commit.append(committed.set)
        self._commit_thread.request_now()
        while not committed.wait(WRITER_CHECK_SECONDS):
            if self._commit_thread.is_ended:
                raise LedgerError("the checkpoint was not saved: the run is over") from self._commit_thread.error
        if attempt.attempt == attempt.item.attempts:
            attempt.item.checkpoint = checkpoint

    def file_requested(self, item_id: str, name: str) -> None:
        """Record that the item may create a file of this name."""
        with self._batch_lock:
            self._batch.file_requested(item_id, name)
        self._commit_thread.request()

    def process_started(self, pid: int) -> None:
        """Record a process group, which the next launch kills if this one cannot."""
        born = process_groups.born(pid)
        if born is not None:
            with self._batch_lock:
                self._batch.process_started(pid, born)
            self._commit_thread.request()

    def process_ended(self, pid: int) -> None:
        """Delete a process group from the record, with the next commit."""
        with self._batch_lock:
            self._batch.process_ended(pid)

    # --- the writer's thread --------------------------------------------------------------------------------------

    def _new_batch(self) -> Batch:
        return Batch(self.run, self.launch, self._epoch_minus_now)

    def _write(self) -> bool:
        with self._batch_lock:
            batch = self._batch
            if batch.is_empty():
                return False
            self._batch = self._new_batch()
        self._unwritten = [batch]
        with database.explained(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                batch.write(self._connection, self.redact)
                self._commit()
            except (RuntimeError, ValueError, TypeError, OverflowError) as error:  # only a bug leads here
                raise LedgerError(f"the ledger {self.path} was not written: {error!r}") from error
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()
        self._unwritten = []
        for call in batch.on_commit:
            call()
        if batch.results:
            self._on_recorded(batch.results, batch.size)
        return True

    def _commit(self) -> None:
        if self._connection.execute(_COUNT_COMMIT, (self.run, self.launch)).rowcount != 1:
            raise LedgerError(f"run {self.run_id} was taken over by a later launch: this launch cannot write any more")
        self._connection.execute("COMMIT")
        self._commits += 1
        self._owner.saw_commits(self._commits)
        self._check_files()

    def _check_files(self) -> None:
        """Raise `LedgerError` if the ledger was removed or replaced: what is written to it since then is lost.

        Called after each commit, before its results are reported.
        """
        changed_at = os.stat(self._folder).st_mtime_ns  # noqa: PTH116 - a path object costs more than the call
        if changed_at == self._folder_changed_at and time.time_ns() - changed_at > SETTLED_NS:
            return
        for path, stat in self._files:
            if not _is_same_file(path, stat):
                raise LedgerError(f"the ledger {self.path} was removed or replaced while in use ({path})")
        self._folder_changed_at = changed_at


def _is_same_file(path: str, stat: os.stat_result) -> bool:
    try:
        return os.path.samestat(stat, os.stat(path))  # noqa: PTH116 - a path object costs more than the call
    except FileNotFoundError:
        return False
