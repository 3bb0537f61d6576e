"""Faults of a Redis or Valkey server and of the connection: the pool grants nothing meanwhile, and recovers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentos import errors
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool._replicas import member
from agentos.pool._replicas import states as kept_states
from agentos.pool._replicas.handles import NumberedHandle
from agentos.pool._replicas.redis import RedisLog
from agentos.workflows.parallel import Credential, CredentialCoordinator, LeaseTimeout, Limits
from tests.conftest import BUSY, eventually
from tests.support.proxy import Proxy
from tests.support.valkey import Valkey, running

from .conftest import settle

TTL = 1.0


class Pool:
    """One coordinator and its events."""

    def __init__(self, url: str, *, ttl: float = TTL, count: int = 1, **limits: Any) -> None:
        keys = [Credential(f"sk-fault-{n}-secret", id=f"key-{n}", limits=Limits(**limits)) for n in range(count)]
        self.pool = CredentialCoordinator(keys, store=url, lease_ttl=ttl)
        self.events: list[Any] = []
        self.pool.listen(self.events.append)

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def fence(self, timeout: float = 20) -> int:
        with self.pool.lease(timeout=timeout) as lease:
            return lease.fence

    def is_refused(self, seconds: float = 0.2) -> bool:
        """Return whether nothing is granted; a request must time out in time."""
        began = time.monotonic()
        try:
            with self.pool.lease(timeout=seconds):
                return False
        except LeaseTimeout:
            assert time.monotonic() - began < seconds + BUSY  # invariant 10
            return True


@pytest.fixture
def open_pool() -> Iterator[Callable[..., Pool]]:
    yield Pool
    member._close_all()


@pytest.fixture
def proxy(common_server: Valkey) -> Iterator[Proxy]:
    proxy = Proxy(common_server.socket)
    yield proxy
    member._close_all()
    proxy.close()


@pytest.fixture
def url(own_server: Valkey) -> str:
    url = own_server.url()
    settle(url)
    return url


OpenPool = Callable[..., Pool]


# --- the server -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_data", [True, False], ids=["with its data", "without"])
def test_server_restart_keeps_leases(
    own_server: Valkey, url: str, open_pool: OpenPool, keeps_data: bool
) -> None:  # invariants 1, 13
    holder, second = open_pool(url), open_pool(url)
    with holder.pool.lease() as lease:
        own_server.kill()
        eventually(lambda: holder.events_of(StoreUnreachable) or second.events_of(StoreUnreachable))
        assert second.is_refused()
        assert second.pool.reserve_credential() is None
        own_server.restart(keeps_data=keeps_data)
        eventually(lambda: holder.events_of(StoreReached))
        assert second.is_refused()  # the holder may not have noticed the loss
        fence = lease.fence
    assert second.fence() > fence
    assert holder.fence() > fence


def test_flush_delays_grants_for_one_ttl(own_server: Valkey, url: str, open_pool: OpenPool) -> None:  # invariants 1, 13
    holder = open_pool(url)
    with holder.pool.lease() as lease, own_server.client() as client:
        client.flushall()
        flushed_at = time.monotonic()
        newcomer = open_pool(url)  # it does not know the lost log
        assert newcomer.fence() > lease.fence
        assert time.monotonic() - flushed_at > 0.9 * TTL
    assert holder.fence() > lease.fence
    assert not holder.events_of(StoreUnreachable)


@pytest.mark.parametrize(
    ("way", "limits", "tokens"),
    [
        ("flushed", {"requests_per_minute": 10, "burst": 10}, 0),
        ("flushed", {"tokens_per_minute": 1000}, 100),
        ("restarted empty", {"requests_per_day": 10}, 0),
        ("restarted", {"requests_per_minute": 10, "burst": 10, "tokens_per_minute": 1000}, 100),
    ],
    ids=["requests, flushed", "tokens, flushed", "day, restarted empty", "with its data"],
)
def test_usage_of_limits_survives_a_lost_log(
    own_server: Valkey, url: str, open_pool: OpenPool, way: str, limits: dict[str, Any], tokens: int
) -> None:  # invariant 2
    """The provider still counts it. Every member reports usage of the lost log to the new one; it counts once."""
    first, second = open_pool(url, **limits), open_pool(url, **limits)
    for pool in (first, second) * 4:
        with pool.pool.lease(timeout=20, tokens=tokens):
            pass
    eventually(lambda: not first.pool.get_stats()["reserved"])
    if way == "flushed":
        with own_server.client() as client:
            client.flushall()
    else:
        own_server.restart(keeps_data=way == "restarted")
    for pool in (first, second):
        with pool.pool.lease(timeout=20, tokens=tokens):
            pass
    for pool in (first, second):
        with pytest.raises(LeaseTimeout), pool.pool.lease(timeout=0.1, tokens=tokens):
            pass


@pytest.mark.parametrize("is_restarted", [False, True], ids=["flushed", "restarted"])
def test_loss_is_found_after_its_finder_dies(
    own_server: Valkey, url: str, open_pool: OpenPool, is_restarted: bool
) -> None:  # invariant 1
    """T1: the server is flushed. T2: a member starts a new log and is killed. T3: another member comes."""
    holder = open_pool(url, ttl=30)
    with holder.pool.lease():
        if is_restarted:
            own_server.restart(keeps_data=True)
        else:
            with own_server.client() as client:
                client.flushall()
        killed = RedisLog(url)
        assert killed.load(TTL).is_doubtful
        killed.close()
        assert open_pool(url, ttl=30).is_refused()


def test_paused_server_grants_nothing_until_it_resumes(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url, ttl=5, count=2)
    with first.pool.lease() as lease:
        own_server.pause()
        assert first.is_refused()
        eventually(lambda: first.events_of(StoreUnreachable))
        own_server.resume()
        eventually(lambda: first.events_of(StoreReached))
        with first.pool.lease(timeout=20) as second:
            assert second.credential_id != lease.credential_id
        assert first.pool.get_stats()["reserved"] == 1  # the lease was kept
    assert [type(event) for event in first.events] == [StoreUnreachable, StoreReached]


def test_read_only_server_counts_as_lost(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url)
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert first.is_refused()
        eventually(lambda: first.events_of(StoreUnreachable))
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert first.fence()
    assert first.events_of(StoreReached)


def test_missing_scripts_are_sent_again(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url)
    with own_server.client() as client:
        for _ in range(3):
            client.script_flush()
            first.fence()
    assert not first.events


def test_wrong_password_raises_without_showing_it() -> None:
    with running(password="a-good-hunter2") as server:
        try:
            with pytest.raises(errors.StoreError) as caught:
                Pool(server.url(password="a-wrong-hunter2"))
            assert "hunter2" not in str(caught.value)
            assert "redis://:PASSWORD@HOST" in str(caught.value)
            with pytest.raises(errors.StoreError):
                Pool(f"unix://{server.socket}")
            settle(server.url())
            assert Pool(server.url()).fence()
        finally:
            member._close_all()


def test_missing_server_raises_at_once() -> None:
    for url in ("redis://127.0.0.1:1/0", "unix:///nowhere/at/all.sock"):
        with pytest.raises(errors.StoreError, match="cannot be used"):
            Pool(url)
    with pytest.raises(ValueError, match="connection URL"):
        Pool("redis://127.0.0.1:1/0?socket_timeout=soon")


def test_unreadable_state_or_entry_does_not_hang(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url)
    with own_server.client() as client:
        client.rpush("{agentos:pool}:log", b"1.0 garbage")
        with pytest.raises(errors.StoreError, match="cannot be read"):
            open_pool(url)
        assert first.is_refused()
        client.flushall()
    assert first.fence()


# --- the connection ------------------------------------------------------------------------------------------------


def test_cut_connection_affects_only_its_process(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 9, 10
    name = f"cut-{time.monotonic_ns()}"
    settle(common_server.url(name))
    far, near = open_pool(proxy.url(name), ttl=5, count=2), open_pool(common_server.url(name), ttl=5, count=2)
    with far.pool.lease() as lease:
        proxy.cut()
        assert far.is_refused()
        eventually(lambda: far.events_of(StoreUnreachable))
        near.fence()  # other processes go on
        waiter = threading.Thread(target=far.fence)
        waiter.start()
        proxy.heal()
        waiter.join(20)
        assert not waiter.is_alive()
        assert far.events_of(StoreReached)
        eventually(lambda: near.pool.get_stats()["reserved"] == 1)
        assert lease.credential_id in {state.key_id for state in near.pool.states() if state.in_use}
    eventually(lambda: near.pool.get_stats()["available"] == 2)
    assert near.pool.get_stats()["waiting"] == 0


def test_process_cut_off_past_ttl_loses_its_lease(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 12, 14
    name = f"cut-off-{time.monotonic_ns()}"
    settle(common_server.url(name))
    far, near = open_pool(proxy.url(name)), open_pool(common_server.url(name), ttl=30)
    with far.pool.lease() as lost_lease:
        proxy.cut()
        with near.pool.lease(timeout=TTL + 1.0 + BUSY) as lease:
            proxy.heal()
            lost_lease.settle(requests=5)
            eventually(lambda: far.events_of(StoreReached))
            assert far.pool.get_stats()["reserved"] == 1
            assert far.is_refused(0.05)
            assert lease.fence > lost_lease.fence
    eventually(lambda: near.pool.get_stats()["reserved"] == 0)
    assert near.pool.states()[0].requests == 2


def test_unclaimed_lease_lost_with_session_is_requested_again(
    common_server: Valkey, open_pool: OpenPool
) -> None:  # invariant 8
    """T1: a lease is granted. T2: its process is stopped until the lease has expired. T3: the waiter confirms it."""
    name = f"unclaimed-{time.monotonic_ns()}"
    settle(common_server.url(name))
    first = open_pool(common_server.url(name))
    store = first.pool._store
    record, delivered = NumberedHandle("item"), threading.Semaphore(0)
    record.deliver = delivered.release
    store.request(record)
    assert delivered.acquire(timeout=20)
    with store._member.changed:
        store._member._lose_session()  # as the process finds when it continues
        store._member.wake()
    assert not store.confirm(record)
    assert delivered.acquire(timeout=20), "the waiter is not notified of the change"
    while not store.confirm(record):  # a grant that took long is claimed once more
        assert delivered.acquire(timeout=20)
    store.end(record, None, success=True)
    eventually(lambda: first.pool.get_stats()["available"] == 1)


def test_batch_with_lost_answer_counts_once(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 2, 15
    name = f"lost-reply-{time.monotonic_ns()}"
    settle(common_server.url(name))
    first = open_pool(proxy.url(name), ttl=5, max_concurrent=3, requests_per_minute=10, burst=10)
    for n in range(1, 4):
        proxy.swallow_reply(to=b"EVAL")
        with first.pool.lease(timeout=20):
            eventually(lambda n=n: proxy.swallowed == 2 * n - 1)
            (state,) = first.pool.states()
            assert (state.live_leases, state.requests) == (1, n)
            proxy.swallow_reply(to=b"EVAL")
        eventually(lambda n=n: proxy.swallowed == 2 * n)
        eventually(lambda: first.pool.get_stats()["reserved"] == 0)
    assert first.pool.states()[0].requests == 3


def test_late_answers_grant_nothing_twice(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 1, 11
    name = f"slow-{time.monotonic_ns()}"
    settle(common_server.url(name))
    far, near = open_pool(proxy.url(name), ttl=1.5), open_pool(common_server.url(name), ttl=1.5)
    proxy.delay(5.0)  # longer than the TTL of a lease
    assert far.is_refused()
    eventually(lambda: far.events_of(StoreUnreachable))
    assert near.fence()
    proxy.heal()
    assert far.fence()


def test_slow_connection_only_delays(common_server: Valkey, proxy: Proxy, open_pool: OpenPool) -> None:
    name = f"far-{time.monotonic_ns()}"
    settle(common_server.url(name))
    far = open_pool(proxy.url(name), ttl=5)
    proxy.delay(0.1)
    began = time.monotonic()
    far.fence()
    assert time.monotonic() - began < 1.0 + BUSY
    assert not far.events_of(StoreUnreachable)


def test_refusal_during_outage_reaches_the_waiter(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariant 17
    name = f"refused-{time.monotonic_ns()}"
    settle(common_server.url(name))
    far, near = open_pool(proxy.url(name), ttl=6), open_pool(common_server.url(name), ttl=6)
    with near.pool.lease():
        failures: list[Exception] = []

        def ask() -> None:
            try:
                far.fence()
            except errors.PoolError as error:
                failures.append(error)

        waiter = threading.Thread(target=ask)
        waiter.start()
        eventually(lambda: far.pool.get_stats()["waiting"] == 1)
        proxy.cut()
        far.pool.mark_rate_limited("sk-fault-0-secret", 0.001)  # a change that cannot arrive
        eventually(lambda: far.events_of(StoreUnreachable))
        near.pool.quarantine("key-0", "refused")
        assert near.pool.get_stats()["quarantined"] == 1
        proxy.heal()
        waiter.join(20)
        assert [type(failure) for failure in failures] == [errors.NoUsableCredential]


# --- the log --------------------------------------------------------------------------------------------------------


def test_late_member_starts_from_a_snapshot(
    monkeypatch: pytest.MonkeyPatch, own_server: Valkey, url: str, open_pool: OpenPool
) -> None:
    from agentos.pool._replicas import redis as redis_store

    monkeypatch.setattr(member, "KEEP_EVERY", 8)
    monkeypatch.setattr(member, "KEEP_PER_CREDENTIAL", 0)
    monkeypatch.setattr(redis_store, "KEPT_BEHIND", 4)
    behind, first = open_pool(url, ttl=30, count=2), open_pool(url, ttl=30, count=2)
    with behind.pool.lease() as lease:
        for _ in range(20):
            fence = first.fence()
        with own_server.client() as client:
            assert client.llen("{agentos:pool}:log") < 20
            state = kept_states.thaw(client.hget("{agentos:pool}:state", "state"))
            assert set(state.pool.credentials) >= {"key-0", "key-1"}
        late = open_pool(url, ttl=30, count=2)
        assert late.fence() > fence
        eventually(lambda: behind.pool.get_stats()["reserved"] == 1)
        assert [state.fence for state in first.pool.states() if state.in_use] == [lease.fence]
    eventually(lambda: first.pool.get_stats()["reserved"] == 0)


def test_idle_member_after_flush_blocks_no_other(
    own_server: Valkey, url: str, open_pool: OpenPool
) -> None:  # invariant 8
    """All leases that it knew have expired long ago."""
    idle = open_pool(url, ttl=0.5)
    idle.fence()
    with own_server.client() as client:
        client.flushall()
    settle(url)
    first = open_pool(url, ttl=30)
    first.fence()
    long_ago = time.monotonic() + 0.6
    eventually(lambda: time.monotonic() > long_ago)
    idle.pool.get_stats()  # it finds another log
    assert not first.pool.get_stats()["rate_limited"]
    assert first.fence(timeout=5)
