"""LeasePool: credentials and their leases, as runs, workers and programs use them.

The life of a lease: it is *requested* (first come, first served), *granted* with a fence that only grows, *confirmed*
by the waiter (which checks that the credential is still usable), *used*, and *ended* together with the verdict on the
provider's answer, so that a credential that is about to cool down is not granted to the next request first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Any, NoReturn, Self, SupportsIndex, TypeVar

from agentos.clock import SYSTEM_CLOCK, Clock
from agentos.errors import LeaseTimeout, NoUsableCredential, PoolError, RequestTooLarge
from agentos.limits.cool_downs import MAX_PRINTED_WAIT, MIN_COOL_DOWN, hint_of
from agentos.redaction.mask import refuse_to_copy
from agentos.reporters import writers as reporters
from agentos.reporters.sentences import waiting_text
from agentos.reporters.unusable_text import unusable_text
from agentos.verdict import RATE_LIMITED, RETRY_ON_OTHER_KEY, TRANSIENT, Verdict

from ._pool_credentials import PoolCredentials
from ._rules.order import LEAST_LOADED, check_order
from .credential import Credential
from .lease import MAX_COUNT, Lease, LeaseContext, LeasedKey, check_amounts, check_counts, check_name
from .store import LeaseHandle
from .store_url import StoreAt

T = TypeVar("T")


class LeasePool(PoolCredentials):
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
        super().__init__(store, SYSTEM_CLOCK if clock is None else clock, lease_ttl, reporter, hidden_secrets, order)
        # The steps of a lease are the store's own methods: one call less for each request.
        self.make_handle = self._store.make_handle
        self.request = self._store.request
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
        if scope is not None or prefer is not None:
            check_name("scope", scope)
            check_name("prefer", prefer)
        if input_tokens is None and output_tokens is None and cost is None:
            if not (type(requests) is type(tokens) is int and 0 <= requests <= MAX_COUNT >= tokens >= 0):
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

    # --- the steps of a lease, for runs and workers ---------------------------------------------------------------

    def request_now(self, handle: LeaseHandle, timeout: float | None = None) -> bool:
        """Return True if the lease is live at once; else nothing has changed. `timeout`: how long the caller would wait
        for it after that; a store may return False if that is not 0 (`Store.request_now`)."""
        return self._store.request_now(handle, timeout)

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
        key.settings = self._credentials.get(credential_id) or self._retired[credential_id]  # `_find`, without a call
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

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)

    # --- inside ---------------------------------------------------------------------------------------------------

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
