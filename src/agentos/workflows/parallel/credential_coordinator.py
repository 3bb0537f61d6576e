"""CredentialCoordinator: a pool of API keys, with the method names that programs use.

Leases and their rules are in `agentos.pool`; this module adds keys as plain strings, the manual pair `reserve` and
`release` with its older names, and two switches in the environment.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from agentos.clock import Clock
from agentos.errors import AmbiguousRelease, CredentialError, UnknownCredential
from agentos.events import KeysReloaded
from agentos.limits.cool_downs import DEFAULT_COOL_DOWN
from agentos.pool.credential import Credential
from agentos.pool.lease import LeasedKey, wait
from agentos.pool.lease_pool import LeasePool
from agentos.pool.references import is_reference
from agentos.pool.states import CredentialState
from agentos.pool.store import LeaseHandle
from agentos.pool.store_url import StoreAt
from agentos.reporters import writers as reporters
from agentos.verdict import RATE_LIMITED

__all__ = ["CredentialCoordinator", "CredentialState"]

SIMULATE_429 = "AGENTOS_SIMULATE_429"


class CredentialCoordinator(LeasePool):
    """A pool of credentials, safe to use from any thread and any event loop.

    `lease` is the way to use it; `reserve` and `release` are the manual pair, for programs that cannot use `with`.
    `store` is where its state lives: `memory:` (the default) for this process, `sqlite:///PATH` for all processes of a
    machine, `redis://…` (`rediss://…`, `unix://…`) for several machines. `lease_ttl` (seconds) is how long a shared
    store keeps the lease of a process that died; the memory store has no use for it. `reporter` is called with the
    pool's events while no run listens to them; without one they are printed. `order` is which of several usable
    credentials is granted: `"least-loaded"`, `"soonest-reset"` or `"listed"`.
    """

    RATE_LIMIT_BACKOFF_SECONDS = int(DEFAULT_COOL_DOWN[RATE_LIMITED])

    def __init__(
        self,
        credentials: Iterable[str | Credential],
        *,
        store: str | StoreAt | None = None,
        lease_ttl: float = 30,
        clock: Clock | None = None,
        reporter: reporters.Reporter | None = None,
        order: str = "least-loaded",
    ) -> None:
        self._environment_size = -1  # of the last look for SIMULATE_429; the first request looks
        used, unused = _first_n(credentials)
        _warn(_unread_references(used))
        hidden: set[str] = set()
        for credential in unused:
            with contextlib.suppress(CredentialError):
                hidden |= credential.secrets if isinstance(credential, Credential) else {credential}
        super().__init__(
            _without_repeated_strings(used),
            store=store,
            lease_ttl=lease_ttl,
            clock=clock,
            reporter=reporter,
            hidden_secrets=hidden,
            order=order,
        )

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        store: str | StoreAt | None = None,
        lease_ttl: float = 30,
        clock: Clock | None = None,
        reporter: reporters.Reporter | None = None,
    ) -> Self:
        """Return a pool of the credentials in a keys file (TOML), in the store that the file names unless `store` does.

        Raise `KeysFileError`, with the line of the file, or `CredentialError` for a reference that cannot be read.
        """
        from agentos.keys.keys_file import load_keys

        keys = load_keys(Path(path))
        _warn(keys.warnings)
        store = keys.store if store is None else store
        return cls(keys.credentials, store=store, lease_ttl=lease_ttl, clock=clock, reporter=reporter)

    @classmethod
    def from_env(
        cls,
        *patterns: str,
        store: str | StoreAt | None = None,
        lease_ttl: float = 30,
        clock: Clock | None = None,
        reporter: reporters.Reporter | None = None,
    ) -> Self:
        """Return a pool of the keys in environment variables, named by patterns such as `OPENAI_API_KEY*`.

        The id of a key is its variable in small letters: `openai-api-key-2`. Raise `KeysFileError` if a pattern matches
        no variable.
        """
        from agentos.keys.keys_file import keys_from_environment

        if not patterns:
            raise TypeError("name the variables that hold the keys, such as from_env('OPENAI_API_KEY*')")
        credentials: dict[str, Credential] = {}
        for pattern in patterns:
            keys = keys_from_environment(pattern, os.environ)
            _warn(keys.warnings)
            credentials |= {credential.id: credential for credential in keys.credentials}
        return cls(credentials.values(), store=store, lease_ttl=lease_ttl, clock=clock, reporter=reporter)

    def add(self, credential: str | Credential) -> str:
        """Add a credential while the pool is in use; return its id. Raises `CredentialError` if it cannot be read."""
        _warn(_unread_references([credential]))
        return super().add(_credential(credential))

    def reload(self, credentials: Iterable[str | Credential]) -> KeysReloaded:
        """Make these the credentials of the pool while it is in use, and return the ids that were added, changed or
        retired. What is in use finishes; usage that was counted stays counted, and secrets of retired credentials stay
        redacted. A changed secret ends the quarantine of its credential.

        Raise `CredentialError` or `ValueError` if one of them cannot be used; then nothing has changed.
        """
        used, unused = _first_n(credentials)
        _warn(_unread_references(used))
        del unused  # AGENTOS_CREDENTIAL_LIMIT
        return super().reload(_without_repeated_strings(used))

    def reload_file(self, path: str | os.PathLike[str]) -> KeysReloaded:
        """Call `reload` with the credentials of a keys file; the store and the order of the pool stay as they are.
        Raise also `KeysFileError`, with the line of the file; then nothing has changed."""
        from agentos.keys.keys_file import load_keys

        keys = load_keys(Path(path))
        _warn(keys.warnings)
        return self.reload(keys.credentials)

    # --- the manual pair ------------------------------------------------------------------------------------------

    def reserve(self, timeout: float | None = None) -> LeasedKey | None:
        """Wait, first come first served, for a key; return None after `timeout` seconds. Prefer `lease`."""
        handle = self.make_handle()
        if len(os.environ) != self._environment_size:  # not `request_now`: one call less for each lease
            self._simulate_429()
        return self.key_of(handle) if self._store.request_now(handle, timeout) or wait(self, handle, timeout) else None

    def reserve_credential(self, requester_id: str | None = None) -> LeasedKey | None:
        """Return a key if one is usable now, else None. Never waits."""
        handle = self.make_handle(requester_id)
        return self.key_of(handle) if self.request_now(handle, 0.0) else None

    def acquire(self, timeout: float | None = None) -> LeasedKey | None:
        """Call `reserve`: the name that some programs use."""
        return self.reserve(timeout)

    def acquire_credential(self, requester_id: str | None = None) -> LeasedKey | None:
        """Call `reserve_credential`: the name that some programs use."""
        return self.reserve_credential(requester_id)

    def release(self, key: str, rate_limited: bool = False, backoff_seconds: float = 0) -> None:
        """Give a key back; with `rate_limited` its group cools down (60 s when `backoff_seconds` is 0).

        A second release, or one after the lease was lost, changes nothing.
        """
        handle = key.handle if type(key) is LeasedKey else self._handle_of(key)
        if handle is None:
            return
        if rate_limited:
            # The caller's word, not a provider's answer: the group cools, and no limit is learned.
            self._store.cool_and_end(handle, _seconds(backoff_seconds) or self.RATE_LIMIT_BACKOFF_SECONDS)
        else:
            self._store.end(handle, None, True)

    def release_credential(self, key: str) -> None:
        """Call `release`: the name that some programs use."""
        self.release(key)

    def mark_rate_limited(self, key: str, backoff_seconds: float | None = None) -> None:
        """Give a key back and cool its group down. Of two cool-downs the later end holds.

        From a holder whose lease was lost it cools, but frees nothing: the key may be leased again by now.
        """
        seconds = self.RATE_LIMIT_BACKOFF_SECONDS if backoff_seconds is None else _seconds(backoff_seconds)
        handle = self._handle_of(key)
        if seconds:
            self._cool_by_key(key, seconds)
        if handle is not None:
            self._store.end(handle, None)

    # --- counts ---------------------------------------------------------------------------------------------------

    def get_available_count(self) -> int:
        """Return how many credentials a request could be granted right now."""
        return self._store.available()

    def get_stats(self) -> dict[str, int]:
        """Return counts of credentials by state (one may be both reserved and rate-limited), and of waiters."""
        states = self._store.states()
        return {
            "total": len(states),
            "available": sum(s.is_available for s in states),
            "reserved": sum(s.in_use for s in states),
            "rate_limited": sum(s.rate_limited_until is not None for s in states),
            "quarantined": sum(s.quarantined is not None for s in states),
            "waiting": self._store.waiters(),
        }

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.get_stats().items())
        return f"<CredentialCoordinator: {counts}>"

    # --- inside ---------------------------------------------------------------------------------------------------

    def request_now(self, handle: LeaseHandle, timeout: float | None = None) -> bool:
        # `os.environ.get` takes 0.7 µs, a quarter of a reservation; `len` takes 0.06 µs. Limits: the switch is missed
        # if it is set while another variable is deleted, or if only its value changes.
        if len(os.environ) != self._environment_size:
            self._simulate_429()
        return self._store.request_now(handle, timeout)

    def _handle_of(self, key: str) -> LeaseHandle | None:
        """Return the lease behind a key; None if it has ended. For a plain string: the credential's only live one."""
        if isinstance(key, LeasedKey):
            return key.handle
        ids = self._ids_of(key)
        live = [handle for credential_id in ids for handle in self._store.live_leases(credential_id)]
        if len(live) > 1:
            raise AmbiguousRelease(
                f"{' and '.join(ids)} has {len(live)} live leases and a plain string does not say which one to "
                "release: pass the object that reserve() returned"
            )
        return live[0] if live else None

    def _ids_of(self, key: str) -> tuple[str, ...]:
        """Return the ids of the credentials that have this key: several if it is used in several regions."""
        if isinstance(key, LeasedKey):
            return (key.credential_id,)
        try:
            return self._ids[key]
        except (KeyError, TypeError):
            raise UnknownCredential("the released key is not in this pool") from None

    def _cool_by_key(self, key: str, seconds: float) -> None:
        for credential_id in self._ids_of(key):
            if credential_id in self._credentials:
                self._store.cool(credential_id, seconds)

    def _simulate_429(self) -> None:
        """Cool the first credential if the switch is on, and take the switch out of the environment: it works once."""
        is_on = os.environ.pop(SIMULATE_429, "").lower() == "true"
        self._environment_size = len(os.environ)
        if is_on:
            self._store.cool(next(iter(self._credentials)), self.RATE_LIMIT_BACKOFF_SECONDS)


def _credential(credential: str | Credential) -> Credential:
    if isinstance(credential, str):
        return Credential.literal(credential)
    if isinstance(credential, Credential):
        return credential
    hint = ": is the variable set that should hold the key?" if credential is None else ""
    raise TypeError(f"a credential is a string or a Credential, not {type(credential).__name__}{hint}")


def _unread_references(credentials: Iterable[str | Credential]) -> Iterator[str]:
    """Yield a warning for each plain string that looks like a reference. Without the text, which may be a key."""
    for credential in credentials:
        if isinstance(credential, str) and is_reference(credential):
            kind = credential.partition(":")[0]
            yield (
                f"a string that begins with {kind}: is used as the key itself, and nothing is read: pass "
                f"Credential({kind + ':…'!r}) to read the key"
            )


def _warn(texts: Iterable[str]) -> None:
    """Warn the caller of the method that calls this function."""
    for text in texts:
        warnings.warn(text, stacklevel=3)


def _without_repeated_strings(credentials: Iterable[str | Credential]) -> Iterator[Credential]:
    """Yield credentials; a string that is the secret of an earlier one is left out."""
    secrets = set()
    for each in credentials:
        if isinstance(each, Credential) or each not in secrets:
            credential = _credential(each)
            secrets.add(credential.secret)
            yield credential


def _seconds(value: float) -> float:
    """Return a number of any type (an int, a float, a Decimal) as seconds."""
    try:
        seconds = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not seconds >= 0:
        raise ValueError(f"backoff_seconds must be a number of seconds from 0, not {value!r}")
    return seconds


def _first_n(credentials: Iterable[str | Credential]) -> tuple[list[str | Credential], list[str | Credential]]:
    """Return the first AGENTOS_CREDENTIAL_LIMIT credentials (all without the variable), and the rest."""
    if isinstance(credentials, str | Credential):
        raise TypeError("credentials is a list of keys; for a single one write [key]")
    try:
        unique = list(dict.fromkeys(credentials))
    except TypeError:
        kind = type(credentials).__name__
        raise TypeError(f"credentials must be a list of strings or Credential objects, not {kind}") from None
    limit = os.environ.get("AGENTOS_CREDENTIAL_LIMIT")
    if not limit:
        return unique, []
    if not limit.isdecimal() or int(limit) < 1:
        raise ValueError(f"AGENTOS_CREDENTIAL_LIMIT must be a whole number from 1, not {limit!r}")
    return unique[: int(limit)], unique[int(limit) :]
