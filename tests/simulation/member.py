"""The real session of a member of a shared pool, driven in virtual time instead of by a thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from agentos.pool.shared import messages as wire
from agentos.pool.shared._member.handles import MemberHandle
from agentos.pool.shared._member.member import FIRST_RETRY, LAST_RETRY
from agentos.pool.shared._member.member_session import MemberSession
from agentos.pool.shared._member.receiving import PARK_SECONDS, NoAnswer
from agentos.pool.shared._owner.queries import ANSWERS
from agentos.pool.shared.transport import StoreLost, StoreRefused

from .links import SimulatedLink

if TYPE_CHECKING:
    from .process import Process


class SimulatedMember(MemberSession):
    """The process calls `step` at the instant `step_at`."""

    def __init__(self, process: Process, ttl: float) -> None:
        self.process = process
        self.lock = threading.Condition()  # of one thread
        self._retry = FIRST_RETRY
        self._retry_at = 0.0
        super().__init__("the store", process.clock, process.on_event, ttl, None, process.clock.now)
        self.session_id = process.world.next_session_id()

    @property
    def link(self) -> SimulatedLink | None:
        return self._link  # type: ignore[return-value]

    def step_at(self) -> float:
        """Return the instant of the next step, by the process's clock."""
        return self._retry_at if self._link is None else self.due_at(self._now())

    def step(self) -> None:
        """Do what the member's thread does each time it wakes."""
        if self.link is not None:
            self.link.drain()
        try:
            if self._link is None:
                if self._now() >= self._retry_at:
                    self.greet(self._connect())
            elif self.is_owner_silent():
                assert self.link is not None
                if not self.process.is_cut:
                    self.process.world.store.depose(self.link.owner)
                raise StoreLost("its owner did not answer")
            else:
                self.beat()
        except StoreLost as error:
            self._lose_store(error)
        self._call_back()

    def _connect(self) -> SimulatedLink:
        if self.process.is_cut:
            raise StoreLost("no route")
        return SimulatedLink(self.process, self.process.world.store.connect())

    def deliver(self, link: SimulatedLink, frame: bytes) -> None:
        """Take a frame of the owner."""
        if link is not self._link:
            return
        has_joined = self._has_joined
        session_was_known = self.owner is not None
        try:
            replies = wire.decode_replies(frame)
            self._note(replies)
            self.take(replies)
            self.beat()
        except StoreRefused as error:
            self.on_refused(error)
        except StoreLost as error:
            self._lose_store(error)
        if not has_joined and self._has_joined:
            self._retry = FIRST_RETRY
            if session_was_known:
                self.process.world.situations.note("greeted again")
        self._call_back()

    def _note(self, frame: wire.ReplyFrame) -> None:
        note = self.process.world.situations.note
        for reply in frame.replies:
            if isinstance(reply, wire.Expired) and self._has_joined:
                note("member expired and came back")
            elif isinstance(reply, wire.Welcome):
                if reply.lost:
                    note("lease lost")
                if reply.wants_usage:
                    note("loss noticed by a member")
                if self._unkept:
                    note("messages repeated")
            elif isinstance(reply, wire.Granted) and not self._has_joined:
                note("lost grant repeated")

    def lose_link(self, link: SimulatedLink, error: StoreLost) -> None:
        if link is self._link:
            self._lose_store(error)
            self._call_back()

    def _lose_store(self, error: StoreLost) -> None:
        was_lost = self.lost_since is not None
        self.on_lost(error)
        if self.lost_since is not None and not was_lost:
            self.process.world.situations.note("store lost")
        self._retry_at = self._now() + self._retry
        self._retry = min(LAST_RETRY, 2.0 * self._retry)

    def _call_back(self) -> None:
        while self._calls:
            for call, arguments in self.take_calls():
                call(*arguments)

    # --- what `SharedStore` calls -----------------------------------------------------------------------------------

    def ask(self, what: str, *arguments: Any, seconds: float) -> Any:
        """Ask the owner without passing of time. Raises `NoAnswer`."""
        link = self.link
        if (
            not self._has_joined
            or link is None
            or link.owner.is_dead
            or link.owner.paused_until > self.process.world.now
        ):
            raise NoAnswer
        owner = link.owner.owner
        session = owner.sessions.get(self.session_id)
        if session is None or self.process.is_cut:
            raise NoAnswer
        answer = ANSWERS[what](owner, session, link.owner.store.now(), *arguments)
        return msgspec.msgpack.decode(msgspec.msgpack.encode(answer))

    def request_later(self, handle: MemberHandle, front: bool) -> None:
        self.request(handle, front)

    def release(self, handle: MemberHandle, message: wire.End) -> None:
        """End a lease, sometimes a moment later, with the next message."""
        if message.has_news or self.process.rng.random() < 0.5:
            self.say(message)
        else:
            self.say_lazily(message)
            self.process.call_later(PARK_SECONDS, "a release is sent", self._flush)

    def _flush(self) -> None:
        if self._link is not None:
            self.flush()

    def wake_callers(self) -> None: ...

    def close(self) -> None:
        link = self.link
        self.leave()
        if link is not None:
            link.close()
        self.refuse_waiters()
        self._call_back()
