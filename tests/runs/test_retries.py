"""Failed attempts: which are retried, when, and on which credential."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest

from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    AuthFailed,
    Credential,
    CredentialCoordinator,
    Limits,
    Overloaded,
    ParallelCoordinator,
    Permanent,
    RateLimited,
    Transient,
    Verdict,
)

from .coordinators import KEYS, by_id, quiet


def test_rate_limited_item_uses_another_credential() -> None:
    """It spends no retry."""
    pool = CredentialCoordinator([Credential(k, id=k.split("-")[1]) for k in KEYS])

    def worker(item: str, key: str) -> str:
        if "alpha" in key:
            raise RateLimited(retry_after=60)
        return key

    stats, results = quiet(1, pool, retries=0).execute_parallel(["a", "b", "c"], worker)
    assert stats.success_count == 3
    assert by_id(results)["a"].attempts == 2
    assert pool.get_stats()["rate_limited"] == 1
    assert by_id(results)["a"].credential_id == "bravo"


def test_rate_limited_item_starts_before_new_items() -> None:
    order: list[str] = []
    pool = CredentialCoordinator(KEYS[:1])

    def worker(item: str, _key: str) -> None:
        order.append(item)
        if order == ["a"]:
            raise RateLimited(retry_after=0.4)  # long enough for the item to be ready again before

    quiet(3, pool).execute_parallel(list("abcd"), worker)
    assert order == ["a", "a", "b", "c", "d"]


def test_items_that_wait_for_a_limit_hold_no_worker() -> None:
    """Two items wait for a scope that cools down; the one worker runs all other items meanwhile."""
    pool = CredentialCoordinator([Credential(KEYS[0], limits=Limits(max_concurrent=5))])
    with pytest.raises(RateLimited), pool.lease(scope="slow"):
        raise RateLimited(retry_after=1.0)
    order: list[int] = []
    quiet(1, pool).execute_parallel(
        range(20), lambda i, _: order.append(i), scope_func=lambda i: "slow" if i < 2 else "fast"
    )
    assert order == [*range(2, 20), 0, 1]


@pytest.mark.usefixtures("_short_pauses")
def test_transient_errors_spend_retries() -> None:
    attempts: Counter[str] = Counter()

    def worker(item: str, _: Any) -> int:
        attempts[item] += 1
        if item == "always" or attempts[item] < 3:
            raise Transient("try again")
        return attempts[item]

    stats, results = quiet(retries=2).execute_parallel(["sometimes", "always"], worker)
    outcomes = by_id(results)
    assert outcomes["sometimes"].value == 3
    assert outcomes["always"].error == "try again"
    assert outcomes["always"].attempts == 3
    assert outcomes["always"].metadata["verdict"] == "transient"
    assert stats.failed == 1


@pytest.mark.usefixtures("_short_pauses")
def test_retry_on_adds_transient_exception_types() -> None:
    attempts: Counter[str] = Counter()

    def worker(item: str, _: Any) -> None:
        attempts[item] += 1
        if attempts[item] == 1:
            raise {"c": ConnectionResetError(), "k": KeyError("k"), "v": ValueError()}[item]

    _, results = quiet(retry_on=KeyError).execute_parallel(list("ckv"), worker)
    assert {r.item_id: r.success for r in results} == {"c": True, "k": True, "v": False}
    assert attempts == {"c": 2, "k": 2, "v": 1}


@pytest.mark.usefixtures("_short_pauses")
def test_classify_overrides_the_usual_reading() -> None:
    class Busy(Exception):
        pass

    def classify(exc: BaseException) -> Any:
        return {"x": Verdict("rate_limited", retry_after=0.01), "y": "permanent", "z": "no such verdict"}.get(str(exc))

    pool = CredentialCoordinator(KEYS[:1])
    attempts: Counter[str] = Counter()

    def worker(item: str, _: Any) -> None:
        attempts[item] += 1
        if attempts[item] == 1:
            raise Busy(item)

    _, results = quiet(1, pool, classify=classify, retry_on=Busy).execute_parallel(list("xyzw"), worker)
    outcomes = by_id(results)
    assert {i: r.success for i, r in outcomes.items()} == {"x": True, "y": False, "z": False, "w": True}
    assert "classify must return" in (outcomes["z"].error or "")


def test_permanent_error_fails_without_retry() -> None:
    _, results = quiet(retries=5).execute_parallel([1], lambda *_: (_ for _ in ()).throw(Permanent("too large")))
    assert (results[0].attempts, results[0].error) == (1, "too large")


def test_refused_key_is_quarantined_and_others_continue(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(_item: int, key: str) -> None:
        if "alpha" in key:
            raise AuthFailed("Incorrect API key provided: " + key)

    clock = FakeClock()
    pool = CredentialCoordinator([Credential(k, id=k.split("-")[1]) for k in KEYS], clock=clock)
    for name in ("one", "two"):
        with pytest.raises(AuthFailed), pool.lease(name, prefer="alpha") as lease:
            worker(0, lease.secret)
        clock.advance(5)
    stats, _ = ParallelCoordinator(2, pool).execute_parallel(range(10), worker)
    assert stats.success_count == 10
    assert pool.get_stats()["quarantined"] == 1
    (state,) = [s for s in pool.states() if s.quarantined]
    assert state.key_id == "alpha"
    assert KEYS[0] not in repr(pool.states())
    assert KEYS[0] not in capsys.readouterr().out


def test_overloaded_provider_costs_no_retry() -> None:
    pool = CredentialCoordinator([Credential(k, provider="p") for k in KEYS])
    calls = itertools.count()

    def worker(_item: int, _key: str) -> None:
        if next(calls) < 1:
            raise Overloaded

    stats, _ = quiet(1, pool, retries=0).execute_parallel(range(4), worker)
    assert stats.success_count == 4
