"""The members of a pool that several machines share: how they find, start and replace its owner, and talk with it."""

from __future__ import annotations

import os
import secrets
import time
from typing import Any, NamedTuple

import msgspec

from .._owner.owner_child import run_owner
from ..transport import Loaded, StoreLost, StoreRefused
from . import envelopes
from .redis_journal import LOCK_MS, read_content
from .server_client import PoolClient, PoolServer
from .server_line import Line

# Longest time for which a thread waits for the server before it looks for other reasons to return, in seconds.
POLL_SECONDS = 0.5
# Seconds between two looks for the owner while an answer is expected, and while one is being started.
LOOK_SECONDS = 0.1
# Seconds for which the owner's answer is waited for before a look at how many subscribers the question has reached.
ANSWER_SECONDS = 0.02
# Seconds for which a living owner is waited for after a flush or a restart of the server: it knows everything. On a
# loaded machine it needs seconds to connect again, and its successor may have to wait for lost leases.
RETURN_SECONDS = 3.0
_STARTING = ":starting"


class PubSubLink:
    """A link through the channels of a server."""

    def __init__(self, gate: ServerGate, line: Line, nonce: bytes) -> None:
        self._gate = gate
        self._line = line
        self._number = line.start_link()
        self._nonce = nonce  # of the owner, as of its lock
        self._received = 0  # counter of the last envelope
        self._asked_at: float | None = None  # when a frame was sent that was not followed by an envelope yet
        self._is_woken = False

    def send(self, frame: bytes, is_flushed: bool = False) -> None:
        if self._line.failure:
            raise StoreLost(self._line.failure)
        if self._asked_at is None:
            self._asked_at = time.monotonic()
        self._line.post(self._number, frame, is_flushed)

    def flush(self, receives: bool = False) -> None:
        self._line.flush(receives)

    def receive(self, timeout: float) -> list[bytes]:
        end = time.monotonic() + timeout
        while True:
            if self._line.failure:
                raise StoreLost(self._line.failure)
            if self._line.is_unheard:
                raise StoreLost("its owner has ended")
            left = end - time.monotonic()
            wait = POLL_SECONDS if self._asked_at is None else LOOK_SECONDS
            if self._line.unread_counts:
                wait = ANSWER_SECONDS
            message = self._line.receive(max(0.0, min(left, wait)))
            frame = None if message is None else self._take(*message)
            if frame is not None:
                return [frame]
            if self._is_woken or left <= 0.0:
                self._is_woken = False
                return []
            if message is None and self._line.unread_counts:
                self._line.finish_publish()
            elif message is None and self._asked_at is not None:
                self._look_for_owner()

    def _take(self, channel: str, data: bytes) -> bytes | None:
        """Return the frame of a message. Raises `StoreLost` if another owner has taken over, or a message was lost."""
        if channel == self._gate.server.up:
            if data != self._nonce:
                raise StoreLost("another owner has taken over")
            return None
        tell = envelopes.unpack_tell(data)
        if tell is None or tell.number != self._number:
            return None
        if tell.counter == envelopes.BROKEN:
            raise StoreLost("the owner has missed a message")
        if tell.nonce != self._nonce:
            if self._received:
                raise StoreLost("another owner has taken over")
            self._nonce = self._gate.nonce = tell.nonce
        if tell.counter <= self._received:
            return None  # doubled
        if tell.counter != self._received + 1:
            raise StoreLost("a message of the owner was lost")
        self._received = tell.counter
        self._asked_at = None
        return tell.frame

    def _look_for_owner(self) -> None:
        """Raise `StoreLost` if the owner that should answer does not listen, or its lock has expired."""
        found = self._gate.find(self._line)
        if not found.has_owner or lock_nonce(found.lock) != self._nonce:
            raise StoreLost("its owner has ended")

    @property
    def has_unsent(self) -> bool:
        return self._line.posted != self._line.sent and not self._line.failure

    def wake(self) -> None:
        self._is_woken = True
        self._line.wake()

    def close(self) -> None:
        """Leave the connections to the next link, unless they are broken."""
        if self._line.failure:
            self._gate.drop(self._line)

    def abandon(self) -> None:
        self._line.abandon()


class Found(NamedTuple):
    """What a member finds where the owner should be."""

    lock: str  # its value; empty: there is none
    listeners: int  # on the owner's channel
    run_id: str | None  # the start of the server in which the journal was written; None: there is no journal

    @property
    def has_owner(self) -> bool:
        return self.lock != "" and self.listeners > 0 and not self.lock.endswith(_STARTING)


class ServerGate:
    """Finds or starts the owner of a pool on a server."""

    def __init__(self, url: str) -> None:
        self.server = PoolServer(url)
        self.name = self.server.name
        self.nonce = b""  # of the owner that this member was connected to last
        self._line: Line | None = None
        self._missed_at: float | None = None  # since when an owner is waited for that may come back
        self._is_closed = False
        self._listeners = 0  # on the channel on which owners say that they listen

    def connect(self, seconds: float) -> PubSubLink:
        end = time.monotonic() + seconds
        line = self._open_line()
        try:
            while True:
                found = self.find(line)
                if found.has_owner:
                    self.nonce, self._missed_at = lock_nonce(found.lock), None
                    return PubSubLink(self, line, self.nonce)
                if self._may_take(line, found):
                    self._take(line, found.lock)
                elif time.monotonic() >= end or self._is_closed:
                    raise StoreLost("the owner of the pool cannot be reached")
                line.receive(LOOK_SECONDS)  # an owner that listens says so
        except (StoreLost, StoreRefused):
            self.drop(line)
            raise

    def new_session(self) -> str:
        return secrets.token_hex(envelopes.ID_BYTES)

    def visit(self) -> PubSubLink | None:
        line = self._open_line()
        found = self.find(line)
        return PubSubLink(self, line, lock_nonce(found.lock)) if found.has_owner else None

    def _open_line(self) -> Line:
        """Return the connections of this process; a forked child has its own."""
        line = self._line
        if line is None or line.failure or line.pid != os.getpid():
            line = self._line = Line(self.server)
        return line

    def find(self, line: Line) -> Found:
        """Look for the owner. Raises `StoreLost` and `StoreRefused`."""
        lock, listeners, run_id = line.run("find", self.server.ask)
        return Found(
            (lock or b"").decode(errors="replace"), int(listeners), None if run_id is None else run_id.decode()
        )

    def _may_take(self, line: Line, found: Found) -> bool:
        """Return whether an owner must be started. It is safe at any time: every commit checks the lock. But an owner
        that is alive after a flush or a restart of the server is waited for: it knows more than the server."""
        if found.lock.endswith(_STARTING):
            return False
        if found.listeners:
            if found.lock:
                return False
            may_return = found.run_id is None  # else the lock of a stopped owner has expired
        else:
            may_return = self.nonce != b"" and _was_restarted(line.server_facts(), found.run_id)
        if not may_return:
            return True
        if self._missed_at is None:
            self._missed_at = time.monotonic()
        return time.monotonic() - self._missed_at >= RETURN_SECONDS

    def _take(self, line: Line, lock: str) -> None:
        """Take the lock and start an owner, unless another member has been faster."""
        token = line.run("take", secrets.token_hex(envelopes.ID_BYTES), LOCK_MS, lock)
        if isinstance(token, bytes):
            order = msgspec.json.encode((self.server.full_url, token.decode()))
            run_owner(["server"], secret=order)

    def depose(self) -> None:
        """Remove the lock of the owner that this member was connected to."""
        line = self._open_line()
        lock = self.find(line).lock
        if lock and lock_nonce(lock) == self.nonce:
            line.run("release", lock)

    def look(self) -> Loaded | None:
        client: PoolClient = self.server.connect()
        try:
            content = read_content(client)
            self._listeners = client.count_listeners([self.server.up])[0]
        finally:
            client.close()
        if content.is_new:
            return None
        return Loaded(content.identity, content.position, content.snapshot, content.batches, content.pool_time())

    def has_ended(self, _session_id: str) -> bool:
        """Return whether no member listens for a new owner but this process, if it has visited one."""
        return self._listeners <= (self._line is not None)

    def drop(self, line: Line) -> None:
        """Close connections that are of no use any more."""
        line.close()
        if self._line is line:
            self._line = None

    def close(self) -> None:
        self._is_closed = True
        if self._line is not None and self._line.pid == os.getpid():
            self.drop(self._line)

    def abandon(self) -> None:
        """No-op: the link closes its descriptors."""


def _was_restarted(facts: dict[str, Any] | None, run_id: str | None) -> bool:
    """Return whether the server was restarted after the journal was written; without a journal, a moment ago."""
    if facts is None:
        return False  # not known
    if run_id is not None:
        return str(facts.get("run_id")) != run_id
    return int(facts.get("uptime_in_seconds", 0)) <= RETURN_SECONDS


def lock_nonce(lock: str) -> bytes:
    """Return the nonce in the value of a lock; empty if it is none."""
    parts = lock.split(":")
    try:
        return bytes.fromhex(parts[1])
    except (IndexError, ValueError):
        return b""
