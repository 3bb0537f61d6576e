"""Leases, and how a thread or a task waits for one."""

from __future__ import annotations

import asyncio
import math
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from agentos.clock import Timer
from agentos.redaction.mask import MASK, refuse_to_copy

from ._rules.records import ENDED, LIVE, REFUSED, LeaseRecord

if TYPE_CHECKING:
    from agentos.workflows.parallel.credential_coordinator import CredentialCoordinator


def check_counts(*counts: Any) -> None:
    """Of requests and tokens; None is: not said."""
    for count in counts:
        if count is not None and (not isinstance(count, int) or isinstance(count, bool) or count < 0):
            raise ValueError(f"requests and tokens are whole numbers from 0, not {count!r}")


class Lease:
    """The right to use one credential, until the `with` block ends."""

    __slots__ = ("_pool", "_record", "_secret")

    def __init__(self, pool: CredentialCoordinator, record: LeaseRecord, secret: str) -> None:
        self._pool = pool
        self._record = record
        self._secret = secret

    @property
    def secret(self) -> str:
        return self._secret

    @property
    def credential_id(self) -> str:
        assert self._record.credential is not None
        return self._record.credential.id

    @property
    def fence(self) -> int:
        """Grows with every lease of this credential: a later holder always has the greater one."""
        return self._record.fence

    def settle(self, *, requests: int | None = None, tokens: int | None = None) -> None:
        """Says what was really used, once. More than was reserved is debt."""
        check_counts(requests, tokens)
        self._pool._store.settle(self._record, requests, tokens)

    def observe(self, response: Any) -> None:
        """Shows the pool an answer that raised nothing: its rate-limit headers set the pace, a 429 cools the group."""
        self._pool._observe(self._record, response)

    def __repr__(self) -> str:
        return f"<Lease of {self.credential_id} {MASK}, fence {self.fence}, {self._record.state}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)


class LeaseContext:
    """What `CredentialCoordinator.lease` returns: `with` it in a thread, `async with` it in a task."""

    __slots__ = ("_pool", "_record", "_timeout")

    def __init__(self, pool: CredentialCoordinator, record: LeaseRecord, timeout: float | None) -> None:
        self._pool = pool
        self._record = record
        self._timeout = timeout

    def __enter__(self) -> Lease:
        if not wait(self._pool, self._record, self._timeout):
            raise self._pool._timed_out(self._record, self._timeout)
        return self._pool._lease_of(self._record)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._pool._end(self._record, exc)

    async def __aenter__(self) -> Lease:
        if not await wait_async(self._pool, self._record, self._timeout):
            raise self._pool._timed_out(self._record, self._timeout)
        return self._pool._lease_of(self._record)

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._pool._end(self._record, exc)


def wait(pool: CredentialCoordinator, record: LeaseRecord, timeout: float | None) -> bool:
    """Blocks this thread until the lease is live; False when `timeout` seconds have passed first."""
    if pool._request_now(record, timeout):
        return True
    if timeout is not None and timeout <= 0:
        return False
    calls: SimpleQueue[None] = SimpleQueue()  # not a lock: it may be called again before it has lain down
    record.deliver = lambda: calls.put(None)
    with _Wait(pool, record, timeout, blocks=timeout is None) as waiting:
        while not waiting.is_over():
            calls.get()
    return waiting.has_lease


async def wait_async(pool: CredentialCoordinator, record: LeaseRecord, timeout: float | None) -> bool:
    """The same for a task: its event loop goes on."""
    if pool._request_now(record, timeout):
        return True
    if timeout is not None and timeout <= 0:
        return False
    loop = asyncio.get_running_loop()
    gate = asyncio.Event()
    record.deliver = lambda: _set_in_loop(loop, gate)
    with _Wait(pool, record, timeout) as waiting:
        while not waiting.is_over():
            await gate.wait()
            gate.clear()
    return waiting.has_lease


class _Wait:
    """One wait for a lease: asks, gives up at the deadline, and leaves nothing behind however it ends."""

    def __init__(
        self, pool: CredentialCoordinator, record: LeaseRecord, timeout: float | None, *, blocks: bool = False
    ) -> None:
        self._pool = pool
        self._record = record
        self._blocks = blocks  # for as long as it takes
        self._deadline = None if timeout is None or timeout == math.inf else pool._clock.now() + timeout
        self._timer: Timer | None = None
        self.has_lease = False

    def __enter__(self) -> _Wait:
        store, record = self._pool._store, self._record
        self._asked = store.request(record, True, False, self._blocks)
        if not self._asked and self._deadline is not None:
            self._timer = self._pool._clock.call_at(self._deadline, lambda: store.expire(record))
        return self

    def is_over(self) -> bool:
        """Looks at what was delivered; False: wait (again)."""
        record = self._record
        if self._asked:
            self.has_lease = True
        elif record.state == REFUSED:
            raise self._pool._refusal(record)
        elif record.state == LIVE:
            self.has_lease = self._pool._store.confirm(record)
            if not self.has_lease and record.state != LIVE and self._is_late():
                self._pool._store.expire(record)
        return self.has_lease or record.state == ENDED

    def _is_late(self) -> bool:
        return self._deadline is not None and self._pool._clock.now() >= self._deadline

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.has_lease:  # timed out, refused, cancelled or interrupted
            self._pool._store.withdraw(self._record)


def _set_in_loop(loop: asyncio.AbstractEventLoop, gate: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(gate.set)
    except RuntimeError:
        # The loop is closed: its tasks were cancelled before, and a cancelled wait withdraws by itself.
        return
