"""What a store has to do for a pool: one order, one clock, and no gap or loss that goes unnoticed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from agentos.pool._replicas import redis as redis_store
from agentos.pool._replicas import sqlite as sqlite_store
from agentos.pool._replicas.log import Log, StoreRefused
from agentos.pool._replicas.redis import RedisLog
from agentos.pool._replicas.sqlite import SqliteLog
from tests.support.valkey import Valkey, running

TTL = 30.0


class Place(Protocol):
    """Where a log is kept."""

    def open(self) -> Log: ...

    def lose(self) -> None:
        """All that was there is gone, and nobody was told."""


class InFile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> SqliteLog:
        return SqliteLog(self.path)

    def lose(self) -> None:
        with sqlite3.connect(self.path) as connection:
            connection.executescript("DELETE FROM log; DELETE FROM pool;")
        connection.close()


class OnServer:
    def __init__(self, server: Valkey) -> None:
        self.server = server

    def open(self) -> RedisLog:
        return RedisLog(self.server.url())

    def lose(self) -> None:
        with self.server.client() as client:
            client.flushall()


@pytest.fixture(scope="module")
def _server() -> Iterator[Valkey]:
    with running() as server:
        yield server


@pytest.fixture
def server(_server: Valkey) -> OnServer:
    place = OnServer(_server)
    place.lose()
    return place


@pytest.fixture
def file(tmp_path: Path) -> InFile:
    return InFile(tmp_path / "pool.db")


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def said(log: Log, epoch: str, position: int = 0) -> list[bytes] | None:
    entries = log.exchange(epoch, position, None, TTL).entries
    return None if entries is None else [batch for _, batch in entries]


def test_all_read_the_same_batches_in_the_same_order(place: Place) -> None:
    one, other = place.open(), place.open()
    epoch = one.load(TTL).epoch
    assert other.load(TTL).epoch == epoch
    assert one.exchange(epoch, 0, b"a", TTL).entries is not None
    assert [batch for _, batch in other.exchange(epoch, 0, b"b", TTL).entries or ()] == [b"a", b"b"]
    assert said(one, epoch, 1) == [b"b"]
    assert [batch for _, batch in place.open().load(TTL).entries] == [b"a", b"b"]


def test_whoever_is_too_far_behind_is_told_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sqlite_store, redis_store):
        monkeypatch.setattr(module, "KEPT_BEHIND", 1)
    one, behind = place.open(), place.open()
    epoch = one.load(TTL).epoch
    behind.load(TTL)
    for number in range(5):
        one.exchange(epoch, number, b"%d" % number, TTL)
    one.keep(epoch, 4, b"state")
    assert said(behind, epoch, 0) is None
    assert said(behind, epoch, 3) == [b"3", b"4"]
    start = place.open().load(TTL)
    assert (start.state, start.position, [batch for _, batch in start.entries]) == (b"state", 4, [b"4"])


def test_a_log_that_was_made_anew_is_not_taken_for_the_old_one(place: Place) -> None:
    one, other = place.open(), place.open()
    old = one.load(TTL).epoch
    one.exchange(old, 0, b"a", TTL)
    place.lose()
    new = other.load(TTL).epoch
    assert new != old
    answer = one.exchange(old, 1, b"b", TTL)
    assert (answer.epoch, answer.entries) == (new, None)
    assert said(other, new) == []  # what was meant for the old one is not in the new one


def test_a_state_is_not_kept_for_another_log(place: Place) -> None:
    one, other = place.open(), place.open()
    old = one.load(TTL).epoch
    one.exchange(old, 0, b"a", TTL)
    place.lose()
    other.load(TTL)
    one.keep(old, 1, b"state of the old one")
    assert place.open().load(TTL).state is None


# --- a file ---------------------------------------------------------------------------------------------------------


def test_a_file_that_was_replaced_is_not_written_on(file: InFile) -> None:
    one, other = file.open(), file.open()
    old = one.load(TTL).epoch
    file.path.unlink()
    new = other.load(TTL).epoch
    assert one.exchange(old, 0, b"a", TTL).epoch == new
    assert said(other, new) == []


def test_a_log_that_has_become_shorter_is_another_log(file: InFile) -> None:
    """The file was overwritten by an older copy of itself."""
    log = file.open()
    epoch = log.load(TTL).epoch
    for number in range(2):
        log.exchange(epoch, number, b"%d" % number, TTL)
    with sqlite3.connect(file.path) as connection:
        connection.execute("DELETE FROM log WHERE position = 2")
    connection.close()
    answer = log.exchange(epoch, 2, b"2", TTL)
    assert answer.epoch != epoch
    assert answer.entries is None
    assert log.load(TTL).is_doubtful


def test_a_step_of_the_wall_clock_does_not_move_the_time_of_a_file(file: InFile) -> None:
    wall = 1_800_000_000.0
    log = SqliteLog(file.path, monotonic=lambda: 100.0, wall=lambda: wall)
    start = log.load(TTL)
    wall -= 3600.0
    assert log.exchange(start.epoch, 0, b"a", TTL).at == start.at == 1_800_000_000.0


def test_a_file_that_another_version_uses_is_refused_until_its_leases_have_run_out(file: InFile) -> None:
    now = 100.0
    theirs, ours = (SqliteLog(file.path, monotonic=lambda: now, wall=lambda: 1e9) for _ in range(2))
    theirs._rules = "other rules"
    epoch = theirs.load(TTL).epoch
    theirs.exchange(epoch, 0, b"a", TTL)
    with pytest.raises(StoreRefused, match="another version"):
        ours.load(TTL)
    now += TTL + 1.0
    assert ours.load(TTL).epoch != epoch


# --- a server -------------------------------------------------------------------------------------------------------


def test_a_server_that_was_flushed_may_have_forgotten_leases(server: OnServer) -> None:
    server.open().load(TTL)
    server.lose()
    one = server.open()
    start = one.load(TTL)
    assert start.is_doubtful
    assert server.open().load(TTL).is_doubtful  # nobody has said so yet
    one.exchange(start.epoch, 0, b"a", TTL)
    assert not server.open().load(TTL).is_doubtful


def test_a_server_that_was_started_anew_may_have_forgotten_the_last_batches(server: OnServer) -> None:
    one = server.open()
    old = one.load(TTL).epoch
    one.exchange(old, 0, b"a", TTL)
    server.server.restart(keeps_data=True)
    start = server.open().load(TTL)
    assert start.is_doubtful
    assert start.epoch != old
    assert [batch for _, batch in start.entries] == [b"a"]  # it begins with what is left
