"""MemberSession: the protocol of a member of a shared pool, without a thread, a lock or real time.

It knows what this process holds, waits for and has sent. It sends messages on a link, and is told the replies and
the breaks of the link. `Member` drives it on a thread; `now` is any clock that passes evenly.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from agentos.clock import Clock
from agentos.errors import StoreError
from agentos.events import CoolDownStarted, CredentialQuarantined, StoreReached, StoreUnreachable
from agentos.limits.amounts import Detail

from ..._rules.lease_states import ENDED, LIVE, REFUSED, WAITING
from .. import message_values as values
from .. import messages as wire
from ..transport import Link, StoreLost, StoreRefused
from .handles import MemberHandle, UsageMemory

# Heartbeats per time to live of a lease, without and with requests that wait.
BEATS, BEATS_WAITING = 3, 10
# Longest interval between heartbeats while requests wait, in seconds: a silent owner is noticed by them.
MAX_BEAT_SECONDS = 2.0
# Seconds without an answer after which the owner is replaced.
SILENCE_SECONDS = 5.0
# A break that lasts shorter is not announced: another owner takes over in less.
GRACE_SECONDS = 1.5
# Share of its time to live that a lease has left at least when it is delivered.
FRESH_SHARE = 0.9
_NEVER = -1e18
# Answers a query whose link broke.
NO_ANSWER = object()


class MemberSession:
    """One session. `clock` is that of the pool that uses it; `now` measures how long the owner is silent.

    Callbacks (deliveries and events) are collected; `take_calls` returns them.
    """

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
        self._caller_flushes = False  # the link need not send by itself: the caller does it next
        self._lazy: list[tuple[int, wire.Message]] = []  # to be sent with the next message
        self._sent: deque[tuple[int, float]] = deque()  # number and instant of messages that were not heard yet
        self._greeted_at = _NEVER
        self._heard_at = _NEVER  # when the last message was sent that the owner has heard
        self._beat_at = 0.0  # when the next heartbeat is due
        self._beaten_at = 0.0  # when the owner was told the leases of this member last
        self._asked_at: float | None = None  # since when an answer is expected
        self._queries: dict[int, SimpleQueue[Any]] = {}
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._seen: tuple[str, int] | None = None  # identity and highest position of the journal
        self._seen_owner = ""  # nonce of the owner that has told it
        self._position = 0  # of the journal, in the frame that is being taken
        self._wants_usage = False
        self._kept = 0  # up to this position a journal that has lost its end holds what this member has seen
        self.used = UsageMemory()
        self.owner: wire.Welcome | None = None
        self.lost_since: float | None = None  # by `now`
        self._broken_at: float | None = None
        self.lost_because = ""
        self._is_loss_announced = False
        self.refused_because = ""

    # --- what callers do ------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        if self._is_closing:
            raise StoreError("this pool is closed: create a new one")

    def request(self, handle: MemberHandle, front: bool) -> None:
        """Send a request."""
        self.check_open()
        self._lease_numbers += 1
        handle.id = self._lease_numbers
        self._handles[handle.id] = handle
        self.waiting += 1
        self._beat_at = min(self._beat_at, self._now() + self._beat_seconds())
        self._send(handle.request(front))

    def request_again(self, handle: MemberHandle, message: wire.Message) -> None:
        """Let a granted lease that was not delivered wait again."""
        handle.state = WAITING
        handle.is_doubtful = False
        self.waiting += 1
        self._send(message)

    def say(self, message: wire.Message) -> None:
        """Send a message, and repeat it until the journal holds its effects."""
        self._unkept.append((self._numbers + 1, message))
        self._send(message)

    def say_lazily(self, message: wire.Message) -> None:
        """`say` a message that may wait for the next one, and share its frame."""
        self._numbers += 1
        self._unkept.append((self._numbers, message))
        if self._link is not None:
            self._lazy.append((self._numbers, message))

    def flush(self) -> None:
        """Send the messages that waited for another one."""
        if self._lazy:
            self._send_frame([])

    def declare(self, message: wire.Declaration | wire.Drop) -> None:
        """Send a declaration; a greeting repeats all of them."""
        if isinstance(message, wire.Declaration):
            self.declared[message.id] = message
        else:
            del self.declared[message.id]
        if self._link is not None:
            self._send(message)

    def forget(self, handle: MemberHandle, state: str) -> None:
        """Take a handle out of the session."""
        if handle.state == WAITING and self._handles.get(handle.id) is handle:
            self.waiting -= 1
        handle.state = state
        self._handles.pop(handle.id, None)

    def has(self, handle: MemberHandle) -> bool:
        """Return whether a handle belongs to this session: not to another one, nor to the parent of a fork."""
        return self._handles.get(handle.id) is handle

    def live(self) -> list[MemberHandle]:
        """Return the live leases of this process."""
        return [handle for handle in self._handles.values() if handle.state == LIVE]

    def is_fresh(self) -> bool:
        """Return whether the leases of this member have most of their time to live left. Without a link they may have
        ended: an owner ends them when it sees that the link is closed."""
        return self._link is not None and self._now() - self._heard_at <= (1.0 - FRESH_SHARE) * self.ttl

    def count_used(self, credential_id: str, requests: int, tokens: int, detail: Detail | None = None) -> None:
        """Remember usage beyond a reservation."""
        self.used.add(credential_id, requests, tokens, detail, self._now())

    def leave(self) -> None:
        """Send the last message: the leases of this process end."""
        self._is_closing = True
        if self._link is not None:
            self._send(wire.Leave())

    # --- sending --------------------------------------------------------------------------------------------------

    def _send(self, message: wire.Message) -> None:
        self._numbers += 1
        if self._link is None:
            self._join_soon()  # the greeting says it, or it is repeated with the greeting
        else:
            self._send_frame([(self._numbers, message)])

    def _join_soon(self) -> None:
        """No-op: a session without a thread is told when it has a link."""

    def _send_frame(self, messages: list[tuple[int, wire.Message]]) -> None:
        link = self._link
        assert link is not None
        if self._lazy:
            messages = self._lazy + messages
            self._lazy = []
        self._sent.append((messages[-1][0], self._now()))
        try:
            link.send(wire.encode(messages), self._caller_flushes)
        except StoreLost:
            link.wake()  # the thread meets the same error, and finds another owner

    def expect_answer(self) -> None:
        """Count an owner that does not answer from now on as silent."""
        if self._asked_at is None:
            self._asked_at = self._now()

    def _beat_seconds(self) -> float:
        return self._beat_waiting if self.waiting else self._beat_idle

    def greet(self, link: Link) -> None:
        """Begin or continue the session on a new link. Messages may follow before the owner has answered."""
        self._link = link
        self._has_joined = False
        self._sent.clear()
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
            self._seen,
            self.used.report(self._now(), self._kept) if self._wants_usage else [],
            self._seen_owner,
            self.order,
        )

    # --- time and replies -----------------------------------------------------------------------------------------

    def due_at(self) -> float:
        """Return when a heartbeat is due, or the patience with a silent owner ends. Needs no lock.

        Never late: a request makes the next heartbeat due earlier, and does not interrupt the thread that waits.
        """
        now, asked_at = self._now(), self._asked_at
        due = min(self._beat_at if self._has_joined else now + self._beat_seconds(), now + MAX_BEAT_SECONDS)
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

    def take(self, frame: wire.ReplyFrame) -> None:
        """Carry out replies. Raises `StoreRefused`, and `StoreLost` if the link breaks."""
        self._asked_at = None
        sent, unkept = self._sent, self._unkept
        if sent and sent[0][0] <= frame.heard:
            while sent and sent[0][0] <= frame.heard:
                self._heard_at = max(self._heard_at, sent.popleft()[1])
            # A message that was heard says as much as a heartbeat, but for the names of the leases.
            postponed = min(self._heard_at + self._beat_seconds(), self._beaten_at + self._beat_idle)
            self._beat_at = max(self._beat_at, postponed)
        while unkept and unkept[0][0] <= frame.kept:
            unkept.popleft()
        self._position = frame.position
        for reply in frame.replies:
            _TAKE[type(reply)](self, reply)
        if self._has_joined and self._seen is not None:
            self._seen = (self._seen[0], max(frame.position, self._seen[1]))
        if self._wants_usage and not self._has_joined and self._seen is None:
            self._greet()  # after all replies: else it asks again for what was granted in the same frame

    def _welcomed(self, welcome: wire.Welcome) -> None:
        self.owner = welcome
        self._wants_usage, self._kept = welcome.wants_usage, welcome.kept
        if welcome.wants_usage:
            self._seen = None  # the owner has noticed the loss, and need not notice it again
            return
        self._seen, self._seen_owner = (welcome.identity, welcome.position), welcome.nonce
        self._has_joined = True
        self._heard_at = max(self._heard_at, self._greeted_at)
        self._beaten_at = self._now()
        self._beat_at = self._beaten_at + self._beat_seconds()
        for number in welcome.lost:
            self._lose(number)
        self._found()

    def _lose(self, number: int) -> None:
        """End a lease that the owner does not know any more. If its caller did not have it yet, it waits again."""
        handle = self._handles.get(number)
        if handle is None or handle.state != LIVE:
            return
        if handle.is_delivered:
            handle.is_lost = True
            self.forget(handle, ENDED)
        else:
            handle.fence = 0
            self.request_again(handle, handle.request())

    def _granted(self, granted: wire.Granted) -> None:
        handle = self._handles.get(granted.lease)
        if handle is None or handle.state != WAITING:
            return  # it was withdrawn, and the owner will hear of that; or the reply was repeated
        self.waiting -= 1
        handle.state = LIVE
        handle.credential_id, handle.provider = granted.credential, granted.provider
        handle.fence, handle.granted_at = granted.fence, granted.at
        handle.is_doubtful = False
        handle.was_queued = granted.was_queued
        what = handle.requests, handle.tokens, handle.detail
        self.used.add(granted.credential, *what, self._now(), self._position)
        self._calls.append((handle.deliver, ()))

    def _denied(self, denied: wire.Denied) -> None:
        self._settle_request(denied.lease, ENDED, None)

    def _refused(self, refused: wire.Refused) -> None:
        self._settle_request(refused.lease, REFUSED, refused.too_large)

    def _settle_request(self, number: int, state: str, too_large: str | None) -> None:
        handle = self._handles.get(number)
        if handle is not None and handle.state == WAITING:
            handle.too_large = too_large
            self.forget(handle, state)
            self._calls.append((handle.deliver, ()))

    def _lost_lease(self, lost: wire.Lost) -> None:
        handle = self._handles.get(lost.lease)
        if handle is not None and handle.state == WAITING:
            handle.fence = 0
            self._send(handle.request())
        else:
            self._lose(lost.lease)

    def _event(self, reply: wire.Event) -> None:
        event = values.read_event(reply)
        if event is None:
            return
        if isinstance(event, CoolDownStarted | CredentialQuarantined):
            for handle in self._handles.values():
                handle.is_doubtful = handle.is_doubtful or (handle.state == LIVE and not handle.is_delivered)
        self._calls.append((self._on_event, (event,)))

    def _answered(self, answer: wire.Answer) -> None:
        answers = self._queries.pop(answer.number, None)
        if answers is not None:
            answers.put(answer.value)

    def _rejected(self, rejected: wire.Rejected) -> None:
        """A message of ours was invalid: it is not repeated, and its request ends."""
        self._unkept = deque((number, message) for number, message in self._unkept if number != rejected.number)
        if rejected.lease is not None:
            self._settle_request(rejected.lease, REFUSED, rejected.reason)

    def _dismissed(self, dismissed: wire.Dismissed) -> None:
        raise StoreRefused(dismissed.reason)

    def _expired(self, _expired: wire.Expired) -> None:
        """The owner has ended this session: greet it again."""
        if self._has_joined and not self._is_closing:
            self._has_joined = False
            self._greet()

    def _unavailable(self, unavailable: wire.Unavailable) -> None:
        if unavailable.reason:
            self._lost(unavailable.reason)
        else:
            self._found()

    # --- lost and found -------------------------------------------------------------------------------------------

    def on_lost(self, error: StoreLost) -> None:
        """Continue without a link. Waiting requests go on waiting."""
        self._drop_link()
        if self._broken_at is None:
            self._broken_at = self._now()
        if self._now() - self._broken_at >= GRACE_SECONDS:
            self._lost(str(error))

    def on_refused(self, error: StoreRefused) -> None:
        """Continue without a link, until a person has changed something."""
        self._drop_link()
        self._broken_at = self._broken_at or self._now()
        self.refused_because = str(error)
        self._lost(str(error))

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._has_joined = False
        for answers in self._queries.values():
            answers.put(NO_ANSWER)

    def _lost(self, reason: str) -> None:
        """Announce once that the store is lost."""
        if self.lost_since is None:
            self.lost_since = self._broken_at or self._now()
            self.lost_because = reason
            if self.owner is not None:  # else the caller of `open` is told
                since = self._clock.epoch() - (self._now() - self.lost_since)
                self._calls.append((self._on_event, (StoreUnreachable(self.name, reason, since),)))
                self._is_loss_announced = True

    def _found(self) -> None:
        self._broken_at = None
        self.refused_because = ""
        if self.lost_since is not None:
            lost_for = self._now() - self.lost_since
            self.lost_since = None
            if self._is_loss_announced:
                self._is_loss_announced = False
                self._calls.append((self._on_event, (StoreReached(self.name, lost_for),)))

    def take_calls(self) -> list[tuple[Callable[..., None], tuple[Any, ...]]]:
        """Take the callbacks that replies have led to, with their arguments."""
        calls, self._calls = self._calls, []
        return calls

    def refuse_waiters(self) -> None:
        """Refuse what still waits: nothing comes any more."""
        self._has_joined = False
        for handle in list(self._handles.values()):
            if handle.state == WAITING:
                self.forget(handle, REFUSED)
                self._calls.append((handle.deliver, ()))
        for answers in self._queries.values():
            answers.put(NO_ANSWER)


_TAKE: dict[Any, Callable[[MemberSession, Any], None]] = {
    wire.Welcome: MemberSession._welcomed,
    wire.Granted: MemberSession._granted,
    wire.Denied: MemberSession._denied,
    wire.Refused: MemberSession._refused,
    wire.Lost: MemberSession._lost_lease,
    wire.Event: MemberSession._event,
    wire.Answer: MemberSession._answered,
    wire.Rejected: MemberSession._rejected,
    wire.Dismissed: MemberSession._dismissed,
    wire.Expired: MemberSession._expired,
    wire.Unavailable: MemberSession._unavailable,
}
