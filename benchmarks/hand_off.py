"""Release until a waiter has the key, with 100 waiting threads: the 99th percentile against a bare lock's."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from agentos.workflows.parallel import CredentialCoordinator

from .measuring import Row, at_most, measure

WAITERS = 100
HAND_OFFS = 1_000  # per round
QUIET_SECONDS = 0.0005  # until the thread served last waits again, so that nothing but the hand-off is measured


class Waiters:
    """Threads that wait for something, tell when they had it, and wait again."""

    def __init__(self, hand_over: Callable[[Any], None], thing: Any = None) -> None:
        self._hand_over = hand_over
        self._thing = thing  # what the last one got
        self._arrivals: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()

    def start(self, wait: Callable[[], Any]) -> None:
        threading.Thread(target=self._wait_again_and_again, args=(wait,), daemon=True).start()

    def _wait_again_and_again(self, wait: Callable[[], Any]) -> None:
        while True:
            got = wait()
            had_at = time.perf_counter()
            self._arrivals.put((had_at, got))

    def p99(self) -> float:
        """Hands the thing over, from waiter to waiter."""
        taken = []
        for _ in range(HAND_OFFS):
            time.sleep(QUIET_SECONDS)
            released_at = time.perf_counter()
            self._hand_over(self._thing)
            had_at, self._thing = self._arrivals.get()
            taken.append(had_at - released_at)
        return statistics.quantiles(taken, n=100)[98]


def pool_waiters() -> Waiters:
    pool = CredentialCoordinator(["key"])
    pool.listen(lambda event: None)  # else it prints that its only key is in use
    waiters = Waiters(pool.release, pool.reserve())
    for _ in range(WAITERS):
        waiters.start(pool.reserve)
    while pool.get_stats()["waiting"] < WAITERS:
        time.sleep(0.01)
    return waiters


def lock_waiters() -> Waiters:
    locks = [threading.Lock() for _ in range(WAITERS)]
    # One of them is handed over; the others are there for an equal number of threads.
    waiters = Waiters(lambda _: locks[0].release())
    for lock in locks:
        lock.acquire()
        waiters.start(lock.acquire)
    return waiters


def rows() -> Iterator[Row]:
    sides = {"ours": pool_waiters().p99, "threading.Lock, 1 waiter (and 99 idle)": lock_waiters().p99}
    ours, peer = measure(sides)
    yield at_most(2.0, "release until a waiter has the key, 100 waiting, p99", ours, peer)
