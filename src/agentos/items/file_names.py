"""Names of the files and folders that belong to one item: its log, its database, its checkpoint folder.

An item id may be any text, so it never becomes part of a path as it is. Names of files on disk must not change: a later
launch of the run looks for them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from functools import lru_cache
from pathlib import Path

# Characters of the id that stay readable in a name. The digest makes the name distinct.
MAX_READABLE = 40
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Names of devices on Windows, with any extension.
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)\.", re.IGNORECASE)


@lru_cache(maxsize=1024)  # an attempt needs the name of its item for the folder, for the log and for its record
def folder_name(item_id: str) -> str:
    """Return a readable name of letters, digits, dots, dashes and underscores, distinct for distinct ids.

    Distinct also on file systems that ignore case; never the name of a device.
    """
    readable = _UNSAFE.sub("-", item_id)[:MAX_READABLE].strip("-.")
    if _DEVICE.match(readable):
        readable = f"_{readable}"
    digest = _digest(item_id)[:16]
    return f"{readable}-{digest}" if readable else digest


def log_name(item_id: str) -> str:
    """Return the name of the item's log."""
    return folder_name(item_id) + ".log"


def database_name(item_id: str) -> str:
    """Return the name of the item's own SQLite file."""
    return _digest(item_id) + ".db"


def _digest(item_id: str) -> str:
    return hashlib.sha256(item_id.encode("utf-8", "surrogatepass")).hexdigest()


def remove_database(path: Path) -> None:
    """Remove an SQLite file and the files that SQLite puts beside it, or a folder of that name.

    Errors are ignored: the worker may have changed permissions.
    """
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        try:
            file.unlink(missing_ok=True)
        except OSError:
            shutil.rmtree(file, ignore_errors=True)
