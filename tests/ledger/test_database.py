"""Files that are not a usable ledger: refused with a clear error, and left unchanged."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentos.workflows.parallel import (
    Ledger,
    LedgerError,
    RunBusy,
)

from .runs import Doubling, coordinator_of


def test_second_run_on_one_ledger_raises_run_busy(path: Path) -> None:  # invariant 27
    may_end = threading.Event()
    with coordinator_of(path).stream(["a"], lambda *_: may_end.wait(30)) as results:
        with pytest.raises(RunBusy) as caught:
            coordinator_of(path).execute_parallel(["b"], Doubling())
        assert caught.value.pid == os.getpid()
        may_end.set()
        list(results)
    coordinator_of(path).execute_parallel(["b"], Doubling())


def damage(kind: str, path: Path) -> None:
    data = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif kind == "cut to the header":
        path.write_bytes(data[:50])
    elif kind == "foreign":
        path.write_bytes(b"These are my notes. " * 100)
    elif kind == "another program's":
        path.unlink()
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE mine (a)")
        connection.commit()
        connection.close()
    elif kind == "newer":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif kind == "scrambled":
        path.write_bytes(data[:4096] + bytes(len(data) - 4096))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("empty", "is empty"),
        ("cut off", "damaged"),
        ("cut to the header", "damaged|not a ledger"),
        ("foreign", "not a ledger"),
        ("another program's", "another program"),
        ("newer", "newer version"),
        ("scrambled", "damaged"),
    ],
)
def test_damaged_or_foreign_file_is_refused_unchanged(path: Path, kind: str, words: str) -> None:
    coordinator_of(path).execute_parallel(range(2000), Doubling())
    damage(kind, path)
    content = path.read_bytes()
    worker = Doubling()
    with pytest.raises(LedgerError, match=words):
        coordinator_of(path).execute_parallel(range(2000), worker)
    assert worker.calls == []
    assert path.read_bytes() == content
    assert not path.with_name("run.db-lock").exists()
    with pytest.raises(LedgerError, match=words), Ledger.open(path) as ledger:
        list(ledger.items())


def test_missing_folder_or_folder_as_path_raises_ledger_error(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no folder"):
        coordinator_of(tmp_path / "none" / "run.db").execute_parallel([1], Doubling())
    with pytest.raises(LedgerError, match="is not a file"):
        coordinator_of(tmp_path).execute_parallel([1], Doubling())
    with pytest.raises(LedgerError, match="there is no ledger"):
        Ledger.open(tmp_path / "run.db")


def call_without_privileges(call: Callable[[], str]) -> str:
    """Return the result or the error of a call in a forked process without the privileges of root."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            message = call()
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write_end, message.encode())
        os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    with os.fdopen(read_end, encoding="utf-8") as file:
        return file.read()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_named(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(LedgerError, match=f"cannot be locked: {os.strerror(number)}: put it on a file system with"):
        coordinator_of(path).execute_parallel([1], Doubling())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_read_only_ledger_can_be_read_but_not_run() -> None:
    folder = Path(tempfile.mkdtemp())  # pytest's folder can be entered by its owner only
    path = folder / "run.db"
    folder.chmod(0o755)
    try:
        coordinator_of(path).execute_parallel([1], Doubling())
        folder.chmod(0o555)
        path.chmod(0o444)
        for name in ("new.db", "run.db"):
            message = call_without_privileges(
                lambda name=name: str(coordinator_of(folder / name).execute_parallel([2], Doubling()))
            )
            assert message.startswith(f"LedgerError: the ledger {folder / name} cannot be written")
            assert "Permission denied" in message
        assert call_without_privileges(lambda: str(Ledger.open(path).counts().succeeded)) == "1"
        assert [entry.name for entry in folder.iterdir()] == ["run.db"]
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_missing_ledger_with_wal_file_is_refused(path: Path) -> None:
    coordinator_of(path).execute_parallel(range(3), Doubling())
    path.rename(path.with_name("elsewhere"))
    path.with_name("run.db-wal").write_bytes(b"something")
    with pytest.raises(LedgerError, match="-wal exists"):
        coordinator_of(path).execute_parallel(range(3), Doubling())
