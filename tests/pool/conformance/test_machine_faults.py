"""Faults of the file of a pool that the processes of a machine share, and of its place."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos import errors
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool.shared._machine import machine_gate as machine
from agentos.pool.shared._machine import owner_lock, pool_file, sqlite_journal
from agentos.pool.shared._machine.owner_lock import Note
from agentos.pool.shared._member import member
from agentos.pool.shared._owner import owner_child
from tests.conftest import BUSY, eventually

from .members import Processes
from .observed_pool import TTL, ObservedPool

KEEP = {"requests_per_minute": 600, "burst": 600, "requests_per_day": 1000, "max_concurrent": 2}


class Pool(ObservedPool):
    """A coordinator of a pool in a file."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(f"sqlite:///{path}", **options)


# Runs an owner that ends soon after its last member, and pauses shortly after entries that it cannot read.
OWNER = (
    "import sys; from agentos.pool.shared._owner import owner_process as owner\n"
    "owner.IDLE_SECONDS, owner.CHECK_SECONDS, owner.UNREADABLE_HOLD = 0.4, 0.2, 0.5\n"
)
MAIN = "owner.main(sys.argv[1:])\n"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(owner_child, "OWNER_COMMAND", [sys.executable, "-c", OWNER + MAIN])
    monkeypatch.setattr(member, "CONNECT_SECONDS", 0.5)
    yield tmp_path / "pool.db"
    member.close_all()


def owner_pid(path: Path) -> int:
    eventually(lambda: (note := owner_lock.read_note(path)) is not None and note.pid)
    note = owner_lock.read_note(path)
    assert note is not None
    return note.pid


def wait_until_unused(path: Path) -> None:
    """Wait until no owner has the file: everything is in it, and nothing is beside it."""
    member.close_all()
    eventually(lambda: not owner_lock.lock_path(path).exists())


def wait_for_check() -> None:
    """Wait until the owner looks at its files again with the next commit."""
    until = time.monotonic() + 1.5 * sqlite_journal.FILE_CHECK_SECONDS
    eventually(lambda: time.monotonic() > until)


# --- the file, while an owner runs ------------------------------------------------------------------------------------


def remove(path: Path) -> None:
    path.unlink()


def remove_all(path: Path) -> None:
    for part in path.parent.glob("pool.db*"):
        if not part.name.endswith("-owner"):
            part.unlink()


def remove_wal(path: Path) -> None:
    Path(f"{path}-wal").unlink()


def remove_shm(path: Path) -> None:
    Path(f"{path}-shm").unlink()


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def replace_by_text(path: Path) -> None:
    path.unlink()
    path.write_text("no database" * 1000)


def replace_by_database(path: Path) -> None:
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE of_another_program (x)")
        database.commit()


DAMAGES = [remove, remove_all, remove_wal, remove_shm, truncate, replace_by_text, replace_by_database]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_running_owner_writes_lost_file_anew(path: Path, damage: Callable[[Path], None]) -> None:
    # invariants 1, 13, 48: the owner knows everything, and its members notice nothing
    first, second = Pool(path, ttl=30, **KEEP), Pool(path, ttl=30, **KEEP)
    with first.pool.lease() as lease:
        damage(path)
        wait_for_check()
        fence = second.fence()
        assert fence > lease.fence
        os.kill(owner_pid(path), signal.SIGKILL)  # the next one reads the new file
        assert second.fence() > fence
        assert second.pool.states()[0].live_leases == 1
    assert not first.events_of(StoreUnreachable)
    eventually(lambda: second.pool.states()[0].live_leases == 0)
    assert second.used() == 3
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert path.stat().st_mode & 0o077 == 0


def test_older_copy_in_place_of_file_is_moved_aside(path: Path) -> None:  # invariant 48
    first = Pool(path, ttl=30, **KEEP)
    first.fence()
    copied = path.with_name("copied.db")
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(copied)) as target:
        source.backup(target)
    with first.pool.lease() as lease:
        shutil.move(copied, path)
        wait_for_check()
        assert first.fence() > lease.fence
        assert path.with_name("pool.db.damaged-1").exists()
    assert first.used() == 3


def test_file_lost_with_its_owner_delays_grants(path: Path) -> None:  # invariants 1, 13, 48
    holder, second = Pool(path, ttl=TTL, **KEEP), Pool(path, ttl=TTL, **KEEP)
    with holder.pool.lease() as lease:
        pid = owner_pid(path)
        os.kill(pid, signal.SIGSTOP)
        remove_all(path)
        os.kill(pid, signal.SIGKILL)
        lost_at = time.monotonic()
        assert second.fence() > lease.fence
        assert time.monotonic() - lost_at > 0.9 * TTL
        assert second.pool.states()[0].live_leases == 1  # its member has reported it
        assert second.pool.states()[0].fence > lease.fence
    eventually(lambda: second.pool.states()[0].live_leases == 0)


def test_older_copy_written_past_is_noticed(path: Path, processes: Processes) -> None:  # invariants 1, 48
    """T1 holds a lease and is stopped; its owner is killed, and the file replaced by a copy from before the lease; T2
    takes leases until the journal is longer than T1 has seen it; T1 continues."""
    first = Pool(path, ttl=TTL, **KEEP)
    first.fence()
    copied = path.with_name("copied.db")
    with contextlib.closing(sqlite3.connect(path)) as source, contextlib.closing(sqlite3.connect(copied)) as target:
        source.backup(target)
    credential = {"secret": "sk-fault-0-secret", "id": "key-0", "limits": KEEP}
    holder = processes.open(f"sqlite:///{path}", [credential], ttl=30)
    holder.lease("held")
    held = holder.granted("held")
    holder.pause()
    first.pool.close()
    os.kill(owner_pid(path), signal.SIGKILL)
    remove_all(path)
    shutil.move(copied, path)
    newcomer = Pool(path, ttl=30, **KEEP)
    for _ in range(10):
        newcomer.fence()
    assert holder.pid not in {lease.pid for lease in newcomer.pool.states()[0].held_by}
    holder.resume()
    eventually(lambda: holder.pid in {lease.pid for lease in newcomer.pool.states()[0].held_by})
    assert newcomer.is_refused()
    assert newcomer.pool.states()[0].fence > held["fence"]


def test_removed_folder_is_created_again(path: Path, tmp_path: Path) -> None:
    inner = tmp_path / "folder" / "pool.db"
    first = Pool(inner, ttl=TTL)
    fence = first.fence()
    shutil.rmtree(inner.parent)
    eventually(lambda: not first.is_refused(1.0) and inner.exists())
    assert first.fence() > fence


def test_owner_without_socket_file_is_replaced(path: Path) -> None:
    first = Pool(path, ttl=30)
    pid = owner_pid(path)
    note = owner_lock.read_note(path)
    assert note is not None
    Path(note.socket).unlink()
    second = Pool(path, ttl=30)
    assert second.fence() < first.fence()
    assert owner_pid(path) != pid


# --- the file, while no owner runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["all", "first page", "middle", "half"])
def test_damaged_file_is_refused_and_unchanged(path: Path, part: str) -> None:
    with Pool(path, count=50).pool as pool:
        pool.release(pool.reserve(timeout=20))
    wait_until_unused(path)
    data = bytearray(path.read_bytes())
    span = {"all": slice(None), "first page": slice(100, 2000), "middle": slice(4096, None), "half": slice(0)}[part]
    data[span] = random.Random(3).randbytes(len(data[span]))
    if part == "half":
        del data[len(data) // 2 :]
    path.write_bytes(data)
    with pytest.raises(errors.StoreError, match=r"damaged \(.*`agentos keys repair --store sqlite:///.*pool.db`"):
        Pool(path)
    wait_until_unused(path)
    assert path.read_bytes() == data


def test_changed_byte_of_snapshot_is_noticed(path: Path) -> None:  # invariant 48
    with Pool(path).pool:
        pass
    wait_until_unused(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        (state,) = database.execute("SELECT state FROM snapshot").fetchone()
        changed = state.replace(b"key-0", b"key-1")
        assert changed != state
        database.execute("UPDATE snapshot SET state = ?", (changed,))
        database.commit()
    with pytest.raises(errors.StoreError, match="checksum"):
        Pool(path)


def test_garbage_entry_is_left_out_after_a_pause(path: Path) -> None:
    # invariants 46, 48
    first = Pool(path, ttl=0.5, **KEEP)
    fence = first.fence()
    first.pool.quarantine("key-0", "refused")
    os.kill(owner_pid(path), signal.SIGSTOP)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("INSERT INTO batches SELECT max(position) + 1, max(at), x'00112233' FROM batches")
        database.commit()
    os.kill(owner_pid(path), signal.SIGKILL)
    eventually(lambda: [state.quarantined for state in first.pool.states()] == ["refused"])  # the rest is kept
    first.pool.restore("key-0")
    assert first.fence() > fence


def test_state_is_kept_from_one_owner_to_the_next(path: Path) -> None:
    first = Pool(path, count=2, **KEEP)
    first.fence()
    first.pool.quarantine("key-1", "refused")
    wait_until_unused(path)
    second = Pool(path, count=2, **KEEP)
    states = {state.key_id: state for state in second.pool.states()}
    assert states["key-1"].quarantined == "refused"
    assert states["key-0"].used["requests per day"] == (1, 1000)
    assert states["key-0"].used["requests per minute"] == (1, 600)


def test_file_is_private_and_does_not_grow(path: Path) -> None:
    mask = os.umask(0)
    try:
        pool = Pool(path, ttl=30).pool
        for _ in range(3000):
            pool.release(pool.reserve(timeout=20))
        assert all(part.stat().st_mode & 0o077 == 0 for part in path.parent.iterdir())
        sizes = sum(part.stat().st_size for part in path.parent.iterdir())
        assert sizes < 8 * 1024 * 1024
    finally:
        os.umask(mask)
    wait_until_unused(path)
    assert [part.name for part in path.parent.iterdir()] == ["pool.db"]
    assert path.stat().st_size < 512 * 1024


# --- a disk that is full, a file that is locked -----------------------------------------------------------------------


def limited(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let owners write no byte behind the first 4096 of a file while a file PATH.full exists."""
    program = (
        "import os, resource, signal\n"
        "from agentos.pool.shared._machine import sqlite_journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "commit = sqlite_journal.SqliteJournal.commit\n"
        "def limited(self, at, entries):\n"
        "    size = 4096 if os.path.exists(f'{self.path}.full') else resource.RLIM_INFINITY\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))\n"
        "    commit(self, at, entries)\n"
        "sqlite_journal.SqliteJournal.commit = limited\n"
    )
    monkeypatch.setattr(owner_child, "OWNER_COMMAND", [sys.executable, "-c", OWNER + program + MAIN])


def test_full_disk_grants_nothing_until_there_is_room(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # invariants 1, 47
    limited(path, monkeypatch)
    first, second = Pool(path, ttl=TTL, **KEEP), Pool(path, ttl=TTL, **KEEP)
    full = Path(f"{path}.full")
    with first.pool.lease() as lease:
        full.touch()
        assert second.is_refused()
        eventually(lambda: second.events_of(StoreUnreachable))
        assert "disk" in second.events_of(StoreUnreachable)[0].reason
        with pytest.raises(errors.StoreError, match="disk"):
            Pool(path, ttl=TTL, **KEEP)
        later = time.monotonic() + TTL
        eventually(lambda: time.monotonic() > later)
        full.unlink()
        eventually(lambda: second.events_of(StoreReached))
        assert second.fence() > lease.fence
        assert first.pool.states()[0].live_leases == 1  # heartbeats that came meanwhile count
    eventually(lambda: first.pool.states()[0].live_leases == 0)


def test_locked_file_grants_nothing_until_unlocked(path: Path) -> None:  # invariant 10
    first = Pool(path, ttl=5)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as busy:
        busy.execute("BEGIN IMMEDIATE")
        assert first.is_refused()
        eventually(lambda: first.events_of(StoreUnreachable))
        began = time.monotonic()
        assert first.pool.reserve_credential() is None
        assert time.monotonic() - began < BUSY
        busy.execute("ROLLBACK")
    assert first.fence()
    assert first.events_of(StoreReached)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_path_that_is_no_text_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The note of the owner holds text: its socket is elsewhere then. Messages of the owner name the path escaped."""
    folder = Path(os.fsdecode(os.fsencode(path.parent) + b"/caf\xe9"))
    folder.mkdir()
    with monkeypatch.context() as short_paths:
        short_paths.setattr(machine, "MAX_SOCKET_PATH", 10_000)
        short_paths.setattr(machine, "_bind", lambda name: (None, name))
        assert machine._listen(folder / "pool.db")[1].encode()
    pool = Pool(folder / "pool.db")
    assert pool.fence()
    wait_until_unused(folder / "pool.db")
    (folder / "pool.db").write_bytes(b"no database" * 1000)
    with pytest.raises(errors.StoreError, match=r"caf\\udce9/pool.db is damaged"):
        Pool(folder / "pool.db")


def test_directory_in_place_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.StoreError, match="is a directory: name a file in it"):
        Pool(tmp_path)


def test_file_in_place_of_folder_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    with pytest.raises(errors.StoreError, match="cannot be used as a folder"):
        Pool(file / "pool.db")


def test_read_only_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    with pytest.raises(errors.StoreError, match="may not be written by this user: choose another place"):
        Pool(folder / "pool.db")


def test_foreign_database_is_refused_and_unchanged(path: Path) -> None:
    path.touch()
    replace_by_database(path)
    data = path.read_bytes()
    with pytest.raises(errors.StoreError, match="database of another program: choose another file"):
        Pool(path)
    assert path.read_bytes() == data


def test_newer_journal_is_refused(path: Path) -> None:
    with Pool(path).pool:
        pass
    wait_until_unused(path)
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE meta SET format = 99")
        database.commit()
    with pytest.raises(errors.StoreError, match=r"newer version of agentos .*upgrade agentos"):
        Pool(path)


def test_owner_in_another_container_is_named(path: Path) -> None:
    lock = owner_lock.take(path)
    assert lock is not None
    owner_lock.write_note(lock, Note("nonce", "/nowhere/socket", "elsewhere", "another boot", time.time(), 77))
    try:
        with pytest.raises(errors.StoreError, match=r"runs on elsewhere \(process 77\).*use redis://"):
            Pool(path)
    finally:
        os.close(lock)


def test_pool_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "is_same_user", lambda _socket: False)
    with pytest.raises(errors.StoreError, match="used by another user: choose a store of your own"):
        Pool(path)


def test_network_file_system_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = pool_file.check_place
    mounts = f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {path.parent} rw,x shared:1 - nfs4 server:/x rw\n"
    monkeypatch.setattr(pool_file, "check_place", lambda place: check(place, mounts))
    with pytest.raises(errors.StoreError, match=r"network file system \(nfs4\).*use redis://"):
        Pool(path)
