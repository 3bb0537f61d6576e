"""What the driver expects of every way to carry out attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from agentos.items.attempt import Attempt

# Called once per attempt, from whichever thread the attempt ended on: value, or exception.
EndedCall = Callable[[Attempt, Any, BaseException | None], None]


class Workers(Protocol):
    """All calls come from the run's thread; none of them waits."""

    can_kill: bool
    """Whether an attempt that ignores everything can be ended: then a time-out is worth another try."""

    def start(self, attempt: Attempt, running: int) -> None:
        """Carries out the attempt; ends in exactly one call of `ended`. `running`: how many run now, with this one."""

    def spend_thread(self, drive: Callable[[], None]) -> bool:
        """Called on the thread that an attempt ended on. If that thread is ours, it calls `drive` now or very soon, to
        decide what is next; else False."""

    can_take_over: bool
    """Whether these workers have one thread that could always do what the run's own thread does."""

    def take_over(self, drive: Callable[[], None]) -> None:
        """From any thread: that thread calls `drive` soon."""

    def interrupt(self, attempt: Attempt) -> None:
        """Tells a running attempt to stop; `should_stop` is set already."""

    def kill(self, attempt: Attempt) -> None:
        """The attempt's time is up: ends it, where that is possible."""

    def abandon(self, attempt: Attempt) -> None:
        """The attempt will not be waited for: its place is given to another."""

    def close(self) -> None:
        """The run is over: whatever still runs is killed, where possible, and otherwise left to itself."""
