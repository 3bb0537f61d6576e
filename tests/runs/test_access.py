"""Runs whose attempts have a client token of a gateway in place of a lease."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import bounds
from agentos.events import CoolDownStarted, RunEnded
from agentos.testing import FakeClock
from agentos.verdict import AUTH_FAILED, OVERLOADED, PERMANENT, QUOTA_EXHAUSTED, RATE_LIMITED, Verdict
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Interrupted,
    Ledger,
    Limits,
    ParallelCoordinator,
    RateLimited,
    current_item,
)
from tests.conftest import eventually
from tests.support import workers as process_workers
from tests.support.fake_access import FakeAccess

from .coordinators import KEYS, by_id, quiet

LATER = Verdict(QUOTA_EXHAUSTED, 3600.0)


@pytest.fixture
def access() -> Iterator[FakeAccess]:
    """Check after each test that every token was closed, once."""
    fake = FakeAccess()
    yield fake
    eventually(lambda: not fake.open_tokens)
    assert set(fake.closed.values()) <= {1}


def make_pool(*keys: str, **options: Any) -> CredentialCoordinator:
    return CredentialCoordinator(keys or KEYS[:1], reporter=lambda _: None, **options)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_worker_gets_client_token_in_place_of_key(access: FakeAccess) -> None:
    def worker(_item: str, credential: Any) -> tuple[Any, ...]:
        item = current_item()
        assert credential == item.client_token
        assert credential not in repr(credential)
        assert credential.base_url == access.url
        assert not credential.headers
        assert item.credential_id is None
        return str(credential), item.gateway_url

    pool = make_pool()
    _, results = quiet(2, pool, gateway=access).execute_parallel(["a", "b"], worker, run_id="run-1")
    assert {result.value for result in results} == {(access.token_of(name), access.url) for name in "ab"}
    assert sorted(access.opened) == [("run-1", "a", 1), ("run-1", "b", 1)]
    assert not any(state.requests for state in pool.states())  # an item holds no lease


def test_run_without_gateway_has_no_token() -> None:
    def worker(_item: str, _credential: Any) -> tuple[Any, ...]:
        return current_item().gateway_url, current_item().client_token

    assert quiet(1, make_pool()).execute_parallel(["a"], worker)[1][0].value == (None, None)


@pytest.mark.usefixtures("_short_pauses")
def test_each_attempt_has_its_own_token(access: FakeAccess) -> None:
    def worker(_item: str, _credential: Any) -> None:
        if current_item().attempt < 3:
            raise ConnectionError("reset")

    quiet(1, make_pool(), gateway=access).execute_parallel(["a"], worker)
    assert [attempt for _, _, attempt in access.opened] == [1, 2, 3]
    assert len(access.closed) == 3


def test_async_worker_gets_client_token(access: FakeAccess) -> None:
    async def worker(_item: str, credential: Any) -> bool:
        await asyncio.sleep(0)
        return bool(credential == current_item().client_token and current_item().gateway_url == access.url)

    assert quiet(2, make_pool(), gateway=access).execute_parallel("abc", worker)[0].success_count == 3


def test_process_worker_gets_client_token(access: FakeAccess) -> None:
    coordinator = ParallelCoordinator(1, make_pool(), workers="processes", reporter=None, gateway=access)
    _, results = coordinator.execute_parallel(["a"], process_workers.tell_access)
    token = access.token_of("a")
    assert results[0].value == {"credential": token, "client_token": token, "url": access.url, "lease": "RuntimeError"}


@pytest.mark.usefixtures("_short_pauses")
def test_token_of_dead_worker_process_is_closed(access: FakeAccess) -> None:
    coordinator = ParallelCoordinator(1, make_pool(), workers="processes", reporter=None, gateway=access)
    _, results = coordinator.execute_parallel(["kill"], process_workers.die_of)
    assert not results[0].success
    assert len(access.closed) == 3


def test_token_of_timed_out_thread_ends_with_its_item(access: FakeAccess) -> None:
    """The thread goes on, but can send no further request."""
    gate = threading.Event()
    clock = FakeClock()
    access.on_open = lambda token, _item, _attempt: access.use(token, requests=2, output_tokens=5)
    coordinator = quiet(1, make_pool(), timeout=5, clock=clock, gateway=access)
    with coordinator.stream(["stuck"], lambda *_: gate.wait(60)) as results:
        eventually(lambda: access.tokens)
        clock.advance(5)
        result = next(results)
    assert not access.open_tokens
    assert result.metadata["usage"]["requests"] == 2
    gate.set()


@pytest.mark.usefixtures("_short_pauses")
def test_token_of_cancelled_task_is_closed(access: FakeAccess) -> None:
    async def worker(_item: str, _: Any) -> int:
        if current_item().attempt == 1:
            await asyncio.Event().wait()
        return current_item().attempt

    clock = FakeClock()
    with quiet(1, make_pool(), timeout=5, clock=clock, gateway=access).stream(["slow"], worker) as results:
        eventually(lambda: access.tokens)
        clock.advance(5)
        eventually(lambda: clock.advance(0.0001) or results.stats.completed == 1)
    assert len(access.closed) == 2


def test_shutdown_closes_tokens_of_running_attempts(access: FakeAccess) -> None:
    gate = threading.Event()
    coordinator = quiet(2, make_pool(), grace_seconds=0.01, gateway=access)
    with coordinator.stream("abc", lambda *_: gate.wait(60)) as results:
        eventually(lambda: len(access.tokens) == 2)
        coordinator.request_shutdown()
        assert list(results) == []
    assert not access.open_tokens  # although both threads go on
    gate.set()


def test_interrupted_attempt_closes_its_token(access: FakeAccess) -> None:
    def worker(_item: str, _credential: Any) -> None:
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    coordinator = quiet(1, make_pool(), gateway=access)
    with coordinator.stream(["a"], worker) as results:
        eventually(lambda: access.tokens)
        coordinator.request_shutdown()
        assert list(results) == []
    assert coordinator.get_checkpoints() == ["a"]


def test_internal_error_closes_tokens(access: FakeAccess) -> None:
    def fail_second(_token: str, _item: str, _attempt: int) -> None:
        if len(access.opened) == 2:
            raise LookupError("no room")

    access.on_open = fail_second
    gate = threading.Event()
    with pytest.raises(LookupError):
        quiet(2, make_pool(), gateway=access).execute_parallel("ab", lambda *_: gate.wait(60))
    gate.set()
    access.closed[access.token_of("b")] += 1  # `open` raised: the run has never had it


# --- admission --------------------------------------------------------------------------------------------------------


def test_items_start_while_all_credentials_are_in_use(access: FakeAccess) -> None:
    pool = make_pool()
    with pool.lease():
        assert quiet(3, pool, gateway=access).execute_parallel(range(6), lambda *_: None)[0].success_count == 6


def test_item_starts_when_credential_is_usable_within_hold() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    pool.mark_rate_limited(KEYS[0], 3600)
    access = FakeAccess(hold=100.0)
    with quiet(2, pool, clock=clock, gateway=access).stream("ab", lambda *_: None) as results:
        eventually(lambda: results.waiting() is not None)
        clock.advance(3499)
        assert results.stats.completed == 0
        assert not access.tokens
        clock.advance(1.1)
        assert len(list(results)) == 2
    assert not pool.get_stats()["reserved"]
    assert not pool.get_stats()["waiting"]


def test_item_starts_when_credential_is_restored(access: FakeAccess) -> None:
    """The pool wakes the run: no timer is due and no other item ends."""
    pool = CredentialCoordinator(
        [Credential(KEYS[0], id="alpha"), Credential(KEYS[1], id="bravo")], reporter=lambda _: None
    )
    pool.mark_rate_limited(KEYS[0], 36_000)
    pool.quarantine("bravo", "disabled")
    with quiet(1, pool, gateway=access).stream(["a"], lambda *_: None) as results:
        eventually(lambda: results.waiting() is not None)
        pool.restore("bravo")
        assert [result.success for result in results] == [True]
    assert pool.get_stats()["reserved"] == 0


def test_run_stops_without_usable_credential(access: FakeAccess) -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="alpha")], reporter=lambda _: None)

    def worker(item: str, _: str) -> str:
        pool.quarantine("alpha", "the card expired")
        return item

    coordinator = quiet(1, pool, gateway=access)
    stats, results = coordinator.execute_parallel("abc", worker)
    eventually(lambda: pool.get_stats()["waiting"] == 0)
    assert "the card expired" in (stats.stopped or "")
    assert len(results) < 3
    assert stats.failed == 0


def test_max_wait_allows_for_the_hold() -> None:
    pool = make_pool()
    pool.mark_rate_limited(KEYS[0], 3600)
    stats, results = quiet(1, pool, max_wait=30, gateway=FakeAccess(hold=280)).execute_parallel("ab", lambda *_: None)
    assert "within 30 s" in (stats.stopped or "")
    assert results == []

    clock = FakeClock()
    pool = make_pool(clock=clock)
    pool.mark_rate_limited(KEYS[0], 3600)
    coordinator = quiet(1, pool, max_wait=30, clock=clock, gateway=FakeAccess(hold=3580))
    with coordinator.stream("a", lambda *_: None) as stream:
        eventually(lambda: stream.waiting() is not None)
        clock.advance(21)
        assert len(list(stream)) == 1


def test_max_wait_stops_run_whose_items_wait_for_an_instant(access: FakeAccess) -> None:
    def worker(*_: Any) -> None:
        access.refuse(current_item().client_token or "", LATER)
        raise RateLimited("told by the gateway")

    coordinator = quiet(2, make_pool(), max_wait=0.05, gateway=access)
    stats, results = coordinator.execute_parallel("ab", worker)
    assert "within 0.05 s" in (stats.stopped or "")
    assert results == []
    assert coordinator.get_checkpoints() == ["a", "b"]


def test_max_wait_stops_items_whose_requests_are_held(access: FakeAccess) -> None:
    clock = FakeClock()
    started = threading.Event()

    def worker(*_: Any) -> None:
        started.set()
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    coordinator = quiet(1, make_pool(clock=clock), max_wait=30, clock=clock, gateway=access)
    with coordinator.stream("ab", worker) as stream:
        assert started.wait(60)
        clock.advance(31)
        access.stalled = 12.0  # since 19 s
        clock.advance(17)
        assert stream.stats.stopped is None
        access.stalled = 30.0
        eventually(lambda: clock.advance(1) or stream.stats.stopped)
        assert list(stream) == []
    assert "no credential was usable within 30 s" in (stream.stats.stopped or "")
    assert coordinator.get_checkpoints() == ["a", "b"]


def test_events_of_pool_are_reported(access: FakeAccess) -> None:
    pool, events = make_pool(), []
    coordinator = ParallelCoordinator(1, pool, reporter=events.append, gateway=access)
    coordinator.execute_parallel(["a"], lambda *_: _refused_request(pool))
    assert any(isinstance(event, CoolDownStarted) for event in events)


def _refused_request(pool: CredentialCoordinator) -> None:
    """Let a request of the gateway be refused, as its own lease reports it."""
    handle = pool.make_handle("gateway")
    assert pool.request_now(handle)
    pool.end(handle, Verdict(RATE_LIMITED, 0.001))


# --- outcomes ---------------------------------------------------------------------------------------------------------


def test_honest_refusal_returns_item_until_that_instant(access: FakeAccess) -> None:
    """It spends no retry, however often: with `retries=0` any other failure would be the last."""
    clock = FakeClock()
    starts: list[float] = []

    def worker(_item: str, _credential: Any) -> str:
        starts.append(clock.now())
        if len(starts) < 30:
            access.refuse(current_item().client_token or "", LATER)
            raise RuntimeError("the client gave up")
        return "done"

    with quiet(1, make_pool(), retries=0, clock=clock, gateway=access).stream(["a"], worker) as results:
        for count in range(1, 30):
            eventually(lambda count=count: len(starts) == count and results.stats.rate_limited == 1)
            clock.advance(3599)
            assert len(starts) == count
            clock.advance(1)
        result = next(results)
    assert result.success
    assert result.attempts == 30
    assert [later - earlier for earlier, later in itertools.pairwise(starts)] == [3600.0] * 29


def test_returned_item_goes_before_new_ones(access: FakeAccess) -> None:
    clock = FakeClock()
    order: list[str] = []
    gate = threading.Semaphore(0)

    def worker(item: str, _credential: Any) -> None:
        gate.acquire(timeout=60)
        order.append(item)
        if len(order) == 1:
            access.refuse(current_item().client_token or "", Verdict(RATE_LIMITED, 600.0))
            raise RuntimeError("the client gave up")

    with quiet(1, make_pool(), clock=clock, gateway=access).stream("abc", worker) as results:
        gate.release()
        eventually(lambda: len(access.opened) == 2)  # b runs while a waits
        clock.advance(600)
        gate.release(9)
        assert len(list(results)) == 3
    assert order == ["a", "b", "a", "c"]


@pytest.mark.usefixtures("_short_pauses")
def test_failure_without_refusal_is_the_items_own(access: FakeAccess) -> None:
    """The attempt has no key, so an exception about a limit says nothing about one."""

    def worker(*_: Any) -> None:
        raise RateLimited("429 from another service", retry_after=3600)

    pool = make_pool()
    _, results = quiet(1, pool, retries=1, gateway=access).execute_parallel(["a"], worker)
    assert [(result.success, result.attempts) for result in results] == [(False, 2)]
    assert not any(state.rate_limited_until for state in pool.states())


def test_refusal_of_the_request_itself_fails_item_at_once(access: FakeAccess) -> None:
    def worker(*_: Any) -> None:
        access.refuse(current_item().client_token or "", Verdict(PERMANENT))
        raise RuntimeError("400")

    _, results = quiet(1, make_pool(), gateway=access).execute_parallel(["a"], worker)
    assert results[0].attempts == 1


@pytest.mark.parametrize("kind", [AUTH_FAILED, OVERLOADED])
def test_item_refused_without_an_instant_is_not_retried_without_end(access: FakeAccess, kind: str) -> None:
    def worker(*_: Any) -> None:
        access.refuse(current_item().client_token or "", Verdict(kind))
        raise RuntimeError("503")

    _, results = quiet(1, make_pool(), retries=1, gateway=access).execute_parallel(["a"], worker)
    assert 20 < results[0].attempts < 25


def test_success_after_a_refusal_counts(access: FakeAccess) -> None:
    def worker(*_: Any) -> str:
        access.refuse(current_item().client_token or "", LATER)
        return "done"

    assert quiet(1, make_pool(), gateway=access).execute_parallel(["a"], worker)[1][0].success


def test_run_waiting_for_an_instant_is_bound_by_refusals(access: FakeAccess) -> None:
    clock, events = FakeClock(), []

    def worker(*_: Any) -> None:
        if current_item().attempt == 1:
            access.refuse(current_item().client_token or "", LATER)
            raise RuntimeError("the client gave up")

    coordinator = ParallelCoordinator(1, make_pool(), reporter=events.append, clock=clock, gateway=access)
    with coordinator.stream(["a"], worker) as results:
        eventually(lambda: results.stats.rate_limited == 1)
        clock.advance(3600)
        assert len(list(results)) == 1
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    assert ended.bound_by == "refusals of the provider: items wait until it accepts requests again"


# --- usage ------------------------------------------------------------------------------------------------------------


def test_result_has_counted_usage(access: FakeAccess) -> None:
    def worker(*_: Any) -> None:
        item = current_item()
        access.use(
            item.client_token or "",
            requests=3,
            input_tokens=100,
            output_tokens=20,
            cached_tokens=7,
            cost=0.5,
            held_seconds=1.5,
            refusals=2,
        )
        item.report_usage(requests=99, tokens=99, cost=9.0)  # counted already

    _, results = quiet(1, make_pool(), gateway=access).execute_parallel(["a"], worker)
    assert results[0].metadata["usage"] == {
        "requests": 3,
        "tokens": 120,
        "cost": 0.5,
        "input_tokens": 100,
        "output_tokens": 20,
        "cached_tokens": 7,
        "held_seconds": 1.5,
        "refusals": 2,
    }


def test_reported_cost_stands_for_an_unknown_price(access: FakeAccess) -> None:
    def worker(*_: Any) -> None:
        access.use(current_item().client_token or "", requests=1)
        current_item().report_usage(cost=0.25)

    _, results = quiet(1, make_pool(), gateway=access).execute_parallel(["a"], worker)
    assert by_id(results)["a"].metadata["usage"]["cost"] == 0.25


def test_token_is_in_no_result_and_no_ledger(access: FakeAccess, tmp_path: Path) -> None:
    def worker(item: str, credential: Any) -> str:
        if item == "bad":
            raise ValueError(f"401 for {credential}")
        return f"Bearer {credential}"

    ledger = tmp_path / "run.db"
    _, results = quiet(1, make_pool(), retries=0, ledger=ledger, gateway=access).execute_parallel(["bad", "a"], worker)
    assert access.token_of("bad") not in str(by_id(results)["bad"])
    with Ledger.open(ledger) as record:
        recorded = str(list(record.items())) + str(list(record.attempts()))
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for token in access.tokens:
        assert token not in recorded
        assert token.encode() not in stored


# --- options ----------------------------------------------------------------------------------------------------------


def test_impossible_options_are_refused(access: FakeAccess) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with pytest.raises(ValueError, match="needs credentials"):
        quiet(1, None, gateway=access)
    with pytest.raises(ValueError, match="exclude each other"):
        quiet(1, make_pool(), gateway=access, admission="none")
    with pytest.raises(ValueError, match="must be True, False or a Gateway"):
        quiet(1, make_pool(), gateway=3)
    with ThreadPoolExecutor(1) as executor, pytest.raises(ValueError, match="this machine only"):
        quiet(1, make_pool(), gateway=access, workers=executor)


def test_executor_uses_gateway_on_another_address() -> None:
    from concurrent.futures import ThreadPoolExecutor

    access = FakeAccess(url="http://10.0.0.7:8080")
    with ThreadPoolExecutor(1) as executor:
        coordinator = quiet(1, make_pool(), gateway=access, workers=executor)
        _, results = coordinator.execute_parallel(["a"], process_workers.tell_access)
    assert results[0].value["url"] == access.url
    assert results[0].value["client_token"] == access.token_of("a")
    assert set(access.closed.values()) == {1}


def test_dry_run_opens_no_token(access: FakeAccess) -> None:
    quiet(1, make_pool(), gateway=access).execute_parallel("abc", lambda *_: None, dry_run=True)
    assert not access.opened


def test_plain_limits_admit_items_of_a_gateway(access: FakeAccess) -> None:
    """A declared limit counts requests: items alone never use it up."""
    pool = CredentialCoordinator(
        [Credential(KEYS[0], limits=Limits(requests_per_minute=1, burst=1))], reporter=lambda _: None
    )
    assert quiet(4, pool, gateway=access).execute_parallel(range(40), lambda *_: None)[0].success_count == 40


def test_bound_is_that_of_the_requests_which_the_gateway_holds() -> None:
    """The key is out of quota for one model, which items name to the gateway only."""
    clock = FakeClock()
    pool = make_pool(clock=clock)
    first = pool.make_handle(None, 1, 0, "model-a")
    assert pool.request_now(first)
    pool.end(first, Verdict(QUOTA_EXHAUSTED, 3600.0))
    has_asked, is_over = threading.Event(), threading.Event()

    def worker(item: str, _: str) -> None:
        handle = pool.make_handle(item, 1, 0, "model-a")
        handle.deliver = lambda: None
        assert not pool.request(handle)
        has_asked.set()
        is_over.wait(60)
        pool.withdraw(handle)

    with quiet(1, pool, clock=clock, gateway=FakeAccess()).stream("abc", worker) as results:
        assert has_asked.wait(60)
        snapshot = results.snapshot(10)
        assert snapshot.bound is not None
        assert (snapshot.bound.kind, snapshot.bound.name) == (bounds.COOL_DOWN, QUOTA_EXHAUSTED)
        assert snapshot.bound.on is not None
        is_over.set()
        assert len(list(results)) == 3
