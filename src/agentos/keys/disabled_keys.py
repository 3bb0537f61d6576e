"""Stores which credentials a person has disabled: `$AGENTOS_HOME/disabled.json`.

Read when a pool is made: a credential stays disabled in every run, with any store, until it is enabled.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from agentos.errors import HomeError
from agentos.home.paths import home, make_private, read_regular, write_atomically


class Disabled(msgspec.Struct):
    reason: str
    since: float  # epoch


def disabled() -> dict[str, str]:
    """Return the reason for each disabled credential, by id. Raises `HomeError` if the file is damaged, which must not
    enable credentials."""
    return {id_: entry.reason for id_, entry in _read().items()}


def disable(id_: str, reason: str) -> None:
    """Disable a credential. Raises `HomeError` if the file cannot be written."""
    with _edit() as entries:
        entries[id_] = Disabled(reason, time.time())


def enable(ids: Iterable[str] | None = None) -> list[str]:
    """Enable these credentials, or all; return the ids of those that were disabled. Raises `HomeError`."""
    with _edit() as entries:
        enabled = [id_ for id_ in entries if ids is None or id_ in ids]
        for id_ in enabled:
            del entries[id_]
    return enabled


def _path() -> Path:
    return home() / "disabled.json"


def _read() -> dict[str, Disabled]:
    try:
        return msgspec.json.decode(read_regular(_path()), type=dict[str, Disabled])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HomeError(
            f"{_path()} cannot be read ({error}): repair it, or remove it to enable all credentials"
        ) from None


@contextlib.contextmanager
def _edit() -> Iterator[dict[str, Disabled]]:
    """Yield the entries and write them back, under a lock: two commands at the same time must not undo each other."""
    try:
        make_private(home())
        folder = os.open(home(), os.O_RDONLY)
    except OSError as error:
        raise HomeError(f"{home()} cannot be used: {error.strerror}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        entries = _read()
        yield entries
        write_atomically(_path(), msgspec.json.format(msgspec.json.encode(entries), indent=2))
    except OSError as error:
        raise HomeError(f"{_path()} cannot be written: {error.strerror}") from None
    finally:
        os.close(folder)
