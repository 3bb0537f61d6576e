"""ResultQueue: carries results from a run to its reader, with back-pressure. One writer at a time, one reader."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from agentos.items.results import WorkflowResult
from agentos.wakeup import Wakeup

# Lower bound of the number of results that may wait in the queue before the run starts no further item.
MIN_SIZE = 64
# Upper bound of the characters of all values in the queue, as far as they are known (runs with a ledger).
MAX_CHARACTERS = 20_000_000
# Seconds between two looks at a blocked queue: a signal that arrives just before a thread blocks does not wake it.
SIGNAL_SECONDS = 0.25


# An entry that tells the reader to fetch recorded results from the ledger.
FETCH_RECORDED: WorkflowResult[Any] = WorkflowResult("", False)


class ResultQueue:
    """A queue of results that knows when it is full, and reports when it no longer is. None in it marks the end."""

    def __init__(self, size: int, on_room: Callable[[], None]) -> None:
        """`on_room`: called by the reader's thread when half of a full queue has been taken."""
        self._size = self._max_size = max(MIN_SIZE, size)
        self._queue: SimpleQueue[WorkflowResult[Any] | None] = SimpleQueue()
        self._put_count = 0  # written by the run only
        self._taken_count = 0  # written by the reader only
        self._wakeup = Wakeup(on_room)  # armed: the run waits for room
        self._collected: list[WorkflowResult[Any]] | None = None
        self.on_put: Callable[[], None] | None = None  # called after each put, for readers that cannot block

        self.take_nowait = self._queue.get_nowait
        self.is_empty = self._queue.empty

    def take(self) -> WorkflowResult[Any] | None:
        """Block until there is an entry, and return it. Call `mark_taken` afterwards if it is a result."""
        while True:
            try:
                return self._queue.get(True, SIGNAL_SECONDS)
            except Empty:
                continue

    def collect(self, results: list[WorkflowResult[Any]]) -> None:
        """Append all results to this list instead, which is never full. Called before the run starts."""
        self._collected = results

    def put(self, result: WorkflowResult[Any] | None) -> None:
        if self._collected is not None and result is not None:
            self._collected.append(result)
            return
        self._put_count += 1
        self._queue.put(result)
        if self.on_put is not None:
            self.on_put()

    def note_size(self, count: int, characters: int) -> None:
        """Adapt the size of the queue to the size of `count` results that are about to be put."""
        self._size = max(MIN_SIZE, min(self._max_size, MAX_CHARACTERS * count // max(characters, 1)))

    def put_all(self, results: list[WorkflowResult[Any]]) -> None:
        if self._collected is not None:
            self._collected.extend(results)
            return
        self._put_count += len(results)
        for result in results:
            self._queue.put(result)
        if self.on_put is not None:
            self.on_put()

    def put_fetch_recorded(self) -> None:
        """Tell the reader to fetch recorded results."""
        self._queue.put(FETCH_RECORDED)
        if self.on_put is not None:
            self.on_put()

    def mark_taken(self) -> None:
        """Count a result that the reader has taken."""
        self._taken_count += 1
        if self._wakeup.is_armed and self._put_count - self._taken_count <= self._size // 2:
            self._wakeup.notify()

    def is_full(self) -> bool:
        """Return whether the run has to wait for the reader. If so, `on_room` will be called."""
        if self._put_count - self._taken_count < self._size:
            return False
        self._wakeup.arm()
        return self._put_count - self._taken_count > self._size // 2
