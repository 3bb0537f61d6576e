"""Mailbox: queues the messages of one run and lets one thread at a time process them.

All state of a run is changed by message handlers, and only the thread that holds the mailbox's lock calls handlers. No
thread ever waits for that lock: a thread that finds it taken leaves its message to the holder.

A worker's thread processes messages itself when its attempt has ended, and goes on with the attempt that it starts by
that: this saves two thread switches per item. All other threads (the pool, timers, signal handlers, a caller's event
loop, the reader of the results) only enqueue; the run's own thread processes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

from agentos.wakeup import Wakeup
from agentos.workers.base import Workers

from .._parts.messages import Message

Handlers = dict[type[Message], Callable[[Any], None]]


class Mailbox:
    def __init__(
        self,
        name: str,
        workers: Workers,
        after_messages: Callable[[], None],
        on_error: Callable[[BaseException], None],
    ) -> None:
        """`name`: of the run's own thread. `after_messages` is called when the mailbox is empty; `on_error` if a
        handler or `after_messages` raises. All of them are called by the thread that processes messages."""
        self.is_ended = False
        self._messages: deque[Message] = deque()
        self._workers = workers
        self.handlers: Handlers = {}  # set before the start: one for each type of message
        self._after_messages = after_messages
        self._on_error = on_error
        self._lock = threading.Lock()
        # Not a semaphore: a signal handler may notify while its own thread does.
        self._signals: SimpleQueue[None] = SimpleQueue()
        self._wakeup = Wakeup(partial(self._signals.put, None), is_armed=True)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the run's own thread."""
        self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        """Wait until the run's own thread has ended, or for `timeout` seconds."""
        self._thread.join(timeout)

    def post(self, message: Message) -> None:
        """Enqueue a message for the run's own thread. Called from any thread, also in a signal handler."""
        self._messages.append(message)
        self._wakeup.notify()

    def post_and_process(self, message: Message) -> None:
        """Enqueue a message and, if possible, process the mailbox on this thread, on which an attempt ended."""
        self._messages.append(message)
        if self._workers.lends_thread:
            self._process()
        elif not self._workers.run_on_worker_thread(self._process):
            self._wakeup.notify()

    def unprocessed(self) -> list[Message]:
        """Return a copy of the messages that no handler has been called with."""
        return list(self._messages.copy())  # `copy` is one step: other threads may append meanwhile

    def end(self) -> None:
        """Process no further message. Called by a handler."""
        self.is_ended = True
        self._signals.put(None)  # the run's own thread ends

    def _run(self) -> None:
        while not self.is_ended:
            self._signals.get()
            self._wakeup.arm()
            self._process(is_own_thread=True)

    def _process(self, is_own_thread: bool = False) -> None:
        """Process messages until the mailbox is empty, unless another thread does.

        No message is left behind: a thread that posts while the holder of the lock is about to release it fails to
        take the lock, and the holder looks at the mailbox again after the release.

        If the workers accept calls, the run's own thread processes only the messages that it found and submits the
        rest: two threads that both have work to do compete for the interpreter, at twice the cost of an item.
        """
        messages, handlers = self._messages, self.handlers
        while messages and not self.is_ended and self._lock.acquire(False):
            try:
                remaining = len(messages) if is_own_thread and self._workers.can_submit else -1
                while messages and not self.is_ended and remaining:
                    message = messages.popleft()
                    handlers[type(message)](message)
                    remaining -= 1
                    if not messages or not remaining:
                        self._after_messages()
            except BaseException as error:
                self._on_error(error)
            finally:
                self._lock.release()
            if is_own_thread and messages and self._workers.can_submit:
                self._workers.submit(self._process)
                return
