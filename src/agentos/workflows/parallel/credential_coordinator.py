"""The pool as callers see it: leases for threads and asyncio, over whichever store keeps the state.

The life of a lease: it is *asked* for (first come, first served), *granted* with a fence that only grows, *picked up*
by the waiter, which checks that it is still worth having, *used*, and *ended* together with what the provider answered,
so that a credential which is about to cool down is not handed to the next one first.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, TypeVar

from agentos.clock import SYSTEM_CLOCK, Clock
from agentos.errors import (
    AmbiguousRelease,
    CredentialError,
    LeaseTimeout,
    NoUsableCredential,
    PoolError,
    RequestTooLarge,
    UnknownCredential,
)
from agentos.limits.backoff import DEFAULT_COOL_DOWN
from agentos.limits.reset_times import seconds_to_reset
from agentos.pool._rules.records import LeaseRecord
from agentos.pool.credential import Credential, LeasedKey
from agentos.pool.lease import Lease, LeaseContext, check_counts, wait
from agentos.pool.states import CredentialSnapshot, Holder
from agentos.pool.store import make_store
from agentos.pool.store_url import StoreAt, passwords
from agentos.providers import verdicts
from agentos.redaction.mask import refuse_to_copy
from agentos.redaction.redactor import Redactor
from agentos.reporters import writers as reporters
from agentos.verdict import RATE_LIMITED, ROTATING, Verdict

if TYPE_CHECKING:
    from agentos.pool.store import Store

T = TypeVar("T")

# Asked for at every reservation, so it must cost next to nothing: `os.environ.get` of an absent name takes longer than
# the reservation itself. The mapping behind it is looked at instead, which `os.environ` changes in place.
_ENVIRONMENT: Any = getattr(os.environ, "_data", os.environ)
_SIMULATE_429: Any = os.fsencode("AGENTOS_SIMULATE_429") if _ENVIRONMENT is not os.environ else "AGENTOS_SIMULATE_429"


@dataclass(frozen=True, slots=True)
class CredentialState:
    """One credential at one instant. Instants are epoch seconds. Never holds a secret."""

    key_id: str
    in_use: bool = False
    reserved_by: str | None = None  # the requester of its oldest live lease
    rate_limited_until: float | None = None
    is_available: bool = True  # a request that names no scope would be granted it now
    quota_group: str = ""
    provider: str | None = None
    live_leases: int = 0
    max_concurrent: int = 1
    quarantined: str | None = None  # why
    cooling: dict[str, float] = field(default_factory=dict)  # scope -> epoch, where only a scope cools
    cooled_by: dict[str, str] = field(default_factory=dict)  # scope ("" for all) -> the verdict that cools it
    fence: int = 0
    requests: int = 0  # used and reserved, since it joined the pool
    tokens: int = 0
    waits_for: str | None = None  # the limit that does not admit another request now
    used: dict[str, tuple[float, float]] = field(default_factory=dict)  # of each declared limit: used, and the limit
    learned: dict[str, float] = field(default_factory=dict)  # scope ("" for none) -> requests per minute
    holders: tuple[str, ...] = ()  # the requesters of its live leases, where they gave a name
    held_by: tuple[Holder, ...] = ()  # the same leases, with the process that has each

    @property
    def keys_file_line(self) -> str | None:
        """What was learned about its limit, as a line for the keys file."""
        return f"requests_per_minute = {math.floor(min(self.learned.values()))}" if self.learned else None


class CredentialCoordinator:
    """A pool of credentials, safe to use from any thread and any event loop.

    `lease` is the way to use it; `reserve` and `release` are the manual pair, for programs that cannot use `with`.
    `store` is where its state lives: `memory:` (the default) for this process, `sqlite:///PATH` for all processes of a
    machine, `redis://…` (`rediss://…`, `unix://…`) for several machines. `lease_ttl` (seconds) is how long a holder
    that died keeps its lease there; in this process nobody can die alone, so the memory store has no use for it.
    `reporter` is told of its events while no run is; without one they are printed.
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
    ) -> None:
        if not lease_ttl > 0:
            raise ValueError(f"lease_ttl must be above 0 seconds, not {lease_ttl!r}")
        self.lease_ttl = lease_ttl
        self._clock = clock if clock is not None else SYSTEM_CLOCK
        self._store: Store = make_store(store, self._clock, self._tell, lease_ttl, self.redact)
        self._listeners: list[Callable[[Any], None]] = []
        self._teller = reporter if reporter is not None else reporters.PlainReporter()
        # Guards _secrets and _ids, which are only added to while others read, and _redactor.
        self._change_lock = threading.Lock()
        self._secrets: dict[str, str] = {}  # credential id -> secret
        self._references: dict[str, str] = {}  # credential id -> where other processes can read its secret themselves
        self._ids: dict[str, str] = {}  # secret -> credential id; kept after `remove`, for those still in use
        self._redactor: Redactor | None = None  # of all _ids, made when it is first needed: that takes a while
        self._unused: set[str] = set()  # secrets that were given and are not in the pool, but must not be shown either
        used, unused = _first_n(credentials)
        if store is not None:
            self._unused |= passwords(store if isinstance(store, str) else store.url)
        for credential in unused:
            with contextlib.suppress(CredentialError):
                self._unused.add(credential.secret if isinstance(credential, Credential) else credential)
        for credential in used:
            if isinstance(credential, Credential) or credential not in self._ids:  # identical strings count once
                self.add(credential)
        if not self._secrets:
            raise ValueError("no credentials: give at least one API key (a string) or Credential")
        self._store.open()

    def close(self) -> None:
        """Leaves a store that others share: what is still held goes back to them. So does the end of the process."""
        self._store.close()

    def __enter__(self) -> CredentialCoordinator:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # --- leases ---------------------------------------------------------------------------------------------------

    def lease(
        self,
        requester_id: str | None = None,
        *,
        requests: int = 1,
        tokens: int = 0,
        scope: str | None = None,
        prefer: str | None = None,
        timeout: float | None = None,
    ) -> LeaseContext:
        """A lease for a `with` or `async with` block; waits for it there, in the order of asking.

        Raises `LeaseTimeout` when none came within `timeout` seconds, `NoUsableCredential` when none can. An exception
        that leaves the block is read as the provider's answer and cools or quarantines the credential; it goes on.
        """
        check_counts(requests, tokens)
        return LeaseContext(self, LeaseRecord(requester_id, requests, tokens, scope, prefer), timeout)

    def call(self, func: Callable[[str], T], *, tokens: int = 0, scope: str | None = None,
             timeout: float | None = None) -> T:  # fmt: skip
        """One request: leases, calls `func(secret)`, gives back. On a limit, an overload or a refused key it goes on
        with another credential, or waits. Any other exception goes on to the caller."""
        deadline = None if timeout is None else self._clock.now() + timeout
        while True:
            try:
                with self.lease(tokens=tokens, scope=scope, timeout=self._left(deadline)) as lease:
                    return func(lease.secret)
            except Exception as exc:
                self._raise_unless_rotating(exc)

    async def acall(self, func: Callable[[str], Awaitable[T]], *, tokens: int = 0, scope: str | None = None,
                    timeout: float | None = None) -> T:  # fmt: skip
        """`call` for an async `func`."""
        deadline = None if timeout is None else self._clock.now() + timeout
        while True:
            try:
                async with self.lease(tokens=tokens, scope=scope, timeout=self._left(deadline)) as lease:
                    return await func(lease.secret)
            except Exception as exc:
                self._raise_unless_rotating(exc)

    # --- the manual pair ------------------------------------------------------------------------------------------

    def reserve(self, timeout: float | None = None) -> LeasedKey | None:
        """Waits, first come first served, for a key; None after `timeout` seconds. Prefer `lease`."""
        record = LeaseRecord()
        return self._key_of(record) if self._request_now(record, timeout) or wait(self, record, timeout) else None

    def reserve_credential(self, requester_id: str | None = None) -> LeasedKey | None:
        """A key if one can be had now, else None. Never waits."""
        record = LeaseRecord(requester_id)
        return self._key_of(record) if self._request_now(record, 0.0) else None

    def acquire(self, timeout: float | None = None) -> LeasedKey | None:
        """`reserve`, under the name that some programs use."""
        return self.reserve(timeout)

    def acquire_credential(self, requester_id: str | None = None) -> LeasedKey | None:
        """`reserve_credential`, under the name that some programs use."""
        return self.reserve_credential(requester_id)

    def release(self, key: str, rate_limited: bool = False, backoff_seconds: float = 0) -> None:
        """Gives a key back; with `rate_limited` its group cools down (60 s when `backoff_seconds` is 0).

        A second release, or one after the lease was lost, changes nothing.
        """
        record = key.record if type(key) is LeasedKey else self._record_of(key)
        if record is None:
            return
        if rate_limited:
            # A person's word, not a provider's answer: it is obeyed, and nothing is learned from it.
            self._store.cool_and_end(record, _seconds(backoff_seconds) or self.RATE_LIMIT_BACKOFF_SECONDS)
        else:
            self._store.end(record, None, True)

    def release_credential(self, key: str) -> None:
        """`release`, under the name that some programs use."""
        self.release(key)

    def mark_rate_limited(self, key: str, backoff_seconds: float | None = None) -> None:
        """Gives a key back and cools its group down. Of two cool-downs the later end holds.

        From a holder whose lease was lost it cools, but frees nothing: the key may be somebody else's by now.
        """
        seconds = self.RATE_LIMIT_BACKOFF_SECONDS if backoff_seconds is None else _seconds(backoff_seconds)
        record = self._record_of(key)
        if seconds:
            self._cool_by_key(key, seconds)
        if record is not None:
            self._store.end(record, None)

    # --- looking --------------------------------------------------------------------------------------------------

    def get_available_count(self) -> int:
        """How many credentials a request could be granted right now."""
        return self._store.available()

    def get_stats(self) -> dict[str, int]:
        """Counts of credentials by state (one may be both reserved and rate-limited), and of waiters."""
        states = self._store.snapshot()
        return {
            "total": len(states),
            "available": sum(s.is_available for s in states),
            "reserved": sum(bool(s.holders) for s in states),
            "rate_limited": sum(None in s.cooling or s.paced > 0 for s in states),
            "quarantined": sum(s.quarantine is not None for s in states),
            "waiting": self._store.waiters(),
        }

    def states(self) -> tuple[CredentialState, ...]:
        """A snapshot of every credential, in the order in which they joined."""
        epoch = self._clock.epoch()
        return tuple(_state(snapshot, epoch) for snapshot in self._store.snapshot())

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.get_stats().items())
        return f"<CredentialCoordinator: {counts}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)

    # --- changing the pool ----------------------------------------------------------------------------------------

    def quarantine(self, id: str, reason: str) -> None:  # noqa: A002 - the name is part of the contract
        """Takes a credential out of use until `restore`. Leases that are live go on."""
        self._store.quarantine(id, self.redact(reason))
        self._store.arrive()

    def restore(self, id: str) -> None:  # noqa: A002
        self._store.restore(id)
        self._store.arrive()

    def add(self, credential: str | Credential) -> str:
        """Adds a credential while the pool is in use; returns its id. Raises `CredentialError` if it cannot be read."""
        if isinstance(credential, str):
            credential = Credential.literal(credential)
        elif not isinstance(credential, Credential):
            raise TypeError(f"a credential is a string or a Credential, not {type(credential).__name__}")
        if credential.limits.requests_per_day is not None:
            seconds_to_reset(credential.limits.day_resets, self._clock.epoch())  # raises if there is no such zone
        secret = credential.secret
        if secret == credential.id:
            raise ValueError("a credential's id is shown to people and must not be the secret itself")
        with self._change_lock:
            known_as = self._ids.get(secret)
            if known_as in self._secrets:
                raise ValueError(f"this key is in the pool already, as {known_as}")
            if credential.id in self._secrets and credential.has_made_up_id:
                credential = credential.with_longer_id()
            if credential.id in self._secrets:
                raise ValueError(f"two credentials have the id {credential.id!r}: give each its own")
            self._secrets[credential.id] = secret
            self._ids[secret] = credential.id
            if credential.reference is not None:
                self._references[credential.id] = credential.reference
            self._redactor = None
        self._store.add(credential)
        return credential.id

    def remove(self, id: str) -> None:  # noqa: A002
        """Takes a credential out of the pool. Leases that are live stay valid until they are released."""
        self._store.remove(id)
        with self._change_lock:
            del self._secrets[id]
            self._references.pop(id, None)

    # --- for the rest of the package ------------------------------------------------------------------------------

    def redactor(self) -> Redactor:
        """Takes the secrets that the pool has or had out of texts and outputs. It knows none that is added later: then
        there is another."""
        redactor = self._redactor
        if redactor is None:
            with self._change_lock:  # so that it is made once, and of all that were added
                redactor = self._redactor = self._redactor or Redactor({*self._ids, *self._unused})
        return redactor

    def redact(self, text: str) -> str:
        """Takes the pool's secrets out of a text for people."""
        return self.redactor().text(text, short_too=True)

    def redact_value(self, text: str) -> str:
        """Takes them out of a text that a program will read. A secret so short that it may stand there by chance is
        left: to replace it would change what the text says."""
        return self.redactor().text(text)

    def hides_secret(self, text: str) -> bool:
        """Whether `redact_value` would change a text."""
        return self.redact_value(text) != text

    def listen(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Sends the pool's events to `listener` instead of printing them; returns the call that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _request_now(self, record: LeaseRecord, timeout: float | None = None) -> bool:
        """True if the lease is live at once; else nothing has changed. Those who can wait do not ask a store twice that
        takes its time to answer."""
        if _SIMULATE_429 in _ENVIRONMENT:
            self._simulate_429()
        if self._store.is_shared and (timeout is None or timeout > 0):
            return False
        return self._store.request(record, False)

    def _tell(self, event: Any) -> None:
        for listener in tuple(self._listeners) or (self._teller,):
            listener(event)

    def _lease_of(self, record: LeaseRecord) -> Lease:
        assert record.credential is not None
        return Lease(self, record, self._secrets.get(record.credential.id, ""))

    def _key_of(self, record: LeaseRecord) -> LeasedKey:
        credential = record.credential
        assert credential is not None
        key = LeasedKey(self._secrets[credential.id])
        key.credential_id = credential.id
        key.record = record
        return key

    def _record_of(self, key: str) -> LeaseRecord | None:
        """The lease behind a key; None if it has ended. For a plain string: the credential's only live one."""
        if isinstance(key, LeasedKey):
            return key.record
        credential_id = self._id_of(key)
        live = self._store.live_leases(credential_id)
        if len(live) > 1:
            raise AmbiguousRelease(
                f"{credential_id} has {len(live)} live leases and a plain string does not say which one to release: "
                "pass the object that reserve() returned"
            )
        return live[0] if live else None

    def _id_of(self, key: str) -> str:
        if isinstance(key, LeasedKey):
            return key.credential_id
        try:
            return self._ids[key]
        except (KeyError, TypeError):
            raise UnknownCredential("the released key is not in this pool") from None

    def _cool_by_key(self, key: str, seconds: float) -> None:
        credential_id = self._id_of(key)
        if credential_id in self._secrets:
            self._store.cool(credential_id, seconds)

    def _end(self, record: LeaseRecord, exc: BaseException | None) -> None:
        if exc is None:
            self._store.end(record, None, success=True)
            return
        self._store.end(record, self._redacted(self._verdict_of(exc, record)))

    def _verdict_of(self, exc: BaseException, record: LeaseRecord | None = None) -> Verdict:
        """What an exception says about the credential or its provider."""
        return verdicts.from_exception(exc, provider=provider_of(record), now=self._clock.epoch())

    def _observe(self, record: LeaseRecord, response: Any) -> None:
        self._observed(record, verdicts.from_observed(response, provider=provider_of(record), now=self._clock.epoch()))

    def _observed(self, record: LeaseRecord, verdict: Verdict) -> None:
        self._store.observed(record, self._redacted(verdict))

    def _redacted(self, verdict: Verdict) -> Verdict:
        return verdict._replace(message=self.redact(verdict.message)) if verdict.message else verdict

    def _raise_unless_rotating(self, exc: Exception) -> None:
        """Called in an `except` block: another credential, or a wait, is the answer to some exceptions."""
        if isinstance(exc, PoolError) or self._verdict_of(exc).kind not in ROTATING:
            raise exc

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self._clock.now())

    def _simulate_429(self) -> None:
        if os.environ.pop("AGENTOS_SIMULATE_429", "").lower() == "true":
            self._store.cool(next(iter(self._secrets)), self.RATE_LIMIT_BACKOFF_SECONDS)

    def _timed_out(self, record: LeaseRecord, timeout: float | None) -> LeaseTimeout:
        waiting = self._store.waiting_for(record.scope, (record.requests, record.tokens))
        return LeaseTimeout(
            f"no credential within {timeout:g} s: {reporters.waiting_text(waiting)}",
            reason=waiting.reason,
            usable_in=waiting.usable_in,
        )

    def _refusal(self, record: LeaseRecord) -> RequestTooLarge | NoUsableCredential:
        """Why a request was refused by the pool."""
        if record.too_large is not None:
            return RequestTooLarge(f"no limit is large enough: {record.too_large}")
        return self._no_usable(record.scope)

    def _no_usable(self, scope: str | None) -> NoUsableCredential:
        reasons = self._store.reasons(scope)
        told = "; ".join(f"{credential_id}: {reason}" for credential_id, reason in reasons.items())
        return NoUsableCredential(f"no usable credential: {told or 'the pool is empty'}", reasons=reasons)


def _seconds(value: float) -> float:
    if not value >= 0:
        raise ValueError(f"backoff_seconds must be a number of seconds from 0, not {value!r}")
    return value


def _first_n(credentials: Iterable[str | Credential]) -> tuple[list[str | Credential], list[str | Credential]]:
    """All of them, or as many as AGENTOS_CREDENTIAL_LIMIT says; and the rest."""
    if isinstance(credentials, str | Credential):
        raise TypeError("credentials is a list of keys; for a single one write [key]")
    unique = list(dict.fromkeys(credentials))
    limit = os.environ.get("AGENTOS_CREDENTIAL_LIMIT")
    if not limit:
        return unique, []
    if not limit.isdecimal() or int(limit) < 1:
        raise ValueError(f"AGENTOS_CREDENTIAL_LIMIT must be a whole number from 1, not {limit!r}")
    return unique[: int(limit)], unique[int(limit) :]


def provider_of(record: LeaseRecord | None) -> str | None:
    return None if record is None or record.credential is None else record.credential.provider.name


def _state(snapshot: CredentialSnapshot, epoch: float) -> CredentialState:
    cooling = {scope: epoch + left for scope, left in snapshot.cooling.items()}
    if snapshot.paced > 0:
        cooling[None] = max(cooling.get(None, 0.0), epoch + snapshot.paced)
    return CredentialState(
        key_id=snapshot.id,
        in_use=bool(snapshot.holders),
        reserved_by=snapshot.holders[0].requester if snapshot.holders else None,
        rate_limited_until=cooling.pop(None, None),
        is_available=snapshot.is_available,
        quota_group=snapshot.group,
        provider=snapshot.provider,
        live_leases=len(snapshot.holders),
        max_concurrent=snapshot.max_concurrent,
        quarantined=snapshot.quarantine,
        cooling={scope: until for scope, until in cooling.items() if scope is not None},
        cooled_by={scope or "": verdict for scope, verdict in snapshot.cooled_by.items()},
        fence=snapshot.fence,
        requests=snapshot.requests,
        tokens=snapshot.tokens,
        waits_for=snapshot.binding,
        used=snapshot.used,
        learned={scope or "": rate for scope, rate in snapshot.learned.items()},
        holders=tuple(holder.requester for holder in snapshot.holders if holder.requester is not None),
        held_by=snapshot.holders,
    )
