"""Where a pool's state lives: from `--store`, the keys file or the default to a store that can be used.

A password in its address is shown nowhere and kept nowhere: whoever resumes a run has to give it again.
"""

from __future__ import annotations

import os
import shlex
from typing import NamedTuple

import click

from agentos.errors import StoreError
from agentos.home.paths import home
from agentos.keys.keys_file import Keys
from agentos.pool.store import MEMORY, make_log
from agentos.pool.store_url import FILE, LEFT_OUT, passwords, with_password_left_out, without_password

from ..console import Failure

VARIABLE = "AGENTOS_STORE"
TTL_VARIABLE = "AGENTOS_LEASE_TTL"
LEASE_TTL = 30.0


class Store(NamedTuple):
    url: str
    said: str = ""  # how other commands have to be told of it, after a space

    @property
    def name(self) -> str:
        """For people."""
        return without_password(self.url)


def chosen(option: str | None, keys: Keys | None, keys_file: str | None = None) -> Store:
    """What was said counts before the keys file, and that before the file that all runs of this machine share. Raises a
    `click.UsageError` for what is no store, or has lost its password, or cannot be used without an extra."""
    if option is not None:
        _check(option)
        is_known = option == os.environ.get(VARIABLE)
        return Store(option, "" if is_known else f" --store {shlex.quote(with_password_left_out(option))}")
    if keys is not None and keys.store is not None:
        _check(keys.store)
        return Store(keys.store, "" if keys_file is None else f" --keys {shlex.quote(str(keys_file))}")
    return Store(f"{FILE}{home() / 'pool.db'}")


def _check(url: str) -> None:
    """Opens nothing."""
    if url == MEMORY:
        return
    try:
        make_log(url)
    except (ValueError, StoreError) as error:
        raise click.UsageError(str(error)) from None
    if LEFT_OUT in passwords(url):
        raise click.UsageError(
            f"the store {without_password(url)} has a password, which is not kept with the run: give the whole address "
            f"again, in {VARIABLE} (or with --store, where others can see it in the list of processes)"
        )


def lease_ttl() -> float:
    """How long (seconds) a run that was killed keeps its keys from others."""
    told = os.environ.get(TTL_VARIABLE, "").strip()
    try:
        seconds = float(told) if told else LEASE_TTL
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 86_400.0:
        raise click.UsageError(f"{TTL_VARIABLE} must be a number of seconds from 1 to a day, not {told!r}")
    return seconds


def not_usable(error: StoreError) -> Failure:
    return Failure(f"{error}\n--store or {VARIABLE} names another one; --store memory: shares keys with nobody.")
