"""Values that callers, items and providers pass: none of them stops a pool, for the caller or for others."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agentos import errors
from agentos.pool.shared._machine import owner_lock
from agentos.verdict import RATE_LIMITED, Verdict
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits
from tests.conftest import eventually

KEY = Credential("sk-values-000000", id="a", limits=Limits(tokens_per_minute=10**14, max_concurrent=3))
SURROGATE = "caf\udce9.txt"


@pytest.fixture
def pool(store: str) -> CredentialCoordinator:
    return CredentialCoordinator([KEY], store=store)


def is_usable(pool: CredentialCoordinator) -> bool:
    with pool.lease(timeout=20) as lease:
        return lease.credential_id == "a"


def lease(pool: CredentialCoordinator, requester: Any = None, **options: Any) -> None:
    with pool.lease(requester, timeout=20, **options):
        pass


INVALID: list[tuple[str, Callable[[CredentialCoordinator], object], type[Exception]]] = [
    ("scope of a wrong type", lambda pool: lease(pool, scope=["x"]), TypeError),
    ("prefer of a wrong type", lambda pool: lease(pool, prefer=["a"]), TypeError),
    ("scope with a surrogate", lambda pool: lease(pool, scope=SURROGATE), ValueError),
    ("long scope", lambda pool: lease(pool, scope="x" * 10_000), ValueError),
    ("tokens", lambda pool: lease(pool, tokens=2**64), ValueError),
    ("requests", lambda pool: lease(pool, requests=2**64), ValueError),
    ("backoff", lambda pool: pool.mark_rate_limited(KEY.secret, "3"), ValueError),  # type: ignore[arg-type]
    ("reason", lambda pool: pool.quarantine("a", 5), TypeError),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "error"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_invalid_value_is_an_error_for_its_caller_only(
    store: str, pool: CredentialCoordinator, call: Callable[[CredentialCoordinator], object], error: type[Exception]
) -> None:  # invariant 46
    other = pool if store == "memory:" else CredentialCoordinator([KEY], store=store)
    with pytest.raises(error):
        call(pool)
    assert is_usable(pool)
    assert is_usable(other)


@pytest.mark.parametrize("text", [SURROGATE, "x" * 100_000, "\0", "\ud800"], ids=["bytes", "long", "nul", "high"])
def test_any_text_of_item_or_provider_is_accepted(pool: CredentialCoordinator, text: str) -> None:  # invariant 46
    lease(pool, text)
    with pytest.raises(errors.RateLimited), pool.lease(timeout=20):
        raise errors.RateLimited(text, retry_after=0.01)
    pool.quarantine("a", text)
    assert pool.states()[0].quarantined
    pool.restore("a")
    assert is_usable(pool)


def test_decimal_backoff_cools_down(pool: CredentialCoordinator) -> None:
    key = pool.reserve(timeout=20)
    assert key is not None
    pool.release(key, rate_limited=True, backoff_seconds=Decimal("60.5"))  # type: ignore[arg-type]
    assert pool.get_stats()["rate_limited"] == 1
    assert pool.get_stats()["reserved"] == 0


def test_any_figure_of_a_provider_is_accepted(pool: CredentialCoordinator) -> None:  # invariant 46
    with pool.lease(timeout=20) as granted:
        for value in (10**30, float("inf"), float("nan"), -(10**30)):
            pool.observed(granted._handle, Verdict(None, remaining_tokens=value, limit_tokens=value))  # type: ignore[arg-type]
        pool.use_more(granted._handle, 0, 10**30)
    eventually(lambda: [state.live_leases for state in pool.states()] == [0])
    assert pool.states()[0].tokens >= 2**53


def test_verdict_with_huge_figures_ends_its_lease(pool: CredentialCoordinator) -> None:
    with pool.lease(timeout=20) as granted:
        pool.end(granted._handle, Verdict(RATE_LIMITED, retry_after=10**30, message=SURROGATE))
    assert pool.get_stats()["rate_limited"] == 1
    assert pool.get_stats()["reserved"] == 0


def test_rejected_credential_is_not_in_the_pool(shared_store: str) -> None:
    pool = CredentialCoordinator([KEY], store=shared_store)
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.add(Credential("sk-values-000001", id=SURROGATE))
    assert pool.size == 1
    pool.add(Credential("sk-values-000001", id="b"))
    assert pool.size == 2


def test_long_item_ids_do_not_enter_the_store(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    with CredentialCoordinator([KEY], store=f"sqlite:///{path}") as pool:
        for n in range(50):
            lease(pool, f"{n}" + "q" * 100_000)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 1_000_000
        assert not any(b"q" * 200 in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    eventually(lambda: not owner_lock.lock_path(path).exists())
