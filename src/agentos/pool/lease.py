"""Lease, LeasedKey and LeaseContext: leases as programs hold them, and how a thread or a task waits for one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, SupportsIndex

from agentos.clock import SYSTEM_CLOCK, Timer
from agentos.limits.amounts import Detail, detail_of
from agentos.redaction.mask import MASK, refuse_to_copy

from ._rules.lease_states import ENDED, LIVE, REFUSED
from .credential import NO_VALUES, Credential

if TYPE_CHECKING:
    import asyncio

    from .lease_pool import LeasePool
    from .store import LeaseHandle


# Largest count of requests or tokens: beyond it a float cannot count in steps of one.
MAX_COUNT = 2**53
# Characters of a scope or of the id of a preferred credential.
MAX_NAME = 1_000


def check_counts(*counts: Any) -> None:
    """Raise `ValueError` unless all counts of requests and tokens are whole numbers from 0 to MAX_COUNT, or None."""
    for count in counts:
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            raise ValueError(f"requests and tokens are whole numbers from 0, not {count!r}")
        if count is not None and count > MAX_COUNT:
            raise ValueError(f"requests and tokens are at most {MAX_COUNT}, not {count}")


def check_amounts(requests: Any, tokens: int | None, input_tokens: int | None, output_tokens: int | None,
                  cost: float | None) -> tuple[Any, Detail | None]:  # fmt: skip
    """Return the tokens of a request and its detail. Raise `ValueError` for amounts that cannot be counted."""
    check_counts(requests, tokens)
    if input_tokens is None and output_tokens is None and cost is None:
        return tokens, None
    check_counts(input_tokens, output_tokens)
    is_number = isinstance(cost, int | float) and not isinstance(cost, bool)
    if cost is not None and not (is_number and 0 <= cost < MAX_COUNT):
        raise ValueError(f"cost is a number from 0, not {cost!r}")
    if input_tokens is not None or output_tokens is not None:
        tokens = max(tokens or 0, (input_tokens or 0) + (output_tokens or 0))
    return tokens, detail_of(tokens or 0, input_tokens, output_tokens, cost)


def check_name(what: str, name: Any) -> None:
    """Raise `TypeError` unless a name is text or None, and `ValueError` if other processes cannot be told it."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"{what} must be a string or None, not {name!r}")
    if len(name) > MAX_NAME:
        raise ValueError(f"{what} has {len(name)} characters: at most {MAX_NAME} are allowed")
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{what} must be text without lone surrogates, not {name!r}") from None


class Lease:
    """The right to use one credential, until the `with` block ends."""

    __slots__ = ("_credential", "_handle", "_pool")

    def __init__(self, pool: LeasePool, handle: LeaseHandle, credential: Credential | None) -> None:
        """`credential`: None if it was removed from the pool meanwhile."""
        self._pool = pool
        self._handle = handle
        self._credential = credential

    @property
    def secret(self) -> str:
        return "" if self._credential is None else self._credential.secret

    @property
    def base_url(self) -> str | None:
        """The address at which the key is valid; None: the provider's own."""
        return None if self._credential is None else self._credential.base_url

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that belong to the credential, for every request: an organization, a project."""
        return NO_VALUES if self._credential is None else self._credential.headers

    @property
    def credential_id(self) -> str:
        credential_id = self._handle.credential_id
        assert credential_id is not None
        return credential_id

    @property
    def fence(self) -> int:
        """The fencing token: it grows with every lease of the credential."""
        return self._handle.fence

    def settle(self, *, requests: int | None = None, tokens: int | None = None, input_tokens: int | None = None,
               output_tokens: int | None = None, cost: float | None = None) -> None:  # fmt: skip
        """Set what was really used, once. More than was reserved is debt."""
        reserved = self._handle.detail
        if cost is not None and tokens is None and input_tokens is None and output_tokens is None:
            tokens = self._handle.tokens
            input_tokens, output_tokens = (None, None) if reserved is None else reserved[:2]
        total, detail = check_amounts(requests, tokens, input_tokens, output_tokens, cost)
        if detail is not None and cost is None and reserved is not None:
            detail = detail._replace(cost=reserved.cost)
        self._pool.settle(self._handle, requests, total, detail)

    def observe(self, response: Any) -> None:
        """Read an answer that raised nothing: its rate-limit headers set the pace, a 429 cools the group."""
        self._pool.observe(self._handle, response)

    def __repr__(self) -> str:
        return f"<Lease of {self.credential_id} {MASK}, fence {self.fence}, {self._handle.state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)


class KeySettings(Protocol):
    """The settings that come with a key: a `Credential`, or what another process was sent of it."""

    @property
    def base_url(self) -> str | None: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def command_env(self) -> Mapping[str, str]: ...


class LeasedKey(str):
    """The key itself, as a string for any SDK, with its lease: the result of `reserve`, and what a worker gets.

    `base_url` and `headers` are those of its credential: `OpenAI(api_key=key, base_url=key.base_url,
    default_headers=key.headers)`. Only its `repr` is masked: everything else must act as the key. A copy or pickle of
    it is a plain string.
    """

    __slots__ = ("credential_id", "handle", "settings")

    credential_id: str
    handle: LeaseHandle
    settings: KeySettings  # its credential

    @property
    def base_url(self) -> str | None:
        """The address at which the key is valid; None: the provider's own."""
        return self.settings.base_url

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that belong to the credential, for every request: an organization, a project."""
        return self.settings.headers

    def __repr__(self) -> str:
        return f"<{self.credential_id} {MASK}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return str, (str(self),)


class LeaseContext:
    """The result of `LeasePool.lease`: use `with` in a thread and `async with` in a task."""

    __slots__ = ("_handle", "_pool", "_timeout")

    def __init__(self, pool: LeasePool, handle: LeaseHandle, timeout: float | None) -> None:
        self._pool = pool
        self._handle = handle
        self._timeout = timeout

    def __enter__(self) -> Lease:
        if not wait(self._pool, self._handle, self._timeout):
            raise self._pool.timed_out(self._handle, self._timeout)
        return self._pool.lease_of(self._handle)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._pool.end_after(self._handle, exc)

    async def __aenter__(self) -> Lease:
        if not await wait_async(self._pool, self._handle, self._timeout):
            raise self._pool.timed_out(self._handle, self._timeout)
        return self._pool.lease_of(self._handle)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._pool.end_after(self._handle, exc)


def wait(pool: LeasePool, handle: LeaseHandle, timeout: float | None) -> bool:
    """Block this thread until the lease is live; return False if `timeout` seconds pass first."""
    if pool.request_now(handle, timeout):
        return True
    if timeout is not None and timeout <= 0:
        return False
    calls: SimpleQueue[None] = SimpleQueue()  # not a lock: a second call may come before the thread waits again
    handle.deliver = partial(calls.put, None)
    deadline = math.inf if timeout is None or timeout == math.inf else pool.clock.now() + timeout
    # Until when this thread has nothing else to do. A timer ends the wait on a clock that is not real.
    idle_until = deadline if deadline == math.inf or pool.clock is SYSTEM_CLOCK else 0.0
    has_lease = False
    try:
        has_lease = pool.request(handle, True, False, idle_until)
        if not has_lease:
            with _Wait(pool, handle, deadline) as waiting:
                while not waiting.is_over():
                    calls.get()
            has_lease = waiting.has_lease
    finally:  # timed out, refused or interrupted
        if not has_lease:
            pool.withdraw(handle)
    return has_lease


async def wait_async(pool: LeasePool, handle: LeaseHandle, timeout: float | None) -> bool:
    """`wait` for a task: its event loop goes on."""
    if pool.request_now(handle, timeout):
        return True
    if timeout is not None and timeout <= 0:
        return False
    import asyncio  # loaded in any case where this runs; not with the package

    loop = asyncio.get_running_loop()
    gate = asyncio.Event()
    handle.deliver = lambda: _set_in_loop(loop, gate)
    deadline = math.inf if timeout is None or timeout == math.inf else pool.clock.now() + timeout
    has_lease = False
    try:
        has_lease = pool.request(handle)
        if not has_lease:
            with _Wait(pool, handle, deadline) as waiting:
                while not waiting.is_over():
                    await gate.wait()
                    gate.clear()
            has_lease = waiting.has_lease
    finally:  # timed out, refused, cancelled or interrupted
        if not has_lease:
            pool.withdraw(handle)
    return has_lease


class _Wait:
    """The wait for a lease that was requested, and was not granted at once. A timer ends it at the deadline."""

    def __init__(self, pool: LeasePool, handle: LeaseHandle, deadline: float) -> None:
        self._pool = pool
        self._handle = handle
        self._deadline = deadline
        self._timer: Timer | None = None
        self.has_lease = False

    def __enter__(self) -> _Wait:
        return self

    def is_over(self) -> bool:
        """Look at the state of the request; return False if the caller must wait (again): it is called back, at the
        deadline at the latest."""
        handle = self._handle
        if handle.state == REFUSED:
            raise self._pool.refusal(handle)
        if handle.state == LIVE:
            self.has_lease = self._pool.confirm(handle)
            if not self.has_lease and handle.state != LIVE and self._pool.clock.now() >= self._deadline:
                self._pool.expire(handle)
        is_over = self.has_lease or handle.state == ENDED
        if not is_over and self._timer is None and self._deadline < math.inf:
            self._timer = self._pool.clock.call_at(self._deadline, lambda: self._pool.expire(handle))
        return is_over

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _set_in_loop(loop: asyncio.AbstractEventLoop, gate: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(gate.set)
    except RuntimeError:
        # The loop is closed: its tasks were cancelled before, and a cancelled wait withdraws by itself.
        return
