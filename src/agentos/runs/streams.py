"""Result streams: iterators over the results of a run, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from queue import Empty
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from agentos.items.results import ProgressStats, RunningItem, WorkflowResult
from agentos.wakeup import Wakeup

from ._parts.result_queue import FETCH_RECORDED
from .start import RunHandle

if TYPE_CHECKING:
    from agentos.bounds import Bound
    from agentos.events import PoolWaiting
    from agentos.ledger.recorded_results import RecordedResults

    from .run_snapshot import RunSnapshot

# Seconds to wait for the end of a run that was killed: it waits for its worker processes only.
KILL_SECONDS = 0.9

T = TypeVar("T")  # the type that the worker returns


class _Results(Generic[T]):
    """The common part of both streams: handles the end of the run once."""

    def __init__(self, run: RunHandle, on_end: Callable[[RunHandle], None]) -> None:
        """`on_end`: called once, when the stream has reached its end or was closed."""
        self._run = run
        self._on_end = on_end
        self._queue = run.results
        self._recorded_results = run.recorded_results
        self._has_recorded = False  # recorded results can be fetched when no new one is there
        self._is_at_end = False  # the run is over: only recorded results can come
        self._is_ended = False
        # Results that were not yet taken when the stream was closed early.
        self.leftover_results: deque[WorkflowResult[T]] = deque()

    @property
    def stats(self) -> ProgressStats:
        """Return the counts of the run; after the last result, the final ones."""
        return self._run.stats

    @property
    def run_id(self) -> str:
        return self._run.run_id

    def running(self, max_count: int | None = None) -> list[RunningItem]:
        """Return the attempts that are running now, or the `max_count` oldest of them. From any thread."""
        return self._run.running(max_count)

    def rests(self) -> dict[str, tuple[float, str]]:
        """Return the credentials that rest in this run: for how many seconds, and why."""
        return self._run.rests()

    def bound(self) -> Bound | None:
        """Return what binds the run now; None if it waits for its last items only. From any thread."""
        return self._run.bound()

    def snapshot(self, max_running: int) -> RunSnapshot:
        """Return the state of the run and of its pool at one instant, with the oldest `max_running` attempts. From any
        thread."""
        return self._run.snapshot(max_running)

    def waiting(self) -> PoolWaiting | None:
        """Return why items wait for a credential, and until when; None if none does. From any thread."""
        return self._run.waiting()

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            if self._recorded_results is not None:
                self._recorded_results.close()
            self._on_end(self._run)

    def _kill(self) -> None:
        """End the run without grace: after a second signal, or when closing was interrupted."""
        self._run.kill()
        self._run.join(KILL_SECONDS)
        self._end()

    def _next_leftover(self) -> WorkflowResult[T] | None:
        return self.leftover_results.popleft() if self.leftover_results else None

    def __del__(self) -> None:
        if not self._is_ended:
            self._run.stop("stream closed early")
            self._end()


class ResultStream(_Results[T], Iterator[WorkflowResult[T]]):
    """An iterator over the results of a run, best used in a `with` block. Closing it early is a shutdown with grace,
    after which results that were not taken can still be taken. It needs constant memory: a slow reader slows the run.
    If the input raises, the results of all started items come first, then the error."""

    def __init__(self, run: RunHandle, on_end: Callable[[RunHandle], None]) -> None:
        super().__init__(run, on_end)
        self._take = run.results.take
        self._mark_taken = run.results.mark_taken

    def __next__(self) -> WorkflowResult[T]:
        if self._is_ended:
            leftover = self._next_leftover()
            if leftover is None:
                raise StopIteration
            return leftover
        try:
            if self._recorded_results is None:
                result = self._take()
                self._mark_taken()
            else:
                result = self._next_of_both(self._recorded_results)
        except BaseException:  # KeyboardInterrupt: the second signal
            self._kill()
            raise
        if result is not None:
            return result
        self._end()
        if self._run.error is not None:
            raise self._run.error
        raise StopIteration

    def _next_of_both(self, recorded_results: RecordedResults) -> WorkflowResult[T] | None:
        """Return the next new result or, while there is none, a recorded one; None at the end."""
        while not self._is_at_end:
            if self._has_recorded and self._queue.is_empty():
                recorded = recorded_results.next()
                if recorded is not None:
                    return recorded
                self._has_recorded = False
            result = self._take()
            if result is FETCH_RECORDED:
                self._has_recorded = True
            elif result is None:
                self._is_at_end = True
            else:
                self._mark_taken()
                return result
        return recorded_results.next()

    def close(self) -> None:
        """Shut the run down and wait for it, at most for the grace period. No-op after the end of the run."""
        if self._is_ended:
            return
        self._run.stop("stream closed early")
        try:
            while not self._is_at_end and (result := self._take()) is not None:
                if result is not FETCH_RECORDED:  # recorded results stay in the ledger
                    self.leftover_results.append(result)
                    self._mark_taken()
        except BaseException:
            self._kill()
            raise
        self._end()

    def __enter__(self) -> ResultStream[T]:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncResultStream(_Results[T], AsyncIterator[WorkflowResult[T]]):
    """ResultStream for `async for` and `async with`."""

    def __init__(self, run: RunHandle, on_end: Callable[[RunHandle], None]) -> None:
        super().__init__(run, on_end)
        self._fetch: asyncio.Future[None] | None = None  # of recorded results
        self._new_results = _NewResults(run)

    async def _take(self) -> WorkflowResult[T] | None:
        while True:
            try:
                return self._queue.take_nowait()
            except Empty:
                await self._new_results.wait()

    async def __anext__(self) -> WorkflowResult[T]:
        if self._is_ended:
            leftover = self._next_leftover()
            if leftover is None:
                raise StopAsyncIteration
            return leftover
        if self._recorded_results is None:
            result = await self._take()
            self._queue.mark_taken()
        else:
            result = await self._next_of_both(self._recorded_results)
        if result is not None:
            return result
        self._end()
        if self._run.error is not None:
            raise self._run.error
        raise StopAsyncIteration

    async def _next_of_both(self, recorded_results: RecordedResults) -> WorkflowResult[T] | None:
        """Return the next new result or, while there is none, a recorded one; None at the end."""
        while not self._is_at_end:
            if self._has_recorded and self._queue.is_empty():
                recorded = await self._next_recorded(recorded_results)
                if recorded is not None:
                    return recorded
                self._has_recorded = False
            result = await self._take()
            if result is FETCH_RECORDED:
                self._has_recorded = True
            elif result is None:
                self._is_at_end = True
            else:
                self._queue.mark_taken()
                return result
        return await self._next_recorded(recorded_results)

    async def _next_recorded(self, recorded_results: RecordedResults) -> WorkflowResult[T] | None:
        """Return a recorded result. A reader that is cancelled leaves its fetch running; the next call awaits that."""
        if self._fetch is None and not recorded_results.has_page():
            self._fetch = asyncio.ensure_future(asyncio.to_thread(recorded_results.fetch))
        if self._fetch is not None:
            await asyncio.shield(self._fetch)
            self._fetch = None
        return recorded_results.next()

    async def aclose(self) -> None:
        """Shut the run down and wait for it, at most for the grace period. No-op after the end of the run."""
        if self._is_ended:
            return
        self._run.stop("stream closed early")
        try:
            while not self._is_at_end and (result := await self._take()) is not None:
                if result is not FETCH_RECORDED:  # recorded results stay in the ledger
                    self.leftover_results.append(result)
                    self._queue.mark_taken()
        except BaseException:
            self._kill()
            raise
        self._end()

    async def __aenter__(self) -> AsyncResultStream[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


class _NewResults:
    """Wakes the reader, on its event loop, from the run's threads. It does not refer to the stream: a stream that the
    program drops must be freed at once, on the thread that drops it, to stop its run."""

    def __init__(self, run: RunHandle) -> None:
        self._run = run
        self._loop = asyncio.get_running_loop()
        self._signal = asyncio.Event()
        self._wakeup = Wakeup(self._wake)
        run.results.on_put = self._wakeup.notify

    async def wait(self) -> None:
        """Wait until the result queue has got an entry, which may have been taken already."""
        self._signal.clear()
        self._wakeup.arm()
        if self._run.results.is_empty():
            await self._signal.wait()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._signal.set)
        except RuntimeError:
            self._run.stop("the event loop is closed")
