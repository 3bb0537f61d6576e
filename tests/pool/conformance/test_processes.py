"""The promises of a pool that several processes share, with real processes that are killed and stopped."""

from __future__ import annotations

import time

import pytest

from tests.conftest import BUSY, eventually

from .members import Processes, keys

TTL = 1.5


def test_leased_key_is_not_granted_to_another_process(processes: Processes, shared_store: str) -> None:  # invariant 1
    first = processes.open(shared_store, keys(2))
    second = processes.open(shared_store, keys(2))
    first.lease("a")
    second.lease("b")
    assert {first.granted("a")["key"], second.granted("b")["key"]} == {"key-0", "key-1"}
    assert first.do("reserve_now") is False
    assert second.do("reserve_now") is False
    first.lease("c")
    second.end("b")
    assert first.granted("c")["key"] == second.granted("b")["key"]
    states = second.do("states")
    assert [state["live_leases"] for state in states] == [1, 1]
    assert {holder[3] for state in states for holder in state["held_by"]} == {first.pid}


def test_waiters_of_processes_are_served_in_request_order(
    processes: Processes, shared_store: str
) -> None:  # invariant 6
    members = [processes.open(shared_store, keys(1), ttl=5) for _ in range(3)]
    members[0].lease("holder")
    members[0].granted("holder")
    turns = [(members[n % 3], f"waiter {n}") for n in range(6)]
    for member, name in turns:
        member.lease(name)
        member.do("get_stats")  # the change has arrived by then
    members[0].end("holder")
    fences = []
    for member, name in turns:
        fences.append(member.granted(name)["fence"])
        member.end(name)
    assert fences == sorted(fences)
    assert len(set(fences)) == 6


def test_verdict_in_one_process_holds_for_all(processes: Processes, shared_store: str) -> None:
    first = processes.open(shared_store, keys(2))
    second = processes.open(shared_store, keys(2))
    first.lease("a")
    cooled = first.granted("a")["key"]
    first.end("a", "RateLimited", retry_after=60)
    eventually(lambda: second.do("get_stats")["rate_limited"] == 1)
    second.lease("b")
    left = second.granted("b")["key"]
    assert left != cooled  # invariant 4
    second.end("b")
    second.call("quarantine", left, "refused")
    first.lease("c", timeout=0.3)
    failure = first.failed("c")
    assert failure["error"] == "LeaseTimeout"
    assert 0.29 < failure["waited"] < 0.3 + BUSY  # invariant 10
    assert [state["quarantined"] for state in first.do("states") if state["key_id"] == left] == [
        "refused"
    ]  # invariant 5
    second.call("quarantine", cooled, "refused, too")
    first.lease("d")
    assert first.failed("d")["error"] == "NoUsableCredential"  # invariant 17
    second.call("restore", left)
    first.lease("e")
    assert first.granted("e")["key"] == left


def test_waiter_is_refused_when_no_credential_remains(processes: Processes, shared_store: str) -> None:
    first = processes.open(shared_store, keys(1))
    second = processes.open(shared_store, keys(1))
    second.lease("holder")
    second.granted("holder")
    first.lease("waiter")
    eventually(lambda: first.do("get_stats")["waiting"] == 1)
    second.call("quarantine", "key-0", "refused")
    failure = first.failed("waiter")  # invariant 17
    assert failure["error"] == "NoUsableCredential"
    assert "refused" in failure["text"]


def test_lease_of_killed_process_expires(processes: Processes, shared_store: str) -> None:  # invariants 12, 13
    holder = processes.open(shared_store, keys(1), ttl=TTL)
    second = processes.open(shared_store, keys(1), ttl=TTL)
    holder.lease("a")
    fence = holder.granted("a")["fence"]
    second.lease("b")
    eventually(lambda: second.do("get_stats")["waiting"] == 1)
    killed_at = holder.kill()
    granted = second.granted("b")
    assert granted["fence"] > fence
    assert granted["at"] - killed_at < TTL + 1.0 + BUSY


def test_killed_waiters_delay_others_once(processes: Processes, shared_store: str) -> None:  # invariant 12
    holder = processes.open(shared_store, keys(1), ttl=30)
    dead = processes.open(shared_store, keys(1), ttl=30)
    second = processes.open(shared_store, keys(1), ttl=30)
    holder.lease("a")
    holder.granted("a")
    for n in range(5):
        dead.lease(f"dead {n}")
    eventually(lambda: dead.do("get_stats")["waiting"] == 5)
    second.lease("b")
    eventually(lambda: second.do("get_stats")["waiting"] == 1)
    dead.kill()
    ended_at = time.monotonic()
    holder.end("a")
    assert second.granted("b")["at"] - ended_at < 1.0 + BUSY  # not five times that, nor a lease's whole life


def test_stopped_process_loses_lease_and_changes_nothing(
    processes: Processes, shared_store: str
) -> None:  # invariants 14, 15
    slow = processes.open(shared_store, keys(1, tokens_per_minute=10_000), ttl=TTL)
    second = processes.open(shared_store, keys(1, tokens_per_minute=10_000), ttl=30)
    slow.lease("a", tokens=100)
    slow.granted("a")
    slow.lease("waits", tokens=10)
    slow.do("get_stats")  # everything is sent: a process stopped while it writes keeps the file locked
    slow.pause()
    second.lease("b", tokens=200)
    granted = second.granted("b")
    slow.resume()
    slow.do("settle", name="a", tokens=900)
    slow.end("a")
    slow.wait_for_end("a")
    slow.do("get_stats")
    # The lost reservation counts as used, because how far it came is unknown; what was reported late is debt. States
    # that the owner does not send within a second are those of the last answer.
    eventually(lambda: second.do("states")[0]["tokens"] == 100 + 800 + 200)
    (state,) = second.do("states")
    assert state["live_leases"] == 1
    assert state["fence"] == granted["fence"]
    second.end("b")
    assert slow.granted("waits")["fence"] > granted["fence"]  # it still waits, in a new session


def test_stopped_waiter_continues_to_wait(processes: Processes, shared_store: str) -> None:
    holder = processes.open(shared_store, keys(1), ttl=30)
    slow = processes.open(shared_store, keys(1), ttl=TTL)
    dead = processes.open(shared_store, keys(1), ttl=TTL)
    holder.lease("a")
    holder.granted("a")
    slow.lease("b")
    dead.lease("c")
    eventually(lambda: slow.do("get_stats")["waiting"] == dead.do("get_stats")["waiting"] == 1)
    slow.pause()
    dead.kill()
    holder.lease("again")
    eventually(lambda: holder.do("get_stats")["waiting"] == 1)
    holder.end("a")
    holder.granted("again")
    slow.resume()
    holder.end("again")
    assert slow.granted("b")["about"] == "granted"


def test_cooldown_after_lost_lease_frees_nothing(processes: Processes, shared_store: str) -> None:
    slow = processes.open(shared_store, keys(1), ttl=TTL)
    second = processes.open(shared_store, keys(1), ttl=30)
    slow.lease("a")
    slow.granted("a")
    slow.pause()
    second.lease("b")
    second.granted("b")
    slow.resume()
    slow.call("mark_rate_limited", keys(1)[0]["secret"], 60)
    eventually(lambda: second.do("get_stats")["rate_limited"] == 1)
    assert second.do("get_stats")["reserved"] == 1


def test_ended_process_leaves_no_lease(processes: Processes, shared_store: str) -> None:
    first = processes.open(shared_store, keys(1), ttl=30)
    second = processes.open(shared_store, keys(1), ttl=30)
    first.lease("a")
    first.granted("a")
    second.lease("b")
    first.stop()  # without closing its pool
    assert second.granted("b", timeout=10)["about"] == "granted"


def test_declared_limits_hold_across_processes(processes: Processes, shared_store: str) -> None:
    # invariants 2, 3
    members = [processes.open(shared_store, keys(1, requests_per_minute=6, burst=6, max_concurrent=9)) for _ in "ab"]
    for n in range(9):
        members[n % 2].lease(f"{n}")
    eventually(lambda: sum(m["about"] == "granted" for member in members for m in member.messages) == 6)
    eventually(lambda: sum(member.do("get_stats")["waiting"] for member in members) == 3)
    assert sum(m["about"] == "granted" for member in members for m in member.messages) == 6


def test_process_is_granted_only_its_own_keys(processes: Processes, shared_store: str) -> None:
    three = keys(3)
    first = processes.open(shared_store, three[:2])
    second = processes.open(shared_store, three[1:])
    for n in range(2):
        first.lease(f"one {n}")
    assert {first.granted(f"one {n}")["key"] for n in range(2)} == {"key-0", "key-1"}
    second.lease("other 0")
    assert second.granted("other 0")["key"] == "key-2"
    second.lease("other 1")
    first.lease("one 2")
    eventually(lambda: first.do("get_stats")["waiting"] == second.do("get_stats")["waiting"] == 1)
    own = next(f"one {n}" for n in range(2) if first.granted(f"one {n}")["key"] == "key-0")
    first.end(own)
    assert (
        first.granted("one 2")["key"] == "key-0"
    )  # the second process does not have this key, although it requested first
    assert not second.has_heard("granted", "other 1")
    assert [state["key_id"] for state in second.do("states")] == ["key-1", "key-2"]
    second.end("other 0")
    assert second.granted("other 1")["key"] == "key-2"


def test_redeclared_limits_take_effect(processes: Processes, shared_store: str) -> None:
    first = processes.open(shared_store, keys(1, requests_per_minute=60, burst=2, max_concurrent=5))
    for n in range(2):
        first.lease(f"{n}")
        first.granted(f"{n}")
    second = processes.open(shared_store, keys(1, requests_per_minute=2, burst=2, max_concurrent=5))
    second.lease("third", timeout=0.2)
    failure = second.failed("third")
    assert failure["error"] == "LeaseTimeout"  # earlier usage still counts
    (state,) = first.do("states")
    assert state["used"]["requests per minute"] == [2, 2]
    assert state["live_leases"] == 2


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_wall_clock_step_changes_nothing(processes: Processes, shared_store: str, seconds: float) -> None:
    first = processes.open(shared_store, keys(1), ttl=TTL)
    second = processes.open(shared_store, keys(1), ttl=TTL, clock_step=seconds)
    first.lease("a")
    fence = first.granted("a")["fence"]
    second.lease("b", timeout=0.2)
    assert second.failed("b")["error"] == "LeaseTimeout"
    first.end("a", "RateLimited", retry_after=0.3)
    second.lease("c")
    granted = second.granted("c")
    assert granted["fence"] > fence
    assert first.do("get_stats")["reserved"] == 1


def test_immediate_request_after_long_silence_is_answered(processes: Processes, shared_store: str) -> None:
    holder = processes.open(shared_store, keys(1), ttl=30)
    first = processes.open(shared_store, keys(1), ttl=0.05)
    holder.lease("a")
    holder.granted("a")
    forgotten_at = time.monotonic() + 0.1
    eventually(lambda: time.monotonic() > forgotten_at)
    began = time.monotonic()
    assert first.do("reserve_now") is False
    assert time.monotonic() - began < BUSY
    assert first.do("get_stats")["waiting"] == 0


def test_forked_child_has_its_own_session(processes: Processes, shared_store: str) -> None:
    parent = processes.open(shared_store, keys(2), ttl=5)
    parent.lease("a")
    parent.granted("a")
    assert parent.do("fork") is True
    (mine,) = [state for state in parent.do("states") if state["live_leases"]]
    assert mine["key_id"] == parent.granted("a")["key"]  # the child returned its own lease, not that of its parent
    parent.end("a")
    eventually(lambda: parent.do("get_stats")["available"] == 2)
