"""Run a few threads under every possible interleaving of their steps, one step at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

_local = threading.local()


def step(can_go: Callable[[], bool] = lambda: True) -> None:
    """Wait for the next turn; called by an actor before each access to shared state. `can_go`: for a step that blocks,
    whether it could return now. No-op in a thread that is not an actor: test code may use the same classes."""
    actor: Actor | None = getattr(_local, "actor", None)
    if actor is not None:
        actor.step(can_go)


class _Ended(BaseException):
    """Raised inside an actor that sleeps when nothing can wake it any more."""


class Actor:
    """A thread that stops before each of its steps until it is scheduled."""

    def __init__(self, body: Callable[[], None], parked: threading.Semaphore) -> None:
        self._body = body
        self._parked = parked
        self._turn = threading.Semaphore(0)
        self._can_go: Callable[[], bool] = lambda: True
        self.is_done = False
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def step(self, can_go: Callable[[], bool]) -> None:
        self._can_go = can_go
        self._parked.release()
        self._turn.acquire()
        if self._is_cancelled:
            raise _Ended

    def start(self) -> None:
        """Start the thread and let it run up to its first step."""
        self._thread.start()
        self._parked.acquire()

    def go(self) -> None:
        """Let the actor execute one step."""
        self._turn.release()
        self._parked.acquire()

    def is_enabled(self) -> bool:
        return not self.is_done and self._can_go()

    def cancel(self) -> None:
        if not self.is_done:
            self._is_cancelled = True
            self.go()
        self._thread.join()

    def _run(self) -> None:
        _local.actor = self
        try:
            self._body()
        except _Ended:
            pass
        finally:
            self.is_done = True
            self._parked.release()


def run_schedule(bodies: Sequence[Callable[[], None]], choose: Callable[[int], int]) -> None:
    """Run all bodies until none can go on. `choose` returns which of n enabled actors takes the next step."""
    parked = threading.Semaphore(0)
    actors = [Actor(body, parked) for body in bodies]
    for actor in actors:
        actor.start()
    while enabled := [actor for actor in actors if actor.is_enabled()]:
        enabled[choose(len(enabled))].go()
    for actor in actors:
        actor.cancel()


def all_schedules() -> Iterator[Callable[[int], int]]:
    """Yield one `choose` function per schedule, until every schedule was run (depth first, by replay)."""
    path: list[tuple[int, int]] = []  # chosen index, number of options
    while True:
        position = -1

        def choose(count: int) -> int:
            nonlocal position
            position += 1
            if position == len(path):
                path.append((0, count))
            return path[position][0]

        yield choose
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return
        index, count = path.pop()
        path.append((index + 1, count))
