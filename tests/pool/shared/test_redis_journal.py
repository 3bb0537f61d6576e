"""The journal of a pool on a server: what is noticed of a lost key, an old copy, a restart and a stepped clock."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from agentos.pool.shared._owner.entries import JOIN, Snapshot, encode_entries, encode_snapshot
from agentos.pool.shared._server import redis_journal
from agentos.pool.shared._server.redis_journal import LOCK_MS, UNKNOWN_TTL, RedisJournal, read_content
from agentos.pool.shared._server.server_client import PoolClient, PoolServer
from agentos.pool.shared.transport import Deposed, JournalMissing, Loaded, StoreRefused
from tests.support.valkey import Valkey, running

LOCK, META, JOURNAL, SNAPSHOT = (f"{{agentos:pool}}:{part}" for part in ("owner", "meta", "journal", "snapshot"))
ENTRIES = encode_entries([(JOIN, 1, "session", "host", 1, None, 7.0)])
STATE = encode_snapshot(Snapshot(0.0, 1, [], [], [], [], [], {}))


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with running() as server:
        yield server


@pytest.fixture
def db(server: Valkey) -> Iterator[redis.Redis]:
    with server.client() as db:
        db.flushall()
        db.config_resetstat()
        yield db


@pytest.fixture(autouse=True)
def _old_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_journal, "MIN_UPTIME", -1)


class Writer:
    """An owner's journal with its lock."""

    def __init__(self, url: str) -> None:
        self.client: PoolClient = PoolServer(url).connect()
        lock = self.client.run("find", "nowhere")[0] or b""
        self.token = self.client.run("take", secrets.token_hex(8), LOCK_MS, lock).decode()
        self.client.run("announce", self.token, LOCK_MS, "nowhere", b"")
        self.journal = RedisJournal(self.client, self.token)
        self.loaded: Loaded = self.journal.load()

    def commit(self, entries: bytes | None = ENTRIES) -> None:
        self.journal.commit(self.journal.clock.now(), entries, [])


@pytest.fixture
def writer(server: Valkey, db: redis.Redis) -> Writer:
    return Writer(server.url())


def filled(writer: Writer) -> Writer:
    """Give a journal a snapshot at position 2, and two batches after it."""
    writer.commit()
    writer.commit()
    writer.journal.save(STATE, 2)
    writer.commit()
    writer.commit()
    return writer


# --- content ----------------------------------------------------------------------------------------------------------


def test_next_owner_reads_snapshot_and_later_batches(server: Valkey, writer: Writer) -> None:
    assert (writer.loaded.position, writer.loaded.snapshot, writer.loaded.hold_seconds) == (0, None, 0.0)
    filled(writer)
    loaded = Writer(server.url()).loaded
    assert (loaded.position, loaded.snapshot, loaded.hold_seconds) == (4, STATE, 0.0)
    assert [entries for _, entries in loaded.batches] == [ENTRIES, ENTRIES]
    assert loaded.identity == writer.loaded.identity
    assert [owner.position for owner in loaded.owners] == [0, 4]
    assert loaded.owners[0].nonce == writer.token


def test_snapshot_removes_batches_and_unused_pools_expire(writer: Writer, db: redis.Redis) -> None:
    filled(writer)
    assert db.llen(JOURNAL) == 2
    assert all(0 < db.ttl(name) <= redis_journal.UNUSED_SECONDS for name in (META, SNAPSHOT))
    assert 0 < db.pttl(LOCK) <= LOCK_MS


def test_repeated_commit_is_appended_once(writer: Writer, db: redis.Redis) -> None:
    """The reply of a commit is lost with the connection: its owner does not know that it was carried out."""
    position = writer.journal._position
    writer.commit()
    writer.journal._position = position
    writer.commit()
    assert (db.llen(JOURNAL), db.hget(META, "position")) == (1, b"1")


def test_replaced_owner_writes_and_says_nothing(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    """invariant 47"""
    successor = Writer(server.url())
    heard = db.pubsub()
    heard.subscribe("told")
    assert heard.get_message(timeout=5)
    with pytest.raises(Deposed):
        writer.journal.commit(0.0, ENTRIES, [("told", b"a grant")])
    with pytest.raises(Deposed):
        writer.journal.commit(0.0, None, [("told", b"a reply")])
    for write in (
        lambda: writer.journal.save(STATE, 0),
        lambda: writer.journal.rewrite(0.0, STATE, 0),
        lambda: writer.journal.renew("told", b"x"),
    ):
        with pytest.raises(Deposed):
            write()
    db.delete(LOCK)  # the lock of the successor expires: the journal still knows its writer
    with pytest.raises(Deposed):
        writer.commit()
    assert heard.get_message(timeout=0.05) is None
    heard.close()
    successor.commit()


def test_expired_lock_that_nobody_took_is_taken_again(writer: Writer, db: redis.Redis) -> None:
    db.delete(LOCK)
    writer.commit()
    assert db.get(LOCK) == writer.token.encode()


def test_token_of_a_flushed_server_is_never_repeated(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    """T1: the server is flushed. T2: another owner gets the same epoch. T3: the first one is refused by its nonce."""
    db.flushall()
    successor = Writer(server.url())
    assert successor.token.partition(":")[0] == writer.token.partition(":")[0]
    with pytest.raises(Deposed):
        writer.commit()
    with pytest.raises(Deposed):
        writer.journal.rewrite(0.0, STATE, 0)


def test_journal_of_newer_format_is_refused(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    db.hset(META, "format", 999)
    with pytest.raises(StoreRefused, match="newer version"):
        Writer(server.url())


# --- loss -------------------------------------------------------------------------------------------------------------

LOSSES: dict[str, Any] = {
    "meta": lambda db: db.delete(META),
    "journal": lambda db: db.delete(JOURNAL),
    "snapshot": lambda db: db.delete(SNAPSHOT),
    "all": lambda db: db.flushall(),
    "one batch": lambda db: db.rpop(JOURNAL),
    "older position": lambda db: db.hset(META, "position", 3),
    "wrong type": lambda db: (db.delete(JOURNAL), db.set(JOURNAL, "garbage")),
    "wrong meta": lambda db: (db.delete(META), db.set(META, "garbage")),
    "garbage batch": lambda db: db.rpush(JOURNAL, "garbage"),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_owner_writes_lost_keys_from_its_memory(server: Valkey, writer: Writer, db: redis.Redis, loss: Any) -> None:
    filled(writer)
    loss(db)
    with pytest.raises(JournalMissing):
        writer.commit()
    writer.journal.rewrite(writer.journal.clock.now(), STATE, 5)
    writer.commit()
    loaded = Writer(server.url()).loaded
    assert (loaded.identity, loaded.position, loaded.hold_seconds) == (writer.loaded.identity, 6, 0.0)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_new_owner_notices_loss_before_any_grant(
    server: Valkey, writer: Writer, db: redis.Redis, loss: Any
) -> None:  # invariant 48
    filled(writer)
    loss(db)
    db.delete(LOCK)
    loaded = Writer(server.url()).loaded
    assert loaded.hold_seconds >= 7.0  # the time to live of the session in the journal, or the default
    assert Writer(server.url()).loaded.hold_seconds > 6.0  # also if the owner that noticed it dies


def test_lost_lock_alone_delays_nothing(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    filled(writer)
    db.delete(LOCK)
    assert Writer(server.url()).loaded.hold_seconds == 0.0


def test_snapshot_loss_begins_another_journal(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    """Members see another identity, and report what they have used."""
    filled(writer)
    db.delete(SNAPSHOT)
    loaded = Writer(server.url()).loaded
    assert loaded.identity != writer.loaded.identity
    assert (loaded.position, loaded.batches) == (0, [])
    assert loaded.hold_seconds == UNKNOWN_TTL


def test_restarted_server_delays_grants(server: Valkey, writer: Writer, db: redis.Redis) -> None:  # invariant 48
    """It may have loaded an older copy of its data."""
    filled(writer)
    db.hset(META, "run_id", "another start of the server")
    assert Writer(server.url()).loaded.hold_seconds == 7.0


def test_server_that_denies_info_always_delays(
    monkeypatch: pytest.MonkeyPatch, server: Valkey, db: redis.Redis
) -> None:
    monkeypatch.setattr(PoolClient, "info", lambda _client, _section: None)
    writer = Writer(server.url())
    assert writer.loaded.hold_seconds == UNKNOWN_TTL
    filled(writer)
    db.hset(META, "hold_until", 0)
    assert Writer(server.url()).loaded.hold_seconds == 7.0


def test_owner_that_survives_a_restart_notes_it(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    filled(writer)
    db.hset(META, "run_id", "another start of the server")
    writer.journal.note_server()
    writer.journal.renew("nowhere", b"")
    assert Writer(server.url()).loaded.hold_seconds == 0.0


def test_renewal_hides_no_older_copy(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    """T1: the server is restarted with an older copy. T2: the owner renews its lock and is killed. T3: another one."""
    filled(writer)
    db.hset(META, mapping={"run_id": "another start of the server", "position": 3})
    db.rpop(JOURNAL)
    writer.journal.note_server()
    writer.journal.renew("nowhere", b"")
    assert Writer(server.url()).loaded.hold_seconds == 7.0


@pytest.mark.parametrize("garbage", ["nan", "inf", "-1", "1e300", "x"])
@pytest.mark.parametrize("field", ["at", "wall", "server", "hold_until"])
def test_garbage_instead_of_instants_stops_no_clock(
    server: Valkey, writer: Writer, db: redis.Redis, field: str, garbage: str
) -> None:  # invariant 46
    filled(writer)
    db.hset(META, mapping={field: garbage, b"\xff": b"\xff"})
    loaded = Writer(server.url()).loaded
    assert abs(loaded.now - time.time()) < 60
    assert loaded.hold_seconds <= UNKNOWN_TTL


@pytest.mark.parametrize("reason", ["young", "flushed", "evicted"])
def test_new_journal_waits_unless_server_is_known(
    monkeypatch: pytest.MonkeyPatch, server: Valkey, db: redis.Redis, reason: str
) -> None:
    if reason == "young":
        monkeypatch.setattr(redis_journal, "MIN_UPTIME", 1e9)
    elif reason == "flushed":
        db.flushdb()
    else:
        asked = PoolClient.info
        monkeypatch.setattr(
            PoolClient, "info", lambda client, section: {**(asked(client, section) or {}), "evicted_keys": 1}
        )
    assert Writer(server.url()).loaded.hold_seconds == UNKNOWN_TTL


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", ["wall", "server"])
@pytest.mark.parametrize("step", [3600.0, -3600.0])
def test_step_of_one_clock_neither_forgets_nor_blocks(
    server: Valkey, writer: Writer, db: redis.Redis, clock: str, step: float
) -> None:
    """The last owner noted `clock` an hour ahead, or behind: since then it was stepped back, or forth."""
    filled(writer)
    before = writer.journal.clock.now()
    writer.journal.renew("nowhere", b"")
    noted = float(db.hget(META, clock) or 0)
    db.hset(META, clock, noted + step)
    loaded = Writer(server.url()).loaded
    assert 0.0 <= loaded.now - before < 60.0


def test_clock_never_goes_behind_the_last_batch(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    writer.journal.commit(writer.journal.clock.now() + 50.0, ENTRIES, [])
    assert Writer(server.url()).loaded.now >= writer.journal.clock.now() + 49.0


def test_time_between_two_owners_passes(
    monkeypatch: pytest.MonkeyPatch, server: Valkey, writer: Writer, db: redis.Redis
) -> None:
    filled(writer)
    before = writer.journal.clock.now()
    db.hset(META, "server", time.time() - 100)
    monkeypatch.setattr(redis_journal, "wall_time", lambda: time.time() + 100)
    assert 99.0 < Writer(server.url()).loaded.now - before < 160.0


def test_looking_changes_nothing(server: Valkey, writer: Writer, db: redis.Redis) -> None:
    filled(writer)
    before = {name: db.dump(name) for name in (LOCK, META, JOURNAL, SNAPSHOT)}
    content = read_content(writer.client)
    assert (content.position, content.is_complete, content.is_new) == (4, True, False)
    assert {name: db.dump(name) for name in (LOCK, META, JOURNAL, SNAPSHOT)} == before
