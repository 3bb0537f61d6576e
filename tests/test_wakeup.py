"""Wakeup: no interleaving of producers and consumer leaves published work unseen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.wakeup import Wakeup

from .support.interleavings import all_schedules, run_schedule, step


class SteppedWakeup(Wakeup):
    """The class under test; a thread stops before each read and write of the flag."""

    @property
    def is_armed(self) -> bool:  # type: ignore[override]
        step()
        return self._flag

    @is_armed.setter
    def is_armed(self, value: bool) -> None:
        step()
        self._flag = value


class Scene:
    """Producers that publish work, and a consumer that sleeps until it is signalled."""

    def __init__(self, *, arms_first: bool = True, publishes_first: bool = True) -> None:
        self.unseen = 0  # pieces of work that are published and not consumed
        self._signals = 0
        self._arms_first = arms_first
        self._publishes_first = publishes_first
        self._wakeup = SteppedWakeup(self._signal, is_armed=True)

    def produce(self, count: int) -> None:
        for _ in range(count):
            if self._publishes_first:
                self._publish()
            self._wakeup.notify()
            if not self._publishes_first:
                self._publish()

    def consume(self) -> None:
        while True:
            step(lambda: self._signals > 0)
            self._signals -= 1
            if self._arms_first:
                self._wakeup.arm()
            step()
            self.unseen = 0
            if not self._arms_first:
                self._wakeup.arm()

    def _publish(self) -> None:
        step()
        self.unseen += 1

    def _signal(self) -> None:
        step()
        self._signals += 1


def unseen_work(scene: Scene, producers: tuple[int, ...], choose: Callable[[int], int]) -> int:
    """Run one producer per number, each of which publishes as often, and return how much work stays unseen."""
    run_schedule([*(partial(scene.produce, count) for count in producers), scene.consume], choose)
    return scene.unseen


@pytest.mark.parametrize("producers", [(1,), (2,), (3,), (1, 1)])
def test_wakeup_loses_no_work_in_any_interleaving(producers: tuple[int, ...]) -> None:
    assert not any(unseen_work(Scene(), producers, choose) for choose in all_schedules())


@given(st.lists(st.integers(0, 11), min_size=60, max_size=60))
def test_wakeup_loses_no_work_of_three_producers(choices: list[int]) -> None:
    remaining = iter(choices)
    assert unseen_work(Scene(), (2, 1, 2), lambda count: next(remaining, 0) % count) == 0


@pytest.mark.parametrize("wrong_order", ["arms_first", "publishes_first"])
def test_wakeup_in_wrong_order_loses_work(wrong_order: str) -> None:
    """The order of the caller's steps matters: the search finds a schedule in which the work is not seen."""
    assert any(unseen_work(Scene(**{wrong_order: False}), (2,), choose) for choose in all_schedules())


def test_wakeup_signals_once_while_consumer_is_awake() -> None:
    signals: list[None] = []
    wakeup = Wakeup(lambda: signals.append(None), is_armed=True)
    wakeup.notify()
    wakeup.notify()
    assert len(signals) == 1
    wakeup.arm()
    wakeup.notify()
    assert len(signals) == 2


def test_wakeup_that_is_not_armed_does_not_signal() -> None:
    signals: list[None] = []
    Wakeup(lambda: signals.append(None)).notify()
    assert not signals
