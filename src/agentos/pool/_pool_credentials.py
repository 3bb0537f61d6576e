"""PoolCredentials: the credentials of a pool, which are added, replaced, taken out of use and looked at while it is in
use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from agentos.clock import Clock
from agentos.errors import UnknownCredential
from agentos.events import KeysReloaded, PoolWaiting
from agentos.limits.reset_times import seconds_to_reset
from agentos.reporters import writers as reporters

from ._pool_secrets import PoolSecrets
from ._reload import check_new, compare
from ._rules.wait_reasons import NO_RESTS, Need, Rests
from .credential import NO_VALUES, Credential, Sources, fingerprint_of
from .states import CredentialForecast, CredentialState
from .store import LeaseHandle, Store, make_store
from .store_url import StoreAt, passwords


class PoolCredentials(PoolSecrets):
    """The credentials, the store that decides about them, and the listeners of their events. Base of `LeasePool`."""

    def __init__(
        self,
        store: str | StoreAt | None,
        clock: Clock,
        lease_ttl: float,
        reporter: reporters.Reporter | None,
        hidden_secrets: Iterable[str],
        order: str,
    ) -> None:
        super().__init__(hidden_secrets)
        self.clock = clock
        self._listeners: list[Callable[[Any], None]] = []
        self._reporter = reporter if reporter is not None else reporters.PlainReporter()
        self._reload_lock = threading.Lock()  # held while all credentials are declared anew
        self._credentials: dict[str, Credential] = {}  # by id
        self._secrets: dict[str, str] = {}  # credential id -> its key, for each credential that was ever added
        self._retired: dict[str, Credential] = {}  # by id: removed, for leases that are still live
        self._identities: dict[str, str] = {}  # identity -> credential id
        # secret -> ids of its credentials; kept after `remove`, for leases that are still live
        self._ids: dict[str, tuple[str, ...]] = {}
        self._store: Store[Any] = make_store(store, clock, self._announce, lease_ttl, self.redact, order)
        if store is not None:
            self._hidden_secrets |= passwords(store if isinstance(store, str) else store.url)

    def add(self, credential: Credential) -> str:
        """Add a credential while the pool is in use; return its id. Raises `CredentialError` if it cannot be read."""
        for resets in credential.limits.calendars():
            seconds_to_reset(resets, self.clock.epoch())  # raises if there is no such zone
        secrets = credential.secrets
        if credential.id in secrets:
            raise ValueError("a credential's id is displayed and must not be the secret")
        with self._change_lock:
            same = self._identities.get(credential.identity)
            if same in self._credentials:
                raise ValueError(f"this key is already in the pool, as {same}")
            if credential.id in self._credentials and credential.has_generated_id:
                credential = credential.with_longer_id()
            if credential.id in self._credentials:
                raise ValueError(f"two credentials have the id {credential.id!r}: give each its own")
            self._credentials[credential.id] = credential
            self._secrets[credential.id] = credential.secret
            self._identities[credential.identity] = credential.id
        self._know(credential)
        try:
            self._store.add(credential)
        except Exception:
            with self._change_lock:
                del self._credentials[credential.id]  # its secrets stay: the redactor knows more rather than fewer
            raise
        return credential.id

    def remove(self, id: str) -> None:  # noqa: A002 - the name is part of the contract
        """Take a credential out of the pool. Leases that are live stay valid until they are released."""
        self._store.remove(id)
        with self._change_lock:
            self._retired[id] = self._credentials.pop(id)

    def reload(self, credentials: Iterable[Credential]) -> KeysReloaded:
        """Make these the credentials of the pool while it is in use, and return the ids that were added, changed or
        retired. What is in use finishes; usage that was counted stays counted, and secrets of retired credentials stay
        redacted. A changed secret ends the quarantine of its credential.

        Raise `CredentialError` or `ValueError` if one of them cannot be used; then nothing has changed.
        """
        new = check_new(credentials, self.clock.epoch())
        with self._reload_lock:
            old = self._credentials
            change = compare(old, new)
            for id_ in (*change.added, *change.changed):
                self._know(new[id_])
            self._replace({**old, **new})  # first: a waiter may be granted a new credential at once
            try:
                self._add_all([new[id_] for id_ in change.added])
            except Exception:
                self._replace(old)
                raise
            for id_ in change.changed:
                self._store.redeclare(new[id_])
                if new[id_].fingerprint != old[id_].fingerprint:
                    self._store.restore(id_)  # the quarantine was that of another secret
            for id_ in change.retired:  # last: waiters must not be refused before the others have come
                self._store.remove(id_)
            self._retired |= {id_: old[id_] for id_ in change.retired}
            self._replace(new)
            self._store.arrive()
        if any(change):
            self._announce(change)
        return change

    def _add_all(self, credentials: list[Credential]) -> None:
        """Add credentials to the store: all of them, or none if one cannot be added."""
        for count, credential in enumerate(credentials):
            try:
                self._store.add(credential)
            except Exception:
                for added in credentials[:count]:
                    self._store.remove(added.id)
                raise

    def _replace(self, credentials: dict[str, Credential]) -> None:
        """Replace all credentials at once: other threads read them without the lock."""
        with self._change_lock:
            self._credentials = credentials
            self._secrets = {**self._secrets, **{id_: credential.secret for id_, credential in credentials.items()}}
            self._identities = {credential.identity: id_ for id_, credential in credentials.items()}

    def _know(self, credential: Credential) -> None:
        """Redact the secrets of a credential, and find it by its key."""
        with self._change_lock:
            if credential.has_secret:
                ids = (*self._ids.get(credential.secret, ()), credential.id)
                self._ids[credential.secret] = tuple(dict.fromkeys(ids))
            self._hidden_secrets |= credential.secrets
            self._redactor = None

    def quarantine(self, id: str, reason: str) -> None:  # noqa: A002
        """Take a credential out of use until `restore`. Leases that are live stay valid."""
        if not isinstance(reason, str):
            raise TypeError(f"the reason must be a string, not {reason!r}")
        self._store.quarantine(id, self.redact(reason))
        self._store.arrive()

    def restore(self, id: str) -> None:  # noqa: A002
        """Put a quarantined credential back into use."""
        self._store.restore(id)
        self._store.arrive()

    def clear(self, id: str) -> None:  # noqa: A002
        """Put a credential back into use at once: end its quarantine, and the cool-downs of itself, its group and its
        provider, also those that the provider asked for."""
        if id not in self._credentials:
            raise UnknownCredential("no credential with this id is in the pool")
        self._store.clear(id)
        self._store.arrive()

    def states(self) -> tuple[CredentialState, ...]:
        """Return a snapshot of every credential, in the order in which they joined."""
        return tuple(self._store.states())

    def snapshot(self, scope: str | None, request: LeaseHandle | None = None, rests: Rests = NO_RESTS
                 ) -> tuple[tuple[CredentialState, ...], PoolWaiting]:  # fmt: skip
        """Return the states, and why a request waits, at one instant; without one, why any of a scope would. `rests`:
        credentials that the requester leaves alone by itself."""
        states, waiting = self._store.snapshot(*_question(scope, request), rests)
        return tuple(states), waiting

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the credentials."""
        return tuple(self._credentials)

    @property
    def size(self) -> int:
        """The number of credentials."""
        return len(self._credentials)

    def credentials(self) -> tuple[Credential, ...]:
        """Return the credentials of this pool, in the order in which they joined it."""
        return tuple(self._credentials.values())

    def credential_of(self, credential_id: str) -> Credential:
        """Return a credential by its id. Raise `UnknownCredential`."""
        try:
            return self._find(credential_id)
        except KeyError:
            raise UnknownCredential("no credential with this id is in the pool") from None

    def _find(self, credential_id: str) -> Credential:
        """Return a credential of the pool, or one that was retired. Raises `KeyError`."""
        return self._credentials.get(credential_id) or self._retired[credential_id]

    def fingerprint_of(self, credential_id: str) -> str:
        """Return the one-way digest of the secrets of a credential's requests, by which another process recognises
        them."""
        credential = self._credentials.get(credential_id)
        return fingerprint_of(() if credential is None else credential.request_secrets)

    def reference_of(self, credential_id: str) -> str | None:
        """Return the reference (`env:…`, `file:…`, `cmd:…`) from which another process can read a credential's secret;
        None for a plain secret, and for a reference that holds a secret itself."""
        credential = self._credentials.get(credential_id)
        reference = None if credential is None else credential.reference
        return None if reference is None or self.hides_secret(reference) else reference

    def sources_of(self, credential_id: str) -> Sources | None:
        """Return the base URL and the headers of a credential with their references, which another process can read;
        None if one of them holds a secret itself."""
        credential = self._credentials.get(credential_id)
        sources = Sources() if credential is None else credential.sources._replace(command_env=NO_VALUES)
        texts = (sources.base_url or "", *sources.headers.values())
        return None if any(map(self.hides_secret, texts)) else sources

    # --- what binds the pool --------------------------------------------------------------------------------------

    def waiting_for(self, scope: str | None) -> PoolWaiting:
        """Return why a request of a scope waits, and for how long."""
        return self._store.waiting_for(scope)

    def waiting_of(self, handle: LeaseHandle, rests: Rests = NO_RESTS) -> PoolWaiting:
        """Return why a request waits, and for how long. Blocks for a round trip to the owner of a shared pool.
        `rests`: credentials that the requester leaves alone by itself."""
        return self._store.waiting_for(*_question(handle.scope, handle), rests)

    def first_waiting(self) -> LeaseHandle | None:
        """Return the request of this process that waits longest; None if none waits."""
        request: LeaseHandle | None = self._store.first_waiting()
        return request

    def admitted(self) -> int:
        """Return how many requests all credentials together admit at once now: declared, or learned so far."""
        return sum(state.max_concurrent for state in self._store.states() if state.quarantined is None)

    def waiters(self) -> int:
        """Return the number of requests of this process that wait."""
        return self._store.waiters()

    def fastest(self) -> tuple[float | None, float]:
        """Return the requests a second that all limits together allow (None where one is not known), and the seconds in
        which no credential can be used."""
        return self._store.fastest()

    def is_proven(self, credential_id: str) -> bool:
        """Return whether a credential has served a request successfully."""
        return self._store.is_proven(credential_id)

    def forecasts(self) -> list[CredentialForecast]:
        """Return what a plan needs to know of each credential that can be used."""
        return self._store.forecasts()

    # --- events ---------------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Send the pool's events to `listener` instead of the reporter; return the call that ends this."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def _announce(self, event: Any) -> None:
        for listener in tuple(self._listeners) or (self._reporter,):
            listener(event)


def _question(scope: str | None, request: LeaseHandle | None
              ) -> tuple[str | None, Need | None, str | None, str | None]:  # fmt: skip
    """Return what a store is asked about a request, or about any of a scope."""
    if request is None:
        return scope, None, None, None
    need = request.requests, request.tokens, request.detail
    return request.scope, need, request.for_provider, request.only
