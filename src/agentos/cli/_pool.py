"""The pool of a run of the command line: from a keys file or variables to a CredentialCoordinator."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import TracebackType

import click

from agentos.workflows.parallel import CredentialCoordinator, CredentialError

from ._disabled import disabled
from ._home import Failure, RunFolder
from ._keysfile import Keys, keys_from_environment, load_keys
from ._poolnote import write_note

# How often (seconds) a run writes down what its pool says, and looks whether a key was disabled.
NOTE_SECONDS = 1.0


def read_keys(path: str | None, pattern: str | None, cwd: str) -> Keys | None:
    """None: the run needs no credentials."""
    if path is not None and pattern is not None:
        raise click.UsageError("keys come from --keys or from --key-env, not from both")
    if path is not None:
        return load_keys(Path(cwd, path))
    return None if pattern is None else keys_from_environment(pattern, os.environ)


def make_pool(keys: Keys) -> CredentialCoordinator:
    try:
        pool = CredentialCoordinator(keys.credentials)
    except (CredentialError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    for id_, reason in disabled().items():
        with contextlib.suppress(LookupError):
            pool.quarantine(id_, f"disabled: {reason}")
    return pool


class PoolWatch:
    """While a run executes: tells others what its pool says, and hears of keys that people disable or enable."""

    def __init__(self, folder: RunFolder, pool: CredentialCoordinator | None) -> None:
        self._folder = folder
        self._pool = pool
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="agentos-pool", daemon=True)

    def __enter__(self) -> PoolWatch:
        if self._pool is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over.set()
        if self._pool is not None:
            self._thread.join(1.0)
            with contextlib.suppress(OSError):
                (self._folder.path / "pool.json").unlink()

    def _watch(self) -> None:
        assert self._pool is not None
        known = set(_disabled_ids() or ())
        while True:
            with contextlib.suppress(OSError):
                write_note(self._folder, self._pool)
            if self._is_over.wait(NOTE_SECONDS):
                return
            now = _disabled_ids()
            if now is None:
                continue
            for id_ in now.keys() - known:
                with contextlib.suppress(LookupError):
                    self._pool.quarantine(id_, f"disabled: {now[id_]}")
            for id_ in known - now.keys():
                with contextlib.suppress(LookupError):
                    self._pool.restore(id_)
            known = set(now)


def _disabled_ids() -> dict[str, str] | None:
    """None: the file is damaged, and says nothing. What is disabled stays so."""
    try:
        return disabled()
    except Failure:
        return None
