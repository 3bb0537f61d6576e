"""Carry out attempts as asyncio tasks: on the caller's event loop, or on a loop of their own in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from agentos.items.attempt import Attempt
from agentos.items.context import running_item
from agentos.wakeup import Wakeup

from .base import EndedCall, Workers

# Seconds that cancelled tasks have to clean up when the run ends.
CLEANUP_SECONDS = 0.5


class TaskWorkers(Workers):
    can_kill = True

    def __init__(
        self,
        worker_func: Callable[[Any, Any], Awaitable[Any]],
        ended: EndedCall,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop`: the caller's; None: a loop of these workers, in a thread that starts with the first attempt."""
        self._worker_func = worker_func
        self._ended = ended
        self._loop = loop if loop is not None else asyncio.new_event_loop()
        self._is_own_loop = self.can_submit = loop is None
        self._thread: threading.Thread | None = None
        self._loop_thread_id: int | None = None  # of the thread that runs these workers' own loop
        self._calls: deque[Callable[[], None]] = deque()  # for the loop's thread
        self._wakeup = Wakeup(self._wake_loop, is_armed=True)  # a system call, so one of them serves many attempts
        self._is_call_scheduled = False  # by `run_on_worker_thread`, for this turn of the loop
        self._launched: list[Attempt] = []  # whose tasks may not have made their first step
        self._is_closing = False  # a worker may stop these workers' own loop as well: then it runs on

    def start(self, attempt: Attempt, _running: int, /) -> None:
        if self._is_own_loop and self._thread is None:
            self._thread = threading.Thread(target=self._run_loop, name="agentos-loop", daemon=True)
            self._thread.start()
        if threading.get_ident() == self._loop_thread_id:
            self._launch(attempt)
        else:
            self._enqueue(lambda: self._launch(attempt))

    def run_on_worker_thread(self, call: Callable[[], None], /) -> bool:
        if not self._is_own_loop or self._loop.is_closed():
            return False
        if not self._is_call_scheduled:  # once for all tasks that end in one turn of the loop
            self._is_call_scheduled = True
            self._loop.call_soon(self._run_scheduled, call)
        return True

    def _run_scheduled(self, call: Callable[[], None]) -> None:
        self._is_call_scheduled = False
        call()

    def submit(self, call: Callable[[], None], /) -> None:
        self._enqueue(call)

    def interrupt(self, attempt: Attempt, /) -> None:
        self._enqueue(lambda: _cancel(attempt))

    def kill(self, attempt: Attempt, /) -> None:
        self._enqueue(lambda: _cancel(attempt))

    def close(self) -> None:
        if self._is_own_loop:
            if self._thread is None:
                self._loop.close()
            else:
                self._enqueue(self._stop_loop)

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Have the loop's thread make the call. Called from any thread."""
        self._calls.append(call)
        self._wakeup.notify()

    def _wake_loop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._run_calls)
        except RuntimeError:
            # The caller's loop is closed, and with it every task that ran there.
            self._calls.clear()

    def _run_calls(self) -> None:
        self._wakeup.arm()
        while self._calls:
            self._calls.popleft()()

    def _launch(self, attempt: Attempt) -> None:
        attempt.is_preparing = True
        # A caller's loop may have a task factory. Our own has none, and without `create_task` an item costs 1 µs less;
        # a name at hand saves the one that each task is given otherwise.
        if self._is_own_loop:
            task = asyncio.Task(self._run_attempt(attempt), loop=self._loop, name=attempt.id)
        else:
            task = self._loop.create_task(self._run_attempt(attempt))
        if attempt.is_preparing:
            attempt.task = task
            if not self._launched:
                self._loop.call_soon(self._report_unstarted)
            self._launched.append(attempt)
        elif not task.done():  # an eager task factory (Python 3.12) makes the first step at once
            attempt.task = task

    def _report_unstarted(self) -> None:
        """Report the ends of tasks that were cancelled before their first step: their coroutines never run. All other
        attempts report their ends themselves: a callback after each task would cost 2 µs."""
        launched = [attempt for attempt in self._launched if attempt.is_preparing]
        self._launched = [attempt for attempt in launched if not attempt.task.done()]
        if self._launched:  # in the next turn of the loop again
            self._loop.call_soon(self._report_unstarted)
        for attempt in launched:
            if attempt.task.done():
                attempt.task = None
                error = asyncio.CancelledError("the task was cancelled before its first step")
                self._ended(attempt, None, error)

    async def _run_attempt(self, attempt: Attempt) -> None:
        running_item.set(attempt)
        attempt.is_preparing = False
        try:
            if attempt.should_stop:
                raise asyncio.CancelledError
            value = await self._worker_func(attempt.item.payload, attempt.credential)
        except BaseException as exc:  # also SystemExit, which would end the loop and with it every other item
            attempt.task = None
            self._ended(attempt, None, exc)
        else:
            attempt.task = None  # the task refers to the attempt: only the garbage collector would free the cycle
            self._ended(attempt, value, None)

    def _stop_loop(self) -> None:
        self._is_closing = True
        self._loop.stop()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop_thread_id = threading.get_ident()
        try:
            while not self._is_closing and not self._loop.is_closed():
                # A callback or a background task of a worker may raise SystemExit, which ends `run_forever`.
                with contextlib.suppress(BaseException):
                    self._loop.run_forever()
            self._cancel_remaining_tasks()
        finally:
            self._loop.close()

    def _cancel_remaining_tasks(self) -> None:
        """Cancel all tasks, wait CLEANUP_SECONDS for them, and close the coroutines that still have not ended."""
        self._loop.run_until_complete(asyncio.sleep(0))  # a task must have started before its cancellation can end it
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            _, tasks = self._loop.run_until_complete(asyncio.wait(tasks, timeout=CLEANUP_SECONDS))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        _silence_destruction(self._loop, tasks)
        for task in tasks:
            coroutine = task.get_coro()
            with contextlib.suppress(RuntimeError):  # the coroutine ignores GeneratorExit as well
                coroutine.close()


def _silence_destruction(loop: asyncio.AbstractEventLoop, tasks: set[asyncio.Task[Any]]) -> None:
    """Drop asyncio's message about each of these tasks that is destroyed while it is pending."""
    # Ids, because references would keep the tasks alive. The loop has ended: no later task can get one of these ids.
    task_ids = {id(task) for task in tasks}
    handler = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if id(context.get("task")) in task_ids:
            return
        if handler is None:
            loop.default_exception_handler(context)
        else:
            handler(loop, context)

    loop.set_exception_handler(handle)


def _cancel(attempt: Attempt) -> None:
    if attempt.task is not None:
        attempt.task.cancel()
