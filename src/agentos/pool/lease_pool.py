"""LeasePool: credentials and their leases, as runs, workers and programs use them.

The life of a lease: it is *requested* (first come, first served), *granted* with a fence that only grows, *confirmed*
by the waiter (which checks that the credential is still usable), *used*, and *ended* together with the verdict on the
provider's answer, so that a credential that is about to cool down is not granted to the next request first.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar

from agentos.clock import SYSTEM_CLOCK, Clock
from agentos.errors import LeaseTimeout, NoUsableCredential, PoolError, RequestTooLarge, UnknownCredential
from agentos.events import KeysReloaded, PoolWaiting
from agentos.limits.cool_downs import MAX_PRINTED_WAIT, MIN_COOL_DOWN, hint_of
from agentos.limits.reset_times import seconds_to_reset
from agentos.redaction.mask import refuse_to_copy
from agentos.redaction.recent_tokens import RecentTokens
from agentos.redaction.redactor import Redactor
from agentos.reporters import writers as reporters
from agentos.reporters.sentences import waiting_text
from agentos.reporters.unusable_text import unusable_text
from agentos.verdict import RATE_LIMITED, RETRY_ON_OTHER_KEY, TRANSIENT, Verdict

from ._reload import check_new, compare
from ._rules.order import LEAST_LOADED, check_order
from .credential import NO_VALUES, Credential, Sources, fingerprint_of
from .lease import Lease, LeaseContext, LeasedKey, check_amounts, check_counts, check_name
from .states import CredentialForecast, CredentialState
from .store import LeaseHandle, Store, make_store
from .store_url import StoreAt, passwords

T = TypeVar("T")


class LeasePool:
    """A pool of credentials, safe to use from any thread and any event loop.

    `store` is where its state lives: `memory:` (the default) for this process, `sqlite:///PATH` for all processes of a
    machine, `redis://…` (`rediss://…`, `unix://…`) for several machines. `lease_ttl` (seconds) is how long a shared
    store keeps the lease of a process that died; the memory store has no use for it. `reporter` is called with the
    pool's events while no run listens to them; without one they are printed. `hidden_secrets` are not in the pool, but
    redacted like the secrets that are. `order` is which of several usable credentials is granted: `"least-loaded"`,
    `"soonest-reset"` (the one whose window of an hour or more resets soonest, so that its quota does not expire unused)
    or `"listed"` (the first one until it has no room).
    """

    def __init__(
        self,
        credentials: Iterable[Credential],
        *,
        store: str | StoreAt | None = None,
        lease_ttl: float = 30,
        clock: Clock | None = None,
        reporter: reporters.Reporter | None = None,
        hidden_secrets: Iterable[str] = (),
        order: str = LEAST_LOADED,
    ) -> None:
        from agentos.providers import verdicts  # not on import: compiling its patterns takes long

        check_order(order)
        if not lease_ttl > 0:
            raise ValueError(f"lease_ttl must be above 0 seconds, not {lease_ttl!r}")
        self._read_exception, self._read_answer = verdicts.from_exception, verdicts.from_observed
        self.lease_ttl = lease_ttl
        self.clock = clock if clock is not None else SYSTEM_CLOCK
        self._listeners: list[Callable[[Any], None]] = []
        self._reporter = reporter if reporter is not None else reporters.PlainReporter()
        # Guards _redactor, and changes of _credentials, _ids and _hidden_secrets, which other threads read without it.
        self._change_lock = threading.Lock()
        self._reload_lock = threading.Lock()  # held while all credentials are declared anew
        self._credentials: dict[str, Credential] = {}  # by id
        self._secrets: dict[str, str] = {}  # credential id -> its key, for each credential that was ever added
        self._retired: dict[str, Credential] = {}  # by id: removed, for leases that are still live
        self._identities: dict[str, str] = {}  # identity -> credential id
        # secret -> ids of its credentials; kept after `remove`, for leases that are still live
        self._ids: dict[str, tuple[str, ...]] = {}
        self._tokens: RecentTokens | None = None  # client tokens of attempts, in a run with a gateway
        self._redactor: Redactor | None = None  # of all secrets; made when first needed, because it takes milliseconds
        self._store: Store[Any] = make_store(store, self.clock, self._announce, lease_ttl, self.redact, order)
        self._hidden_secrets = set(hidden_secrets)
        if store is not None:
            self._hidden_secrets |= passwords(store if isinstance(store, str) else store.url)
        # The steps of a lease are the store's own methods: one call less for each request.
        self.make_handle = self._store.make_handle
        self.request = self._store.request
        self._request_now = self._store.request_now
        self.confirm = self._store.confirm
        self.withdraw = self._store.withdraw
        self.expire = self._store.expire
        self.avoid = self._store.avoid
        self.settle = self._store.settle
        self.use_more = self._store.use_more
        self.cool_and_end = self._store.cool_and_end
        for credential in credentials:
            self.add(credential)
        if not self._credentials:
            raise ValueError("no credentials: give at least one API key (a string) or Credential")
        self._store.open()

    def close(self) -> None:
        """Leave a shared store, which ends all leases of this process. The end of the process does the same."""
        self._store.close()

    def __enter__(self) -> Self:
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
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cost: float | None = None,
    ) -> LeaseContext:
        """Return a lease for a `with` or `async with` block, which waits for it in the order of requests.

        The block raises `LeaseTimeout` when no credential came within `timeout` seconds, `NoUsableCredential` when none
        can. An exception that leaves the block is read as the provider's answer and cools or quarantines the
        credential; it is not swallowed. `tokens` is at least the sum of `input_tokens` and `output_tokens`; tokens of
        unknown direction count as input and as output.
        """
        check_name("scope", scope)
        check_name("prefer", prefer)
        if input_tokens is None and output_tokens is None and cost is None:
            check_counts(requests, tokens)
            return LeaseContext(self, self.make_handle(requester_id, requests, tokens, scope, prefer), timeout)
        tokens, detail = check_amounts(requests, tokens, input_tokens, output_tokens, cost)
        handle = self.make_handle(requester_id, requests, tokens, scope, prefer, None, None, detail)
        return LeaseContext(self, handle, timeout)

    def call(self, func: Callable[[str], T], *, tokens: int = 0, scope: str | None = None,
             timeout: float | None = None) -> T:  # fmt: skip
        """Lease, call `func(secret)`, release, and return what it returned. On a limit, an overload or a refused key
        call it again with another credential, or when one is usable. Any other exception is raised."""
        deadline = None if timeout is None else self.clock.now() + timeout
        while True:
            try:
                with self.lease(tokens=tokens, scope=scope, timeout=self._remaining(deadline)) as lease:
                    return func(lease.secret)
            except Exception as exc:
                self._raise_unless_retried(exc)

    async def acall(self, func: Callable[[str], Awaitable[T]], *, tokens: int = 0, scope: str | None = None,
                    timeout: float | None = None) -> T:  # fmt: skip
        """`call` for an async `func`."""
        deadline = None if timeout is None else self.clock.now() + timeout
        while True:
            try:
                async with self.lease(tokens=tokens, scope=scope, timeout=self._remaining(deadline)) as lease:
                    return await func(lease.secret)
            except Exception as exc:
                self._raise_unless_retried(exc)

    # --- the credentials of the pool ------------------------------------------------------------------------------

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

    def snapshot(self, scope: str | None) -> tuple[tuple[CredentialState, ...], PoolWaiting]:
        """Return the states, and why a request of a scope would wait, at one instant."""
        states, waiting = self._store.snapshot(scope)
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

    # --- the steps of a lease, for runs and workers ---------------------------------------------------------------

    def request_now(self, handle: LeaseHandle, timeout: float | None = None) -> bool:
        """Return True if the lease is live at once; else nothing has changed. `timeout`: how long the caller would wait
        for it after that; a store may return False if that is not 0 (`Store.request_now`)."""
        return self._request_now(handle, timeout)

    def end(self, handle: LeaseHandle, verdict: Verdict | None = None, success: bool = False) -> None:
        """End a lease together with the verdict on the provider's answer; no-op if it is not live.

        What a command printed changes no credential of the pool: it concerns the run of the command, which rests the
        credential itself.
        """
        if verdict is not None and verdict.is_printed:
            verdict = Verdict(TRANSIENT, message=verdict.message, is_printed=True)
        self._store.end(handle, None if verdict is None else self._redacted(verdict), success)

    def end_after(self, handle: LeaseHandle, exc: BaseException | None) -> None:
        """End a lease whose block was left, normally or by an exception, which is read as the provider's answer."""
        if exc is None:
            self._store.end(handle, None, True)
        else:
            self._store.end(handle, self._redacted(_weakened(self._verdict_of(exc, handle.provider))))

    def observe(self, handle: LeaseHandle, response: Any) -> None:
        """Read an answer that raised nothing: rate-limit headers set the pace, a 429 cools the group."""
        self.observed(handle, self._read_answer(response, provider=handle.provider, now=self.clock.epoch()))

    def observed(self, handle: LeaseHandle, verdict: Verdict) -> None:
        """Apply the verdict on an answer in the middle of a lease."""
        self._store.observed(handle, self._redacted(verdict))

    def lease_of(self, handle: LeaseHandle) -> Lease:
        """Return a live lease as programs use it."""
        credential_id = handle.credential_id or ""
        return Lease(self, handle, self._credentials.get(credential_id) or self._retired.get(credential_id))

    def key_of(self, handle: LeaseHandle) -> LeasedKey:
        """Return a live lease as the key itself, for workers and `reserve`."""
        credential_id = handle.credential_id
        assert credential_id is not None
        key = LeasedKey(self._secrets[credential_id])
        key.credential_id = credential_id
        key.handle = handle
        key.settings = self._find(credential_id)
        return key

    def timed_out(self, handle: LeaseHandle, timeout: float | None) -> LeaseTimeout:
        """Return the error for a request that no credential served in time."""
        waiting = self.waiting_of(handle)
        return LeaseTimeout(
            f"no credential within {timeout:g} s: {waiting_text(waiting)}",
            reason=waiting.reason,
            usable_in=waiting.usable_in,
        )

    def refusal(self, handle: LeaseHandle) -> RequestTooLarge | NoUsableCredential:
        """Return the error for a request that the pool refused."""
        if handle.too_large is not None:
            return RequestTooLarge(f"no limit is large enough: {handle.too_large}")
        return self.no_usable(handle.scope, handle.for_provider, handle.only)

    def no_usable(self, scope: str | None, for_provider: str | None = None, only: str | None = None
                  ) -> NoUsableCredential:  # fmt: skip
        """Return the error that names why each credential (of a provider, or only one) is of no use for a scope."""
        reasons = self._store.reasons(scope, for_provider, only)
        empty = "the pool is empty" if for_provider is None else f"the pool has no credential of {for_provider}"
        return NoUsableCredential(unusable_text(reasons, empty), reasons=reasons)

    # --- what binds the pool --------------------------------------------------------------------------------------

    def waiting_for(self, scope: str | None) -> PoolWaiting:
        """Return why a request of a scope waits, and for how long."""
        return self._store.waiting_for(scope)

    def waiting_of(self, handle: LeaseHandle) -> PoolWaiting:
        """Return why a request waits, and for how long. Blocks for a round trip to the owner of a shared pool."""
        need = handle.requests, handle.tokens, handle.detail
        return self._store.waiting_for(handle.scope, need, handle.for_provider, handle.only)

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

    # --- secrets and events ---------------------------------------------------------------------------------------

    def redactor(self) -> Redactor:
        """Return a redactor of all secrets that the pool has or had. A credential that is added later needs a new
        one."""
        redactor = self._redactor
        if redactor is None:
            with self._change_lock:  # made once, from all secrets
                redactor = self._redactor = self._redactor or Redactor(self._hidden_secrets)
        return redactor

    def redact(self, text: str) -> str:
        """Take the pool's secrets out of a text for people."""
        text = self.redactor().text(text, short_too=True)
        return text if self._tokens is None else self._tokens.mask(text)

    def redact_value(self, text: str) -> str:
        """Take the pool's secrets out of a text for programs. A secret so short that it may stand there by chance is
        kept: replacing it would corrupt the text."""
        text = self.redactor().text(text)
        return text if self._tokens is None else self._tokens.mask(text)

    def hide_token(self, token: str) -> None:
        """Take a client token out of texts as well, from now on. Called by one thread at a time."""
        if self._tokens is None:
            self._tokens = RecentTokens()
        self._tokens.add(token)

    def hides_secret(self, text: str) -> bool:
        """Return whether `redact_value` would change a text."""
        return self.redact_value(text) != text

    def listen(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Send the pool's events to `listener` instead of the reporter; return the call that ends this."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _announce(self, event: Any) -> None:
        for listener in tuple(self._listeners) or (self._reporter,):
            listener(event)

    def _verdict_of(self, exc: BaseException, provider: str | None = None) -> Verdict:
        return self._read_exception(exc, provider=provider, now=self.clock.epoch())

    def _redacted(self, verdict: Verdict) -> Verdict:
        return verdict._replace(message=self.redact(verdict.message)) if verdict.message else verdict

    def _raise_unless_retried(self, exc: Exception) -> None:
        """Raise an exception of `func` again, unless another credential or a wait may help."""
        if isinstance(exc, PoolError) or self._verdict_of(exc).kind not in RETRY_ON_OTHER_KEY:
            raise exc

    def _remaining(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(0.0, deadline - self.clock.now())


def _weakened(verdict: Verdict) -> Verdict:
    """Return a verdict that a program which leases by hand has read from the output of a command: whatever was printed,
    the group cools for a minute at most, and learns no limit."""
    if not verdict.is_printed:
        return verdict
    if verdict.kind not in RETRY_ON_OTHER_KEY:
        return Verdict(verdict.kind, message=verdict.message, is_printed=True)
    wait = min(hint_of(verdict) or MIN_COOL_DOWN, MAX_PRINTED_WAIT)
    return Verdict(RATE_LIMITED, wait, message=verdict.message, is_printed=True)
