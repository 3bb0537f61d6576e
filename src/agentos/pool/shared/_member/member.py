"""Member: this process as a member of a shared pool. It asks the owner, and continues with another one if it is gone.

Callers send their messages themselves. One thread receives the replies (`receiving`), sends heartbeats, and finds a new
owner when the link breaks or the owner is silent. Callbacks (deliveries and events) are called on the thread that
received the reply, without the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import Any

from agentos.errors import StoreError

from .. import messages as wire
from ..transport import Link, StoreLost, StoreRefused
from .receiving import Receiving

# Seconds until the next attempt to reach a lost store; doubled up to the second figure.
FIRST_RETRY, LAST_RETRY = 0.02, 0.5
# Seconds for which one attempt to find an owner lasts.
CONNECT_SECONDS = 2.0
# A newcomer gives a store up that has been lost for this many seconds: one owner after the other may end meanwhile.
LOST_SECONDS = 4.0
# A process that ends waits for the store no longer than this many seconds,
CLOSE_SECONDS = 2.0
# ... nor for the owner's answer that the session has ended, in seconds.
LEAVE_SECONDS = 0.25


class Member(Receiving):
    """A session with a thread."""

    __slots__ = ("__weakref__",)

    def __init__(self, *what: Any) -> None:
        """`what`: the arguments of `Receiving`."""
        super().__init__(*what)
        _OPEN.add(self)

    # --- what callers do ------------------------------------------------------------------------------------------

    def open(self, seconds: float) -> None:
        """Join the pool. Raises `StoreError`."""
        with self.lock:
            self._start()
            outage = self.outage
            self.changed.wait_for(
                lambda: self._has_joined or outage.refused_because or outage.is_longer_than(LOST_SECONDS), seconds
            )
            if self._has_joined:
                return
            reason = outage.refused_because or outage.because or "its owner does not answer"
        self.close()
        raise StoreError(f"the pool's store {self.name} cannot be used: {reason}")

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
            self._is_stopping_callers = True
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
                self.changed.wait_for(lambda: self._is_closing, 0.0 if self.outage.has_just_begun() else retry)
            retry = min(LAST_RETRY, 2.0 * retry)
        self._end()

    def _on_lost(self, error: StoreLost) -> None:
        with self.lock:
            self._stop_callers()
            self.on_lost(error)
            self.changed.notify_all()

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
