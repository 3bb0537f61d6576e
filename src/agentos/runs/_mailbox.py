"""Who decides: one thread at a time, whichever is at hand.

Whatever happens to a run is a fact, and facts wait in the inbox. Whoever holds the *role* takes them one at a time and
then settles: everything is decided by one thread at a time, and no thread ever waits for the role: who finds it taken
leaves the fact to its holder. A worker's own thread takes the role itself when its attempt has ended, decides what is
next, and goes on with that: this saves two thread switches per item. For all others (the pool, timers, signals, a
caller's event loop, the reader of the results) a thread of the run does it: their threads are not ours to spend.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from agentos.workers.base import Workers

# What it means, and what it is about.
Fact = tuple[Callable[[Any, Any], None], Any, Any]


class Role:
    def __init__(
        self, name: str, workers: Workers, settle: Callable[[], None], on_error: Callable[[BaseException], None]
    ) -> None:
        """`settle` is called when no fact is left; `on_error` if a fact or `settle` raises. Both may `end` it."""
        self.inbox: deque[Fact] = deque()
        self.is_ended = False
        self._workers = workers
        self._settle = settle
        self._on_error = on_error
        self._lock = threading.Lock()
        # The run's own thread waits here. Not a semaphore: a signal handler may call while its thread is calling.
        self._calls: SimpleQueue[None] = SimpleQueue()
        self._is_called = False
        self._thread = threading.Thread(target=self._answer_calls, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        self._thread.join(timeout)

    def post(self, fact: Fact) -> None:
        """From a thread that is not ours to spend."""
        self.inbox.append(fact)
        self._call_own_thread()

    def post_and_drive(self, fact: Fact) -> None:
        """From a thread that an attempt ended on."""
        self.inbox.append(fact)
        if not self._workers.run_on_worker_thread(self._drive):
            self._call_own_thread()

    def end(self) -> None:
        """By the role's holder: no fact is taken any more."""
        self.is_ended = True
        self._calls.put(None)  # the run's own thread may leave

    def _call_own_thread(self) -> None:
        if not self._is_called:
            self._is_called = True
            self._calls.put(None)

    def _answer_calls(self) -> None:
        """The run's own thread."""
        while not self.is_ended:
            self._calls.get()
            self._is_called = False
            self._drive(is_own_thread=True)

    def _drive(self, is_own_thread: bool = False) -> None:
        """Takes the role, if it is free, until no fact is left. A fact that comes while its holder is about to leave is
        seen here: the inbox is looked at again after the role was given up.

        The run's own thread only deals with what was there when it came, if the workers can take over: two threads that
        both have work to do fight for the interpreter, at twice the cost of an item.
        """
        inbox = self.inbox
        while inbox and not self.is_ended and self._lock.acquire(False):
            try:
                left = len(inbox) if is_own_thread and self._workers.can_submit else -1
                while inbox and not self.is_ended and left:
                    fact, a, b = inbox.popleft()
                    fact(a, b)
                    left -= 1
                    if not inbox or not left:
                        self._settle()
            except BaseException as error:
                self._on_error(error)
            finally:
                self._lock.release()
            if is_own_thread and inbox and self._workers.can_submit:
                self._workers.submit(self._drive)
                return
