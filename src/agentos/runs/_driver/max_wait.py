"""MaxWait: the option `max_wait`, which stops a run in which nothing can start for that long."""

from __future__ import annotations

from collections.abc import Callable

from agentos.durations import format_duration
from agentos.verdict import RATE_LIMITED

from .._parts.messages import MaxWaitOver, StallDue
from .._parts.run_parts import RunParts

# Seconds between two looks at the requests of running items at least.
MIN_LOOK_SECONDS = 0.1

_TIMER = "max_wait"
_STALL_TIMER = "stall"


class MaxWait:
    """Called by the thread that processes the run's messages."""

    def __init__(
        self, seconds: float, parts: RunParts, drain: Callable[[str], None], stop: Callable[[str], None]
    ) -> None:
        """`drain` lets running items finish and `stop` interrupts them; both end the run, for a reason."""
        assert parts.pool is not None
        assert parts.admission is not None
        self._seconds = seconds
        self._pool = parts.pool
        self._admission = parts.admission
        self._scheduler = parts.scheduler
        self._timers = parts.timers
        self._now = parts.clock.now
        self._paused = parts.clock.paused
        self._paused_before = self._paused_before_stall = 0.0  # when the timers were set
        self._access = parts.context.access
        self._drain = drain
        self._stop = stop

    def start(self) -> None:
        """Begin to watch the requests of running items, which only a gateway sees."""
        if self._access is not None:
            self._set_stall(self._now() + self._seconds, StallDue())

    def on_stall_due(self, message: StallDue) -> None:
        """Stop the run, with its running items, if their requests have waited for too long. Else look again when that
        is possible at the earliest."""
        assert self._access is not None
        stalled, paused = self._access.stalled_seconds(), self._paused() - self._paused_before_stall
        if paused > 0:  # no request could be sent while this program did not run
            self._set_stall(self._now() + min(paused, self._seconds), message)
        elif not stalled or stalled < self._seconds:
            self._set_stall(self._now() + max(self._seconds - stalled, MIN_LOOK_SECONDS), message)
        else:
            self._stop(
                f"no credential was usable within {self._seconds:g} s, and requests of running items wait for one"
            )

    def watch(self, scope: str | None) -> None:
        """Begin to wait for the lease of an item. Stops the run at once if the provider asked for a longer wait."""
        if not self._scheduler.running and self._admission.open_by_scope.keys() == {scope}:
            waiting = self._pool.waiting_for(scope)
            start_in = 0.0 if waiting.usable_in is None else waiting.usable_in - self._admission.hold
            # If one is in use, the lease of this item may be on its way from a shared store, whose owner counts it as
            # in flight and names the pause before the next one.
            if waiting.reason == RATE_LIMITED and not waiting.in_use and start_in > self._seconds:
                usable_in = f"the next credential is usable in {format_duration(waiting.usable_in)}"
                self._drain(f"nothing can start within {self._seconds:g} s: {usable_in}")
                return
        self.watch_pause()

    def watch_pause(self) -> None:
        """Begin to wait for an item that pauses until a credential is usable."""
        if _TIMER not in self._timers:
            self._set(self._now() + self._seconds, MaxWaitOver())

    def on_over(self, message: MaxWaitOver) -> None:
        self._timers.remove(_TIMER)
        if not self._admission.open_by_scope and not self._scheduler.sent_back:
            return
        now = self._now()
        paused = self._paused() - self._paused_before
        if paused > 0:  # nothing could start while this program did not run
            self._set(now + min(paused, self._seconds), message)
        elif self._scheduler.running:
            self._set(now + self._seconds, message)
        elif now - self._scheduler.last_start >= self._seconds:
            self._drain(f"nothing could start within {self._seconds:g} s")
        else:
            self._set(self._scheduler.last_start + self._seconds, message)

    def _set(self, at: float, message: MaxWaitOver) -> None:
        self._paused_before = self._paused()
        self._timers.set(_TIMER, at, message)

    def _set_stall(self, at: float, message: StallDue) -> None:
        self._paused_before_stall = self._paused()
        self._timers.set(_STALL_TIMER, at, message)
