"""The lock of a pool's owner on one machine, and the note in which members find it.

The lock is an flock on a file beside the journal. A member takes it, then starts the owner and passes the descriptor
on: the lock is never free in between, and the kernel releases it when the owner ends, however it ends. The file holds a
note: the socket of the owner, and its process for people.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import msgspec

from ..transport import StoreLost, StoreRefused

# Errors that do not pass by themselves.
_REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG)


class Note(msgspec.Struct):
    """Where an owner listens."""

    nonce: str  # tells two owners apart
    socket: str  # path
    host: str
    boot: str  # the start of the machine
    since: float  # epoch
    pid: int = 0  # 0: it is being started


def lock_path(path: Path) -> Path:
    """Return the path of the lock of a pool's file."""
    return path.with_name(path.name + "-owner")


def take(path: Path) -> int | None:
    """Return a descriptor that holds the lock; None if another process holds it. Raises `StoreLost` and
    `StoreRefused`."""
    file = lock_path(path)
    while True:
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _refused(file, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise StoreLost(f"{file} cannot be locked: {error.strerror}") from None
        # T1 opens the file, the owner removes it and ends, T1 locks the removed file: open again.
        if is_current(descriptor, path):
            return descriptor
        os.close(descriptor)


def _refused(file: Path, error: OSError) -> StoreLost | StoreRefused:
    """Return why a lock file cannot be opened."""
    if error.errno not in _REFUSALS:
        return StoreLost(f"{file}: {error.strerror}")
    if error.errno == errno.EACCES and file.exists():
        return StoreRefused(f"{file} belongs to another user: choose a store of your own")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return StoreRefused(f"{file.parent} cannot be used as a folder ({error.strerror}): choose another place")
    return StoreRefused(f"{file.parent} may not be written by this user ({error.strerror}): choose another place")


def is_current(descriptor: int, path: Path) -> bool:
    """Return whether a locked descriptor is that of the file at the path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(lock_path(path)))  # noqa: PTH116
    except FileNotFoundError:
        return False


def write_note(descriptor: int, note: Note) -> None:
    """Replace the note. Raises `StoreLost`."""
    data = msgspec.json.encode(note)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)
    except OSError as error:
        raise StoreLost(f"the lock of the pool cannot be written: {error.strerror}") from None


def read_note(path: Path) -> Note | None:
    """Return the note of the last owner, which may have ended; None if there is none."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(lock_path(path).read_bytes(), type=Note)
    return None


def remove(path: Path) -> None:
    """Remove the lock file, by its owner or by a member that replaces it."""
    with contextlib.suppress(OSError):
        lock_path(path).unlink()
