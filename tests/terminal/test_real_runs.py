"""The display of real runs, drawn by another thread."""

from __future__ import annotations

import threading
from typing import Any

from agentos.events import EXHAUSTED
from agentos.items.results import RunningItem
from agentos.terminal.display import Display
from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Limits,
    Overloaded,
    ParallelCoordinator,
    RateLimited,
)
from tests.conftest import eventually


def test_display_follows_run_from_start_to_end() -> None:
    pool = CredentialCoordinator([Credential(f"sk-secret-{n}", id=f"key-{n}") for n in range(2)])
    may_end = threading.Event()
    events: list[Any] = []
    coordinator = ParallelCoordinator(4, pool, reporter=events.append)

    def work(item: str, key: str) -> None:
        may_end.wait(30)
        if item == "c":
            raise ValueError("bad")

    with coordinator.stream(["a", "b", "c"], work, run_id="nightly") as stream:
        display = Display(stream, color=False)
        eventually(lambda: len(stream.running()) == 2 and stream.waiting() is not None)
        assert [item._replace(age_seconds=0.0) for item in stream.running()] == [
            RunningItem("a", 1, "key-0", 0.0),
            RunningItem("b", 1, "key-1", 0.0),
        ]
        assert all(0.0 <= item.age_seconds < 30 for item in stream.running())
        assert [item.id for item in stream.running(1)] == ["a"]
        waiting = stream.waiting()
        assert waiting is not None
        assert (waiting.reason, waiting.in_use) == (EXHAUSTED, 2)
        assert stream.stats.running == 2
        assert display.frame(80, 10)[0].startswith("run nightly")
        assert any("key-1" in line for line in display.frame(80, 10))
        may_end.set()
        assert len(list(stream)) == 3
    for event in events:
        display.note(event)
    assert display.frame(80, 20)[1].endswith(" 3/3 done, 1 failed")
    assert "failed c: ValueError: bad" in display.frame(80, 20)


def test_drawing_does_not_slow_fast_run() -> None:
    pool = CredentialCoordinator([Credential(f"sk-secret-{n}", limits=Limits(max_concurrent=8)) for n in range(4)])
    coordinator = ParallelCoordinator(32, pool, max_parallelism=32, reporter=None)
    is_over = threading.Event()
    frames: list[int] = []

    def draw() -> None:
        display = Display(stream, clock=lambda: float(len(frames)))  # a new snapshot for each frame
        while not is_over.is_set():
            display.frame(100, 40)
            frames.append(len(stream.running()))

    async def work(item: int, key: str) -> None:
        pass

    with coordinator.stream(range(5000), work) as stream:
        drawer = threading.Thread(target=draw)
        drawer.start()
        results = list(stream)
        is_over.set()
        drawer.join(30)
    assert len(results) == 5000
    assert frames
    assert max(frames) <= 32


def test_cooling_credential_shows_its_verdict() -> None:
    clock = FakeClock()
    pool = CredentialCoordinator([Credential("sk-secret", id="key", provider="p")], clock=clock)
    answers = [RateLimited(retry_after=20), Overloaded(retry_after=40), RateLimited(retry_after=30)]

    def answer(scope: str | None) -> None:
        def fail(_key: str) -> None:
            raise answers.pop(0)

        try:
            with pool.lease(scope=scope, timeout=0) as lease:
                fail(lease.secret)
        except (RateLimited, Overloaded):
            pass

    assert pool.states()[0].cooled_by == {}
    answer(None)
    assert pool.states()[0].cooled_by == {"": "rate_limited"}
    clock.advance(20)
    assert pool.states()[0].cooled_by == {}
    answer(None)
    assert pool.states()[0].cooled_by == {"": "overloaded"}
    assert pool.states()[0].rate_limited_until == clock.epoch() + 40
    clock.advance(40)
    answer("large")
    assert pool.states()[0].cooled_by == {"large": "rate_limited"}
