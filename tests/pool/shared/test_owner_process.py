"""The loop of an owner with a journal that fails and clocks that jump."""

from __future__ import annotations

from collections.abc import Container, Hashable
from datetime import UTC
from typing import Any

import pytest

from agentos.limits import reset_times
from agentos.limits.declaration import Limits
from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner import owner_process
from agentos.pool.shared._owner.clocks import PoolClock
from agentos.pool.shared._owner.owner_process import OwnerLoop
from agentos.pool.shared._owner.queries import ANSWERS
from agentos.pool.shared.message_values import limits_fields
from agentos.pool.shared.transport import JournalMissing, Loaded, StoreLost

# 2026-11-16 20:00:00 UTC
EVENING = 1_794_859_200.0
HOUR = 3600.0
TTL = 30.0


class FakeEndpoint:
    """A journal in memory, links that are lists, and clocks that a test moves."""

    def __init__(self, start: float = EVENING) -> None:
        self.elapsed, self.wall = 1000.0, start
        self.clock = PoolClock(start, elapsed_clock=lambda: self.elapsed, wall_clock=lambda: self.wall)
        self.batches: list[tuple[float, bytes]] = []
        self.snapshot: bytes | None = None
        self.position = 0
        self.incoming: list[tuple[Hashable, bytes | None]] = []
        self.sent: dict[Hashable, list[wire.Reply]] = {}
        self.failures: list[Exception] = []  # of the next commits
        self.disconnected: list[Hashable] = []
        self.rewritten = 0
        self.ended: set[str] = set()  # sessions whose process has ended

    def load(self) -> Loaded:
        return Loaded("journal", self.position, self.snapshot, self.batches, self.clock.now())

    def receive(self, timeout: float) -> list[tuple[Hashable, bytes | None]]:
        incoming, self.incoming = self.incoming, []
        if not incoming:
            self.elapsed += max(0.0, timeout)
            self.wall += max(0.0, timeout)
        return incoming

    def commit(self, at: float, entries: bytes | None, frames: list[tuple[Hashable, bytes]]) -> None:
        if entries is not None:
            if self.failures:
                raise self.failures.pop(0)
            self.position += 1
            self.batches.append((at, entries))
        self.send(frames)

    def send(self, frames: list[tuple[Hashable, bytes]]) -> None:
        for connection, frame in frames:
            self.sent.setdefault(connection, []).extend(wire.decode_replies(frame).replies)

    def save(self, _at: float, snapshot: bytes, position: int) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.snapshot, self.position, self.batches = snapshot, position, []

    def rewrite(self, at: float, snapshot: bytes, position: int) -> None:
        self.rewritten += 1
        self.save(at, snapshot, position)

    def is_current(self) -> bool:
        return True

    def has_ended(self, session_id: str) -> bool:
        return session_id in self.ended

    def disconnect_strangers(self, members: Container[Hashable]) -> None:
        """No-op: links are lists."""

    def disconnect(self, connection: Hashable) -> None:
        self.disconnected.append(connection)

    def close(self) -> None:
        """No-op: nothing is open."""

    def pass_time(self, seconds: float, *, wall: bool = True) -> None:
        self.elapsed += seconds
        self.wall += seconds if wall else 0.0


class Driver:
    """One member of an owner's loop."""

    def __init__(self, endpoint: FakeEndpoint, **limits: Any) -> None:
        self.endpoint = endpoint
        self.loop = OwnerLoop(endpoint)
        self._numbers = 1000 * endpoint.position  # higher than that of a driver before it
        declared = wire.Declaration("k", "g", "p", [], limits_fields(Limits(**limits)), "print")
        self.send(wire.Hello(wire.PROTOCOL, "m", "host", 1, None, TTL, [declared], [], []))

    def send(self, message: wire.Message) -> list[wire.Reply]:
        """Send a message; return the replies of the turn that takes it."""
        self._numbers += 1
        self.endpoint.incoming.append(("link", wire.encode([(self._numbers, message)])))
        return self.turn()

    def turn(self) -> list[wire.Reply]:
        self.endpoint.sent.clear()
        self.loop.turn()
        return self.endpoint.sent.get("link", [])

    def request(self) -> wire.Granted | None:
        replies = self.send(wire.Request(self._numbers + 1, None, 1, 0, None, None, wait=False))
        return next((reply for reply in replies if isinstance(reply, wire.Granted)), None)

    def use(self, most: int) -> int:
        """Lease and release until no more is granted; return how often."""
        for count in range(most):
            granted = self.request()
            if granted is None:
                return count
            self.send(wire.End(granted.lease, None, True))
        return most


def test_suspend_passes_no_limit_of_a_day() -> None:  # invariant 2
    driver = Driver(FakeEndpoint(), requests_per_day=5, max_concurrent=5)
    assert driver.use(20) == 5
    driver.endpoint.pass_time(8 * HOUR)  # suspended: the boot clock passes, and it is 04:00 of the next day
    driver.turn()
    assert driver.use(20) == 5
    driver.endpoint.pass_time(19.9 * HOUR)
    assert driver.use(20) == 0
    driver.endpoint.pass_time(0.2 * HOUR)
    driver.turn()
    assert driver.use(20) == 5


@pytest.mark.parametrize("hours", [-6.0, 2.0])
def test_stepped_wall_clock_moves_the_end_of_the_day(hours: float) -> None:
    driver = Driver(FakeEndpoint(), requests_per_day=5, max_concurrent=5)
    assert driver.use(20) == 5
    driver.endpoint.wall += hours * HOUR
    for _ in range(3):
        driver.turn()
    assert driver.use(20) == 0  # a step is no new day
    driver.endpoint.pass_time((4.0 - hours) * HOUR + 1.0)  # midnight by the new wall clock
    for _ in range(3):
        driver.turn()
    assert driver.use(20) == 5


def test_next_owner_serves_at_once_what_ended_process_held() -> None:  # invariant 12
    endpoint = FakeEndpoint()
    assert Driver(endpoint, max_concurrent=1).request() is not None
    endpoint.ended.add("m")
    endpoint.sent.clear()
    loop = OwnerLoop(endpoint)
    loop.turn()
    declared = wire.Declaration("k", "g", "p", [], limits_fields(Limits(max_concurrent=1)), "print")
    hello = wire.Hello(wire.PROTOCOL, "n", "host", 1, None, TTL, [declared], [], [])
    request = wire.Request(1, None, 1, 0, None, None, wait=False)
    endpoint.incoming.append(("other", wire.encode([(1, hello), (2, request)])))
    loop.turn()
    assert any(isinstance(reply, wire.Granted) for reply in endpoint.sent["other"])


def test_suspended_owner_excuses_silent_members() -> None:
    driver = Driver(FakeEndpoint())
    granted = driver.request()
    assert granted is not None
    driver.endpoint.pass_time(8 * HOUR)
    driver.send(wire.Heartbeat([granted.lease]))
    assert driver.loop._owner.allocator.credentials["k"].leases.keys() == {granted.fence}
    for _ in range(40):
        driver.turn()  # a second each: now the member is silent itself
    assert not driver.loop._owner.sessions


def test_full_disk_is_told_and_frames_are_kept() -> None:  # invariant 47
    driver = Driver(FakeEndpoint())
    endpoint = driver.endpoint
    endpoint.failures = [StoreLost("the disk is full")] * 3
    beat = wire.encode([(100, wire.Heartbeat([]))])
    receive = endpoint.receive

    def receive_late(timeout: float) -> list[tuple[Hashable, bytes | None]]:
        late: list[tuple[Hashable, bytes | None]] = [("link", beat)] if len(endpoint.failures) == 1 else []
        return receive(timeout) + late

    endpoint.receive = receive_late  # type: ignore[method-assign]
    replies = driver.send(wire.Request(7, None, 1, 0, None, None))
    kinds = [type(reply) for reply in replies]
    assert kinds[0] is wire.Unavailable
    assert replies[0].reason == "the disk is full"  # type: ignore[union-attr]
    assert kinds[-2:] == [wire.Granted, wire.Unavailable]
    assert replies[-1].reason == ""  # type: ignore[union-attr]
    driver.turn()
    assert driver.loop._owner.sessions["m"].heard == 100


def test_missing_journal_is_written_anew() -> None:
    driver = Driver(FakeEndpoint())
    driver.endpoint.failures = [JournalMissing()]
    granted = driver.request()
    assert granted is not None
    assert driver.endpoint.rewritten == 1
    successor = OwnerLoop(driver.endpoint)
    assert successor._owner.allocator.credentials["k"].leases.keys() == {granted.fence}


@pytest.mark.parametrize("batch", [b"", b"\xc1", b"\x91\x91\xcc\xff", b"\x91\x98\x04\x63\x01\xa1k\x01\x01\x00\xc0"])
def test_unreadable_entries_are_left_out_once(batch: bytes) -> None:  # invariants 46, 48
    driver = Driver(FakeEndpoint(), requests_per_day=5)
    assert driver.use(2) == 2
    for _ in range(3):
        driver.turn()
    driver.endpoint.batches.insert(1, (EVENING, batch))
    successor = Driver(driver.endpoint, requests_per_day=5)
    assert successor.request() is None  # what was granted is not known
    driver.endpoint.pass_time(owner_process.UNREADABLE_HOLD)
    successor.turn()
    assert successor.use(9) == 3  # what can be read counts
    third = Driver(driver.endpoint, requests_per_day=5)
    assert not third.loop._owner.is_recovering  # a snapshot has replaced it


def test_day_in_zone_unknown_to_successor_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:  # invariants 2, 47
    limits = {"requests_per_day": 5, "day_resets": "00:00 America/Los_Angeles", "max_concurrent": 5}
    driver = Driver(FakeEndpoint(), **limits)
    assert driver.use(3) == 3
    for _ in range(3):
        driver.turn()
    monkeypatch.setattr(reset_times, "time_zone", lambda name: UTC if name == "UTC" else None)
    endpoint = driver.endpoint
    successor = OwnerLoop(endpoint)
    assert not successor._owner.is_recovering
    credential = successor._owner.allocator.credentials["k"]
    assert credential.limits.requests_per_day == 5
    hello = wire.Hello(wire.PROTOCOL, "other", "host", 1, None, TTL, [], [], [])
    endpoint.incoming.append(("other", wire.encode([(1, hello)])))
    successor.turn()
    assert isinstance(endpoint.sent["other"][0], wire.Welcome)  # members without this key are served
    assert credential.group.pace.limiter is not None
    endpoint.pass_time(48 * HOUR)
    successor.turn()
    now = endpoint.clock.now()
    credential.group.pace.limiter.use(2, 0, now, now)
    (state,) = ANSWERS["states"](successor._owner, None, now)
    assert (
        state.waits_for == "requests per day; the pool's owner cannot tell the end of the day 00:00 America/Los_Angeles"
    )
    waiting = ANSWERS["explain"](successor._owner, None, now, None)
    assert waiting.limit == state.waits_for
    monkeypatch.undo()
    third = Driver(endpoint, **limits)  # it knows the zone again
    assert third.use(9) == 5


def test_owner_ends_in_order_although_it_cannot_write() -> None:
    endpoint = FakeEndpoint()
    loop = OwnerLoop(endpoint)
    endpoint.failures = [StoreLost("the disk is full")] * 9
    loop.run()
