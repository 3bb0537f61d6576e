"""The file of a pool on one machine: where it may be, and what may be found in its place.

A file that cannot be used is never overwritten: it is refused with a sentence that says what to do, or moved aside.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sqlite3
from pathlib import Path

from ..transport import StoreRefused

# Marks a file as a pool of agentos ("agos").
APPLICATION_ID = 0x61676F73
# What follows the path of a database in the names of the files that belong to it.
PARTS = ("", "-wal", "-shm", "-journal")
# File systems that other machines may use at the same time: neither locks nor sockets reach from one to the other.
NETWORK_TYPES = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.blobfuse2", "fuse.ceph", "fuse.gcsfuse",
    "fuse.glusterfs", "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre",
    "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "smb3", "smbfs",
})  # fmt: skip
_HEADER_BYTES = 100


# --- the place --------------------------------------------------------------------------------------------------------


def check_place(path: Path, mountinfo: str | None = None) -> None:
    """Raise `StoreRefused` for a path on a network file system. `mountinfo`: as in /proc/self/mountinfo."""
    if mountinfo is None:
        try:
            mountinfo = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        except OSError:
            return  # a system that does not tell
    type_ = _file_system(os.path.realpath(path.parent), mountinfo)
    if type_ in NETWORK_TYPES:
        raise StoreRefused(
            f"{path} is on a network file system ({type_}), where processes of several machines cannot share a pool: "
            "choose a file on a disk of this machine, or use redis:// to share a pool between machines"
        )


def _file_system(folder: str, mountinfo: str) -> str | None:
    """Return the type of the file system of a folder: of the mounts above it the deepest, and of those the last."""
    best, type_ = -1, None
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields = head.split(" ")
        if len(fields) < 5 or not tail:
            continue
        mount_point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4]).rstrip("/")
        if (folder == mount_point or folder.startswith(f"{mount_point}/")) and len(mount_point) >= best:
            best, type_ = len(mount_point), tail.split(" ")[0]
    return type_


# --- what is found there ----------------------------------------------------------------------------------------------


def prepare(path: Path) -> None:
    """Make sure that the file exists, is private if it is new, and belongs to no other program. Raises `StoreRefused`,
    `OSError` and `sqlite3.Error`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_dir():
        raise StoreRefused(f"{path} is a directory: name a file in it")
    if path.exists() and _application(path) not in (APPLICATION_ID, None) and _has_tables(path):
        raise StoreRefused(f"{path} is the database of another program: choose another file for the pool")
    if not path.exists():
        remove(path)  # what is left of a removed file: SQLite must not read it into the new one
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _application(path: Path) -> int | None:
    """Return the number of the program that a database belongs to; None for an empty file."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    return int.from_bytes(header[68:72], "big") if header else None


def _has_tables(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        return database.execute("SELECT 1 FROM sqlite_master WHERE type = 'table'").fetchone() is not None


def damaged(path: Path, reason: str) -> StoreRefused:
    """Return the error for a file that cannot be read."""
    return StoreRefused(
        f"the pool's file {path} is damaged ({reason}). `agentos keys repair --store sqlite:///{path}` moves it aside; "
        "what was used today and which keys are quarantined is then not known"
    )


# --- moving aside -----------------------------------------------------------------------------------------------------


def set_aside(path: Path) -> Path:
    """Move a database with the files that belong to it aside, as PATH.damaged-N; return its new path. Raises
    `OSError`."""
    paths = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    target = next(free for free in paths if not os.path.lexists(free))
    for part in reversed(PARTS):  # the database last: if this is interrupted, it can be repeated
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{path}{part}", f"{target}{part}")  # noqa: PTH104
    return target


def remove(path: Path) -> None:
    """Remove a database with the files that belong to it. Raises `OSError`."""
    for part in reversed(PARTS):
        Path(f"{path}{part}").unlink(missing_ok=True)
