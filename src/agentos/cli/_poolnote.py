"""`pool.json` in the folder of a run that is executing: what its pool says, about once a second.

For `agentos keys` in another terminal. A note is an account of the last second, not a record: whoever reads it looks
at its age, and a note that was left behind by a run that is gone counts for nothing.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec

from agentos.workflows.parallel import CredentialCoordinator, CredentialState

from ._home import RunFolder, run_folders, write_whole

NAME = "pool.json"
# A run that has not written for so long is busy, stopped or gone: what it said is not true any more.
STALE_AFTER = 10.0


class CredentialNote(msgspec.Struct, omit_defaults=True):
    """One credential of a run's pool. Instants are epoch seconds. Never holds a secret."""

    id: str
    in_use: bool = False
    live_leases: int = 0
    max_concurrent: int = 1
    holders: list[str] = []  # ids of items, the oldest lease first
    cooling_until: float | None = None
    cooling_scopes: dict[str, float] = {}  # scope -> until, where only a scope cools
    reason: str | None = None  # the limit that it waits for
    quarantine: str | None = None  # why
    used: dict[str, tuple[float, float]] = {}  # of each declared limit: used, and the limit
    learned: dict[str, float] = {}  # scope ("" for none) -> requests per minute


class PoolNote(msgspec.Struct):
    pid: int
    host: str
    written_at: float  # epoch
    credentials: list[CredentialNote]


def note_of(pool: CredentialCoordinator) -> PoolNote:
    """What the pool says now."""
    credentials = [_credential_note(state, pool) for state in pool.states()]
    return PoolNote(os.getpid(), socket.gethostname(), time.time(), credentials)


def write_note(folder: RunFolder, pool: CredentialCoordinator) -> None:
    """Raises `OSError` where it cannot be written; a run need not care."""
    write_whole(folder.path / NAME, msgspec.json.encode(note_of(pool)))


def read_notes(now: float | None = None) -> list[tuple[RunFolder, PoolNote]]:
    """Of the runs that are executing on this machine, the newest run first."""
    now = time.time() if now is None else now
    found = ((folder, _read(folder)) for folder in run_folders())
    return [(folder, note) for folder, note in found if note is not None and _is_fresh(note, now)]


def _credential_note(state: CredentialState, pool: CredentialCoordinator) -> CredentialNote:
    return CredentialNote(
        id=state.key_id,
        in_use=state.in_use,
        live_leases=state.live_leases,
        max_concurrent=state.max_concurrent,
        # An item is called as its input says; where that holds a key, the note does not.
        holders=[pool.redact(holder) for holder in state.holders],
        cooling_until=state.rate_limited_until,
        cooling_scopes=state.cooling,
        reason=state.cooled_by.get("") or state.waits_for,
        quarantine=state.quarantined,
        used=state.used,
        learned=state.learned,
    )


def _read(folder: RunFolder) -> PoolNote | None:
    try:
        return msgspec.json.decode((folder.path / NAME).read_bytes(), type=PoolNote)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None  # none yet, or not one of ours


def _is_fresh(note: PoolNote, now: float) -> bool:
    # A note from the future was written before the clock was set back.
    return abs(now - note.written_at) <= STALE_AFTER and note.host == socket.gethostname() and _is_alive(note.pid)


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's, but there
    except (ProcessLookupError, OverflowError):
        return False
    return True
