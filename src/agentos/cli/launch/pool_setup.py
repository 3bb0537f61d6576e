"""Sets up the pool of a run: from `--keys`, `--key-env` and `--store` to a CredentialCoordinator.

A password in the address of a store is neither shown nor kept: a resume needs the whole address again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from agentos.errors import StoreError
from agentos.events import DISABLED
from agentos.home.paths import home
from agentos.keys.disabled_keys import disabled
from agentos.keys.keys_file import Keys, keys_from_environment, load_keys
from agentos.pool.store import MEMORY, make_gate
from agentos.pool.store_url import FILE, URL_MASK, StoreAt, passwords, with_masked_password, without_password
from agentos.reporters.format import shorten
from agentos.reporters.unusable_text import out_of_use_text
from agentos.reporters.writers import Reporter
from agentos.workflows.parallel import CredentialCoordinator, CredentialError

from ..console import Failure

STORE_VARIABLE = "AGENTOS_STORE"
TTL_VARIABLE = "AGENTOS_LEASE_TTL"
# Default lease TTL (seconds): how long the credentials of a run that was killed are withheld from other runs.
LEASE_TTL = 30.0
# Characters of a quarantine's reason that are printed.
MAX_REASON = 200


# --- keys and store -----------------------------------------------------------------------------------------------


class StoreChoice(NamedTuple):
    """The store of a run, and the option that selects it for another command: "" or " --store …" or " --keys …"."""

    url: str
    option: str = ""

    @property
    def name(self) -> str:
        """Return the address for people, without a password."""
        return without_password(self.url)


def read_keys(path: str | None, pattern: str | None, cwd: str) -> Keys | None:
    """Return the keys of a run; None if it has no credentials."""
    if path is not None and pattern is not None:
        raise click.UsageError("--keys and --key-env exclude each other: give one of them")
    if path is not None:
        return load_keys(Path(cwd, path))
    return None if pattern is None else keys_from_environment(pattern, os.environ)


def choose_store(option: str | None, keys: Keys | None, keys_file: str | None = None) -> StoreChoice:
    """Return the store: of `--store`, else of the keys file, else the file that all runs of this machine share.

    Raise `click.UsageError` for an address that is no store, lacks its password, or needs an extra. Open nothing.
    """
    if option is not None:
        _check_store(option)
        is_in_environment = option == os.environ.get(STORE_VARIABLE)
        return StoreChoice(option, "" if is_in_environment else f" --store {shlex.quote(with_masked_password(option))}")
    if keys is not None and keys.store is not None:
        _check_store(keys.store)
        return StoreChoice(keys.store, "" if keys_file is None else f" --keys {shlex.quote(str(keys_file))}")
    return StoreChoice(f"{FILE}{home() / 'pool.db'}")


def _check_store(url: str) -> None:
    if url == MEMORY:
        return
    try:
        make_gate(url)
    except (ValueError, StoreError) as error:
        raise click.UsageError(str(error)) from None
    if URL_MASK in passwords(url):
        raise click.UsageError(
            f"the store {without_password(url)} has a password, which is not saved with the run: give the whole "
            f"address again, in {STORE_VARIABLE} (with --store other users can see it in the list of processes)"
        )


def store_failure(error: StoreError) -> Failure:
    """Return the failure for a store that cannot be used, with advice."""
    return Failure(f"{error}\n--store or {STORE_VARIABLE} chooses another store; memory: is for this run alone.")


# --- pool ---------------------------------------------------------------------------------------------------------


def make_pool(keys: Keys, store: StoreChoice, reporter: Reporter, *, run: str | None = None) -> CredentialCoordinator:
    """Return a pool that is closed when the command ends. Without a run it works on a copy of the store's state, so
    that other runs do not see it."""
    store_at = StoreAt(store.url, run, is_copy=run is None)
    try:
        pool = CredentialCoordinator(
            keys.credentials, store=store_at, lease_ttl=_lease_ttl(), reporter=reporter, order=keys.order
        )
    except (CredentialError, ValueError) as error:
        place = keys.places.get(getattr(error, "credential_id", None) or "")
        raise click.UsageError(str(error) if place is None else f"{place}: {error}") from None
    except StoreError as error:
        raise store_failure(error) from None
    click.get_current_context().call_on_close(pool.close)
    for key_id, reason in disabled().items():
        with contextlib.suppress(LookupError):
            pool.quarantine(key_id, DISABLED + reason)
    return pool


def _lease_ttl() -> float:
    variable = os.environ.get(TTL_VARIABLE, "").strip()
    try:
        seconds = float(variable) if variable else LEASE_TTL
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 86_400.0:
        raise click.UsageError(f"{TTL_VARIABLE} must be a number of seconds from 1 to a day, not {variable!r}")
    return seconds


def pool_warnings(pool: CredentialCoordinator, store: StoreChoice) -> Iterator[str]:
    """Yield what a person should know before the run starts."""
    if pool.redactor().too_short:
        yield "a secret with fewer than 8 characters is not redacted in the output of items"
    messages = list(quarantine_messages(pool, store))
    if len(messages) < len(pool.states()):  # without a usable credential the run stops, and prints them then
        yield from messages


def quarantine_messages(pool: CredentialCoordinator, store: StoreChoice) -> Iterator[str]:
    """Yield, for each credential in quarantine, the reason and the command that puts it back into use."""
    for state in pool.states():
        if state.quarantined is not None:
            reason = shorten(out_of_use_text(pool.redact(state.quarantined)), MAX_REASON).rstrip(".")
            yield (
                f"the credential {state.key_id} is {reason}. To use it again: "
                f"agentos keys enable {shlex.quote(state.key_id)}{store.option}"
            )
