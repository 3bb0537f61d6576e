"""The real member of a shared pool without its threads; process liveness and time come from the simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentos.pool._replicas import member
from agentos.pool._replicas import shared_pool as shared
from agentos.pool._replicas.log import Entry, StoreLost, StoreRefused
from agentos.pool._replicas.member import Member

from .digests import digest
from .log_server import DIGEST_INTERVAL, summarize

if TYPE_CHECKING:
    from .log_server import Connection
    from .process import Process

HOST_ID = "one machine"
# Seconds between two exchanges of one member.
MIN_INTERVAL = 0.0005


class SimulatedMember(Member):
    """The process calls `exchange_once` at the instant `due_at`."""

    def __init__(self, process: Process, connection: Connection, ttl: float) -> None:
        self.process = process
        self.not_before = 0.0
        super().__init__(connection, "the store", process.clock, process.on_event, ttl)
        member._OPEN.discard(self)

    def wake(self, by: float = 0.0) -> None:
        """No-op: the process looks at `due_at` after every step."""

    def sync(self, seconds: float) -> None:
        """Request an exchange without waiting for it: virtual time does not pass during a call."""
        self._wants_news = True

    def due_at(self) -> float:
        """Return the instant of the next exchange, by the process's clock."""
        due = self._due_at()
        if self.handles.waiting and self._log.poll_seconds is not None:
            due = min(due, self.now() + self._log.poll_seconds)
        return max(due, self.not_before)

    def exchange_once(self) -> bool:
        """Do what the member's thread does each time it wakes. Return False once the member has left the pool."""
        if self._is_over():
            self._log.close()
            return False
        try:
            is_polled = self.handles.waiting > 0 and self._log.poll_seconds is not None
            if self._due_at() <= self.now() or (is_polled and self._log.has_news()):
                self._exchange()
            self.not_before = self.now() + MIN_INTERVAL
        except (StoreLost, StoreRefused) as error:
            self._on_lost(error)
        return True

    def close(self) -> None:
        self._is_closing = True
        self.say((shared.LEAVE,))

    def _on_lost(self, error: StoreLost | StoreRefused) -> None:
        pause, self._retry_in = self._retry_in, 0.0
        if self.lost_since is None:
            self.process.world.situations.note("store lost")
        super()._on_lost(error)  # `_retry_in` is 0: it does not sleep
        self._retry_in = min(member.LAST_RETRY, 2.0 * pause)
        self.not_before = self.now() + pause

    def _found(self) -> None:
        if self.lost_since is not None:
            self.process.world.situations.note("store reconnected")
        super()._found()

    def _lose_session(self) -> None:
        super()._lose_session()
        self.session_id = self.process.world.next_session_id()
        self.process.session_ids.append(self.session_id)
        self._box.statements[0] = (shared.JOIN, "host", self.process.pid, None, self.ttl, HOST_ID)

    def _bury(self) -> None:
        assert self.copy is not None
        self._bury_at = self.now() + member.BURY_SECONDS
        for session in self.copy.sessions.values():
            if self.process.world.is_dead_pid(session.pid):
                self.process.world.situations.note("dead session reported")
                self.say((shared.GONE, session.id), by_thread=False)

    def _begin(self, start: object) -> None:
        super()._begin(start)  # type: ignore[arg-type]
        if start.state is not None:  # type: ignore[attr-defined]
            self.process.world.situations.note("snapshot loaded")
        self._compare()

    def _apply(self, entry: Entry) -> None:
        super()._apply(entry)
        self._compare()

    def _compare(self) -> None:
        """Compare the replica with the judge at the same position of the log."""
        assert self.copy is not None
        position = (self._epoch, self._position)
        expected = self.process.world.server.digests.get(position)
        if expected is not None:
            actual = digest(self.copy) if position[1] % DIGEST_INTERVAL == 0 else summarize(self.copy)
            assert actual == expected, f"two replicas differ at {position}\n{actual}\n{expected}"
