"""The lock of an owner, and the note in its file."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from agentos.pool.shared._machine import owner_lock
from agentos.pool.shared._machine.owner_lock import Note
from agentos.pool.shared.transport import StoreLost, StoreRefused

NOTE = Note("nonce", "/socket", "host", "boot", 1.0, 7)


def test_lock_is_taken_once_and_freed_by_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    first = owner_lock.take(path)
    assert first is not None
    assert owner_lock.take(path) is None
    os.close(first)
    second = owner_lock.take(path)
    assert second is not None
    os.close(second)


def test_lock_file_that_was_removed_is_not_current(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    old = owner_lock.take(path)
    assert old is not None
    assert owner_lock.is_current(old, path)
    owner_lock.remove(path)
    assert not owner_lock.is_current(old, path)
    new = owner_lock.take(path)  # although the old one is held
    assert new is not None
    assert owner_lock.is_current(new, path)
    assert not owner_lock.is_current(old, path)
    os.close(old)
    os.close(new)


def test_note_is_replaced_by_a_shorter_one(tmp_path: Path) -> None:
    path = tmp_path / "pool.db"
    lock = owner_lock.take(path)
    assert lock is not None
    owner_lock.write_note(lock, Note("n" * 1000, "/s" * 50, "host", "boot", 1.0))
    owner_lock.write_note(lock, NOTE)
    assert owner_lock.read_note(path) == NOTE
    os.close(lock)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"nonce": 5}', b"\xff" * 100])
def test_note_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pool.db"
    owner_lock.lock_path(path).write_bytes(content)
    assert owner_lock.read_note(path) is None


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.EACCES, StoreRefused, "may not be written by this user"),
        (errno.EROFS, StoreRefused, "choose another place"),
        (errno.ENAMETOOLONG, StoreRefused, "choose another place"),
        (errno.ENOSPC, StoreLost, "No space left"),
        (errno.EMFILE, StoreLost, "Too many open files"),
    ],
)
def test_error_of_the_folder_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], text: str
) -> None:
    def fail(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(error, match=text):
        owner_lock.take(tmp_path / "pool.db")


def test_lock_of_file_removed_meanwhile_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1 opens the file, its owner removes it and ends, T1 locks the removed file."""
    path, lock, removed = tmp_path / "pool.db", fcntl.flock, []

    def lock_removed_file(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(owner_lock.lock_path(path).unlink())
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_removed_file)
    descriptor = owner_lock.take(path)
    assert descriptor is not None
    assert owner_lock.is_current(descriptor, path)
    os.close(descriptor)
