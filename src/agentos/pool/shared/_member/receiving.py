"""Receiving: which thread of a member receives. It is the member's own thread, or a caller in its place.

A caller that only waits for its lease, or for the answer to a query, receives the reply itself: a lease then costs no
switch between threads. Meanwhile the member's thread is parked, and looks from time to time whether a release is left
that no request has followed, or whether it must receive again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from math import inf
from typing import Any

from agentos.clock import Clock, boot_time

from ..._rules.lease_states import LIVE, WAITING
from .. import messages as wire
from ..transport import Gate, Link, StoreLost, StoreRefused
from .handles import NO_ANSWER, MemberHandle, Question
from .member_session import MemberSession

# The thread receives again when no caller has done so for this many seconds, if nothing is expected meanwhile. As long
# may a release wait for the next request of a caller that takes one lease after another.
PARK_SECONDS = 0.05
# If callers receive no lease in that time, each look of the parked thread is farther from the last one by this factor,
# up to a maximum in seconds and to a share of the time to live, in which no heartbeat is due.
PARK_GROWTH, MAX_PARK_SECONDS, MAX_PARK_SHARE = 8.0, 2.0, 0.1
# A request follows a release at once if it comes within this many seconds.
QUICK_SECONDS = 0.002


class NoAnswer(Exception):
    """A query was not answered in time: the owner cannot be reached."""


class Receiving(MemberSession):
    """A session whose replies arrive on a link. The methods of `MemberSession` are called with the lock held."""

    __slots__ = (
        "_alarm", "_caller_receipts", "_caller_received_at", "_caller_receives", "_failure", "_is_parked",
        "_is_quick", "_is_stopping_callers", "_may_linger", "_park_seconds", "_query_numbers", "_released_at",
        "_thread", "_thread_receives", "changed", "gate", "lock",
    )  # fmt: skip

    def __init__(self, gate: Gate, clock: Clock, on_event: Callable[[Any], None], ttl: float, run: str | None,
                 order: str = "") -> None:  # fmt: skip
        self.gate = gate
        # The boot clock: leases expire while a machine is suspended.
        super().__init__(gate.name, clock, on_event, ttl, run, boot_time, order)

    def _reset(self) -> None:
        self.lock = threading.Lock()  # guards the session; not the condition, whose `with` costs more
        self.changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        self._query_numbers = 0
        self._thread_receives = False
        self._caller_receives = False  # in the place of the thread
        self._caller_receipts = 0  # how often one has stopped to since the last look of the parked thread
        self._caller_received_at = 0.0  # when one stopped to
        self._is_stopping_callers = False  # it must stop, because the link is about to be closed
        self._is_parked = False  # the thread lets callers receive, and looks again soon
        self._park_seconds = PARK_SECONDS  # until its next look
        self._may_linger = False  # ... which is so soon that a release may wait for it
        self._alarm = threading.Lock()  # held: the thread parks until it is released, or until its next look
        self._alarm.acquire()
        self._is_quick = False  # the last release was soon followed by a request
        self._released_at = 0.0
        self._failure: StoreLost | StoreRefused | None = None  # what a caller met: the thread handles it
        super()._reset()

    # --- callers --------------------------------------------------------------------------------------------------

    def ask(self, what: str, *arguments: Any, seconds: float) -> Any:
        """Return the answer to a query. Raises `NoAnswer`. The lock is not held."""
        question = Question()
        with self.lock:
            # A query may follow a greeting that was not answered yet: its answer then says that both were processed.
            link = self._link
            if link is None or self._is_closing or threading.current_thread() is self._thread:
                raise NoAnswer
            self._query_numbers = number = self._query_numbers + 1
            self._queries[number] = question
            self._send(wire.Query(number, what, list(arguments)), is_flushed=True)
            if self._timed_number == self._numbers:
                self._timed_number = 0  # owners do not acknowledge the number of a query
            self.expect_answer()
            receives = self._takes_receiving(0)
            if not receives:
                self._wake_thread()  # it receives the answer
        until = self._now() + seconds
        self._receive_until(link, receives, question, until)
        link.flush()  # a greeting that replies have led to: what a caller said before its query is on its way
        answer = question.wait(until - self._now())
        with self.lock:
            self._queries.pop(number, None)
        if answer is NO_ANSWER:
            raise NoAnswer
        return answer

    def request_and_receive(self, handle: MemberHandle, front: bool, until: float) -> bool:
        """Request a lease and receive replies until the request is answered, until an instant, or until the link
        breaks. Return True if the caller has the lease then; else look at its state, and wait to be called back:
        another thread receives, other requests wait, or the owner must be asked again. The lock is not held."""
        with self.lock:
            self._is_quick = self._now() - self._released_at < QUICK_SECONDS
            self.request(handle, front, True)
            link, receives = self._link, self._takes_receiving(1)
            if receives:
                self._receiver = handle
        if link is not None:
            self._receive_until(link, receives, handle, until)
        return handle.is_delivered

    def request_later(self, handle: MemberHandle, front: bool) -> None:
        """Request a lease whose caller does not wait here. The lock is held."""
        self._is_quick = self._now() - self._released_at < QUICK_SECONDS
        self.request(handle, front)
        self._wake_thread()

    def request_again(self, handle: MemberHandle, message: wire.Message) -> None:
        super().request_again(handle, message)
        self._wake_thread()

    def release(self, handle: MemberHandle, message: wire.End) -> None:
        """Say the end of a lease. Without news it shares the frame of the next request if one follows at once, as it
        did the last time; the thread sends it otherwise. Not if the lease had to be waited for: others may wait now.
        The lock is held."""
        self._released_at = self._now()
        may_wait = self._is_quick and self._is_parked and not handle.was_queued and not message.has_news
        if may_wait and self._may_linger:
            self.say_lazily(message)
            return
        self.say(message)
        if may_wait and self._come_fast():
            self._wake_thread()  # its next look may be seconds away, and lets releases wait

    def _takes_receiving(self, max_waiting: int) -> bool:
        """Let a caller receive, if no other one does and no other requests wait. The lock is held: the thread must not
        receive while the caller sends, which may take long."""
        is_busy = self._caller_receives or self._failure is not None or not self._has_joined or self._link is None
        if is_busy or self.waiting > max_waiting:
            return False
        self._caller_receives = True
        return True

    def _receive_until(self, link: Link, receives: bool, waiter: MemberHandle | Question, until: float) -> None:
        """Send on the caller's thread what was left to it. If it `receives`, do so until `waiter` does not wait any
        more, until an instant, or until the link breaks. The lock is not held."""
        if not receives:
            link.flush()
            return
        failure: StoreLost | StoreRefused | None = StoreLost("a caller was interrupted while it received")
        try:
            link.flush(receives=True)
            if self._thread_receives:
                self._stop_thread(link)
            while waiter.state == WAITING and not self._is_stopping_callers and self._receive_on(link, until):
                pass
            failure = None
        except (StoreLost, StoreRefused) as error:
            failure = error
        finally:  # also after a Ctrl-C: replies may be lost then, and a greeting repeats them
            with self.lock:
                self._stop_receiving(failure)

    def _stop_receiving(self, failure: StoreLost | StoreRefused | None) -> None:
        """Let other threads receive, and give the caller the lease that it has received."""
        handle, self._receiver = self._receiver, None
        if handle is not None and handle.state == LIVE:
            self.hand_over(handle)
        self._caller_receives = False
        self._caller_received_at = self._now()
        self._caller_receipts += 1
        if failure is not None:
            self._failure = failure
        if self.waiting or self._queries or self._failure is not None or self._is_stopping_callers:
            self.changed.notify_all()
            self._wake_thread()

    def _stop_callers(self) -> None:
        """Wait until no caller receives: the link is about to be closed. The lock is held."""
        if self._caller_receives and self._link is not None:
            self._is_stopping_callers = True
            self._link.wake()
            self.changed.wait_for(lambda: not self._caller_receives)
        self._is_stopping_callers = False

    def _stop_thread(self, link: Link) -> None:
        """Wait until the thread does not receive any more."""
        with self.lock:
            if self._thread_receives:
                link.wake()
                self.changed.wait_for(lambda: not self._thread_receives)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Receive on the thread, unless a caller does."""
        self._park()
        with self.lock:
            if self._has_late_release():
                self.flush()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if not self._may_receive() or self._is_closing or self._lazy:
                return
            self._is_parked = False
            self._thread_receives = True
        try:
            assert self._link is not None
            self._receive_on(self._link)
        finally:
            with self.lock:
                self._thread_receives = False
                self.changed.notify_all()

    def _park(self) -> None:
        """Wait while callers receive. The next look is soon while callers leave releases unsent; not if leases come
        slowly, or a caller waits for one: a look costs as much as a lease."""
        self._park_seconds, self._caller_receipts = PARK_SECONDS, 0
        self._may_linger = self._is_parked = True
        while not self._may_receive() and not self._has_late_release():
            self._alarm.acquire(timeout=self._park_seconds)
            with self.lock:
                longer = min(PARK_GROWTH * self._park_seconds, MAX_PARK_SECONDS, MAX_PARK_SHARE * self.ttl)
                self._may_linger = self._come_fast() or bool(self._lazy)
                self._park_seconds = PARK_SECONDS if self._may_linger else longer
                self._caller_receipts = 0

    def _come_fast(self) -> bool:
        """Return whether callers received a lease per PARK_SECONDS since the last look of the parked thread."""
        return self._caller_receipts * PARK_SECONDS >= self._park_seconds

    def _has_late_release(self) -> bool:
        return bool(self._lazy) and self._now() - self._released_at >= QUICK_SECONDS

    def _wake_thread(self) -> None:
        """End the wait of `_park`, unless a caller receives. A call before the wait is not lost. The lock is held."""
        if self._is_parked and not self._caller_receives and self._alarm.locked():
            self._alarm.release()

    def _may_receive(self) -> bool:
        """Return whether the thread must act now: a caller that has just received may do so again in a moment."""
        if self._failure is not None or self._is_closing:
            return True
        if self._caller_receives:
            return False
        is_expected = self.waiting or self._queries or not self._has_joined
        return bool(is_expected) or self._now() - self._caller_received_at >= PARK_SECONDS

    # --- both -----------------------------------------------------------------------------------------------------

    def _receive_on(self, link: Link, until: float = inf) -> bool:
        """Wait for replies, for the next heartbeat, for the end of the patience with a silent owner, or until an
        instant. Return False if that has passed before."""
        now = self._now()
        if now >= until:
            return False
        frames = link.receive(max(0.0, min(self.due_at(now), until) - now))
        if not frames and self.is_owner_silent():
            frames = self._receive_or_replace(link)
        with self.lock:
            for data in frames:
                self.take(wire.decode_replies(data))
            if self._now() >= self._beat_at:
                self.beat()
            calls = self.take_calls() if self._calls else ()
        for call, arguments in calls:
            call(*arguments)
        return True

    def _receive_or_replace(self, link: Link) -> list[bytes]:
        """Replace an owner that does not answer, unless its answer has come meanwhile: this process may have been
        stopped, not the owner."""
        frames = link.receive(0.0)
        if not frames:
            self.gate.depose()
            raise StoreLost("its owner did not answer")
        return frames
