"""Time from a release until a waiter has the key, with 100 waiting threads: 99th percentile against a bare lock."""

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
QUIET_SECONDS = 0.0005  # pause after a hand-off, until the thread that was served waits again


class Waiters:
    """Threads that wait for an object, report when they got it, and wait again."""

    def __init__(self, hand_over: Callable[[Any], None], thing: Any = None) -> None:
        self._hand_over = hand_over
        self._thing = thing  # held by the thread that was served last
        self._arrivals: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()

    def start(self, wait: Callable[[], Any]) -> None:
        threading.Thread(target=self._wait_repeatedly, args=(wait,), daemon=True).start()

    def _wait_repeatedly(self, wait: Callable[[], Any]) -> None:
        while True:
            thing = wait()
            received_at = time.perf_counter()
            self._arrivals.put((received_at, thing))

    def p99(self) -> float:
        """Hand the object from waiter to waiter. Return the 99th percentile of the seconds that each took."""
        durations = []
        for _ in range(HAND_OFFS):
            time.sleep(QUIET_SECONDS)
            released_at = time.perf_counter()
            self._hand_over(self._thing)
            received_at, self._thing = self._arrivals.get()
            durations.append(received_at - released_at)
        return statistics.quantiles(durations, n=100)[98]


def pool_waiters() -> Waiters:
    pool = CredentialCoordinator(["key"])
    pool.listen(lambda event: None)  # otherwise it prints that its only key is in use
    waiters = Waiters(pool.release, pool.reserve())
    for _ in range(WAITERS):
        waiters.start(pool.reserve)
    while pool.get_stats()["waiting"] < WAITERS:
        time.sleep(0.01)
    return waiters


def lock_waiters() -> Waiters:
    locks = [threading.Lock() for _ in range(WAITERS)]
    # Only one lock is handed over; the others keep an equal number of threads waiting.
    waiters = Waiters(lambda _: locks[0].release())
    for lock in locks:
        lock.acquire()
        waiters.start(lock.acquire)
    return waiters


def rows() -> Iterator[Row]:
    sides = {"ours": pool_waiters().p99, "threading.Lock, 1 waiter (and 99 idle)": lock_waiters().p99}
    ours, peer = measure(sides)
    yield at_most(2.0, "release until a waiter has the key, 100 waiting, p99", ours, peer)
