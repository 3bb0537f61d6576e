"""The results of a run, one by one, as they come: for threads and for asyncio."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from queue import Empty
from types import TracebackType
from typing import TYPE_CHECKING

from agentos.items.results import ProgressStats, RunningItem, WorkflowResult

from ._driver import Driver
from ._result_queue import RECALL

if TYPE_CHECKING:
    from agentos.events import PoolWaiting
    from agentos.ledger.recorded_results import RecordedResults

# A run that was killed has nothing to wait for but its worker processes' end.
KILL_SECONDS = 0.9


class _Results:
    """What both kinds share: the end of a run is handled once."""

    def __init__(self, driver: Driver, on_end: Callable[[Driver], None]) -> None:
        self._driver = driver
        self._on_end = on_end
        self._recorded_results = driver.recorded_results
        self._is_recalling = False  # there are recorded results to be fetched, whenever no new one is there
        self._is_at_end = False  # the run is over: nothing but recorded ones can come
        self._is_ended = False
        self._rest: deque[WorkflowResult] = deque()  # what had ended but was not taken when the run was left early

    @property
    def stats(self) -> ProgressStats:
        """Where the run stands; after the last result, how it ended."""
        return self._driver.account.refreshed_stats()

    @property
    def run_id(self) -> str:
        return self._driver.account.run_id

    def running(self, most: int | None = None) -> list[RunningItem]:
        """The attempts that are running now, or the `most` oldest of them. From any thread."""
        return self._driver.running(most)

    def waiting(self) -> PoolWaiting | None:
        """Why items wait for a credential, and until when; None when none does. From any thread."""
        return self._driver.waiting()

    def _end(self) -> None:
        if not self._is_ended:
            self._is_ended = True
            if self._recorded_results is not None:
                self._recorded_results.close()
            self._on_end(self._driver)

    def _kill(self) -> None:
        """At once: after a second signal, or when even leaving was interrupted."""
        self._driver.kill()
        self._driver.join(KILL_SECONDS)
        self._end()

    def _next_of_rest(self) -> WorkflowResult | None:
        return self._rest.popleft() if self._rest else None

    def __del__(self) -> None:
        if not self._is_ended:
            self._driver.stop("left early")
            self._end()


class ResultStream(_Results, Iterator[WorkflowResult]):
    """Iterate over it, best inside `with`: leaving early is a shutdown with grace, after which what had ended but was
    not taken can still be taken. Constant memory; a slow reader slows the run. When the input raises, what had started
    is reported first."""

    def __init__(self, driver: Driver, on_end: Callable[[Driver], None]) -> None:
        super().__init__(driver, on_end)
        self._take = driver.outbox.take
        self._took = driver.outbox.took

    def __next__(self) -> WorkflowResult:
        if self._is_ended:
            rest = self._next_of_rest()
            if rest is None:
                raise StopIteration
            return rest
        try:
            if self._recorded_results is None:
                result = self._take()
                self._took()
            else:
                result = self._next_of_both(self._recorded_results)
        except BaseException:  # KeyboardInterrupt: the second signal
            self._kill()
            raise
        if result is not None:
            return result
        self._end()
        if self._driver.error is not None:
            raise self._driver.error
        raise StopIteration

    def _next_of_both(self, recorded_results: RecordedResults) -> WorkflowResult | None:
        """New ones first; one that was on record whenever no new one is there."""
        while not self._is_at_end:
            if self._is_recalling and self._driver.outbox.is_empty():
                recorded = recorded_results.next()
                if recorded is not None:
                    return recorded
                self._is_recalling = False
            result = self._take()
            if result is RECALL:
                self._is_recalling = True
            elif result is None:
                self._is_at_end = True
            else:
                self._took()
                return result
        return recorded_results.next()

    def close(self) -> None:
        """Shuts the run down, waiting for running attempts as long as the grace lasts. Does nothing after the end."""
        if self._is_ended:
            return
        self._driver.stop("left early")
        try:
            while not self._is_at_end and (result := self._take()) is not None:
                if result is not RECALL:  # what is on record stays there
                    self._rest.append(result)
                    self._took()
        except BaseException:
            self._kill()
            raise
        self._end()

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class AsyncResultStream(_Results, AsyncIterator[WorkflowResult]):
    """The same for `async for` and `async with`."""

    def __init__(self, driver: Driver, on_end: Callable[[Driver], None]) -> None:
        super().__init__(driver, on_end)
        self._fetch: asyncio.Future[None] | None = None  # of recorded results
        self._news = _News(driver)
        driver.outbox.on_put = self._news.on_result

    async def _take(self) -> WorkflowResult | None:
        while True:
            try:
                return self._driver.outbox.take_nowait()
            except Empty:
                await self._news.wait()

    async def __anext__(self) -> WorkflowResult:
        if self._is_ended:
            rest = self._next_of_rest()
            if rest is None:
                raise StopAsyncIteration
            return rest
        if self._recorded_results is None:
            result = await self._take()
            self._driver.outbox.took()
        else:
            result = await self._next_of_both(self._recorded_results)
        if result is not None:
            return result
        self._end()
        if self._driver.error is not None:
            raise self._driver.error
        raise StopAsyncIteration

    async def _next_of_both(self, recorded_results: RecordedResults) -> WorkflowResult | None:
        """New ones first; one that was on record whenever no new one is there."""
        while not self._is_at_end:
            if self._is_recalling and self._driver.outbox.is_empty():
                recorded = await self._next_recorded(recorded_results)
                if recorded is not None:
                    return recorded
                self._is_recalling = False
            result = await self._take()
            if result is RECALL:
                self._is_recalling = True
            elif result is None:
                self._is_at_end = True
            else:
                self._driver.outbox.took()
                return result
        return await self._next_recorded(recorded_results)

    async def _next_recorded(self, recorded_results: RecordedResults) -> WorkflowResult | None:
        """Who gives up waiting leaves the fetch going on, and the next one waits for that first."""
        if self._fetch is None and not recorded_results.has_page():
            self._fetch = asyncio.ensure_future(asyncio.to_thread(recorded_results.fetch))
        if self._fetch is not None:
            await asyncio.shield(self._fetch)
            self._fetch = None
        return recorded_results.next()

    async def aclose(self) -> None:
        """Shuts the run down, waiting for running attempts as long as the grace lasts. Does nothing after the end."""
        if self._is_ended:
            return
        self._driver.stop("left early")
        try:
            while not self._is_at_end and (result := await self._take()) is not None:
                if result is not RECALL:  # what is on record stays there
                    self._rest.append(result)
                    self._driver.outbox.took()
        except BaseException:
            self._kill()
            raise
        self._end()

    async def __aenter__(self) -> AsyncResultStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()


class _News:
    """How the run's thread wakes a reader on its loop. It does not know the stream: one that was forgotten must be able
    to go, and to stop its run, on the thread that has forgotten it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._has_come = asyncio.Event()
        self._is_waiting = False  # set here, then the outbox is looked at; there the other way round

    async def wait(self) -> None:
        self._has_come.clear()
        self._is_waiting = True
        if self._driver.outbox.is_empty():
            await self._has_come.wait()

    def on_result(self) -> None:
        """On the run's thread."""
        if self._is_waiting:
            self._is_waiting = False
            try:
                self._loop.call_soon_threadsafe(self._has_come.set)
            except RuntimeError:
                self._driver.stop("the event loop is closed")
