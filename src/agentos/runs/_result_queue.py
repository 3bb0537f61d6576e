"""Results on their way from a run to whoever takes them: one writer at a time, one reader."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue

from agentos.items.results import WorkflowResult

# Results that may wait to be taken before the run is held up, at the least.
LEAST_SIZE = 64
# Of the values of results that wait to be taken, where that is known.
MOST_CHARACTERS = 20_000_000
# A signal that arrives just before a thread blocks does not wake it: the reader looks up so often (seconds) to notice.
SIGNAL_SECONDS = 0.25


# Among the results: there are recorded ones to be fetched.
RECALL = WorkflowResult("", False)


class Outbox:
    """A queue that says when it is full, and tells when it no longer is. None in it is the end."""

    def __init__(self, size: int, on_room: Callable[[], None]) -> None:
        self._size = self._most = max(LEAST_SIZE, size)
        self._on_room = on_room
        self._queue: SimpleQueue[WorkflowResult | None] = SimpleQueue()
        self._put = 0  # only the run writes it
        self._taken = 0  # only the reader writes it
        self._is_held_up = False
        self._collected: list[WorkflowResult] | None = None
        self.on_put: Callable[[], None] | None = None  # told of each entry, for readers that cannot block

        self.take_nowait = self._queue.get_nowait
        self.is_empty = self._queue.empty

    def take(self) -> WorkflowResult | None:
        """Blocks until there is one. Call `took` afterwards."""
        while True:
            try:
                return self._queue.get(True, SIGNAL_SECONDS)
            except Empty:
                continue

    def collect(self, results: list[WorkflowResult]) -> None:
        """Before the start, for a reader that wants all of them at the end: puts them there, and is never full."""
        self._collected = results

    def put(self, result: WorkflowResult | None) -> None:
        if self._collected is not None and result is not None:
            self._collected.append(result)
            return
        self._put += 1
        self._queue.put(result)
        if self.on_put is not None:
            self.on_put()

    def note_size(self, count: int, size: int) -> None:
        """So many results that are about to be put have so many characters: of large ones fewer may wait."""
        self._size = max(LEAST_SIZE, min(self._most, MOST_CHARACTERS * count // max(size, 1)))

    def put_all(self, results: list[WorkflowResult]) -> None:
        if self._collected is not None:
            self._collected.extend(results)
            return
        self._put += len(results)
        for result in results:
            self._queue.put(result)
        if self.on_put is not None:
            self.on_put()

    def call_reader(self) -> None:
        """To fetch what is on record."""
        self._queue.put(RECALL)
        if self.on_put is not None:
            self.on_put()

    def took(self) -> None:
        """One has been taken. The run sets its mark and then looks at the count; here the count is changed before the
        mark is looked at: so one of the two sees the other."""
        self._taken += 1
        if self._is_held_up and self._put - self._taken <= self._size // 2:
            self._is_held_up = False
            self._on_room()

    def is_full(self) -> bool:
        """If so, `on_room` will be called when half of it has been taken."""
        if self._put - self._taken < self._size:
            return False
        self._is_held_up = True
        if self._put - self._taken > self._size // 2:
            return True
        self._is_held_up = False  # taken in between, and maybe nobody will tell
        return False
