"""Move a damaged pool file aside, so that a new pool can begin: for `agentos keys repair`."""

from __future__ import annotations

import os
from pathlib import Path

from ._machine import journal_file, owner_lock, pool_file
from .transport import StoreRefused


def repair(path: Path) -> Path:
    """Move a damaged pool file aside and return its new path. The lock is held meanwhile, so that no owner starts.

    Raises `StoreRefused` if there is no such file, a process uses it, or nothing is damaged, and `StoreLost`.
    """
    if not path.is_file():
        raise StoreRefused(f"there is no pool at {path}: nothing has to be repaired")
    lock = owner_lock.take(path)
    if lock is None:
        note = owner_lock.read_note(path)
        process = "" if note is None or not note.pid else f" (its owner is process {note.pid} on {note.host})"
        raise StoreRefused(f"the pool {path} is in use{process}: wait until the runs that use it have ended")
    try:
        if journal_file.find_damage(path) is None:
            raise StoreRefused(f"the pool {path} is not damaged: nothing has to be repaired")
        return pool_file.set_aside(path)
    finally:
        owner_lock.remove(path)
        os.close(lock)
