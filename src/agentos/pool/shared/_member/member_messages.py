"""MemberMessages: what a member of a shared pool sends, and when: numbers, repetitions, greetings, heartbeats."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from agentos.clock import Clock

from ..._rules.lease_states import LIVE, WAITING
from .. import messages as wire
from ..transport import Link, StoreLost
from .handles import MemberHandle, Question, UsageMemory
from .outage import Outage

# Heartbeats per time to live of a lease, without and with requests that wait.
BEATS, BEATS_WAITING = 3, 10
# Longest interval between heartbeats while requests wait, in seconds: a silent owner is noticed by them.
MAX_BEAT_SECONDS = 2.0
# Seconds without an answer after which the owner is replaced.
SILENCE_SECONDS = 5.0
# Share of its time to live that a lease has left at least when it is delivered.
FRESH_SHARE = 0.9
_NEVER = -1e18


class MemberMessages:
    """The state of one session, and its output. `clock` is that of the pool that uses it; `now` measures how long the
    owner is silent."""

    # Slots, as in the classes that extend it: an object with more than thirty attributes keeps them in a dict of its
    # own, in which Python finds values, and the methods beside them, slowly.
    __slots__ = (
        "_asked_at", "_beat_at", "_beat_idle", "_beat_waiting", "_beaten_at", "_calls", "_clock", "_greeted_at",
        "_handles", "_has_joined", "_heard_at", "_is_closing", "_kept", "_lazy", "_lease_numbers", "_link", "_now",
        "_numbers", "_on_event", "_position", "_queries", "_receiver", "_seen_journal", "_seen_owner",
        "_seen_position", "_timed_at", "_timed_number", "_unkept", "_wants_usage", "declared", "name", "order",
        "outage", "owner", "run", "session_id", "ttl", "used", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, clock: Clock, on_event: Callable[[Any], None], ttl: float, run: str | None,
                 now: Callable[[], float], order: str = "") -> None:  # fmt: skip
        self.name = name  # of the store, for people
        self.ttl = ttl
        self._beat_idle, self._beat_waiting = ttl / BEATS, min(ttl / BEATS_WAITING, MAX_BEAT_SECONDS)
        self.order = order  # in which credentials are granted; empty: the least loaded first
        self.run = run  # the name of the run in this process, which other members see
        self.declared: dict[str, wire.Declaration] = {}
        self._clock = clock
        self._on_event = on_event
        self._now = now
        self._reset()

    def _reset(self) -> None:
        """Begin without a session: at first, and in a forked child, which has no lease or link."""
        self.session_id = ""  # chosen by the gate, before the first greeting
        self._link: Link | None = None  # greeted
        self._has_joined = False
        self._is_closing = False
        self._numbers = 0  # of messages
        self._lease_numbers = 0
        self._handles: dict[int, MemberHandle] = {}  # that wait or live
        self.waiting = 0
        self._unkept: deque[tuple[int, wire.Message]] = deque()  # to be repeated until the journal holds their effects
        self._lazy: list[tuple[int, wire.Message]] = []  # to be sent with the next message
        self._timed_number = 0  # of the message whose sending the next answer confirms; 0: the next one that is sent
        self._timed_at = 0.0  # when it was sent
        self._greeted_at = _NEVER
        self._heard_at = _NEVER  # when the last message was sent that the owner has heard
        self._beat_at = 0.0  # when the next heartbeat is due
        self._beaten_at = 0.0  # when the owner was told the leases of this member last
        self._asked_at: float | None = None  # since when an answer is expected
        self._queries: dict[int, Question] = {}
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._receiver: MemberHandle | None = None  # its caller receives, and needs no call
        self._seen_journal = ""  # its identity; empty: an owner has noticed its loss, or none was greeted yet
        self._seen_position = 0  # its highest one
        self._seen_owner = ""  # nonce of the owner that has told them
        self._position = 0  # of the journal, in the frame that is being taken
        self._wants_usage = False
        self._kept = 0  # up to this position a journal that has lost its end holds what this member has seen
        self.used = UsageMemory()
        self.owner: wire.Welcome | None = None
        self.outage = Outage(self.name, self._clock, self._now, self._announce)

    def _announce(self, event: Any) -> None:
        self._calls.append((self._on_event, (event,)))

    # --- messages -------------------------------------------------------------------------------------------------

    def say(self, message: wire.Message) -> None:
        """Send a message, and repeat it until the journal holds its effects."""
        self._unkept.append((self._numbers + 1, message))
        self._send(message)

    def say_lazily(self, message: wire.Message) -> None:
        """`say` a message that may wait for the next one, and share its frame."""
        self._numbers += 1
        self._unkept.append((self._numbers, message))
        if self._link is not None:
            self._lazy.append(self._unkept[-1])

    def leave(self) -> None:
        """Send the last message: the leases of this process end."""
        self._is_closing = True
        if self._link is not None:
            self._send(wire.Leave())

    def _send(self, message: wire.Message, is_flushed: bool = False) -> None:
        """Send a message. `is_flushed`: the caller flushes the link."""
        self._numbers += 1
        if self._link is None:
            self._join_soon()  # the greeting says it, or it is repeated with the greeting
        else:
            self._lazy.append((self._numbers, message))
            self.flush(is_flushed)

    def _join_soon(self) -> None:
        """No-op: a session without a thread is told when it has a link."""

    def flush(self, is_flushed: bool = False) -> None:
        """Send the messages that wait, as one frame. `is_flushed`: the caller flushes the link."""
        link, messages = self._link, self._lazy
        if link is None or not messages:
            return
        frame = wire.encode(messages)
        if not self._timed_number:
            self._timed_number, self._timed_at = messages[-1][0], self._now()
        messages.clear()
        try:
            link.send(frame, is_flushed)
        except StoreLost:
            link.wake()  # the thread meets the same error, and finds another owner

    # --- greetings ------------------------------------------------------------------------------------------------

    def greet(self, link: Link) -> None:
        """Begin or continue the session on a new link. Messages may follow before the owner has answered."""
        self._link = link
        self._has_joined = False
        self._timed_number = 0
        self._asked_at = None
        self._greet()

    def _greet(self) -> None:
        """Send what this member holds and waits for, and repeat the messages that the journal does not hold yet.

        Both are one frame, because newer messages follow: the owner takes an older number for a repetition.
        """
        assert self._link is not None
        self._greeted_at = self._now()
        self._lazy = []  # repeated with those that the journal does not hold
        self._link.send(wire.encode([(self._numbers, self._hello()), *self._unkept]))
        self.expect_answer()

    def _hello(self) -> wire.Hello:
        handles = self._handles.values()
        return wire.Hello(
            wire.PROTOCOL,
            self.session_id,
            wire.plain_text(socket.gethostname(), 200),
            os.getpid(),
            self.run,
            self.ttl,
            list(self.declared.values()),
            [handle.held() for handle in handles if handle.state == LIVE],
            [handle.request() for handle in handles if handle.state == WAITING],
            (self._seen_journal, self._seen_position) if self._seen_journal else None,
            self.used.report(self._now(), self._kept) if self._wants_usage else [],
            self._seen_owner,
            self.order,
        )

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def expect_answer(self) -> None:
        """Count an owner that does not answer from now on as silent."""
        if self._asked_at is None:
            self._asked_at = self._now()

    def due_at(self, now: float) -> float:
        """Return when a heartbeat is due, or the patience with a silent owner ends. Needs no lock.

        Never late: a request makes the next heartbeat due earlier, and does not interrupt the thread that waits.
        """
        asked_at, due = self._asked_at, now + MAX_BEAT_SECONDS
        if self._has_joined and self._beat_at < due:
            due = self._beat_at
        return due if asked_at is None else min(due, asked_at + SILENCE_SECONDS)

    def is_owner_silent(self) -> bool:
        """Return whether the owner must be replaced because it does not answer."""
        asked_at = self._asked_at
        return asked_at is not None and self._now() - asked_at >= SILENCE_SECONDS

    def beat(self) -> None:
        """Send a heartbeat if one is due."""
        now = self._now()
        if self._has_joined and now >= self._beat_at and not self._is_closing:
            self._beat_at, self._beaten_at = now + self._beat_seconds(), now
            # Also leases that wait for the answer to `Confirm`: those that it does not name are ended.
            self._send(wire.Heartbeat([handle.id for handle in self._handles.values() if handle.fence]))
            self.expect_answer()

    def _beat_seconds(self) -> float:
        return self._beat_waiting if self.waiting else self._beat_idle

    def _on_heard(self) -> None:
        """Note that the owner has processed the message whose sending was noted."""
        self._timed_number = 0
        if self._timed_at > self._heard_at:
            self._heard_at = self._timed_at
        # A message that was heard says as much as a heartbeat, but for the names of the leases.
        due_at = self._heard_at + (self._beat_waiting if self.waiting else self._beat_idle)
        if due_at > self._beaten_at + self._beat_idle:
            due_at = self._beaten_at + self._beat_idle
        if due_at > self._beat_at:
            self._beat_at = due_at

    def is_fresh(self) -> bool:
        """Return whether the leases of this member have most of their time to live left. Without a link they may have
        ended: an owner ends them when it sees that the link is closed."""
        return self._link is not None and self._now() - self._heard_at <= (1.0 - FRESH_SHARE) * self.ttl
