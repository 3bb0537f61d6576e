"""The locks by which an owner learns that the process of a member has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentos.pool.shared._machine import member_lock
from agentos.pool.shared._machine.member_lock import MemberLock, has_ended

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such locks")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pool.db"


def session_of_ended_process(path: Path) -> str:
    program = "import sys, pathlib; from agentos.pool.shared._machine.member_lock import MemberLock; "
    program += "lock = MemberLock(pathlib.Path(sys.argv[1])); print(lock.session_id)"
    command = [sys.executable, "-c", program, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_lock_is_free_after_its_process_ended(path: Path) -> None:
    first, second = MemberLock(path), MemberLock(path)
    ended = session_of_ended_process(path)
    assert has_ended(path, ended)
    assert not has_ended(path, first.session_id)
    second.close()  # of the same process: releases no other lock
    assert has_ended(path, second.session_id)
    assert not has_ended(path, first.session_id)
    first.close()


def test_lock_in_another_file_says_nothing(path: Path) -> None:
    """T1 locks a byte of a file, the file is removed, T2 creates it again: the byte of T1 is free in the new one."""
    first = MemberLock(path)
    path.with_name("pool.db-members").unlink()
    assert not has_ended(path, first.session_id)  # no file
    second = MemberLock(path)
    assert not has_ended(path, first.session_id)
    first.close()
    second.close()


@pytest.mark.parametrize("session_id", ["", "0123456789abcdef", "-", "x-y", "ffffffffffffffffffff-", "é-é"])
def test_session_of_another_kind_counts_as_alive(path: Path, session_id: str) -> None:
    lock = MemberLock(path)
    assert not has_ended(path, session_id)
    place = lock.session_id.partition("-")[2]
    assert not has_ended(path, f"no number-{place}")
    lock.close()


def test_file_is_removed_without_members_only(path: Path) -> None:
    lock = MemberLock(path)
    member_lock.remove(path)
    assert not has_ended(path, lock.session_id)
    assert path.with_name("pool.db-members").stat().st_mode & 0o077 == 0
    lock.close()
    member_lock.remove(path)
    member_lock.remove(path)
    assert list(path.parent.iterdir()) == []


def test_file_removed_before_lock_is_opened_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1 opens the file, an owner that ends removes it, T1 locks the removed file: it must open the new one."""
    try_lock = member_lock._try_lock
    removals = iter([True])

    def lock_after_removal(descriptor: int, start: int, length: int) -> bool:
        if next(removals, False):
            path.with_name("pool.db-members").unlink()
        return try_lock(descriptor, start, length)

    monkeypatch.setattr(member_lock, "_try_lock", lock_after_removal)
    lock = MemberLock(path)
    monkeypatch.undo()
    assert not has_ended(path, lock.session_id)
    assert path.with_name("pool.db-members").exists()
    lock.close()
    assert has_ended(path, lock.session_id)


def test_folder_that_cannot_be_written_has_no_locks(tmp_path: Path) -> None:
    lock = MemberLock(tmp_path / "missing" / "pool.db")
    assert lock.session_id.isalnum()
    lock.close()
