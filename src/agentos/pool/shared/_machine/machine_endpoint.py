"""MachineEndpoint: the owner's side of a pool on one machine: its journal, its lock, and the sockets of its members."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Container, Hashable
from pathlib import Path

from .._owner.clocks import PoolClock
from ..transport import Deposed, Loaded, StoreLost
from . import member_lock, owner_lock
from .frames import FrameStream
from .machine_gate import is_same_user, remove_old_sockets
from .owner_lock import Note
from .poller import READABLE, WRITABLE, Poller
from .sqlite_journal import SqliteJournal

# Bytes that may wait for a member that does not read them, before its messages wait, too.
MAX_UNREAD = 1024 * 1024
# Seconds after which a link is closed whose member has not greeted the owner.
STRANGER_SECONDS = 10.0


class MachineEndpoint:
    """Journal, lock and sockets of an owner."""

    def __init__(self, path: Path, lock: int, listener: socket.socket, note: Note) -> None:
        self._path = path
        self._lock = lock
        self._listener = listener
        self._note = note
        self._journal = SqliteJournal(path)
        self._poller = Poller()
        self._numbers_by_descriptor = {listener.fileno(): 0}
        self._links: dict[int, FrameStream] = {}
        self._accepted_at: dict[int, float] = {}  # links whose member has not greeted the owner yet
        self._numbers = 0
        listener.setblocking(False)
        self._poller.register(listener.fileno(), READABLE)

    @property
    def clock(self) -> PoolClock:
        return self._journal.clock

    def load(self) -> Loaded:
        # T1 takes the lock and is stopped, T2 replaces it, T1 continues and starts this process: it must not raise the
        # epoch above that of the owner that T2 has started.
        if not self.is_current():
            raise Deposed
        owner_lock.write_note(self._lock, self._note)
        remove_old_sockets(self._path, self._note.socket)
        return self._journal.load()

    def receive(self, timeout: float) -> list[tuple[Hashable, bytes | None]]:
        arrived: list[tuple[Hashable, bytes | None]] = []
        for descriptor, events in self._poller.wait(max(0.0, timeout)):
            number = self._numbers_by_descriptor[descriptor]
            if number == 0:
                self._accept()
                continue
            stream = self._links[number]
            try:
                if events & ~READABLE and stream.unsent:
                    stream.flush()
                    self._watch(stream)
                if events & ~WRITABLE:
                    arrived += [(number, frame) for frame in stream.receive()]
            except StoreLost:
                self.disconnect(number)
                arrived.append((number, None))
        return arrived

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            while True:
                connection, _ = self._listener.accept()
                if not is_same_user(connection):
                    connection.close()
                    continue
                self._numbers += 1
                self._links[self._numbers] = FrameStream(connection)
                self._accepted_at[self._numbers] = time.monotonic()
                self._numbers_by_descriptor[connection.fileno()] = self._numbers
                self._poller.register(connection.fileno(), READABLE)

    def commit(self, at: float, entries: bytes | None, frames: list[tuple[Hashable, bytes]]) -> None:
        if entries is not None:
            self._journal.commit(at, entries)
        self.send(frames)

    def send(self, frames: list[tuple[Hashable, bytes]]) -> None:
        for number, frame in frames:
            stream = self._links.get(number)  # type: ignore[call-overload]
            if stream is None:
                continue
            try:
                stream.send(frame)
                if stream.unsent:
                    self._watch(stream)
            except StoreLost:
                stream.break_off()  # the next `receive` reads the end of it

    def _watch(self, stream: FrameStream) -> None:
        """Wait until a link can be read; but not while its member leaves many replies unread (back-pressure)."""
        events = 0 if len(stream.unsent) > MAX_UNREAD else READABLE
        self._poller.modify(stream.socket.fileno(), events | (WRITABLE if stream.unsent else 0))

    def is_current(self) -> bool:
        """Return whether members can find this owner: its lock and its socket are where they look."""
        return owner_lock.is_current(self._lock, self._path) and os.path.exists(self._note.socket)  # noqa: PTH110

    def save(self, at: float, snapshot: bytes, position: int) -> None:
        self._journal.save(at, snapshot, position)

    def rewrite(self, at: float, snapshot: bytes, position: int) -> None:
        self._journal.rewrite(at, snapshot, position, self.is_current)

    def has_ended(self, session_id: str) -> bool:
        return member_lock.has_ended(self._path, session_id)

    def disconnect_strangers(self, members: Container[Hashable]) -> None:
        before = time.monotonic() - STRANGER_SECONDS
        for number, accepted_at in list(self._accepted_at.items()):
            if number in members:
                del self._accepted_at[number]
            elif accepted_at < before:
                self.disconnect(number)

    def disconnect(self, connection: Hashable) -> None:
        stream = self._links.pop(connection, None)  # type: ignore[call-overload]
        self._accepted_at.pop(connection, None)  # type: ignore[call-overload]
        if stream is not None:
            descriptor = stream.socket.fileno()
            self._poller.unregister(descriptor)
            del self._numbers_by_descriptor[descriptor]
            stream.close()

    def close(self) -> None:
        is_current = self.is_current()
        with contextlib.suppress(OSError):
            os.unlink(self._note.socket)  # noqa: PTH108
        self._listener.close()
        for number in list(self._links):
            self.disconnect(number)
        self._journal.close()
        if is_current:
            member_lock.remove(self._path)
            owner_lock.remove(self._path)
        os.close(self._lock)
