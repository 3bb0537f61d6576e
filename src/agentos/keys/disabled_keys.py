"""Credentials that a person has taken out of use: `$AGENTOS_HOME/disabled.json`.

It is asked when a pool is made, so that what was disabled once stays so in every run until it is enabled, whatever
store that run uses.
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
from agentos.home.paths import PRIVATE, home, write_atomically

# How a pool's reason begins that a person has given.
DISABLED = "disabled: "


class Disabled(msgspec.Struct):
    reason: str
    since: float  # epoch


def disabled() -> dict[str, str]:
    """Ids of credentials, and why each is not to be used. Raises `HomeError` if the file is damaged: a key that was
    taken out of use must not come back because of that."""
    return {id_: entry.reason for id_, entry in _read().items()}


def disable(id_: str, reason: str) -> None:
    with _changing() as entries:
        entries[id_] = Disabled(reason, time.time())


def enable(ids: Iterable[str] | None = None) -> list[str]:
    """Those of these (or all) that were disabled; they are not any more."""
    with _changing() as entries:
        found = [id_ for id_ in entries if ids is None or id_ in ids]
        for id_ in found:
            del entries[id_]
    return found


def _path() -> Path:
    return home() / "disabled.json"


def _read() -> dict[str, Disabled]:
    try:
        return msgspec.json.decode(_path().read_bytes(), type=dict[str, Disabled])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HomeError(
            f"{_path()} cannot be read ({error}): mend it, or remove it to enable all credentials"
        ) from None


@contextlib.contextmanager
def _changing() -> Iterator[dict[str, Disabled]]:
    """One at a time: two commands that start together must not undo each other."""
    try:
        home().mkdir(parents=True, exist_ok=True, mode=PRIVATE)
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
