"""Requests that only some credentials may serve: those of one provider, or one credential. On each store."""

from __future__ import annotations

import asyncio

import pytest

from agentos.pool.credential import Credential
from agentos.pool.lease import wait_async
from agentos.pool.lease_pool import LeasePool
from agentos.pool.store import LeaseHandle
from agentos.verdict import AUTH_FAILED, RATE_LIMITED, Verdict
from agentos.workflows.parallel import NoUsableCredential


def make_pool(store: str) -> LeasePool:
    credentials = [("o1", "openai"), ("a1", "anthropic"), ("a2", "anthropic")]
    return LeasePool(
        [Credential(f"sk-{id_}-0000000000", id=id_, provider=provider) for id_, provider in credentials],
        store=store,
        reporter=lambda _event: None,
    )


def leased(pool: LeasePool, for_provider: str | None = None, only: str | None = None) -> LeaseHandle | None:
    """Return a lease that is live, or None if none came within the time that a free credential needs."""
    handle: LeaseHandle = pool.make_handle(None, 1, 0, None, None, for_provider, only)
    return handle if asyncio.run(wait_async(pool, handle, 0.5)) else None


def test_request_gets_credentials_of_its_provider_only(store: str) -> None:
    with make_pool(store) as pool:
        first, second = leased(pool, "anthropic"), leased(pool, "anthropic")
        assert first is not None
        assert second is not None
        assert {first.credential_id, second.credential_id} == {"a1", "a2"}
        assert leased(pool, "anthropic") is None
        free = leased(pool, "openai")
        assert free is not None
        assert free.credential_id == "o1"


def test_request_for_one_credential_waits_for_it(store: str) -> None:
    with make_pool(store) as pool:
        busy = leased(pool, only="a2")
        assert busy is not None
        assert busy.credential_id == "a2"
        assert leased(pool, "anthropic", "a2") is None
        pool.end(busy)
        again = leased(pool, "anthropic", "a2")
        assert again is not None
        assert again.credential_id == "a2"


def test_wait_is_explained_by_credentials_of_the_provider(store: str) -> None:
    """The credential of another provider is usable now, and does not shorten the wait."""
    with make_pool(store) as pool:
        for _ in range(2):
            handle = leased(pool, "anthropic")
            assert handle is not None
            pool.end(handle, Verdict(RATE_LIMITED, retry_after=600.0))
        waiting = pool.waiting_of(pool.make_handle(None, 1, 0, None, None, "anthropic"))
        assert waiting.reason == RATE_LIMITED
        assert waiting.usable_in is not None
        assert 590 < waiting.usable_in <= 600


def test_provider_without_usable_credential_is_refused(store: str) -> None:
    with make_pool(store) as pool:
        pool.quarantine("a1", "by hand")
        pool.quarantine("a2", "by hand")
        with pytest.raises(NoUsableCredential, match="a1: quarantined: by hand\na2: quarantined: by hand"):
            leased(pool, "anthropic")
        with pytest.raises(NoUsableCredential, match="no credential of gemini"):
            leased(pool, "gemini")
        assert leased(pool, "openai") is not None


def test_restriction_holds_for_request_that_is_served_later(store: str) -> None:
    """The lease ends with a verdict while another request waits: the waiter gets the next of its provider."""
    with make_pool(store) as pool:
        first, second = leased(pool, "anthropic"), leased(pool, "anthropic")
        assert first is not None
        assert second is not None

        async def wait_for_second() -> LeaseHandle:
            handle: LeaseHandle = pool.make_handle(None, 1, 0, None, None, "anthropic")
            task = asyncio.create_task(wait_async(pool, handle, 10))
            await asyncio.sleep(0)
            pool.end(first, Verdict(AUTH_FAILED))
            pool.end(second, None, True)
            assert await task
            return handle

        assert asyncio.run(wait_for_second()).credential_id == second.credential_id
