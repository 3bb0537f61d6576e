"""What a display sees of a real run, from another thread."""

from __future__ import annotations

import threading

from agentos.events import EXHAUSTED
from agentos.terminal.display import Display
from agentos.terminal.view import RunningItem, RunView
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


def test_a_view_follows_a_run_from_before_its_beginning_to_its_end() -> None:
    pool = CredentialCoordinator([Credential(f"sk-secret-{n}", id=f"key-{n}") for n in range(2)])
    view = RunView(None, pool)
    assert (view.run_id, view.running(), view.waiting(), view.stats().completed) == ("", [], None, 0)
    assert [state.key_id for state in view.credentials()] == ["key-0", "key-1"]
    display = Display(view, color=False)
    assert display.frame(80, 10)[1] == "0 done"

    may_end = threading.Event()
    coordinator = ParallelCoordinator(4, pool, reporter=display.note)

    def work(item: str, key: str) -> None:
        may_end.wait(30)
        if item == "c":
            raise ValueError("bad")

    with coordinator.stream(["a", "b", "c"], work, run_id="nightly") as stream:
        view.stream = stream
        eventually(lambda: len(view.running()) == 2 and view.waiting() is not None)
        assert [item._replace(age_seconds=0.0) for item in view.running()] == [
            RunningItem("a", 1, "key-0", 0.0),
            RunningItem("b", 1, "key-1", 0.0),
        ]
        assert all(0.0 <= item.age_seconds < 30 for item in view.running())
        assert [item.id for item in view.running(1)] == ["a"]
        waiting = view.waiting()
        assert waiting is not None
        assert (waiting.reason, waiting.in_use) == (EXHAUSTED, 2)
        assert view.stats().running == 2
        assert view.run_id == "nightly"
        may_end.set()
        assert len(list(stream)) == 3
    lines = Display(view, color=False).frame(80, 20)
    assert lines[1].endswith(" 3/3 done, 1 failed")
    assert "failed c: ValueError: bad" in display.frame(80, 20)


def test_looking_does_not_disturb_a_run_whose_items_come_and_go() -> None:
    pool = CredentialCoordinator([Credential(f"sk-secret-{n}", limits=Limits(max_concurrent=8)) for n in range(4)])
    view = RunView(None, pool)
    coordinator = ParallelCoordinator(32, pool, max_parallelism=32, reporter=None)
    is_over = threading.Event()
    frames: list[int] = []

    def look() -> None:
        display = Display(view, clock=lambda: float(len(frames)))  # so the pool is asked each time
        while not is_over.is_set():
            display.frame(100, 40)
            frames.append(len(view.running()))

    async def work(item: int, key: str) -> None:
        pass

    with coordinator.stream(range(5000), work) as stream:
        view.stream = stream
        looker = threading.Thread(target=look)
        looker.start()
        results = list(stream)
        is_over.set()
        looker.join(30)
    assert len(results) == 5000
    assert frames
    assert max(frames) <= 32


def test_a_credential_that_cools_says_which_answer_cools_it() -> None:
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
