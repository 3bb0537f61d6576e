"""Member: this process as a member of a shared pool. It asks the owner, and continues with another one if it is gone.

Callers send their messages themselves. One thread receives the replies, sends heartbeats, and finds a new owner when
the link breaks or the owner is silent. A caller that does nothing but wait for its lease receives in the place of that
thread: a lease then costs no switch between threads. Callbacks (deliveries and events) are called on the thread that
received the reply, without the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from agentos.clock import Clock, boot_time
from agentos.errors import StoreError

from ..._rules.lease_states import WAITING
from .. import messages as wire
from ..transport import Gate, Link, StoreLost, StoreRefused
from .handles import MemberHandle
from .member_session import NO_ANSWER, MemberSession

# Seconds until the next attempt to reach a lost store; doubled up to the second figure.
FIRST_RETRY, LAST_RETRY = 0.02, 0.5
# Seconds for which one attempt to find an owner lasts.
CONNECT_SECONDS = 2.0
# The thread receives again when no caller has done so for this many seconds, if nothing is expected meanwhile. As long
# may a release wait for the next request of a caller that takes one lease after another.
PARK_SECONDS = 0.05
# If callers receive no lease in that time, each look of the parked thread is farther from the last one by this factor,
# up to a maximum in seconds and to a share of the time to live, in which no heartbeat is due.
PARK_GROWTH, MAX_PARK_SECONDS, MAX_PARK_SHARE = 8.0, 2.0, 0.1
# A request follows a release at once if it comes within this many seconds.
QUICK_SECONDS = 0.002
# A newcomer gives a store up that has been lost for this many seconds: one owner after the other may end meanwhile.
LOST_SECONDS = 4.0
# A process that ends waits for the store no longer than this many seconds,
CLOSE_SECONDS = 2.0
# ... nor for the owner's answer that the session has ended, in seconds.
LEAVE_SECONDS = 0.25


class NoAnswer(Exception):
    """A query was not answered in time: the owner cannot be reached."""


class Member(MemberSession):
    """A session with a thread. The methods of `MemberSession` are called with the lock held."""

    def __init__(self, gate: Gate, clock: Clock, on_event: Callable[[Any], None], ttl: float, run: str | None,
                 order: str = "") -> None:  # fmt: skip
        self.gate = gate
        super().__init__(
            gate.name, clock, on_event, ttl, run, boot_time, order
        )  # leases expire while a machine is suspended
        _OPEN.add(self)

    def _reset(self) -> None:
        self.lock = threading.Lock()  # guards the session; not the condition, whose `with` costs more
        self.changed = threading.Condition(self.lock)
        self._thread: threading.Thread | None = None
        self._query_numbers = 0
        self._thread_receives = False
        self._caller_receives = False  # in the place of the thread
        self._caller_receipts = 0  # how often one has stopped to
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

    # --- what callers do ------------------------------------------------------------------------------------------

    def open(self, seconds: float) -> None:
        """Join the pool. Raises `StoreError`."""
        with self.lock:
            self._start()
            self.changed.wait_for(lambda: self._has_joined or self.refused_because or self._is_long_lost(), seconds)
            if self._has_joined:
                return
            reason = self.refused_because or self.lost_because or "its owner does not answer"
        self.close()
        raise StoreError(f"the pool's store {self.name} cannot be used: {reason}")

    def _is_long_lost(self) -> bool:
        return self.lost_since is not None and self._now() - self.lost_since >= LOST_SECONDS

    def ask(self, what: str, *arguments: Any, seconds: float) -> Any:
        """Return the answer to a query. Raises `NoAnswer`. The lock is not held."""
        answers: SimpleQueue[Any] = SimpleQueue()
        with self.lock:
            # A query may follow a greeting that was not answered yet: its answer then says that both were processed.
            if self._link is None or self._is_closing or threading.current_thread() is self._thread:
                raise NoAnswer
            self._query_numbers += 1
            number = self._query_numbers
            self._caller_flushes = True
            try:
                self._send(wire.Query(number, what, list(arguments), wire.PROTOCOL))
            finally:
                self._caller_flushes = False
            self._queries[number] = answers
            self.expect_answer()
            link, receives = self._link, self._takes_receiving(0)
            if not receives:
                self._wake_thread()  # it receives the answer
        until = self._now() + seconds
        if link is not None:
            self._receive_until(link, receives, lambda: not answers.empty(), until)
            link.flush()  # a greeting that replies have led to: what a caller said before its query is on its way
        try:
            answer = answers.get(timeout=max(0.0, until - self._now()))
        except Empty:
            answer = NO_ANSWER
        with self.lock:
            self._queries.pop(number, None)
        if answer is NO_ANSWER:
            raise NoAnswer
        return answer

    def request_and_receive(self, handle: MemberHandle, front: bool, until: float) -> None:
        """Request a lease and receive replies until the request is answered, until an instant, or until the link
        breaks. Returns at once if another thread receives, or other requests wait: the caller is then called back. The
        lock is not held."""
        with self.lock:
            self._is_quick = time.monotonic() - self._released_at < QUICK_SECONDS
            self._caller_flushes = True
            try:
                super().request(handle, front)
            finally:
                self._caller_flushes = False
            link, receives = self._link, self._takes_receiving(1)
        if link is not None:
            self._receive_until(link, receives, lambda: handle.state != WAITING, until)

    def _takes_receiving(self, max_waiting: int) -> bool:
        """Let a caller receive, if no other one does and no other requests wait. The lock is held: the thread must not
        receive while the caller sends, which may take long."""
        is_free = not self._caller_receives and self._failure is None and self._has_joined
        receives = is_free and self.waiting <= max_waiting and self._link is not None
        self._caller_receives = self._caller_receives or receives
        return receives

    def _receive_until(self, link: Link, receives: bool, is_over: Callable[[], bool], until: float) -> None:
        """Send on the caller's thread what was left to it. If it `receives`, do so until `is_over`, until an instant,
        or until the link breaks. The lock is not held."""
        if not receives:
            link.flush()
            return
        failure: StoreLost | StoreRefused | None = StoreLost("a caller was interrupted while it received")
        try:
            link.flush(receives=True)
            if self._thread_receives:
                self._stop_thread(link)
            while link is self._link and not is_over() and not (self._is_closing or self._is_stopping_callers):
                if not self._receive_on(link, until):
                    break
            failure = None
        except (StoreLost, StoreRefused) as error:
            failure = error
        finally:  # also after a Ctrl-C: replies may be lost then, and a greeting repeats them
            with self.lock:
                self._caller_receives = False
                self._caller_received_at = time.monotonic()
                self._caller_receipts += 1
                if failure is not None and link is self._link:
                    self._failure = failure
                if self._is_expecting() or self._is_stopping_callers:
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

    def request(self, handle: MemberHandle, front: bool) -> None:
        self._is_quick = time.monotonic() - self._released_at < QUICK_SECONDS
        super().request(handle, front)
        self._wake_thread()

    def request_again(self, handle: MemberHandle, message: wire.Message) -> None:
        super().request_again(handle, message)
        self._wake_thread()

    def release(self, message: wire.Message, handle: MemberHandle) -> None:
        """Say the end of a lease without news. It shares the frame of the next request if one follows at once, as it
        did the last time; the thread sends it otherwise. Not if the lease had to be waited for: others may wait now.
        The lock is held."""
        self._released_at = time.monotonic()
        if self._is_quick and self._is_parked and self._may_linger and not handle.was_queued:
            self.say_lazily(message)
        else:
            self.say(message)

    def wake_callers(self) -> None:
        """Let callers that wait for a condition look again. The lock is not held."""
        with self.lock:
            self.changed.notify_all()

    def close(self) -> None:
        """Leave the pool: leases of this process end. The lock is not held."""
        with self.lock:
            thread = self._thread
            if self._is_closing:
                return
            self.leave()
            if self._link is not None:
                self._link.wake()
            self.changed.notify_all()
            self._wake_thread()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)
        self.gate.close()
        _OPEN.discard(self)

    def _join_soon(self) -> None:
        if self._thread is None and not self._is_closing:  # a forked child: it joins with its first message
            self._start()

    # --- the thread -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="agentos-pool", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        retry = FIRST_RETRY
        while not self._is_closing:
            try:
                self._join()
                retry = FIRST_RETRY
                while not self._is_closing:
                    self._receive()
                break
            except StoreRefused as error:
                with self.lock:
                    self._stop_callers()
                    self.on_refused(error)
                    self.changed.notify_all()
            except StoreLost as error:
                self._on_lost(error)
            except Exception as error:  # waiters must not wait for a thread that has ended
                self._on_lost(StoreLost(f"{type(error).__name__}: {error}"))
            self._call_back()
            with self.lock:
                self.changed.wait_for(lambda: self._is_closing, 0.0 if self._broken_recently() else retry)
            retry = min(LAST_RETRY, 2.0 * retry)
        self._end()

    def _on_lost(self, error: StoreLost) -> None:
        with self.lock:
            self._stop_callers()
            self.on_lost(error)
            self.changed.notify_all()

    def _broken_recently(self) -> bool:
        return self._broken_at is not None and self._now() - self._broken_at < 0.1

    def _join(self) -> None:
        """Find an owner and greet it."""
        link = self.gate.connect(CONNECT_SECONDS)
        with self.lock:
            self.session_id = self.session_id or self.gate.new_session()
            self.greet(link)
        while not self._has_joined and not self._is_closing:
            self._receive()
        with self.lock:
            self.changed.notify_all()

    def _receive(self) -> None:
        """Receive on the thread, unless a caller does."""
        self._park()
        with self.lock:
            if self._lazy and time.monotonic() - self._released_at >= QUICK_SECONDS:
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
        self._park_seconds, receipts = PARK_SECONDS, self._caller_receipts
        self._may_linger = self._is_parked = True
        while not self._may_receive() and not self._has_late_release():
            self._alarm.acquire(timeout=self._park_seconds)
            leases, receipts = self._caller_receipts - receipts, self._caller_receipts
            with self.lock:
                longer = min(PARK_GROWTH * self._park_seconds, MAX_PARK_SECONDS, MAX_PARK_SHARE * self.ttl)
                self._may_linger = leases * PARK_SECONDS >= self._park_seconds or bool(self._lazy)
                self._park_seconds = PARK_SECONDS if self._may_linger else longer

    def _has_late_release(self) -> bool:
        return bool(self._lazy) and time.monotonic() - self._released_at >= QUICK_SECONDS

    def _wake_thread(self) -> None:
        """End the wait of `_park`, unless a caller receives. A call before the wait is not lost. The lock is held."""
        if self._is_parked and not self._caller_receives and self._alarm.locked():
            self._alarm.release()

    def _is_expecting(self) -> bool:
        """Return whether something is to be received or done that no caller takes care of."""
        return bool(self.waiting or self._queries or self._failure is not None or self._is_closing)

    def _may_receive(self) -> bool:
        """Return whether the thread must act now: a caller that has just received may do so again in a moment."""
        if self._failure is not None or self._is_closing:
            return True
        if self._caller_receives:
            return False
        is_expected = self.waiting or self._queries or not self._has_joined
        return bool(is_expected) or time.monotonic() - self._caller_received_at >= PARK_SECONDS

    def _receive_on(self, link: Link, until: float = inf) -> bool:
        """Wait for replies, for the next heartbeat, for the end of the patience with a silent owner, or until an
        instant. Return False if that has passed before."""
        now = self._now()
        if now >= until:
            return False
        frames = link.receive(max(0.0, min(self.due_at(), until) - now))
        if not frames and self.is_owner_silent():
            frames = self._receive_or_replace(link)
        with self.lock:
            for data in frames:
                self.take(wire.decode_replies(data))
            self.beat()
            calls = self.take_calls()
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

    def _call_back(self) -> None:
        """Call what replies have led to, without the lock."""
        while self._calls:
            with self.lock:
                calls = self.take_calls()
            for call, arguments in calls:
                call(*arguments)

    def _end(self) -> None:
        """Close the link, and refuse what still waits."""
        with self.lock:
            self._stop_callers()
            link, self._link = self._link, None
            self.refuse_waiters()
            self.changed.notify_all()
        if link is not None:
            _finish(link)
            link.close()
        self._call_back()

    def start_over_in_child(self) -> None:
        """Forget the parent's session after a fork."""
        link = self._link
        self._reset()
        self.gate.abandon()
        if link is not None:
            link.abandon()


def _finish(link: Link) -> None:
    """Send what is left, and wait until the journal holds that this session has ended: the owner may be killed next,
    with all processes of a container."""
    begin = now = time.monotonic()
    with contextlib.suppress(StoreLost, wire.InvalidMessage):
        while now - begin < (CLOSE_SECONDS / 2 if link.has_unsent else LEAVE_SECONDS):
            frames = link.receive(LEAVE_SECONDS)
            if any(isinstance(reply, wire.Expired) for frame in frames for reply in wire.decode_replies(frame).replies):
                return
            now = time.monotonic()


_OPEN: weakref.WeakSet[Member] = weakref.WeakSet()


def close_all() -> None:
    """Close all members of this process."""
    for member in tuple(_OPEN):
        member.close()


def _start_over_in_child() -> None:
    for member in tuple(_OPEN):
        member.start_over_in_child()


atexit.register(close_all)
os.register_at_fork(after_in_child=_start_over_in_child)
