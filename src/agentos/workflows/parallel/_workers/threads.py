"""Attempts in threads of our own.

They are daemon threads, so that a worker which never returns cannot hold up the exit of the program; that is why
`ThreadPoolExecutor`, whose threads are joined at exit, is not used. A thread is started when it is first needed.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from .._attempt import Attempt
from ..context import _current
from .base import EndedCall

_numbers = itertools.count(1)


class ThreadWorkers:
    can_kill = False

    def __init__(self, worker_func: Callable[[Any, Any], Any], ended: EndedCall) -> None:
        self._worker_func = worker_func
        self._ended = ended
        self._todo: SimpleQueue[Attempt | None] = SimpleQueue()
        self._threads = 0  # that take attempts; only the run's thread touches it

    def start(self, attempt: Attempt, running: int) -> None:
        if running > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"agentos-worker-{next(_numbers)}", daemon=True).start()
        self._todo.put(attempt)

    def interrupt(self, attempt: Attempt) -> None:
        """A thread has to look at `should_stop` by itself."""

    def kill(self, attempt: Attempt) -> None:
        """A thread cannot be killed."""

    def abandon(self, attempt: Attempt) -> None:
        attempt.is_abandoned = True  # its thread leaves when the attempt ends; the next start makes another
        self._threads -= 1

    def close(self) -> None:
        for _ in range(self._threads):
            self._todo.put(None)

    def _work(self) -> None:
        worker_func, ended, take = self._worker_func, self._ended, self._todo.get
        while (attempt := take()) is not None:
            _current.set(attempt)
            try:
                value = worker_func(attempt.payload, attempt.credential)
                if inspect.iscoroutine(value):
                    value.close()
                    raise TypeError(
                        "the worker returned a coroutine: declare it with 'async def' so that it is awaited"
                    )
            except BaseException as exc:  # also SystemExit and KeyboardInterrupt: one item's failure is its own
                ended(attempt, None, exc)
            else:
                ended(attempt, value, None)
            if attempt.is_abandoned:
                return
