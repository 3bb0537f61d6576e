"""The clock of the machine."""

from __future__ import annotations

import threading
import time

import pytest

from agentos.clock import MAX_WAIT, SYSTEM_CLOCK, SystemClock, boot_time
from tests.conftest import BUSY, eventually


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no boot clock")
def test_durations_pass_while_the_machine_is_suspended() -> None:
    assert abs(SYSTEM_CLOCK.now() - time.clock_gettime(time.CLOCK_BOOTTIME)) < BUSY


def test_timer_is_not_delayed_by_a_suspend() -> None:
    suspended = [0.0]

    class Clock(SystemClock):
        now = staticmethod(lambda: boot_time() + suspended[0])  # type: ignore[assignment]

    clock = Clock()
    called = threading.Event()
    clock.call_at(clock.now() + 3600, called.set)
    suspended[0] = 8 * 3600.0
    assert called.wait(MAX_WAIT + 1.0 + BUSY)


def test_clock_counts_the_time_of_a_suspend() -> None:
    suspended = [0.0]

    class Clock(SystemClock):
        now = staticmethod(lambda: boot_time() + suspended[0])  # type: ignore[assignment]

    clock = Clock()
    clock.call_at(clock.now() + 3600, lambda: None)
    assert clock.paused() == 0

    def suspend() -> bool:
        suspended[0] += 100.0
        return clock.paused() > 90

    eventually(suspend)  # the thread may not wait for the timer yet
    assert clock.paused() <= suspended[0] + MAX_WAIT + BUSY
