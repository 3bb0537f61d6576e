"""Ownership of a ledger: one launch of one run writes at a time.

The owner holds a POSIX record lock on a separate file beside the ledger. The kernel releases the lock when the process
dies, and child processes do not inherit it. Closing *any* descriptor of that file would release it too, so this process
never opens the file a second time.

The file also holds a note: the owner, and the number of transactions that it has committed. An orderly end removes the
file. A file without a lock therefore means that the last launch was killed, and the ledger must contain at least the
transactions of the note.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from agentos.errors import LedgerError, RunBusy

# Size of the note: more than the longest host name and run id need.
NOTE_BYTES = 2048
OWN = " (a stream ends with close() or at the end of its with block)"
# Format of `struct flock` for F_GETLK, and the indexes of its type and pid: the order of fields depends on the system.
_FLOCK, _TYPE, _PID = ("qqihh", 3, 2) if sys.platform == "darwin" else ("hhqqi", 0, 4)

_owned_lock = threading.Lock()  # guards _owned
_owned: set[str] = set()  # real paths of the ledgers that this process owns


def _reset_after_fork() -> None:
    """Clear the state in a forked child: the record locks stay with the parent, one of whose threads may have held
    `_owned_lock`."""
    global _owned_lock
    _owned_lock = threading.Lock()
    _owned.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


class Stop(NamedTuple):
    """The end of a launch that could not write to its ledger any more: the disk was full, or the file was replaced."""

    run: int
    launch: int
    at: float  # epoch
    reason: str


class Ownership:
    """The lock on one ledger, held by this process."""

    def __init__(self, path: Path, descriptor: int, earlier_note: dict[str, Any]) -> None:
        self._path = path
        self._real_path = os.path.realpath(path)
        self._descriptor = descriptor
        self._note: dict[str, Any] = {}
        self._memory: mmap.mmap | None = None
        self.earlier_note = earlier_note  # the note of a launch that was killed; else empty

    @classmethod
    def take(cls, path: Path) -> Ownership:
        """Lock the ledger. Raise `RunBusy` if another run owns it, and `LedgerError` if the lock cannot be created."""
        real_path = os.path.realpath(path)
        with _owned_lock:
            if real_path in _owned:
                raise _busy(
                    path, {"pid": os.getpid(), "host": socket.gethostname()}, "another run of this program", OWN
                )
            descriptor = _lock(path)
            _owned.add(real_path)
        return cls(path, descriptor, _read(descriptor))

    def announce(self, run_id: str, ledger_id: str) -> None:
        """Prepare the note about this process. It is written with the number of commits."""
        os.pwrite(self._descriptor, bytes(NOTE_BYTES), 0)  # raises on a full disk; writing to mapped memory would crash
        self._memory = mmap.mmap(self._descriptor, NOTE_BYTES)
        self._note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.time(),
            "run_id": run_id,
            "ledger_id": ledger_id,
        }

    def saw_commits(self, commits: int) -> None:
        """Write the note with the number of commits, to mapped memory.

        Not synced: the note must survive this process, not a power failure. No system call: that would release the GIL.
        """
        assert self._memory is not None
        self._note["commits"] = commits
        self._memory[:] = json.dumps(self._note).encode().ljust(NOTE_BYTES)

    def note_stop(self, stop: Stop) -> None:
        """Add to the note how this launch ended, because the ledger cannot be written. Needs no room on the disk."""
        if self._memory is not None:
            self._note["stop"] = stop
            excess = max(0, len(json.dumps(self._note)) - NOTE_BYTES)
            self._note["stop"] = stop._replace(reason=stop.reason[: max(0, len(stop.reason) - excess)])
            self._memory[:] = json.dumps(self._note).encode().ljust(NOTE_BYTES)

    def check(self, ledger_id: str, commits: int) -> None:
        """Raise `LedgerError` if the ledger has fewer transactions than the launch before has committed."""
        check_complete(self._path, self.earlier_note, ledger_id, commits)

    def check_missing(self) -> None:
        """Raise `LedgerError` if the launch before has committed to a ledger that is missing now."""
        if self.earlier_note.get("commits"):
            raise LedgerError(
                f"the ledger {self._path} is missing, and its last launch did not end properly: restore it, or remove "
                f"{_lock_path(self._path).name} to start over"
            )

    def release(self, *, in_order: bool) -> None:
        """Release the lock. `in_order`: remove the note, because the next launch has nothing to check."""
        with _owned_lock:
            if in_order:
                with contextlib.suppress(OSError):
                    _lock_path(self._path).unlink()
            if self._memory is not None:
                self._memory.close()
            os.close(self._descriptor)
            _owned.discard(self._real_path)


def check_complete(path: Path, note: dict[str, Any], ledger_id: str, commits: int) -> None:
    """Raise `LedgerError` if a ledger has fewer transactions than the launch that left a note has committed."""
    committed = note.get("commits", 0)
    if note.get("ledger_id") == ledger_id and isinstance(committed, int) and committed > commits:
        raise LedgerError(
            f"the ledger {path} has lost {committed - commits} of {committed} transactions: it, or its -wal "
            f"file, was cut off or replaced. Restore both, or remove {_lock_path(path).name} to "
            "continue without them"
        )


def left_note(path: Path) -> dict[str, Any]:
    """Return the note of a launch that was killed, or could not write to its ledger; empty if there is none, or a
    launch owns the ledger."""
    with _owned_lock:  # as in `owner_of`
        if os.path.realpath(path) in _owned:
            return {}
        try:
            descriptor = os.open(_lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            return {} if _locked_by(descriptor) is not None else _read(descriptor)
        finally:
            os.close(descriptor)


def stop_of(path: Path) -> Stop | None:
    """Return how the last launch ended, if it could not write that to the ledger; None if a launch owns the ledger."""
    return read_stop(left_note(path))


def read_stop(note: dict[str, Any]) -> Stop | None:
    """Return the stop in a note, or None."""
    match note.get("stop"):
        case [int(run), int(launch), float(at), str(reason)]:
            return Stop(run, launch, at, reason)
    return None


class Owner(NamedTuple):
    """The process that owns a ledger. Fields are None if its note is not written yet or does not belong to it."""

    pid: int | None
    host: str | None
    since: float | None  # epoch
    run_id: str | None
    is_here: bool  # a process of this machine, which can receive a signal


def owner_of(path: Path) -> Owner | None:
    """Return the owner of a ledger, or None. Queries the kernel (F_GETLK), which neither blocks nor takes a lock."""
    # Otherwise: T1 opens the file here, T2 locks it in `take`, T1 closes its descriptor, which releases T2's lock.
    with _owned_lock:
        if os.path.realpath(path) in _owned:
            return Owner(os.getpid(), socket.gethostname(), None, None, is_here=True)
        try:
            descriptor = os.open(_lock_path(path), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            pid = _locked_by(descriptor)
            return None if pid is None else _owner(pid, _read(descriptor))
        finally:
            os.close(descriptor)


def _locked_by(descriptor: int) -> int | None:
    """Return the pid that holds the lock; None if there is none. A pid below 1 means a process that has no number here:
    in another container or on another machine."""
    query = [0] * 5
    query[_TYPE] = fcntl.F_WRLCK
    answer = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *query)))
    return None if answer[_TYPE] == fcntl.F_UNLCK else answer[_PID]


def _owner(pid: int, note: dict[str, Any]) -> Owner:
    if pid > 0 and note.get("pid") != pid:  # written by an earlier owner, or in another pid namespace
        return Owner(pid, socket.gethostname(), None, None, is_here=True)
    return Owner(note.get("pid"), note.get("host"), note.get("since"), note.get("run_id"), is_here=pid > 0)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-lock")


def _lock(path: Path) -> int:
    lock_path = _lock_path(path)
    while True:
        try:
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if not path.parent.is_dir():
                raise LedgerError(f"the ledger {path} cannot be created: there is no folder {path.parent}") from error
            raise LedgerError(f"the ledger {path} cannot be written: {lock_path}: {error.strerror}") from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # T1 opens the file, the owner removes it and releases the lock, T1 locks the removed file: open again.
            if os.path.samestat(os.fstat(descriptor), lock_path.stat()):
                return descriptor
        except (BlockingIOError, PermissionError):
            owner = _read(descriptor)
            os.close(descriptor)
            raise _busy(path, owner, "another process") from None
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            raise LedgerError(
                f"the ledger {path} cannot be locked: {error.strerror}: put it on a file system with locks, such as a "
                "local disk ($AGENTOS_HOME chooses the folder of runs)"
            ) from error
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        note = json.loads(os.pread(descriptor, NOTE_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _busy(path: Path, owner: dict[str, Any], holder: str, hint: str = "") -> RunBusy:
    pid, host, since, run_id = (owner.get(name) for name in ("pid", "host", "since", "run_id"))
    process = f", pid {pid} on {host}" if pid is not None else ""
    start = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}" if since is not None else ""
    run = f" with run {run_id}" if run_id is not None else ""
    return RunBusy(
        f"the ledger {path} is in use by {holder}{process}{start}{run}: wait until it ends, or stop it{hint}",
        pid=pid,
        host=host,
        since=since,
    )
