"""Carry out attempts in threads.

They are daemon threads, so that a worker which never returns cannot hold up the exit of the program; that is why
`ThreadPoolExecutor`, whose threads are joined at exit, is not used. A thread is started when it is first needed.

Waking a thread is the largest cost of a short attempt, so threads are woken one at a time: a thread that takes an
attempt and finds more of them wakes the next thread. With short attempts, a running thread takes several of them before
the next thread is up.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from agentos.items.attempt import Attempt
from agentos.items.context import running_item

from .base import EndedCall, Workers

_thread_numbers = itertools.count(1)


class ThreadWorkers(Workers):
    lends_thread = True

    def __init__(self, worker_func: Callable[[Any, Any], Any], ended: EndedCall) -> None:
        self._worker_func = worker_func
        self._ended = ended
        self._thread_count = 0  # threads that take attempts; changed by one thread at a time
        # No lock guards these: the order of the steps does (see `_next_attempt`).
        self._attempts: deque[Attempt | None] = deque()  # None: one thread ends
        self._idle_gates: list[threading.Lock] = []  # one per sleeping thread; released to wake it
        self._is_waking = False  # a gate was released, and its thread does not run yet
        self._returning_threads = 0  # threads whose attempt has ended, and which will look for another by themselves

    def start(self, attempt: Attempt, running: int, /) -> None:
        attempts = self._attempts
        attempts.append(attempt)
        if running > self._thread_count:
            self._thread_count += 1
            name = f"agentos-worker-{next(_thread_numbers)}"
            threading.Thread(target=self._run_thread, name=name, daemon=True).start()
        elif not self._is_waking and len(attempts) > self._returning_threads:
            self._wake_thread()

    def abandon(self, attempt: Attempt, /) -> None:
        attempt.is_abandoned = True  # its thread ends with the attempt; the next `start` starts another thread
        self._thread_count -= 1

    def close(self) -> None:
        self._attempts.extend([None] * self._thread_count)
        self._wake_thread()

    def _wake_thread(self) -> None:
        self._is_waking = True
        try:
            gate = self._idle_gates.pop()
        except IndexError:
            self._is_waking = False  # all threads run, and look for attempts before they sleep
        else:
            gate.release()

    def _next_attempt(self, gate: threading.Lock) -> Attempt | None:
        """Return the next attempt; block until there is one.

        No attempt is missed:

        * `start` appends an attempt and then reads `_is_waking`. A woken thread clears `_is_waking` and then looks for
          attempts. So either `start` wakes a thread, or the woken thread finds the attempt.
        * `start` appends an attempt and then takes an idle gate. A thread adds its gate and then looks for attempts. So
          either `start` finds the gate, or the thread finds the attempt.
        """
        attempts, idle_gates = self._attempts, self._idle_gates
        while True:
            try:
                attempt = attempts.popleft()
            except IndexError:
                idle_gates.append(gate)
                if attempts:
                    try:
                        idle_gates.remove(gate)
                        continue
                    except ValueError:
                        pass  # another thread has taken the gate to release it
                gate.acquire()
                self._is_waking = False
                continue
            if attempts and idle_gates and not self._is_waking:
                self._wake_thread()
            return attempt

    def _run_thread(self) -> None:
        worker_func, ended, next_attempt = self._worker_func, self._ended, self._next_attempt
        gate = threading.Lock()
        gate.acquire()
        while (attempt := next_attempt(gate)) is not None:
            running_item.set(attempt)
            error: BaseException | None = None
            try:
                value = worker_func(attempt.item.payload, attempt.credential)
                if inspect.iscoroutine(value):
                    value.close()
                    raise TypeError(
                        "the worker returned a coroutine: declare it with 'async def' so that it is awaited"
                    )
            except BaseException as exc:  # also SystemExit and KeyboardInterrupt: they fail this item only
                value, error = None, exc
            self._returning_threads = 1
            ended(attempt, value, error)
            self._returning_threads = 0
            if attempt.is_abandoned:
                self._wake_thread()  # `start` may have counted on this thread
                return
