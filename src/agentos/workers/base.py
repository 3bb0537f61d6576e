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

    def run_on_worker_thread(self, call: Callable[[], None]) -> bool:
        """Run `call` on the thread on which an attempt ended, now or very soon, and return True; return False if that
        thread does not belong to these workers. Called on that thread."""

    can_submit: bool
    """Whether these workers have a thread that can run the calls of the run's own thread."""

    def submit(self, call: Callable[[], None]) -> None:
        """Run `call` soon on that thread. Called from any thread, only if `can_submit`."""

    def interrupt(self, attempt: Attempt) -> None:
        """Tells a running attempt to stop; `should_stop` is set already."""

    def kill(self, attempt: Attempt) -> None:
        """The attempt's time is up: ends it, where that is possible."""

    def abandon(self, attempt: Attempt) -> None:
        """The attempt will not be waited for: its place is given to another."""

    def close(self) -> None:
        """The run is over: whatever still runs is killed, where possible, and otherwise left to itself."""
