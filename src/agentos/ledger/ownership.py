"""Who writes to a ledger: one launch of one run at a time.

Ownership is a record lock on a file of its own beside the ledger. The kernel frees it when its owner dies, however it
dies, and no child inherits it. Closing *any* descriptor of that file would free it too, so within this process the file
is never opened a second time.

The file also says who the owner is, and how many transactions it has seen committed. It is removed at an orderly end;
so where it is found without an owner, the last launch was killed, and what it has seen must still be in the ledger.
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

# Of the file: more than the longest host name and run id can take.
NOTE_BYTES = 2048
OWN = " (a stream ends with its close(), or when its with block is left)"
# What the kernel is asked with, and answers in: `struct flock`, whose order of fields is the system's own.
_QUESTION, _TYPE, _PID = ("qqihh", 3, 2) if sys.platform == "darwin" else ("hhqqi", 0, 4)

_held_lock = threading.Lock()
_held: set[str] = set()  # real paths of the ledgers that this process owns


def _forget() -> None:
    """In a forked child: the lock stays with the parent, and one of its threads may have held this one."""
    global _held_lock
    _held_lock = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget)


class Ownership:
    def __init__(self, path: Path, descriptor: int, before: dict[str, Any]) -> None:
        self._path = path
        self._real_path = os.path.realpath(path)
        self._descriptor = descriptor
        self._note: dict[str, Any] = {}
        self._memory: mmap.mmap | None = None
        self.before = before  # what a launch that was killed has left; else empty

    @classmethod
    def take(cls, path: Path) -> Ownership:
        """Raises `RunBusy` if somebody else has it."""
        real_path = os.path.realpath(path)
        with _held_lock:
            if real_path in _held:
                raise _busy(
                    path, {"pid": os.getpid(), "host": socket.gethostname()}, "another run of this program", OWN
                )
            descriptor = _lock(path)
            _held.add(real_path)
        return cls(path, descriptor, _read(descriptor))

    def announce(self, run_id: str, ledger_id: str) -> None:
        os.pwrite(self._descriptor, bytes(NOTE_BYTES), 0)  # a full disk is told here; writing to memory could not tell
        self._memory = mmap.mmap(self._descriptor, NOTE_BYTES)
        self._note = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": time.time(),
            "run_id": run_id,
            "ledger_id": ledger_id,
        }

    def saw_commits(self, commits: int) -> None:
        """Without a sync: it must survive the end of this process, not a power cut. And without a system call, in which
        this thread would have to give the interpreter away."""
        assert self._memory is not None
        self._memory[:] = json.dumps({**self._note, "commits": commits}).encode().ljust(NOTE_BYTES)

    def check(self, ledger_id: str, commits: int) -> None:
        """Raises if the ledger lacks what the launch before has seen committed."""
        seen = self.before.get("commits", 0)
        if self.before.get("ledger_id") == ledger_id and seen > commits:
            raise LedgerError(
                f"the ledger {self._path} has lost {seen - commits} of {seen} transactions: it, or its -wal file, was "
                f"cut off or replaced. Restore both, or remove {_lock_path(self._path).name} to go on with what is left"
            )

    def check_missing(self) -> None:
        """Raises if there should be a ledger."""
        if self.before.get("commits"):
            raise LedgerError(
                f"the ledger {self._path} is gone, and its last launch did not end in order: restore it, or remove "
                f"{_lock_path(self._path).name} to start anew"
            )

    def release(self, *, in_order: bool) -> None:
        """`in_order`: nothing is left to be found by the next launch."""
        with _held_lock:
            if in_order:
                with contextlib.suppress(OSError):
                    _lock_path(self._path).unlink()
            if self._memory is not None:
                self._memory.close()
            os.close(self._descriptor)
            _held.discard(self._real_path)


class Owner(NamedTuple):
    """Who is writing to a ledger. None where the owner has not said it yet, or cannot be seen from here."""

    pid: int | None
    host: str | None
    since: float | None  # epoch
    run_id: str | None
    is_here: bool  # a process of this machine, which can be sent a signal


def owner_of(path: Path) -> Owner | None:
    """None: nobody. The kernel is asked who has the lock; nobody is kept from it by that, and nobody loses it."""
    with _held_lock:  # or this process might begin to own it before our descriptor is closed, and lose it then
        if os.path.realpath(path) in _held:
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
    """None: nobody. Below 1: a process that has no number here, in another container or on another machine."""
    question = [0] * 5
    question[_TYPE] = fcntl.F_WRLCK
    told = struct.unpack(_QUESTION, fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_QUESTION, *question)))
    return None if told[_TYPE] == fcntl.F_UNLCK else told[_PID]


def _owner(pid: int, note: dict[str, Any]) -> Owner:
    if pid > 0 and note.get("pid") != pid:  # a note of the owner before, or by a number that is good elsewhere only
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
                raise LedgerError(f"the ledger {path} cannot be made: there is no folder {path.parent}") from error
            raise LedgerError(f"the ledger {path} cannot be written: {lock_path}: {error.strerror}") from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The owner before may have removed the file between our opening and our locking it.
            if os.path.samestat(os.fstat(descriptor), lock_path.stat()):
                return descriptor
        except (BlockingIOError, PermissionError):
            owner = _read(descriptor)
            os.close(descriptor)
            raise _busy(path, owner, "another process") from None
        except FileNotFoundError:
            pass
        os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    try:
        note = json.loads(os.pread(descriptor, NOTE_BYTES, 0))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _busy(path: Path, owner: dict[str, Any], who: str, hint: str = "") -> RunBusy:
    pid, host, since, run_id = (owner.get(name) for name in ("pid", "host", "since", "run_id"))
    named = f", pid {pid} on {host}" if pid is not None else ""
    when = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}" if since is not None else ""
    what = f" with run {run_id}" if run_id is not None else ""
    return RunBusy(
        f"the ledger {path} is in use by {who}{named}{when}{what}: wait for it, or stop it first{hint}",
        pid=pid,
        host=host,
        since=since,
    )
