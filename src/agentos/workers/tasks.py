"""Attempts as asyncio tasks: on the caller's loop, or on a loop of their own in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from agentos.items.attempt import Attempt
from agentos.items.context import _current
from agentos.wakeup import Wakeup

from .base import EndedCall, Workers


class TaskWorkers(Workers):
    can_kill = True

    def __init__(
        self,
        worker_func: Callable[[Any, Any], Awaitable[Any]],
        ended: EndedCall,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._worker_func = worker_func
        self._ended = ended
        self._loop = loop if loop is not None else asyncio.new_event_loop()
        self._is_own_loop = self.can_submit = loop is None
        self._thread: threading.Thread | None = None
        self._todo: deque[Callable[[], None]] = deque()
        self._wakeup = Wakeup(self._wake_loop, is_armed=True)  # a system call, so one of them serves many attempts
        self._will_drive = False
        self._ident: int | None = None  # of the thread that runs our own loop

    def start(self, attempt: Attempt, _running: int, /) -> None:
        if self._is_own_loop and self._thread is None:
            self._thread = threading.Thread(target=self._run_loop, name="agentos-loop", daemon=True)
            self._thread.start()
        if threading.get_ident() == self._ident:
            self._launch(attempt)
        else:
            self._in_loop(lambda: self._launch(attempt))

    def run_on_worker_thread(self, call: Callable[[], None], /) -> bool:
        if not self._is_own_loop or self._loop.is_closed():
            return False
        if not self._will_drive:  # once for all tasks that end in one turn of the loop
            self._will_drive = True
            self._loop.call_soon(self._drive, call)
        return True

    def _drive(self, call: Callable[[], None]) -> None:
        self._will_drive = False
        call()

    def submit(self, call: Callable[[], None], /) -> None:
        self._in_loop(call)

    def interrupt(self, attempt: Attempt, /) -> None:
        self._in_loop(lambda: _cancel(attempt))

    def kill(self, attempt: Attempt, /) -> None:
        self._in_loop(lambda: _cancel(attempt))

    def close(self) -> None:
        if self._is_own_loop:
            if self._thread is None:
                self._loop.close()
            else:
                self._in_loop(self._loop.stop)

    def _in_loop(self, call: Callable[[], None]) -> None:
        self._todo.append(call)
        self._wakeup.notify()

    def _wake_loop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._do)
        except RuntimeError:
            # The caller's loop is closed, and with it every task that ran there.
            self._todo.clear()

    def _do(self) -> None:
        self._wakeup.arm()
        while self._todo:
            self._todo.popleft()()

    def _launch(self, attempt: Attempt) -> None:
        attempt.is_preparing = True
        # A caller's loop may have a task factory. Our own has none, and without `create_task` an item costs 1 µs less.
        if self._is_own_loop:
            attempt.task = asyncio.Task(self._carry_out(attempt), loop=self._loop)
        else:
            attempt.task = self._loop.create_task(self._carry_out(attempt))

    async def _carry_out(self, attempt: Attempt) -> None:
        _current.set(attempt)
        attempt.is_preparing = False
        try:
            if attempt.should_stop:
                raise asyncio.CancelledError
            value = await self._worker_func(attempt.item.payload, attempt.credential)
        except BaseException as exc:  # also SystemExit, which would end the loop and with it every other item
            attempt.task = None
            self._ended(attempt, None, exc)
        else:
            attempt.task = None  # which knows the attempt: a circle that only the garbage collector would end
            self._ended(attempt, value, None)

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._ident = threading.get_ident()
        try:
            self._loop.run_forever()
            self._cancel_the_rest()
        finally:
            self._loop.close()

    def _cancel_the_rest(self) -> None:
        """Gives what still runs one chance to clean up; what ignores even that is closed where it stands."""
        self._loop.run_until_complete(asyncio.sleep(0))  # who has not begun yet must begin, to end
        rest = asyncio.all_tasks(self._loop)
        for task in rest:
            task.cancel()
        if rest:
            _, rest = self._loop.run_until_complete(asyncio.wait(rest, timeout=0.5))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        for task in rest:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # as asyncio does for its own
            coroutine = task.get_coro()
            with contextlib.suppress(RuntimeError):  # it may ignore that too
                coroutine.close()


def _cancel(attempt: Attempt) -> None:
    # A task that is cancelled before its first step never runs, and could not say that it has ended; but it looks at
    # `should_stop` first thing.
    if attempt.task is not None and not attempt.is_preparing:
        attempt.task.cancel()
