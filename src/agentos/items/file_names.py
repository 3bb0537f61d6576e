"""The name of an item's log: safe whatever the id is, distinct for distinct ids, and told at a glance."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

# Of the id, so much is kept in the name, for people; the digest is what makes it distinct.
MOST_READABLE = 40
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# What is a device on Windows whatever follows its dot.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)\.", re.IGNORECASE)


def log_name(item_id: str) -> str:
    """Only letters, digits, dots, dashes and underscores; no file system mistakes it for another's or a device's."""
    digest = hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    readable = _UNSAFE.sub("-", item_id)[:MOST_READABLE].strip("-.")
    if _DEVICE.match(readable):
        readable = f"_{readable}"
    return f"{readable}-{digest}.log" if readable else f"{digest}.log"


def file_name(item_id: str) -> str:
    """Item ids may be anything, so they never become part of a path."""
    return hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).hexdigest() + ".db"


def remove_file(path: Path) -> None:
    """With all that SQLite puts beside it. What cannot be removed stays: it is the worker's doing, not the run's."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        try:
            file.unlink(missing_ok=True)
        except OSError:
            shutil.rmtree(file, ignore_errors=True)
