"""The process of an owner: it joins the decisions (`owner`) with a journal and links (`Endpoint`).

Each turn of the loop takes the frames that have arrived, lets the rules decide, commits what they decided in one
transaction (group commit), and sends the replies.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Hashable
from math import inf
from pathlib import Path

import msgspec

from .. import messages as wire
from ..transport import Deposed, Endpoint, JournalMissing, Loaded, StoreLost, StoreRefused
from .entries import decode_snapshot, encode_entries, encode_snapshot
from .owned_pool import Identity
from .owner import Owner
from .restore import read_batches, restore, snapshot

# The owner ends when no member has been connected for this many seconds.
IDLE_SECONDS = 2.0
# Seconds between two looks at the wall clock and the lock.
CHECK_SECONDS = 1.0
# Seconds of a step of the wall clock from which the ends of days are found again.
CLOCK_STEP = 1.0
# Entries after which a snapshot replaces them, and further ones per credential.
SNAPSHOT_ENTRIES = 4096
SNAPSHOT_ENTRIES_PER_CREDENTIAL = 16
# Seconds between two attempts to write a journal that cannot be written.
RETRY_SECONDS = 0.25
# Frames of members that are kept meanwhile; beyond it members wait until theirs are read.
MAX_WAITING_FRAMES = 10_000
# Seconds by which a turn of the loop may be late before members are forgiven their silence meanwhile.
ABSENCE_SECONDS = 0.05
# Seconds for which an owner that cannot load its journal tells members why.
REFUSAL_SECONDS = 1.0
# Seconds without grants if entries cannot be read: longer than any lease that they may have granted, by default.
UNREADABLE_HOLD = 30.0


class OwnerLoop:
    """Runs an owner until its last member is gone, or another owner takes over."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._entries_since_snapshot = 0
        self._owner = self._restored(endpoint.load())
        self._waiting_frames: list[tuple[Hashable, bytes | None]] = []  # arrived while nothing could be written
        self._active_at = self._now()  # when frames were read last
        self._empty_since = self._now()
        self._wall_ahead = endpoint.clock.wall_ahead()
        self._check_at = 0.0

    def _restored(self, loaded: Loaded) -> Owner:
        self._now = self._endpoint.clock.now
        owner = self._new_owner(loaded)
        hold_seconds = loaded.hold_seconds
        try:
            saved = None if loaded.snapshot is None else decode_snapshot(loaded.snapshot)
            is_complete = restore(owner, saved, read_batches(loaded.batches), loaded.now)
        except Exception:  # a snapshot that contradicts itself: what was granted is not known
            owner = self._new_owner(loaded)
            is_complete = False
        if not is_complete:
            self._entries_since_snapshot = sys.maxsize  # a snapshot replaces what cannot be read
            hold_seconds = max(hold_seconds, UNREADABLE_HOLD, owner.longest_ttl())
        owner.continue_history(loaded)
        if hold_seconds > 0.0:
            owner.hold(hold_seconds, loaded.now)
        return owner

    def _new_owner(self, loaded: Loaded) -> Owner:
        clock = self._endpoint.clock
        identity = Identity(os.getpid(), socket.gethostname(), loaded.now + clock.wall_ahead())
        return Owner(identity, loaded.identity, clock.ends_after, random.random, loaded.now)

    def run(self) -> None:
        """Serve the members. Raises `Deposed`."""
        while not self._is_over():
            self.turn()
        self._save(self._now())

    def _is_over(self) -> bool:
        return self._now() - self._empty_since >= IDLE_SECONDS and not self._has_members()

    def _has_members(self) -> bool:
        return any(session.connection is not None for session in self._owner.sessions.values())

    def turn(self) -> None:
        """Carry out what has arrived and what time has brought."""
        owner = self._owner
        start = self._now()
        timeout = min(owner.next_at(), self._check_at, start + CHECK_SECONDS) - start
        if self._waiting_frames:
            timeout = 0.0
            arrived = self._waiting_frames + self._endpoint.receive(0.0)
            self._waiting_frames = []
        else:
            arrived = self._endpoint.receive(timeout)
        now = self._now()  # of all frames of this turn
        self._excuse_absence(timeout, now)
        connection: Hashable = None
        try:
            for connection, frame in arrived:
                if frame is None:
                    owner.disconnected(connection, now)
                else:
                    owner.receive(connection, frame, now)
            connection = None
            owner.advance(now)
        except Exception as error:
            self._start_over(connection, error)
            return
        self._write_and_send(now)
        if now >= self._check_at:
            self._check(now)

    def _excuse_absence(self, timeout: float, now: float) -> None:
        """Forgive members their silence while this process was stopped, suspended or could not write: their heartbeats
        were not read meanwhile."""
        late = now - self._active_at - max(0.0, timeout)
        if late > ABSENCE_SECONDS:
            self._owner.excuse_silence(late)
        self._active_at = now

    def _write_and_send(self, now: float) -> None:
        owner = self._owner
        entries = None
        if owner.commit_by <= now:
            taken = owner.take_entries()
            self._entries_since_snapshot += len(taken)
            entries = encode_entries(taken)
        frames = owner.take_frames()
        if entries is not None or frames:
            self._commit(now, entries, frames)
        per_credential = SNAPSHOT_ENTRIES_PER_CREDENTIAL * len(owner.allocator.credentials)
        if self._entries_since_snapshot > SNAPSHOT_ENTRIES + per_credential:
            self._entries_since_snapshot = 0
            self._save(now)

    def _commit(self, now: float, entries: bytes | None, frames: list[tuple[object, bytes]]) -> None:
        """Commit entries and send frames. If the journal cannot be written, tell the members and try again: no
        member knows a decision until then."""
        is_told = False
        while True:
            try:
                self._endpoint.commit(now, entries, frames)
                break
            except JournalMissing:
                # The owner knows everything: the snapshot holds the entries that were to be committed.
                self._rewrite(now)
                entries = None
            except StoreLost as error:
                if not is_told:
                    is_told = True
                    self._tell_all(wire.Unavailable(str(error)))
                self._wait(str(error))
        if is_told:
            self._tell_all(wire.Unavailable(""))

    def _rewrite(self, now: float) -> None:
        data = encode_snapshot(snapshot(self._owner, now))
        is_written = False
        while not is_written:
            try:
                self._endpoint.rewrite(now, data, self._owner.position)
                is_written = True
            except StoreLost as error:
                self._tell_all(wire.Unavailable(str(error)))
                self._wait(str(error))

    def _save(self, now: float) -> None:
        try:
            self._endpoint.save(now, encode_snapshot(snapshot(self._owner, now)), self._owner.position)
        except JournalMissing:
            self._rewrite(now)
        except StoreLost:
            return  # the next commit meets the same problem, and tells the members

    def _tell_all(self, reply: wire.Unavailable) -> None:
        frame = wire.encode_alone(reply)
        links = [s.connection for s in self._owner.sessions.values() if s.connection is not None]
        self._endpoint.send([(connection, frame) for connection in links])

    def _wait(self, reason: str) -> None:
        """Let time pass while the journal cannot be written. Members that send something are told why nothing comes;
        the next turn takes it."""
        if len(self._waiting_frames) >= MAX_WAITING_FRAMES:
            time.sleep(RETRY_SECONDS)
            return
        frame = wire.encode_alone(wire.Unavailable(reason))
        for connection, received in self._endpoint.receive(RETRY_SECONDS):
            self._waiting_frames.append((connection, received))
            if received is not None:
                self._endpoint.send([(connection, frame)])

    def _check(self, now: float) -> None:
        """Look at what changes from outside: members, the wall clock, and the lock."""
        self._check_at = now + CHECK_SECONDS
        if self._has_members():
            self._empty_since = inf
        elif self._empty_since == inf:
            self._empty_since = now
        ahead = self._endpoint.clock.wall_ahead()
        if abs(ahead - self._wall_ahead) > CLOCK_STEP:
            self._wall_ahead = ahead
            self._owner.recalculate_days(now)
        self._owner.end_absent(self._endpoint.has_ended, now)
        self._endpoint.disconnect_strangers({s.connection for s in self._owner.sessions.values()})
        if not self._endpoint.is_current():
            raise Deposed

    def _start_over(self, connection: object, error: Exception) -> None:
        """Restore the owner from the journal after a mistake in the rules: their state is not to be trusted.

        The message that led to it is rejected, so that its member does not repeat it; a session whose greeting led to
        it is dismissed each time. All links are closed; the members greet the restored owner.
        """
        reason = f"the pool could not carry this out: {type(error).__name__}: {error}"
        dismissed, message = self._owner.dismissed, self._owner.message
        session = next((s for s in self._owner.sessions.values() if s.connection == connection), None)
        if isinstance(message, wire.Hello):
            dismissed[message.session] = reason
            self._endpoint.send([(connection, wire.encode_alone(wire.Dismissed(reason)))])
        elif session is not None and message is not None:
            rejected = wire.Rejected(session.heard, reason, getattr(message, "lease", None))
            self._endpoint.send([(connection, wire.encode_alone(rejected))])
        for other in list(self._owner.sessions.values()):
            if other.connection is not None:
                self._endpoint.disconnect(other.connection)
        self._entries_since_snapshot = 0
        self._owner = self._restored(self._endpoint.load())
        self._owner.dismissed = dismissed


def serve(endpoint: Endpoint) -> None:
    """Run an owner to its end."""
    try:
        loop = OwnerLoop(endpoint)
    except (StoreRefused, StoreLost) as error:
        _refuse(endpoint, error)
        return
    loop.run()


def _refuse(endpoint: Endpoint, error: StoreRefused | StoreLost) -> None:
    """Tell the members that connect why there is no pool, for a moment."""
    is_lost = isinstance(error, StoreLost)
    frame = wire.encode_alone(wire.Unavailable(str(error)) if is_lost else wire.Dismissed(str(error)))
    end = endpoint.clock.now() + REFUSAL_SECONDS
    while (left := end - endpoint.clock.now()) > 0:
        for connection, received in endpoint.receive(left):
            if received is not None:
                endpoint.send([(connection, frame)])


def _raise_limit_of_files() -> None:
    """Allow as many members as the system does: each has a descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main(arguments: list[str]) -> None:
    """Run the owner of a pool: `machine` with its arguments, or `server` with an address and a token on stdin."""
    order = sys.stdin.buffer.read()
    if os.fork():
        os._exit(0)  # the member waits for this process only: the owner is a child of no member
    _raise_limit_of_files()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)  # those of a terminal are for its members
    try:
        endpoint = _machine_endpoint(*arguments[1:]) if arguments[0] == "machine" else _server_endpoint(order)
        serve(endpoint)
    except Deposed:
        os._exit(0)  # without closing the journal: it belongs to another owner now
    endpoint.close()


def _machine_endpoint(path: str, lock: str, descriptor: str, nonce: str) -> Endpoint:
    """Return the endpoint of a pool in a file. `lock`, `descriptor`: of the lock file and of the listening socket."""
    from agentos.clock import boot_id, wall_time

    from .._machine.machine_endpoint import MachineEndpoint
    from .._machine.owner_lock import Note

    listener = socket.socket(fileno=int(descriptor))
    os.set_inheritable(int(lock), False)
    note = Note(nonce, listener.getsockname(), socket.gethostname(), boot_id(), wall_time(), os.getpid())
    return MachineEndpoint(Path(path), int(lock), listener, note)


def _server_endpoint(order: bytes) -> Endpoint:
    """Return the endpoint of a pool on a server: its address, which may hold a password, and the owner's token."""
    from .._server.server_client import PoolServer
    from .._server.server_endpoint import ServerEndpoint

    url, token = msgspec.json.decode(order, type=tuple[str, str])
    return ServerEndpoint(PoolServer(url), token)


if __name__ == "__main__":
    main(sys.argv[1:])
