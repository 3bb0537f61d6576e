"""The promises of every pool, on each store, through the public API, with real threads and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable

import pytest

from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    AmbiguousRelease,
    AuthFailed,
    Credential,
    CredentialCoordinator,
    LeaseTimeout,
    Limits,
    NoUsableCredential,
    Overloaded,
    Permanent,
    QuotaExhausted,
    RateLimited,
    Transient,
    UnknownCredential,
    Window,
)
from tests.conftest import BUSY, eventually

KEYS = ["sk-alpha-000000", "sk-bravo-111111", "sk-charlie-222222"]


def make_pool(
    *secrets: str, clock: FakeClock | None = None, store: str | None = None, **options: object
) -> CredentialCoordinator:
    """Make a pool; the fake clock is for the memory store only: a shared store has its own clock."""
    credentials = [Credential(s, id=s.split("-")[1], **options) for s in secrets or KEYS]  # type: ignore[arg-type]
    return CredentialCoordinator(credentials, clock=clock, store=store)


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def waiting(pool: CredentialCoordinator) -> int:
    return pool.get_stats()["waiting"]


# --- reserving and releasing ----------------------------------------------------------------------------------------


def test_key_has_one_holder_and_comes_back(store: str) -> None:
    pool = make_pool(store=store)
    keys = [pool.reserve() for _ in range(3)]
    assert sorted(str(key) for key in keys) == sorted(KEYS)
    assert pool.reserve_credential("late") is None
    assert pool.get_available_count() == 0
    pool.release(keys[0])  # type: ignore[arg-type]
    assert pool.get_available_count() == 1
    assert pool.reserve() == keys[0]


def test_reserve_waits_for_a_released_key(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    key = pool.reserve()
    thread, results = in_thread(pool.reserve)
    eventually(lambda: waiting(pool) == 1)
    assert key is not None
    pool.release(key)
    thread.join(60)
    assert results == [KEYS[0]]


def test_waiter_without_timeout_wakes_when_cooldown_ends() -> None:
    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    pool.mark_rate_limited(KEYS[0], 30)
    thread, results = in_thread(pool.reserve)
    eventually(lambda: waiting(pool) == 1)
    clock.advance(29.9)
    assert waiting(pool) == 1
    clock.advance(0.1)
    thread.join(60)
    assert results == [KEYS[0]]


def test_waiter_wakes_at_an_earlier_end_announced_later() -> None:  # invariant 7
    clock = FakeClock()
    pool = make_pool(*KEYS[:2], clock=clock)
    pool.mark_rate_limited(KEYS[0], 60)
    assert pool.reserve() == KEYS[1]
    thread, results = in_thread(pool.reserve)
    eventually(lambda: waiting(pool) == 1)
    pool.mark_rate_limited(KEYS[1], 10)
    clock.advance(10)
    thread.join(5)
    assert results == [KEYS[1]]


def test_waiter_wakes_within_20_ms_of_cooldown_end(store: str) -> None:  # invariant 7
    pool = make_pool(KEYS[0], store=store)
    delays: list[float] = []
    while not delays or min(delays) >= 0.02:
        assert len(delays) < 200, delays  # a busy machine may delay some wake-ups, but not all
        usable_at = time.monotonic() + 0.05
        pool.mark_rate_limited(KEYS[0], 0.05)
        key = pool.reserve()
        delays.append(time.monotonic() - usable_at)
        assert delays[-1] > -0.005  # not before
        assert key is not None
        pool.release(key)


def test_reserve_timeout_returns_none_and_leaves_no_waiter(store: str) -> None:  # invariants 9, 10
    pool = make_pool(KEYS[0], store=store)
    key = pool.reserve()
    start = time.monotonic()
    assert pool.reserve(timeout=0.05) is None
    assert 0.045 <= time.monotonic() - start < 0.05 + BUSY
    assert waiting(pool) == 0
    assert pool.reserve(timeout=0) is None
    assert key is not None
    pool.release(key)
    assert pool.get_available_count() == 1


def test_waiter_survives_repeated_deliveries() -> None:
    """A waiter may be granted, fail to confirm, and be granted again before its thread waits: no delivery may fail."""
    pool = make_pool(KEYS[0])
    key = pool.reserve()
    thread, results = in_thread(pool.reserve)
    eventually(lambda: waiting(pool) == 1)
    (queue,) = pool._store._allocator.waiting.values()
    (record,) = queue.values()
    for _ in range(100):
        record.deliver()
    assert results == []
    assert key is not None
    pool.release(key)
    thread.join(60)
    assert results == [KEYS[0]]


def test_waiters_are_served_in_order_of_requests(store: str) -> None:  # invariant 6
    pool = make_pool(KEYS[0], store=store)
    key = pool.reserve()
    order: list[int] = []
    threads = []
    for number in range(8):

        def wait_and_give_back(number: int = number) -> None:
            mine = pool.reserve()
            order.append(number)
            assert mine is not None
            pool.release(mine)

        threads.append(in_thread(wait_and_give_back)[0])
        eventually(lambda number=number: waiting(pool) == number + 1)
    assert key is not None
    pool.release(key)
    for thread in threads:
        thread.join(60)
    assert order == list(range(8))


def test_late_release_keeps_the_lease_of_next_holder() -> None:  # invariants 14, 15
    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    first = pool.reserve()
    assert first is not None
    pool.mark_rate_limited(first, 10)
    clock.advance(10)
    second = pool.reserve()
    assert second == first
    pool.release(first)  # too late: the key has another holder by now
    pool.release_credential(first)
    assert pool.reserve_credential("third") is None
    assert second is not None
    pool.release(second)
    assert pool.get_available_count() == 1


def test_late_mark_rate_limited_cools_but_frees_nothing(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    first = pool.reserve()
    assert first is not None
    pool.release(first)
    second = pool.reserve()
    pool.mark_rate_limited(first, 60)
    stats = pool.get_stats()
    assert (stats["reserved"], stats["rate_limited"]) == (1, 1)
    assert second is not None


def test_release_with_rate_limited_cools_for_a_minute() -> None:
    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    key = pool.reserve()
    assert key is not None
    pool.release(key, rate_limited=True)
    assert pool.states()[0].rate_limited_until == pytest.approx(clock.epoch() + 60, abs=0.1)
    clock.advance(60)
    key = pool.reserve()
    assert key is not None
    pool.release(key, rate_limited=True, backoff_seconds=7)
    assert pool.states()[0].rate_limited_until == pytest.approx(clock.epoch() + 7, abs=0.1)
    pool.release(key, rate_limited=True, backoff_seconds=500)  # a second release changes nothing
    assert pool.states()[0].rate_limited_until == pytest.approx(clock.epoch() + 7, abs=0.1)


def test_plain_string_releases_the_only_live_lease(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    assert pool.reserve() == KEYS[0]
    pool.release("".join(KEYS[0]))
    assert pool.get_available_count() == 1
    pool.release(KEYS[0])  # again: nothing to do


def test_plain_string_with_several_leases_is_ambiguous(store: str) -> None:
    pool = make_pool(KEYS[0], limits=Limits(max_concurrent=2), store=store)
    first, second = pool.reserve(), pool.reserve()
    with pytest.raises(AmbiguousRelease, match="2 live leases") as caught:
        pool.release(KEYS[0])
    assert KEYS[0] not in str(caught.value)
    with pytest.raises(AmbiguousRelease):
        pool.mark_rate_limited(KEYS[0])
    assert pool.get_stats()["rate_limited"] == 0
    assert first is not None
    pool.release(first)
    pool.release(KEYS[0])
    assert second is not None
    assert pool.states()[0].live_leases == 0


def test_error_for_unknown_key_hides_the_key(store: str) -> None:
    pool = make_pool(store=store)
    for call in (pool.release, pool.mark_rate_limited, pool.release_credential):
        with pytest.raises(UnknownCredential) as caught:
            call("sk-a-stranger")
        assert "stranger" not in str(caught.value)


def test_negative_backoff_is_refused(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    with pytest.raises(ValueError, match="backoff_seconds"):
        pool.mark_rate_limited(KEYS[0], -1)


# --- leases ---------------------------------------------------------------------------------------------------------


def test_lease_block_has_secret_and_ends_lease(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    with pool.lease("me", tokens=10) as lease:
        assert lease.secret == KEYS[0]
        assert lease.credential_id == "alpha"
        assert pool.states()[0].reserved_by == "me"
        fence = lease.fence
        lease.settle(tokens=25)
        lease.settle(tokens=99)
    state = pool.states()[0]
    assert (state.in_use, state.requests, state.tokens) == (False, 1, 25)
    with pool.lease() as lease:
        assert lease.fence > fence


def test_lease_timeout_has_reason_and_numbers(store: str) -> None:
    pool = make_pool(store=store)
    for key in KEYS[:2]:
        pool.mark_rate_limited(key, 60)
    with (
        pool.lease(),
        pytest.raises(LeaseTimeout, match=r"1 of 3 credentials in use, 2 paused") as caught,
        pool.lease(timeout=0.01),
    ):
        raise AssertionError
    assert caught.value.reason == "exhausted"
    pool.mark_rate_limited(KEYS[2], 90)
    assert pool.get_stats()["rate_limited"] == 3
    with pytest.raises(LeaseTimeout, match="rate-limited") as caught, pool.lease(timeout=0.01):
        raise AssertionError
    assert caught.value.reason == "rate_limited"
    assert 55 < (caught.value.usable_in or 0) <= 60
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.parametrize(
    ("error", "cooling"),
    [
        (RateLimited(retry_after=12), 12),
        (RateLimited(), 1),  # limit unknown: the time of one request, assumed to be a second
        (RateLimited(retry_after=0), 1),
        (QuotaExhausted(), 60),
        (AuthFailed("no"), 5),
        (Transient(), None),
        (Permanent(), None),
        (ValueError("a bug"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_exception_in_block_cools_and_is_raised(error: BaseException, cooling: float | None) -> None:
    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    with pytest.raises(type(error)), pool.lease():
        raise error
    until = pool.states()[0].rate_limited_until
    assert until == (pytest.approx(clock.epoch() + cooling, abs=0.1) if cooling else None)
    assert not pool.states()[0].in_use


def test_quota_cools_until_its_reset() -> None:
    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    with pytest.raises(QuotaExhausted), pool.lease():
        raise QuotaExhausted(until=clock.epoch() + 7200)
    assert pool.states()[0].rate_limited_until == pytest.approx(clock.epoch() + 7200, abs=0.1)


def test_overload_cools_all_credentials_of_provider(store: str) -> None:
    pool = make_pool(KEYS[0], KEYS[1], provider="acme", store=store)
    with pytest.raises(Overloaded), pool.lease():
        raise Overloaded
    assert pool.get_available_count() == 0


def test_retry_after_is_read_from_exception_response() -> None:
    class Response:
        status_code = 429
        headers = {"Retry-After": "17"}  # noqa: RUF012

    class SdkError(Exception):
        response = Response()

    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    with pytest.raises(SdkError), pool.lease():
        raise SdkError
    assert pool.states()[0].rate_limited_until == pytest.approx(clock.epoch() + 17, abs=0.1)
    clock.advance(17)
    with pool.lease() as lease:
        lease.observe(Response())  # the same answer, from a library that raises nothing
    assert pool.get_available_count() == 0


def test_unreadable_exception_ends_the_lease(store: str) -> None:
    class Headers:
        def items(self) -> None:
            raise OSError("the connection is gone")

    class Response:
        status_code = 429
        headers = Headers()

    class SdkError(Exception):
        response = Response()

    pool = make_pool(KEYS[0], store=store)
    with pytest.raises(SdkError), pool.lease():
        raise SdkError
    assert not pool.states()[0].in_use
    assert pool.get_stats()["rate_limited"] == 1  # the status could be read


def test_cooldown_covers_the_quota_group_only() -> None:
    pool = CredentialCoordinator([
        Credential(KEYS[0], id="a", quota_group="org"),
        Credential(KEYS[1], id="b", quota_group="org"),
        Credential(KEYS[2], id="c"),
    ])  # fmt: skip
    pool.mark_rate_limited(KEYS[0])
    assert [state.key_id for state in pool.states() if state.is_available] == ["c"]


def test_scope_cools_alone(store: str) -> None:
    pool = make_pool(KEYS[0], limits=Limits(max_concurrent=2), store=store)
    with pytest.raises(RateLimited), pool.lease(scope="big"):
        raise RateLimited(retry_after=60)
    with pytest.raises(LeaseTimeout), pool.lease(scope="big", timeout=0.01):
        raise AssertionError
    with pool.lease(scope="small"), pool.lease():
        pass
    assert list(pool.states()[0].cooling) == ["big"]
    assert pool.states()[0].rate_limited_until is None


def test_preferred_credential_is_granted_again(store: str) -> None:
    pool = make_pool(store=store)
    with pool.lease() as lease:
        mine = lease.credential_id
    for _ in range(3):
        with pool.lease(prefer=mine) as lease:
            assert lease.credential_id == mine


def test_no_thread_waits_while_holding_lock(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    key = pool.reserve()
    threads = [in_thread(pool.reserve)[0] for _ in range(3)]
    eventually(lambda: waiting(pool) == 3)
    # Everything else still answers at once.
    assert pool.get_stats()["reserved"] == 1
    assert pool.reserve_credential("x") is None
    pool.mark_rate_limited(key, 0)  # type: ignore[arg-type]
    eventually(lambda: waiting(pool) == 2)
    pool.quarantine("alpha", "test over")
    for thread in threads:
        thread.join(60)


# --- asyncio --------------------------------------------------------------------------------------------------------


def test_waiting_tasks_keep_loop_free_and_order(store: str) -> None:  # invariant 6
    async def main() -> None:
        pool = make_pool(KEYS[0], store=store)
        order: list[int] = []

        async def use(number: int) -> None:
            async with pool.lease() as lease:
                assert lease.secret == KEYS[0]
                order.append(number)

        async with pool.lease():
            tasks = [asyncio.create_task(use(number)) for number in range(20)]
            while waiting(pool) < 20:
                await asyncio.wait(tasks, timeout=0.001)
        await asyncio.gather(*tasks)
        assert order == list(range(20))

    asyncio.run(main())


def test_cancel_at_any_point_leaks_nothing(store: str) -> None:  # invariant 9
    async def main() -> None:
        pool = make_pool(KEYS[0], KEYS[1], store=store)
        chance = random.Random(7)

        async def use() -> None:
            async with pool.lease(timeout=chance.choice([None, 0.0, 0.001, 1.0])):
                for _ in range(chance.randrange(3)):
                    await asyncio.wait([asyncio.ensure_future(noop())])

        async def noop() -> None:
            return None

        for _ in range(150):
            tasks = [asyncio.create_task(use()) for _ in range(8)]
            for task in tasks:
                if chance.random() < 0.5:
                    await noop_turns(chance.randrange(6))
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            stats = pool.get_stats()
            assert (stats["available"], stats["waiting"]) == (2, 0)

    async def noop_turns(turns: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(turns):
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await future

    asyncio.run(main())


def test_async_lease_timeout_leaves_no_waiter(store: str) -> None:  # invariant 10
    async def main() -> None:
        pool = make_pool(KEYS[0], store=store)
        async with pool.lease():
            with pytest.raises(LeaseTimeout):
                async with pool.lease(timeout=0.02):
                    raise AssertionError
        assert pool.get_stats()["waiting"] == 0
        assert pool.get_available_count() == 1

    asyncio.run(main())


def test_threads_and_tasks_lose_no_wakeup() -> None:  # invariants 1, 8, 16
    # A declared limit is not learned: refusals cost no time here.
    limits = Limits(max_concurrent=2, requests_per_minute=10**9, burst=10**9)
    pool = make_pool(*KEYS, limits=limits)
    leases = {"alpha": 0, "bravo": 0, "charlie": 0}
    max_leases = dict(leases)
    guard = threading.Lock()
    done = []

    def enter(credential_id: str) -> None:
        with guard:
            leases[credential_id] += 1
            max_leases[credential_id] = max(max_leases[credential_id], leases[credential_id])

    def leave(credential_id: str) -> None:
        with guard:
            leases[credential_id] -= 1
            done.append(credential_id)

    def work_in_thread(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            with contextlib.suppress(RateLimited), pool.lease() as lease:
                enter(lease.credential_id)
                leave(lease.credential_id)
                if chance.random() < 0.1:
                    raise RateLimited(retry_after=0.002)

    async def work_in_task() -> None:
        for _ in range(60):
            async with pool.lease() as lease:
                enter(lease.credential_id)
                await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))])
                leave(lease.credential_id)

    async def tasks() -> None:
        await asyncio.gather(*(work_in_task() for _ in range(8)))

    threads = [in_thread(lambda seed=seed: work_in_thread(seed))[0] for seed in range(8)]
    threads.append(in_thread(lambda: asyncio.run(tasks()))[0])
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(done) == 16 * 60
    assert all(1 <= count <= 2 for count in max_leases.values())
    assert pool.get_stats()["waiting"] == 0
    assert pool.get_stats()["reserved"] == 0


# --- call and acall -------------------------------------------------------------------------------------------------


def test_call_retries_with_another_credential_after_limit(store: str) -> None:
    pool = make_pool(KEYS[0], KEYS[1], store=store)
    secrets: list[str] = []

    def ask(secret: str) -> str:
        secrets.append(secret)
        if secret == KEYS[0]:
            raise RateLimited(retry_after=60)
        return "answer"

    assert pool.call(ask) == "answer"
    assert secrets == KEYS[:2]
    assert pool.get_stats()["rate_limited"] == 1


def test_call_waits_for_cooldown_of_only_credential() -> None:
    clock = FakeClock()
    pool = make_pool(KEYS[0], clock=clock)
    answers = iter([RateLimited(retry_after=5), None])

    def ask(_secret: str) -> str:
        error = next(answers)
        if error is not None:
            raise error
        return "answer"

    thread, results = in_thread(lambda: pool.call(ask))
    eventually(lambda: waiting(pool) == 1)
    clock.advance(5)
    thread.join(60)
    assert results == ["answer"]


def test_call_stops_at_timeout_and_raises_other_errors(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)

    def limited(_secret: str) -> None:
        raise RateLimited(retry_after=60)

    with pytest.raises(ZeroDivisionError):
        pool.call(lambda _secret: 1 / 0)
    assert pool.get_available_count() == 1
    with pytest.raises(LeaseTimeout):
        pool.call(limited, timeout=0.02)


def test_call_with_dead_keys_raises_no_usable_credential() -> None:  # invariant 17
    clock = FakeClock()
    pool = make_pool(KEYS[0], KEYS[1], clock=clock)

    def refuse(_secret: str) -> None:
        raise AuthFailed("no such key")

    thread, results = in_thread(lambda: pool.call(refuse))
    for _ in range(3):
        eventually(lambda: waiting(pool) == 1 or results)
        clock.advance(5)
    thread.join(60)
    assert isinstance(results[0], NoUsableCredential)
    assert set(results[0].reasons) == {"alpha", "bravo"}


def test_acall_retries_a_coroutine(store: str) -> None:
    async def main() -> None:
        pool = make_pool(KEYS[0], KEYS[1], store=store)

        async def ask(secret: str) -> str:
            if secret == KEYS[0]:
                raise RateLimited(retry_after=60)
            return secret

        assert await pool.acall(ask) == KEYS[1]
        with pytest.raises(LeaseTimeout):
            async with pool.lease():
                await pool.acall(ask, timeout=0.01)

    asyncio.run(main())


# --- the pool itself ------------------------------------------------------------------------------------------------


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="no credentials"):
        CredentialCoordinator([])
    with pytest.raises(TypeError, match=r"\[key\]"):
        CredentialCoordinator("sk-one-string")  # type: ignore[arg-type]


def test_identical_strings_count_once() -> None:
    assert CredentialCoordinator(["k-1", "k-2", "k-1"]).get_stats()["total"] == 2


def test_duplicate_id_or_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="give each its own"):
        CredentialCoordinator([Credential("k-1", id="same"), Credential("k-2", id="same")])
    with pytest.raises(ValueError, match="already") as caught:
        CredentialCoordinator([Credential("secret-k", id="one"), Credential("secret-k", id="two")])
    assert "secret-k" not in str(caught.value)


def test_all_quarantined_raises_for_waiters(
    store: str,
) -> None:  # invariant 17
    pool = make_pool(KEYS[0], store=store)
    key = pool.reserve()
    thread, results = in_thread(pool.reserve)
    eventually(lambda: waiting(pool) == 1)
    pool.quarantine("alpha", "the card expired")
    thread.join(60)
    assert isinstance(results[0], NoUsableCredential)
    assert "the card expired" in str(results[0])
    assert pool.reserve_credential("x") is None
    with pytest.raises(NoUsableCredential), pool.lease():
        raise AssertionError
    pool.release(key)  # type: ignore[arg-type]
    assert pool.get_stats()["quarantined"] == 1
    pool.restore("alpha")
    assert pool.reserve_credential("x") == KEYS[0]


def test_credentials_join_and_leave_while_in_use(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    key = pool.reserve()
    thread, results = in_thread(pool.reserve)
    eventually(lambda: waiting(pool) == 1)
    pool.add(Credential(KEYS[1], id="bravo"))
    thread.join(60)
    assert results == [KEYS[1]]
    pool.remove("alpha")
    pool.release(str(key))  # its lease was still valid, also by the plain string
    assert pool.reserve_credential("x") is None
    assert pool.get_stats()["total"] == 1
    pool.add(KEYS[0])
    assert pool.get_stats()["total"] == 2
    with pytest.raises(UnknownCredential):
        pool.remove("nobody")


def test_states_are_snapshots_without_a_secret() -> None:
    clock = FakeClock()
    pool = make_pool(clock=clock)
    pool.mark_rate_limited(KEYS[1], 60)
    with pool.lease("item-7"):
        states = pool.states()
    assert [(s.key_id, s.in_use, s.reserved_by, s.is_available) for s in states] == [
        ("alpha", True, "item-7", False),
        ("bravo", False, None, False),
        ("charlie", False, None, True),
    ]
    assert states[1].rate_limited_until == pytest.approx(clock.epoch() + 60, abs=0.1)
    for key in KEYS:
        assert key not in repr(states)
        assert key not in repr(pool)


def test_exhausted_pool_is_announced_once_per_episode(capsys: pytest.CaptureFixture[str]) -> None:
    pool = make_pool(KEYS[0])
    for _ in range(2):
        with pool.lease():
            for _ in range(3):
                assert pool.reserve(timeout=0.001) is None
    lines = [line for line in capsys.readouterr().out.splitlines() if "pool exhausted" in line]
    assert len(lines) == 2
    assert all(line.startswith("[COORDINATOR] Credential pool exhausted") for line in lines)


def test_wait_for_provider_has_its_own_announcement(capsys: pytest.CaptureFixture[str]) -> None:
    pool = make_pool(KEYS[0])
    pool.mark_rate_limited(KEYS[0], 60)
    assert pool.reserve(timeout=0.001) is None
    out = capsys.readouterr().out
    assert "rate-limited" in out
    assert "exhausted" not in out


def test_simulate_429_cools_the_first_credential_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    pool = make_pool()
    monkeypatch.setenv("AGENTOS_SIMULATE_429", "true")
    assert pool.reserve_credential("me") == KEYS[1]
    assert "AGENTOS_SIMULATE_429" not in os.environ
    assert pool.get_stats()["rate_limited"] == 1
    assert pool.reserve() == KEYS[2]
    assert pool.get_stats()["rate_limited"] == 1


def test_credential_limit_uses_only_the_first_n(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_CREDENTIAL_LIMIT", "2")
    assert [state.key_id for state in make_pool().states()] == ["alpha", "bravo"]
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv("AGENTOS_CREDENTIAL_LIMIT", wrong)
        with pytest.raises(ValueError, match="AGENTOS_CREDENTIAL_LIMIT"):
            make_pool()


def test_each_of_20000_waiting_tasks_is_served_once() -> None:  # invariant 18
    async def main() -> None:
        pool = make_pool(KEYS[0], limits=Limits(max_concurrent=10))
        served = 0

        async def use() -> None:
            nonlocal served
            async with pool.lease():
                served += 1

        held = [pool.reserve() for _ in range(10)]
        tasks = [asyncio.create_task(use()) for _ in range(20_000)]
        while waiting(pool) < len(tasks):
            await asyncio.wait(tasks[:1], timeout=0.001)
        for key in held:
            pool.release(key)  # type: ignore[arg-type]
        await asyncio.gather(*tasks)
        assert served == len(tasks)
        assert pool.get_stats()["waiting"] == 0

    asyncio.run(main())


@pytest.mark.parametrize(
    ("store", "message"),
    {
        "postgres://localhost": "memory:",
        "pool.db": "memory:",
        "sqlite:///": "three slashes",
        "sqlite://pool.db": "three slashes",
        "redis://localhost/first": "DB is a number",
        "redis://localhost/0?pool=": r"\?pool=NAME",
        "redis://localhost/0?pol=x": r"\?pool=NAME",
    }.items(),
)
def test_unknown_store_is_refused(store: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CredentialCoordinator(KEYS, store=store)
    with pytest.raises(ValueError, match="lease_ttl"):
        CredentialCoordinator(KEYS, lease_ttl=0)


def test_snapshot_has_states_and_reason_of_one_instant(store: str) -> None:
    pool = make_pool(*KEYS[:2], store=store)
    with pool.lease(), pool.lease():
        states, waiting_reason = pool.snapshot(None)
        assert [(state.key_id, state.live_leases) for state in states] == [("alpha", 1), ("bravo", 1)]
        assert (waiting_reason.reason, waiting_reason.in_use) == ("exhausted", 2)
        assert (waiting_reason.at_once, waiting_reason.leases) == (2, 2)
    states, _ = pool.snapshot(None)  # at once, although a shared store is told a little later
    assert [(state.in_use, state.live_leases) for state in states] == [(False, 0)] * 2


def test_wait_for_a_limit_names_its_amount_and_group(store: str) -> None:
    pool = make_pool(*KEYS[:2], store=store, limits=Limits(requests_per_minute=1, burst=1))
    for _ in range(2):
        with pool.lease():
            pass
    waiting_reason = pool.waiting_for(None)
    assert (waiting_reason.reason, waiting_reason.limit) == ("rate_limited", "requests per minute")
    assert (waiting_reason.on, waiting_reason.groups, waiting_reason.amount) == (None, 2, 2.0)
    assert waiting_reason.verdict is None
    pool.mark_rate_limited(KEYS[0], 600)
    assert pool.waiting_for(None).on == "credential bravo"
    pool.mark_rate_limited(KEYS[1], 500)
    waiting_reason = pool.waiting_for(None)
    assert (waiting_reason.limit, waiting_reason.verdict, waiting_reason.groups) == (None, "rate_limited", 2)


def test_resting_credential_is_no_holder_of_a_limit(store: str) -> None:
    """The run leaves the third credential alone, which therefore does not wait for what the others wait for."""
    pool = make_pool(*KEYS[:3], store=store)
    handle = pool.make_handle()
    states, waiting_reason = pool.snapshot(None, handle, {"charlie": (5.0, "quota_exhausted")})
    assert len(states) == 3
    assert (waiting_reason.reason, waiting_reason.cooling, waiting_reason.on) == ("exhausted", 1, None)
    pool.mark_rate_limited(KEYS[0], 600)
    pool.mark_rate_limited(KEYS[1], 600)
    waiting_reason = pool.waiting_of(handle, {"charlie": (5.0, "quota_exhausted")})
    assert (waiting_reason.reason, waiting_reason.verdict) == ("rate_limited", "quota_exhausted")
    assert (waiting_reason.on, waiting_reason.groups, waiting_reason.held) == ("credential charlie", 1, 1)
    waiting_reason = pool.waiting_of(handle, {"charlie": (900.0, "quota_exhausted")})
    assert (waiting_reason.verdict, waiting_reason.on) == ("rate_limited", None)
    assert (waiting_reason.groups, waiting_reason.held, waiting_reason.credentials) == (2, 2, 3)


def test_first_waiting_request_is_the_oldest(store: str) -> None:
    pool = make_pool(KEYS[0], store=store)
    assert pool.first_waiting() is None
    with pool.lease():
        handles = [pool.make_handle(name, 1, 0, scope) for name, scope in (("a", "model"), ("b", None))]
        for handle in handles:
            handle.deliver = lambda: None
            assert not pool.request(handle)
        assert pool.first_waiting() is handles[0]
        pool.withdraw(handles[0])
        assert pool.first_waiting() is handles[1]
        pool.withdraw(handles[1])


def test_disabled_credentials_are_counted_apart(store: str) -> None:
    pool = make_pool(*KEYS[:3], store=store)
    pool.quarantine("alpha", "refused by the provider")
    pool.quarantine("bravo", "disabled: testing")
    pool.quarantine("charlie", "disabled: testing")
    waiting_reason = pool.waiting_for(None)
    assert (waiting_reason.credentials, waiting_reason.quarantined, waiting_reason.disabled) == (0, 3, 2)


def test_forecasts_have_usage_with_its_instants(store: str) -> None:
    limits = Limits(requests_per_minute=100, max_concurrent=2, windows=(Window("requests", 9, "5h", "first-use"),))
    pool = make_pool(KEYS[0], store=store, limits=limits)
    with pool.lease():
        pass
    (planned,) = pool.forecasts()
    assert planned.is_proven
    assert planned.usage is not None
    amounts = {row.kind: row.amount for row in planned.usage.rows}
    assert amounts["requests"] == amounts["requests first-use"] == 1
    (end,) = [row.start for row in planned.usage.rows if row.kind == "requests first-use-end"]
    assert end == pytest.approx(5 * 3600, abs=5)
