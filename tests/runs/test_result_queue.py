"""ResultQueue: back-pressure, the size of large results, and entries that are no results."""

from __future__ import annotations

from agentos.items.results import WorkflowResult
from agentos.runs._parts.result_queue import FETCH_RECORDED, MAX_CHARACTERS, MIN_SIZE, ResultQueue

RESULT = WorkflowResult("item", True)


class Queue(ResultQueue):
    """A queue that counts its calls of `on_room`."""

    def __init__(self, size: int = MIN_SIZE) -> None:
        super().__init__(size, self._count)
        self.room_calls = 0

    def _count(self) -> None:
        self.room_calls += 1

    def put_many(self, count: int) -> None:
        for _ in range(count):
            self.put(RESULT)

    def take_many(self, count: int) -> None:
        for _ in range(count):
            assert self.take() is RESULT
            self.mark_taken()


def test_full_queue_reports_room_once_when_half_is_taken() -> None:
    queue = Queue()
    queue.put_many(MIN_SIZE)
    assert queue.is_full()
    queue.take_many(MIN_SIZE // 2 - 1)
    assert queue.room_calls == 0
    queue.take_many(MIN_SIZE // 2)
    assert queue.room_calls == 1
    assert not queue.is_full()


def test_queue_that_was_never_full_reports_no_room() -> None:
    queue = Queue()
    queue.put_many(MIN_SIZE - 1)
    assert not queue.is_full()
    queue.take_many(MIN_SIZE - 1)
    assert queue.room_calls == 0


def test_large_results_shrink_the_queue() -> None:
    queue = Queue(1000)
    queue.put_many(500)
    assert not queue.is_full()
    queue.note_size(10, MAX_CHARACTERS // 10)
    assert queue.is_full()


def test_collected_results_never_fill_the_queue() -> None:
    queue, results = Queue(), []
    queue.collect(results)
    queue.put_many(10)
    queue.put_all([RESULT] * MIN_SIZE)
    queue.put(None)
    assert len(results) == 10 + MIN_SIZE
    assert not queue.is_full()
    assert queue.take() is None


def test_every_kind_of_entry_calls_on_put() -> None:
    queue, calls = Queue(), []
    queue.on_put = lambda: calls.append(1)
    queue.put(RESULT)
    queue.put_all([RESULT, RESULT])
    queue.put_fetch_recorded()
    queue.put(None)
    assert len(calls) == 4
    assert [queue.take_nowait() for _ in range(5)] == [RESULT, RESULT, RESULT, FETCH_RECORDED, None]
    assert queue.is_empty()
