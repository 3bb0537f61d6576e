"""Shutdown: how a run stops before all of its items have ended.

There are three degrees: nothing new starts and running attempts may finish (`drain`); running attempts are asked to
stop and get a grace period (`stop`); nothing is waited for (`kill`).
"""

from __future__ import annotations

from collections.abc import Callable

from agentos.events import RunStopping

from .._parts.messages import KillRequested
from .._parts.run_parts import RunParts


class Shutdown:
    """Called by the thread that processes the run's messages."""

    def __init__(self, parts: RunParts) -> None:
        self.is_killed = False
        self._is_requested = False  # running attempts have been asked to stop
        self._scheduler = parts.scheduler
        self._admission = parts.admission
        self._running = parts.running
        self._workers = parts.workers
        self._timers = parts.timers
        self._now = parts.clock.now
        self._report = parts.report
        self._grace_seconds = parts.options.grace_seconds
        self._context, self._recorder = parts.context, parts.recorder

    def drain(self, reason: str) -> None:
        """Start nothing new; running attempts may finish."""
        if self._scheduler.stopped is None:
            self._scheduler.stop(reason)
            self._report(RunStopping(reason, None, self._scheduler.running, None))
            self.withdraw_requests()

    def stop(self, reason: str, signal: int | None = None) -> None:
        """Ask running attempts to stop, and kill the run when the grace period is over."""
        if self._is_requested:
            return
        self._is_requested = True
        self._scheduler.stop(reason)
        self.withdraw_requests()
        for attempt in self._running:
            attempt.should_stop = True
            self._workers.interrupt(attempt)
        if self._running:
            self._timers.set("grace", self._now() + self._grace_seconds, KillRequested())
        # Last, because a reporter may block.
        running = self._scheduler.running
        terminated = running if self._workers.sends_sigterm else 0
        self._report(RunStopping(reason, signal, running, self._grace_seconds, terminated))

    def kill(self) -> None:
        """Wait for nothing any more."""
        self._scheduler.stop("interrupted")
        self.is_killed = True

    def stop_if_halted(self) -> None:
        """Stop if the condition of the option `halt` holds."""
        scheduler = self._scheduler
        if scheduler.stopped is not None or not scheduler.is_halted():
            return
        assert scheduler.halt is not None
        reason = f"halted: {scheduler.failed} failed ({scheduler.halt.text})"
        if scheduler.halt.when == "now":
            self.stop(reason)
        else:
            self.drain(reason)

    def withdraw_requests(self) -> None:
        """Withdraw all requests for leases; their items are ready again."""
        if self._admission is not None:
            for item in self._admission.withdraw_all():
                self._scheduler.put_back(item)

    def release(self, abandoned: int, *, has_access: bool) -> None:
        """Give back what the run holds. `abandoned`: attempts that go on although the run does not wait for them;
        `has_access`: attempts have access to a gateway."""
        self.withdraw_requests()
        self._timers.cancel_all()
        for attempt in self._running:
            attempt.should_stop = True
            self._scheduler.give_up()
        self._workers.close()
        if has_access:
            self._context.end_all_access()
        if not self._running and not abandoned:  # else an attempt may still use its files
            self._context.close()

    def close_record(self, keep_error: Callable[[BaseException], None]) -> None:
        """Write the end of the run; the record may be lost."""
        try:
            self._recorder.close(self._running, self._now(), self._scheduler.stopped, at_once=self.is_killed)
        except BaseException as error:
            keep_error(error)
            self._scheduler.stop(self._context.redact(str(error)))
