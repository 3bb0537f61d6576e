"""The pool of a run of the command line: from a keys file or variables to a CredentialCoordinator."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import click

from agentos.errors import HomeError, StoreError
from agentos.keys.disabled_keys import DISABLED, disabled
from agentos.keys.keys_file import Keys, keys_from_environment, load_keys
from agentos.pool.store_url import StoreAt
from agentos.reporters.format import shorten
from agentos.reporters.writers import Reporter
from agentos.workflows.parallel import CredentialCoordinator, CredentialError

from ._store import Store, lease_ttl, not_usable

# How often (seconds) a run looks whether a key was disabled: its store may be another than the one that was told.
LOOK_SECONDS = 1.0
# Of a reason, so many characters are told.
MOST_OF_REASON = 200


def read_keys(path: str | None, pattern: str | None, cwd: str) -> Keys | None:
    """None: the run needs no credentials."""
    if path is not None and pattern is not None:
        raise click.UsageError("keys come from --keys or from --key-env, not from both")
    if path is not None:
        return load_keys(Path(cwd, path))
    return None if pattern is None else keys_from_environment(pattern, os.environ)


def make_pool(keys: Keys, store: Store, reporter: Reporter, *, run: str | None = None) -> CredentialCoordinator:
    """It leaves the store when the command has ended, however that is. Without a run, nobody sees it: it has a copy of
    what the store knows."""
    place = StoreAt(store.url, run, is_copy=run is None)
    try:
        pool = CredentialCoordinator(keys.credentials, store=place, lease_ttl=lease_ttl(), reporter=reporter)
    except (CredentialError, ValueError) as error:
        raise click.UsageError(str(error)) from None
    except StoreError as error:
        raise not_usable(error) from None
    click.get_current_context().call_on_close(pool.close)
    for id_, reason in disabled().items():
        with contextlib.suppress(LookupError):
            pool.quarantine(id_, DISABLED + reason)
    return pool


def warnings(pool: CredentialCoordinator, store: Store) -> Iterator[str]:
    """What should be known before a run begins."""
    if pool.redactor().too_short:
        yield "a secret has fewer than 8 characters, and is not taken out of what items print"
    told = list(out_of_use(pool, store))
    if len(told) < len(pool.states()):  # else the run stops, and says so then
        yield from told


def out_of_use(pool: CredentialCoordinator, store: Store) -> Iterator[str]:
    """For each credential that only a person can put back: why, and what to type."""
    for state in pool.states():
        if state.quarantined is not None:
            why = shorten(pool.redact(state.quarantined), MOST_OF_REASON)
            yield (
                f"the credential {state.key_id} is out of use ({why}). To put it back: "
                f"agentos keys enable {shlex.quote(state.key_id)}{store.said}"
            )


class DisabledWatch:
    """While a run executes, it hears of keys that people disable or enable."""

    def __init__(self, pool: CredentialCoordinator | None) -> None:
        self._pool = pool
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="agentos-pool", daemon=True)

    def __enter__(self) -> DisabledWatch:
        if self._pool is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._is_over.set()
        if self._pool is not None:
            self._thread.join(1.0)

    def _watch(self) -> None:
        assert self._pool is not None
        known = set(_disabled_ids() or ())
        while not self._is_over.wait(LOOK_SECONDS):
            now = _disabled_ids()
            if now is None:
                continue
            for id_ in now.keys() - known:
                with contextlib.suppress(LookupError):
                    self._pool.quarantine(id_, DISABLED + now[id_])
            for id_ in known - now.keys():
                with contextlib.suppress(LookupError):
                    self._pool.restore(id_)
            known = set(now)


def _disabled_ids() -> dict[str, str] | None:
    """None: the file is damaged, and says nothing. What is disabled stays so."""
    try:
        return disabled()
    except HomeError:
        return None
