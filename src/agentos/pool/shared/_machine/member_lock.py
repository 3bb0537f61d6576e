"""The locks of a pool's members, by which its next owner learns that a process has ended.

An owner that is killed together with a member, as in a container, has not noted that the member's leases ended. The
next owner knows the member from the journal only. Its process id says nothing: each container counts its own. So every
member locks one byte of a file beside the journal for as long as it lives. The kernel releases the lock when the
process ends, however it ends and in whichever namespace, and not while the process is stopped.

The id of a session names the byte, and the file: `BYTE-FILE`, where FILE stands for the start of the machine and the
inode. A lock in another file, as after a removal of the file, says nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import struct
import sys
from pathlib import Path

from agentos.clock import boot_id

# `struct flock` of 64-bit Linux: kind, base, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_IS_SUPPORTED = sys.platform == "linux" and sys.maxsize > 2**32
# Bytes of the file that can be locked: one per session, chosen at random. None of them is ever written.
_BYTES = 2**62


class MemberLock:
    """The lock of one session of this process. Without support of the system it locks nothing."""

    def __init__(self, path: Path) -> None:
        """`path`: of the journal, whose folder exists."""
        byte = secrets.randbelow(_BYTES)
        self.session_id = f"{byte:x}"
        self._descriptor: int | None = None
        if _IS_SUPPORTED:
            with contextlib.suppress(OSError):  # no lock: the session ends by its time to live
                self._descriptor = descriptor = _open_and_lock(path, byte)
                self.session_id = f"{byte:x}-{_file_id(descriptor)}"

    def close(self) -> None:
        """Release the lock; in a forked child only close its copy of the descriptor."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def has_ended(path: Path, session_id: str) -> bool:
    """Return whether the process of a session has ended. False: it lives, or that is not known."""
    byte, _, file_id = session_id.partition("-")
    if not file_id or not _IS_SUPPORTED:
        return False
    try:
        descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return file_id == _file_id(descriptor) and _try_lock(descriptor, int(byte, 16) % _BYTES, 1)
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove the file if no member has a lock. The caller is the owner, and ends."""
    if not _IS_SUPPORTED:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CLOEXEC)
        try:
            if _try_lock(descriptor, 0, 0):  # a newcomer cannot lock its byte before the file is gone, and opens again
                _lock_path(path).unlink()
        finally:
            os.close(descriptor)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + "-members")


def _file_id(descriptor: int) -> str:
    """Return an identity of an open file, that no other file has while the machine runs and the file is open."""
    name = f"{boot_id()} {os.fstat(descriptor).st_ino}"
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _open_and_lock(path: Path, byte: int) -> int:
    """Return a descriptor that holds the lock. Raises `OSError`."""
    while True:
        descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if _try_lock(descriptor, byte, 1) and os.path.samestat(os.fstat(descriptor), _lock_path(path).stat()):
                return descriptor
        except FileNotFoundError:
            pass  # an owner that ends has removed it meanwhile
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _try_lock(descriptor: int, start: int, length: int) -> bool:
    """Lock bytes for an open file (not for the process, as other locks of this kind: closing another descriptor of the
    same file does not release them). Length 0: all from `start` on. Return False if another one has a lock there.
    Raises `OSError`."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True
