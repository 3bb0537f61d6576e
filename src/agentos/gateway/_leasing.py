"""Leasing: waits for a credential for one request, at most for its hold, and says honestly when that cannot help."""

from __future__ import annotations

import asyncio
import math
import shlex

from agentos.errors import NoUsableCredential, PoolError, RequestTooLarge
from agentos.events import PoolWaiting
from agentos.limits.amounts import Detail
from agentos.pool.lease import wait_async
from agentos.pool.lease_pool import LeasePool
from agentos.pool.store import LeaseHandle
from agentos.reporters.sentences import CHECK_ADDRESS, unreachable_address
from agentos.reporters.unusable_text import one_line
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict

from ._answers import LocalAnswer, error

# Seconds after which a request that waits is looked at for the first time, and at most between two looks: the wait may
# have become longer than its hold.
FIRST_LOOK = 0.05
MAX_LOOK = 5.0
# Seconds from which a wait is called a used-up quota and not a rate limit.
LONG_WAIT = 3_600.0
# Seconds to come back after, where the pool does not know better: all credentials are in use.
BUSY_SECONDS = 1.0
# Money below which an estimated cost that no limit admits is left out.
MIN_COST = 1e-6


class Wanted:
    """What one request needs of the pool."""

    __slots__ = ("detail", "model", "only", "prefer", "provider", "requester", "shape")

    def __init__(self, requester: str, provider: str, shape: str, model: str | None, detail: Detail,
                 prefer: str | None, only: str | None) -> None:  # fmt: skip
        self.requester = requester
        self.provider = provider  # as the pool's credentials name it
        self.shape = shape  # of errors
        self.model = model
        self.detail = detail  # estimates
        self.prefer = prefer
        self.only = only

    @property
    def tokens(self) -> int:
        return self.detail.input_tokens + self.detail.output_tokens

    def lower(self) -> None:
        """Halve the estimates."""
        input_tokens, output_tokens, cost = self.detail
        self.detail = Detail(input_tokens // 2, output_tokens // 2, cost / 2 if cost > MIN_COST else 0.0)

    def handle(self, pool: LeasePool) -> LeaseHandle:
        handle: LeaseHandle = pool.make_handle(
            self.requester, 1, self.tokens, self.model, self.prefer, self.provider, self.only, self.detail
        )
        return handle


async def lease(pool: LeasePool, wanted: Wanted, deadline: float) -> LeaseHandle:
    """Return a live lease; wait for it until the deadline (pool's clock). Raises `LocalAnswer` if none comes, at once
    if it is clear that none will. A request is never refused because of its estimate: that is lowered."""
    while True:
        handle = wanted.handle(pool)
        seconds = max(0.0, deadline - pool.clock.now())
        try:
            has_lease = pool.request_now(handle, seconds) or await _hold(pool, handle, deadline)
        except RequestTooLarge:
            wanted.lower()
            continue
        except NoUsableCredential as refusal:
            raise _unusable(pool, wanted, refusal) from None
        except PoolError as failure:
            message = f"the gateway's pool cannot be used: {pool.redact(str(failure))}"
            raise error(wanted.shape, "overloaded", message, retry_after=BUSY_SECONDS) from None
        if not has_lease:
            waiting = await _explain(pool, handle)
            if waiting.usable_in == math.inf and (wanted.tokens or wanted.detail.cost):
                wanted.lower()  # the hold was over before the pool had refused the estimate
                continue
            raise _too_long(wanted, waiting)
        if handle.provider in (None, wanted.provider):
            return handle
        pool.withdraw(handle)  # an owner of an older version does not know providers
        raise error(wanted.shape, "server_error", "the owner of the shared pool is too old for a gateway: restart it")


async def _hold(pool: LeasePool, handle: LeaseHandle, deadline: float) -> bool:
    """Wait for a lease; return False at the deadline, and as soon as no credential will be usable before it."""
    waiting = asyncio.ensure_future(wait_async(pool, handle, max(0.0, deadline - pool.clock.now())))
    pause = FIRST_LOOK
    try:
        if not await _is_in_time(pool, handle, deadline):
            return _at_last(waiting)
        while True:
            await asyncio.wait((waiting,), timeout=pause)
            if waiting.done():
                return waiting.result()
            if not await _is_in_time(pool, handle, deadline):
                return _at_last(waiting)
            pause = min(2 * pause, MAX_LOOK)
    except BaseException:
        if not _give_up(waiting):
            raise
        pool.withdraw(handle)  # it was granted at the instant of the cancellation
        raise


def _give_up(waiting: asyncio.Future[bool]) -> bool:
    """End a wait; return True if it has the lease already. A wait that is cancelled withdraws by itself."""
    if not waiting.done():
        waiting.cancel()
        return False
    return not waiting.cancelled() and waiting.exception() is None and waiting.result()


def _at_last(waiting: asyncio.Future[bool]) -> bool:
    """`_give_up`, but raise what the wait has raised: the pool has refused the request for good."""
    return waiting.result() if waiting.done() else _give_up(waiting)


async def _is_in_time(pool: LeasePool, handle: LeaseHandle, deadline: float) -> bool:
    """Return whether a credential may become usable before the deadline."""
    waiting = await _explain(pool, handle)
    if waiting.reason != RATE_LIMITED or waiting.usable_in is None or waiting.usable_in == math.inf:
        return True  # infinite: no limit is large enough, and the pool refuses the request
    return pool.clock.now() + waiting.usable_in <= deadline


async def _explain(pool: LeasePool, handle: LeaseHandle) -> PoolWaiting:
    return await asyncio.to_thread(pool.waiting_of, handle)  # for a shared pool a round trip to its owner


def _too_long(wanted: Wanted, waiting: PoolWaiting) -> LocalAnswer:
    """Return the refusal for a request that no credential can serve within its hold."""
    seconds = waiting.usable_in if waiting.reason == RATE_LIMITED and waiting.usable_in is not None else BUSY_SECONDS
    state, kind = "in use", RATE_LIMITED
    if waiting.reason == RATE_LIMITED:
        if (address := unreachable_address(waiting.verdict)) is not None:
            return unreachable(wanted.shape, address, seconds)
        state = "cooling down or at a limit"
        if waiting.verdict == OVERLOADED:
            state, kind = "resting because the provider is overloaded", OVERLOADED
        elif seconds >= LONG_WAIT:
            kind = QUOTA_EXHAUSTED
    count, provider = waiting.credentials, wanted.provider
    which = f"the credential for {provider} is" if count == 1 else f"all {count} credentials for {provider} are"
    message = f"{which} {state}; retry after {seconds:.0f} s"
    verdict = Verdict(kind, retry_after=seconds, message=message)
    # "rate_limited" for clients in any case: at a quota some of them give up for good.
    return error(wanted.shape, "rate_limited", message, retry_after=seconds, verdict=verdict)


def unreachable(shape: str, address: str, retry_after: float | None = None) -> LocalAnswer:
    """Return the refusal for a request whose provider cannot be reached within its hold."""
    message = f"the provider at {address} cannot be reached; {CHECK_ADDRESS}"
    return error(shape, "server_error", message, retry_after=retry_after, status=502)


def _unusable(pool: LeasePool, wanted: Wanted, refusal: NoUsableCredential) -> LocalAnswer:
    """Return the refusal for a request that no credential can serve unless a person acts."""
    commands = "; ".join(f"agentos keys enable {shlex.quote(id_)}" for id_ in list(refusal.reasons)[:3])
    help_ = f". To use one again: {commands}" if commands else ". Add one to the keys file"
    message = pool.redact(f"{one_line(str(refusal))}{help_}")
    verdict = Verdict(AUTH_FAILED, message=message)
    return error(wanted.shape, "overloaded", message, is_final=True, verdict=verdict)
