"""Attempts in threads of our own.

They are daemon threads, so that a worker which never returns cannot hold up the exit of the program; that is why
`ThreadPoolExecutor`, whose threads are joined at exit, is not used. A thread is started when it is first needed.

Waking a thread is what costs most, so one is woken at a time: whoever takes an attempt and sees that more are there
wakes the next. Where attempts are short, a thread that is awake does several before the next one is up.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from agentos.items.attempt import Attempt
from agentos.items.context import _current

from .base import EndedCall, Workers

_numbers = itertools.count(1)


class ThreadWorkers(Workers):
    def __init__(self, worker_func: Callable[[Any, Any], Any], ended: EndedCall) -> None:
        self._worker_func = worker_func
        self._ended = ended
        self._threads = 0  # that take attempts; only the run's thread touches it
        # The order of each step below matters more than a lock would: see `_take`.
        self._todo: deque[Attempt | None] = deque()  # None: leave
        self._idle: list[threading.Lock] = []  # one gate per thread that has lain down
        self._is_waking = False  # a thread has been called and is not up yet
        self._coming = 0  # threads that are done with an attempt and will look for the next one by themselves

    def start(self, attempt: Attempt, running: int, /) -> None:
        todo = self._todo
        todo.append(attempt)
        if running > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"agentos-worker-{next(_numbers)}", daemon=True).start()
        elif not self._is_waking and len(todo) > self._coming:
            self._wake_one()

    def run_on_worker_thread(self, call: Callable[[], None], /) -> bool:
        call()
        return True

    def abandon(self, attempt: Attempt, /) -> None:
        attempt.is_abandoned = True  # its thread leaves when the attempt ends; the next start makes another
        self._threads -= 1

    def close(self) -> None:
        self._todo.extend([None] * self._threads)
        self._wake_one()

    def _wake_one(self) -> None:
        self._is_waking = True
        try:
            gate = self._idle.pop()
        except IndexError:
            self._is_waking = False  # all are up, and look for more before they lie down
        else:
            gate.release()

    def _take(self, gate: threading.Lock) -> Attempt | None:
        """The next attempt; lies down until there is one.

        No attempt can be overlooked. `start` appends and then looks whether somebody is being woken; the one being
        woken clears that mark and then looks for attempts. `start` appends and then looks for an idle thread; a thread
        joins the idle ones and then looks for attempts.
        """
        todo, idle = self._todo, self._idle
        while True:
            try:
                attempt = todo.popleft()
            except IndexError:
                idle.append(gate)
                if todo:
                    try:
                        idle.remove(gate)
                        continue
                    except ValueError:
                        pass  # called already: the gate is open
                gate.acquire()
                self._is_waking = False
                continue
            if todo and idle and not self._is_waking:
                self._wake_one()
            return attempt

    def _work(self) -> None:
        worker_func, ended, take = self._worker_func, self._ended, self._take
        gate = threading.Lock()
        gate.acquire()
        while (attempt := take(gate)) is not None:
            _current.set(attempt)
            error: BaseException | None = None
            try:
                value = worker_func(attempt.item.payload, attempt.credential)
                if inspect.iscoroutine(value):
                    value.close()
                    raise TypeError(
                        "the worker returned a coroutine: declare it with 'async def' so that it is awaited"
                    )
            except BaseException as exc:  # also SystemExit and KeyboardInterrupt: one item's failure is its own
                value, error = None, exc
            self._coming = 1
            ended(attempt, value, error)
            self._coming = 0
            if attempt.is_abandoned:
                self._wake_one()  # somebody else must look
                return
