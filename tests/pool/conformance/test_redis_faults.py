"""Faults of a Redis or Valkey server, of connections and of the owner: the pool grants nothing wrong, and recovers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from agentos import errors
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool.shared import messages as wire
from agentos.pool.shared._member import member
from agentos.pool.shared._owner import owner_child
from agentos.pool.shared._server import envelopes
from agentos.pool.shared._server.server_client import COMMANDS, PoolServer
from agentos.pool.shared._server.server_endpoint import ABSENCE_SECONDS
from agentos.workflows.parallel import LeaseTimeout
from tests.conftest import BUSY, eventually
from tests.support.proxy import Proxy
from tests.support.valkey import Valkey, running

from .conftest import settle
from .observed_pool import TTL
from .observed_pool import ObservedPool as Pool

PARTS = ("owner", "meta", "journal", "snapshot")


@pytest.fixture
def open_pool() -> Iterator[Callable[..., Pool]]:
    yield Pool
    member.close_all()


@pytest.fixture
def proxy(common_server: Valkey) -> Iterator[Proxy]:
    proxy = Proxy(common_server.socket)
    yield proxy
    member.close_all()
    proxy.close()


@pytest.fixture
def url(own_server: Valkey) -> str:
    url = own_server.url()
    settle(url)
    return url


OpenPool = Callable[..., Pool]


def name_of(part: str) -> str:
    return f"{{agentos:pool}}:{part}"


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid))


# --- the owner --------------------------------------------------------------------------------------------------------


def test_killed_owner_is_replaced_and_leases_stay(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariants 1, 13, 47"""
    holder, second = open_pool(url, ttl=30, count=2), open_pool(url, ttl=30, count=2)
    with holder.pool.lease() as lease:
        for _ in range(3):
            pid = holder.owner_pid
            kill(pid)
            with second.pool.lease(timeout=20) as other:
                assert other.credential_id != lease.credential_id
            eventually(lambda pid=pid: holder.owner_pid == second.owner_pid != pid)
            eventually(lambda: holder.pool.get_stats()["reserved"] == 1)
    eventually(lambda: second.pool.get_stats()["available"] == 2)
    assert not holder.events_of(StoreUnreachable) + second.events_of(StoreUnreachable)


def test_owner_stopped_past_its_lock_grants_nothing(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariants 1, 13, 47"""
    first, second = open_pool(url, ttl=30), open_pool(url, ttl=30)
    fence, stopped = first.fence(), first.owner_pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        with second.pool.lease(timeout=60) as lease:
            assert lease.fence > fence
            assert second.owner_pid != stopped
            os.kill(stopped, signal.SIGCONT)
            eventually(lambda: not is_alive(stopped))  # its next commit or renewal is refused
            assert first.is_refused()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
    assert first.fence() > lease.fence


def test_owner_ends_after_its_last_member(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url)
    fence, pid = first.fence(), first.owner_pid
    first.pool.close()
    eventually(lambda: not is_alive(pid))
    with own_server.client() as client:
        assert client.get(name_of("owner")) is None
        assert client.pubsub_channels() == []
    assert open_pool(url).fence() > fence


PATIENT_OWNER = """
import sys
from agentos.pool.shared._owner import owner_process
from agentos.pool.shared._server import server_endpoint
assert server_endpoint.GIVE_UP_SECONDS <= 60
server_endpoint.GIVE_UP_SECONDS = 1.0
owner_process.main(sys.argv[1:])
"""


def test_owner_without_its_server_ends(
    own_server: Valkey, url: str, open_pool: OpenPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its members cannot be told from members that have ended; the next owner knows what it knew."""
    monkeypatch.setattr(owner_child, "OWNER_COMMAND", [sys.executable, "-c", PATIENT_OWNER])
    holder = open_pool(url)  # after a restart nothing is granted for its time to live
    with holder.pool.lease() as lease:
        pid = holder.owner_pid
        own_server.kill()
        eventually(lambda: not is_alive(pid))
        own_server.restart(keeps_data=True)
        eventually(lambda: holder.owner_pid != pid and holder.pool.get_stats()["reserved"] == 1)
        assert holder.is_refused()
    assert holder.fence() > lease.fence


def test_idle_member_follows_a_new_owner_at_once(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    idle, active = open_pool(url, ttl=300), open_pool(url, ttl=300)
    kill(active.owner_pid)
    active.fence()
    eventually(lambda: idle.owner_pid == active.owner_pid)


def test_password_is_in_no_argument_or_variable(open_pool: OpenPool) -> None:  # invariant 29
    with running(password="a-good-hunter2") as server:
        settle(server.url())
        first = open_pool(server.url())
        assert first.fence()
        process = Path(f"/proc/{first.owner_pid}")
        assert b"agentos" in (process / "cmdline").read_bytes()
        for file in ("cmdline", "environ"):
            assert b"hunter2" not in (process / file).read_bytes()
        member.close_all()


# --- the server -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_data", [True, False], ids=["with its data", "without"])
def test_server_restart_keeps_leases(
    own_server: Valkey, url: str, open_pool: OpenPool, keeps_data: bool
) -> None:  # invariants 1, 13
    """The owner lives on, and writes anew what the server has lost."""
    holder, second = open_pool(url, ttl=30), open_pool(url, ttl=30)
    pid = holder.owner_pid
    with holder.pool.lease() as lease:
        own_server.kill()
        assert second.is_refused()
        assert second.pool.reserve_credential() is None
        own_server.restart(keeps_data=keeps_data)
        eventually(lambda: holder.pool.get_stats()["reserved"] == second.pool.get_stats()["reserved"] == 1)
        assert second.is_refused()
        fence = lease.fence
    assert second.fence() > fence
    assert holder.fence() > fence
    assert holder.owner_pid == second.owner_pid == pid


def test_flushed_server_is_written_anew(own_server: Valkey, url: str, open_pool: OpenPool) -> None:  # invariants 1, 13
    holder = open_pool(url)
    with holder.pool.lease() as lease, own_server.client() as client:
        client.flushall()
        newcomer = open_pool(url)
        assert newcomer.is_refused()
        assert newcomer.owner_pid == holder.owner_pid
    assert newcomer.fence() > lease.fence
    assert not holder.events_of(StoreUnreachable)


def test_flush_and_dead_owner_delay_grants(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariants 1, 48: the members say what they hold, and all others wait until it would have expired."""
    holder = open_pool(url, ttl=30, count=2)
    with holder.pool.lease() as lease, own_server.client() as client:
        pid = holder.owner_pid
        os.kill(pid, signal.SIGSTOP)
        client.flushall()
        kill(pid)
        newcomer = open_pool(url, ttl=30, count=2)
        assert newcomer.is_refused(0.5)
        eventually(lambda: newcomer.pool.get_stats()["reserved"] == 1)
        (held,) = [state for state in newcomer.pool.states() if state.in_use]
        assert (held.key_id, held.live_leases) == (lease.credential_id, 1)
        kill(newcomer.owner_pid)  # the next owner must not forget that it has to wait
        assert newcomer.is_refused(0.5)


@pytest.mark.parametrize("part", PARTS)
def test_lost_key_of_a_living_owner_is_restored(
    own_server: Valkey, url: str, open_pool: OpenPool, part: str
) -> None:  # invariants 1, 48
    holder, second = open_pool(url, ttl=30), open_pool(url, ttl=30)
    with holder.pool.lease() as lease, own_server.client() as client:
        client.delete(name_of(part))
        assert open_pool(url, ttl=30).is_refused()
    assert second.fence() > lease.fence
    assert not holder.events_of(StoreUnreachable) + second.events_of(StoreUnreachable)


@pytest.mark.parametrize("part", PARTS)
def test_lost_key_and_dead_owner_grant_nothing_twice(
    own_server: Valkey, url: str, open_pool: OpenPool, part: str
) -> None:  # invariants 1, 48
    first = open_pool(url, ttl=30)
    first.fence()
    first.pool.close()
    eventually(lambda: not is_alive(first.owner_pid))  # it has written a snapshot
    holder, second = open_pool(url, ttl=30), open_pool(url, ttl=30)
    with holder.pool.lease() as lease, own_server.client() as client:
        pid = holder.owner_pid
        os.kill(pid, signal.SIGSTOP)
        client.delete(name_of(part))
        kill(pid)
        assert second.is_refused(0.5)
        eventually(lambda: second.pool.get_stats()["reserved"] == 1)
    assert not lease._handle.is_lost


def test_older_copy_of_the_server_is_noticed(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariants 1, 2, 48: members have seen a later position, so that grants wait and their usage is counted again."""
    limits = {"requests_per_minute": 10, "burst": 10, "max_concurrent": 2}
    first, second = open_pool(url, **limits), open_pool(url, **limits)
    first.fence()
    with own_server.client() as client:
        kill(first.owner_pid)
        copies = {part: client.dump(name_of(part)) for part in PARTS}
        for pool in (first, second) * 4:
            pool.fence()
        eventually(lambda: first.pool.get_stats()["reserved"] == 0)
        pid = first.owner_pid
        os.kill(pid, signal.SIGSTOP)
        client.delete(*map(name_of, PARTS))
        for part, copy in copies.items():
            if copy is not None and part != "owner":
                client.restore(name_of(part), 0, copy)
        kill(pid)
    granted = 9
    with contextlib.suppress(LeaseTimeout):
        while True:
            with second.pool.lease(timeout=3 * TTL):
                granted += 1
    assert granted <= 10


def test_paused_server_grants_nothing_until_it_resumes(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """Leases are kept by a member that is back within ABSENCE_SECONDS: on a loaded machine it may take more tries."""
    first = open_pool(url, ttl=30, count=2)
    is_kept = any(_is_lease_kept(first, own_server) for _ in range(5))
    assert is_kept, "the member has never been back in time"
    assert {type(event) for event in first.events} == {StoreUnreachable, StoreReached}


def _is_lease_kept(first: Pool, server: Valkey) -> bool:
    """Pause the server while a lease is held. Return whether the member was back in time; fail if it has lost the lease
    then."""
    first.events.clear()
    with first.pool.lease(timeout=60) as lease:
        server.pause()
        assert first.is_refused()
        waiter = threading.Thread(target=first.fence, args=(60,))
        waiter.start()
        eventually(lambda: first.events_of(StoreUnreachable))
        server.resume()
        resumed_at = time.monotonic()
        eventually(lambda: first.events_of(StoreReached))
        seconds = time.monotonic() - resumed_at
        waiter.join(60)
        if seconds >= ABSENCE_SECONDS:
            return False
        with first.pool.lease(timeout=20) as second:
            assert second.credential_id != lease.credential_id
        assert first.pool.get_stats()["reserved"] == 1  # the lease was kept
    return True


def test_read_only_server_counts_as_lost(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url)
    with own_server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert first.is_refused()
        eventually(lambda: first.events_of(StoreUnreachable))
        client.execute_command("REPLICAOF", "NO", "ONE")
    assert first.fence(60)
    assert first.events_of(StoreReached)


def test_missing_scripts_are_sent_again(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    first = open_pool(url)
    with own_server.client() as client:
        for _ in range(3):
            client.script_flush()
            first.fence()
    assert not first.events


def test_garbage_in_the_keys_stops_no_member(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariant 46"""
    first = open_pool(url)
    with own_server.client() as client:
        for spoil in (
            lambda: client.rpush(name_of("journal"), b"garbage"),
            lambda: (client.delete(name_of("journal")), client.set(name_of("journal"), b"garbage")),
            lambda: (client.delete(name_of("meta")), client.rpush(name_of("meta"), b"garbage")),
            lambda: client.hset(name_of("meta"), "position", b"garbage"),
            lambda: (client.delete(name_of("snapshot")), client.set(name_of("snapshot"), b"garbage")),
            lambda: client.set(name_of("owner"), b"garbage"),
        ):
            fence = first.fence()
            spoil()
            assert first.fence(60) > fence
        for channel in ("ask", "up"):
            client.publish(name_of(channel), b"garbage")
            client.publish(name_of(channel), os.urandom(40))
        assert first.fence(60)


def test_hostile_frames_through_the_server_disturb_no_member(
    own_server: Valkey, url: str, open_pool: OpenPool
) -> None:  # invariant 46
    """Envelopes in order, from links of their own, with frames of any content."""
    first = open_pool(url)
    owner, chance = first.owner_pid, random.Random(7)
    declared = [wire.Declaration("key-0", "g", None, [], {}, "f")]
    hello = wire.Hello(wire.PROTOCOL, "hostile", "host", 1, None, 30.0, declared, [], [])
    messages = [hello, wire.Heartbeat([1, 2**61]), wire.End(1, ["no verdict"]), wire.Leave(), wire.Query(1, "x", [{}])]
    with own_server.client() as client:
        for _ in range(100):
            gate_id = chance.randbytes(envelopes.ID_BYTES)
            for counter in range(1, 4):
                valid = wire.encode([(counter, chance.choice(messages))])
                frames = [chance.choice([valid, valid[:-1], chance.randbytes(chance.randrange(40))]) for _ in range(3)]
                number = chance.choice([1, 1, 1, 0, 2**32 - 1])
                client.publish(name_of("ask"), envelopes.pack_ask(gate_id, number, counter, frames))
    assert first.fence(60)
    assert first.owner_pid == owner
    assert not first.events


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_stepped_clock_of_the_server_delays_nothing(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """An hour forth: the lock expires although its owner lives. An hour back: it stays although its owner is dead."""
    first = open_pool(url, ttl=30)
    owner = first.owner_pid
    with own_server.client() as client:
        for _ in range(3):
            client.delete(name_of("owner"))
            assert first.fence()
        assert first.owner_pid == owner
        kill_but_keep_lock(client, owner)
        assert client.pttl(name_of("owner")) > 3_000_000
        assert first.fence(20)
        assert first.owner_pid != owner


def kill_but_keep_lock(client: redis.Redis, owner: int) -> None:
    """Kill an owner, and let its lock live for another hour."""
    os.kill(owner, signal.SIGSTOP)
    client.pexpire(name_of("owner"), 3_600_000)
    kill(owner)


# --- access -----------------------------------------------------------------------------------------------------------


def test_wrong_password_raises_without_showing_it() -> None:
    with running(password="a-good-hunter2") as server:
        try:
            with pytest.raises(errors.StoreError) as caught:
                Pool(server.url(password="a-wrong-hunter2"))
            assert "hunter2" not in str(caught.value)
            assert "redis://:PASSWORD@HOST" in str(caught.value)
            with pytest.raises(errors.StoreError):
                Pool(f"unix://{server.socket}")
        finally:
            member.close_all()


def test_missing_server_raises_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "LOST_SECONDS", 0.1)
    for url in ("redis://127.0.0.1:1/0", "unix:///nowhere/at/all.sock"):
        with pytest.raises(errors.StoreError, match="cannot be used"):
            Pool(url)
    with pytest.raises(ValueError, match="connection URL"):
        Pool("redis://127.0.0.1:1/0?socket_timeout=soon")


def user_url(server: Valkey, *rights: str) -> str:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "worker", "reset", "on", ">worker-secret", *rights)
    return f"unix://worker:worker-secret@{server.socket}"


def test_documented_rights_are_enough(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    pool = open_pool(user_url(own_server, "~{agentos:pool}:*", "&{agentos:pool}:*", *COMMANDS.split()), ttl=30)
    fence = pool.fence()
    kill(pool.owner_pid)
    assert pool.fence() > fence
    with own_server.client() as client:
        client.delete(name_of("journal"))
    assert pool.fence()


@pytest.mark.parametrize(
    "rights",
    [
        ("~*", "resetchannels", "+@all"),
        ("&*", "+@all"),
        ("~*", "&*", "+@all", "-publish"),
        ("~*", "&*", "+@all", "-hset"),
    ],
    ids=["channels", "keys", "a command", "a command in a script"],
)
def test_missing_right_is_named_with_advice(own_server: Valkey, url: str, rights: tuple[str, ...]) -> None:
    try:
        with pytest.raises(errors.StoreError) as caught:
            Pool(user_url(own_server, *rights))
        assert "~{agentos:pool}:*" in str(caught.value)
        assert "&{agentos:pool}:*" in str(caught.value)
        assert "worker-secret" not in str(caught.value)
    finally:
        member.close_all()


def test_denied_info_delays_the_first_grant(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariant 48: it cannot be told whether the server was restarted with an older copy."""
    first = open_pool(user_url(own_server, "~*", "&*", "+@all", "-info"))
    assert first.is_refused()


# --- the connection ---------------------------------------------------------------------------------------------------


def pool_names(server: Valkey, proxy: Proxy, name: str) -> tuple[str, str]:
    """Return the addresses of a new pool: directly, and through the proxy."""
    name = f"{name}-{time.monotonic_ns()}"
    settle(server.url(name))
    return server.url(name), proxy.url(name)


def test_cut_connection_affects_only_its_process(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 9, 10
    direct, proxied = pool_names(common_server, proxy, "cut")
    near = open_pool(direct, ttl=30, count=2)
    far = open_pool(proxied, ttl=30, count=2)
    proxy.cut()
    assert far.is_refused()
    waiter = threading.Thread(target=far.fence, args=(60,))
    waiter.start()
    eventually(lambda: far.events_of(StoreUnreachable))
    near.fence()  # other processes go on
    proxy.heal()
    waiter.join(60)
    assert not waiter.is_alive()
    assert far.events_of(StoreReached)
    eventually(lambda: near.pool.get_stats()["available"] == 2)
    assert near.pool.get_stats()["waiting"] == 0
    assert not near.events_of(StoreUnreachable)


def test_broken_connections_keep_leases(common_server: Valkey, proxy: Proxy, open_pool: OpenPool) -> None:
    direct, proxied = pool_names(common_server, proxy, "broken")
    near = open_pool(direct, ttl=30, count=2)
    far = open_pool(proxied, ttl=30, count=2)
    with far.pool.lease() as lease:
        for _ in range(3):
            proxy.drop()
            with far.pool.lease(timeout=20) as other:
                assert other.credential_id != lease.credential_id
        eventually(lambda: near.pool.get_stats()["reserved"] == 1)
        assert [state.key_id for state in near.pool.states() if state.in_use] == [lease.credential_id]
    eventually(lambda: near.pool.get_stats()["available"] == 2)
    assert not far.events_of(StoreUnreachable)


def test_owner_that_is_cut_off_is_replaced(common_server: Valkey, proxy: Proxy, open_pool: OpenPool) -> None:
    """invariants 1, 47: its connection does not break visibly, so that its lock has to expire."""
    direct, proxied = pool_names(common_server, proxy, "owner-cut")
    far = open_pool(proxied, ttl=30)  # its owner connects through the proxy, too
    near = open_pool(direct, ttl=30)
    fence, pid = near.fence(), near.owner_pid
    proxy.cut()
    with near.pool.lease(timeout=60) as lease:
        assert lease.fence > fence
        assert near.owner_pid != pid
        proxy.heal()
        eventually(lambda: not is_alive(pid))
        assert far.is_refused()
    assert far.fence(60) > lease.fence


def test_process_cut_off_past_ttl_loses_its_lease(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 12, 14
    direct, proxied = pool_names(common_server, proxy, "cut-off")
    near, far = open_pool(direct, ttl=30), open_pool(proxied)
    with far.pool.lease() as lost_lease:
        proxy.cut()
        with near.pool.lease(timeout=TTL + 1.0 + BUSY) as lease:
            proxy.heal()
            lost_lease.settle(requests=5)
            eventually(lambda: far.pool.get_stats()["reserved"] == 1)
            assert far.is_refused(0.05)
            assert lease.fence > lost_lease.fence
    eventually(lambda: near.pool.get_stats()["reserved"] == 0)
    assert near.pool.states()[0].requests >= 2


def test_commit_with_lost_answer_counts_once(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 2, 15
    """The owner's connection breaks after the server has carried out a commit."""
    direct, proxied = pool_names(common_server, proxy, "lost-reply")
    far = open_pool(proxied, ttl=30, max_concurrent=3, requests_per_minute=20, burst=20)
    near = open_pool(direct, ttl=30, max_concurrent=3, requests_per_minute=20, burst=20)
    digest = PoolServer(direct).connect()
    (sha,) = [script.sha for name, script in digest._scripts.items() if name == "commit"]  # type: ignore[attr-defined]
    for n in range(1, 5):
        proxy.swallow_reply(to=sha.encode())
        with near.pool.lease(timeout=60):
            eventually(lambda n=n: proxy.swallowed >= n)
            eventually(lambda: near.pool.get_stats()["reserved"] == 1)
            (state,) = near.pool.states()
            assert (state.live_leases, state.requests) == (1, n)
        eventually(lambda: near.pool.get_stats()["reserved"] == 0)
    assert near.pool.states()[0].requests == 4
    assert far.fence()


def test_late_answers_grant_nothing_twice(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariants 1, 11
    direct, proxied = pool_names(common_server, proxy, "slow")
    near, far = open_pool(direct, ttl=1.5), open_pool(proxied, ttl=1.5)
    proxy.delay(5.0)  # longer than the TTL of a lease
    assert far.is_refused()
    assert near.fence()
    proxy.heal()
    assert far.fence(60)


def test_slow_connection_only_delays(common_server: Valkey, proxy: Proxy, open_pool: OpenPool) -> None:
    _, proxied = pool_names(common_server, proxy, "far")
    far = open_pool(proxied, ttl=30)
    proxy.delay(0.1)
    began = time.monotonic()
    far.fence()
    assert time.monotonic() - began < 1.0 + BUSY
    assert not far.events_of(StoreUnreachable)


def test_refusal_during_outage_reaches_the_waiter(
    common_server: Valkey, proxy: Proxy, open_pool: OpenPool
) -> None:  # invariant 17
    direct, proxied = pool_names(common_server, proxy, "refused")
    near, far = open_pool(direct, ttl=30), open_pool(proxied, ttl=30)
    with near.pool.lease():
        failures: list[Exception] = []

        def ask() -> None:
            try:
                far.fence(60)
            except errors.PoolError as error:
                failures.append(error)

        waiter = threading.Thread(target=ask)
        waiter.start()
        eventually(lambda: far.pool.get_stats()["waiting"] == 1)
        proxy.cut()
        near.pool.quarantine("key-0", "refused")
        assert near.pool.get_stats()["quarantined"] == 1
        proxy.heal()
        waiter.join(60)
        assert [type(failure) for failure in failures] == [errors.NoUsableCredential]


# --- messages ---------------------------------------------------------------------------------------------------------


class Doubler:
    """Publishes every message of a pool's channels once more."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._pubsub = client.pubsub()
        self._pubsub.psubscribe("*}:ask", "*}:tell:*")
        self._is_over = False
        self.doubled: list[tuple[bytes, bytes]] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        seen: set[tuple[bytes, bytes]] = set()
        while not self._is_over:
            message = self._pubsub.get_message(timeout=0.05)
            if message is not None and message["type"] == "pmessage":
                what = (message["channel"], message["data"])
                if what not in seen:
                    seen.add(what)
                    self._client.publish(*what)
                    self.doubled.append(what)

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._pubsub.close()


def test_doubled_messages_change_nothing(own_server: Valkey, url: str, open_pool: OpenPool) -> None:
    """invariants 2, 15"""
    with own_server.client() as client:
        doubler = Doubler(client)
        try:
            first, second = open_pool(url, ttl=30), open_pool(url, ttl=30)
            fences = [pool.fence() for pool in (first, second) * 10]
            assert fences == sorted(set(fences))
            assert len(doubler.doubled) >= 20
            eventually(lambda: first.pool.get_stats()["reserved"] == 0)
            assert first.pool.states()[0].requests == 20
        finally:
            doubler.close()
    assert not first.events_of(StoreUnreachable) + second.events_of(StoreUnreachable)


@pytest.mark.parametrize("direction", ["to the owner", "to the member"])
def test_lost_message_breaks_only_the_link(own_server: Valkey, url: str, open_pool: OpenPool, direction: str) -> None:
    """A later counter arrives than the next one: the member greets the owner again, and keeps its leases."""
    first, second = open_pool(url, ttl=30, count=2), open_pool(url, ttl=30, count=2)
    line = first.pool._store._member.gate._line  # type: ignore[union-attr]
    with first.pool.lease() as lease, own_server.client() as client:
        server, number = PoolServer(url), line.number
        if direction == "to the owner":
            client.publish(server.ask, envelopes.pack_ask(line.id, number, 1000, [b""]))
        else:
            link = line.id + number.to_bytes(4, "big")
            nonce = first.pool._store._member.gate.nonce  # type: ignore[union-attr]
            client.publish(server.tell(line.id), envelopes.pack_tell(link, nonce, 1000, b""))
        eventually(lambda: line.number > number)
        with first.pool.lease(timeout=20) as other:
            assert other.credential_id != lease.credential_id
        eventually(lambda: second.pool.get_stats()["reserved"] == 1)
    eventually(lambda: second.pool.get_stats()["reserved"] == 0)
    assert not first.events_of(StoreUnreachable) + second.events_of(StoreUnreachable)
