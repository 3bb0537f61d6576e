"""The interface between a run and its workers: `Workers`, with defaults for what most kinds of workers do not need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentos.items.attempt import Attempt
from agentos.items.parallelism import MachineUse

# Called exactly once per attempt, on the thread on which it ended: with its value, or with its exception.
EndedCall = Callable[[Attempt, Any, BaseException | None], None]


class Workers:
    """Carries out attempts. No method blocks; unless stated otherwise, one thread at a time calls them."""

    # Whether `kill` ends an attempt that ignores `interrupt`. If so, an attempt that timed out is tried again.
    can_kill: bool = False
    # Whether `interrupt` sends SIGTERM to a program of the attempt.
    sends_sigterm: bool = False
    # Whether the thread on which an attempt ended may process the run's messages at once. If not, the run asks for a
    # thread with `run_on_worker_thread`.
    lends_thread: bool = False
    # Whether these workers have a thread that can run the calls of the run's own thread (see `submit`).
    can_submit: bool = False

    def start(self, attempt: Attempt, running: int, /) -> None:
        """Start the attempt. `running`: the number of running attempts, including this one."""
        raise NotImplementedError

    def run_on_worker_thread(self, _call: Callable[[], None], /) -> bool:
        """Run the call on the thread on which an attempt ended, now or very soon, and return True; return False if that
        thread does not belong to these workers. Called on that thread."""
        return False

    def submit(self, call: Callable[[], None], /) -> None:
        """Run the call soon on the thread of these workers. Called from any thread, only if `can_submit`."""
        raise NotImplementedError

    def interrupt(self, attempt: Attempt, /) -> None:
        """Ask a running attempt to stop; its `should_stop` is set already. Default: a no-op, the worker function reads
        `should_stop` by itself."""

    def kill(self, attempt: Attempt, /) -> None:
        """End an attempt that timed out. Default: a no-op, for workers that cannot."""

    def abandon(self, attempt: Attempt, /) -> None:
        """Make room for another attempt: the run no longer waits for this one. Default: a no-op, for workers without a
        fixed number of places."""

    def machine_use(self) -> MachineUse | None:
        """Return what is free on this machine and what running attempts take of it. None: they run inside this process,
        or elsewhere. May take milliseconds."""
        return None

    def close(self) -> None:
        """Kill the attempts that still run, where possible. Called at the end of the run, from any thread."""
        raise NotImplementedError
