"""AttemptTimeouts: ends attempts that take longer than the option `timeout` allows, or abandons them."""

from __future__ import annotations

from collections.abc import Callable

from agentos.errors import AttemptTimeout
from agentos.items.attempt import Attempt

from .._parts.messages import Message, TimeoutExpired, TimeoutIgnored
from .._parts.run_parts import RunParts


class AttemptTimeouts:
    """Called by the thread that processes the run's messages."""

    def __init__(self, parts: RunParts, on_abandoned: Callable[[Attempt], None]) -> None:
        """`on_abandoned`: called with an attempt that no longer counts as running."""
        self.abandoned = 0  # attempts that go on although their item has ended
        self._timeout = parts.options.timeout
        self._grace_seconds = parts.options.grace_seconds
        self._running = parts.running
        self._context = parts.context
        self._workers = parts.workers
        self._clock = parts.clock
        self._post = parts.post
        self._on_abandoned = on_abandoned

    def watch(self, attempt: Attempt) -> None:
        """Start the time-out of an attempt, if the run has one."""
        if self._timeout is not None:
            self._expire_in(attempt, self._timeout)

    def error(self) -> AttemptTimeout:
        return AttemptTimeout(f"the attempt took longer than {self._timeout:g} s")

    def on_expired(self, message: TimeoutExpired) -> None:
        attempt = message.attempt
        if attempt not in self._running:
            return
        if attempt.is_preparing:
            self._expire_in(attempt, self._timeout or 0.0)
            return
        if attempt.ended_at and not message.has_ended:  # in time: its outcome is encoded, or its lease ends
            self._expire_in(attempt, self._timeout or 0.0, has_ended=True)
            return
        paused = self._clock.paused() - message.paused
        if paused > 0:  # this program has not run: the attempt may not have either, or its end was not noticed
            self._expire_in(attempt, paused)
            return
        attempt.should_stop = True
        if not self._workers.can_kill:
            self._abandon(attempt)
            return
        attempt.is_timed_out = True
        self._workers.kill(attempt)
        # An asyncio task may ignore its cancellation; then it is abandoned, like a thread.
        self._set_timer(attempt, self._grace_seconds, TimeoutIgnored(attempt))

    def on_ignored(self, message: TimeoutIgnored) -> None:
        if message.attempt in self._running:
            self._abandon(message.attempt)

    def _expire_in(self, attempt: Attempt, seconds: float, *, has_ended: bool = False) -> None:
        self._set_timer(attempt, seconds, TimeoutExpired(attempt, self._clock.paused(), has_ended))

    def _set_timer(self, attempt: Attempt, seconds: float, message: Message) -> None:
        attempt.timer = self._clock.call_at(self._clock.now() + seconds, lambda: self._post(message))

    def _abandon(self, attempt: Attempt) -> None:
        del self._running[attempt]
        attempt.ended_at = self._clock.now()
        if self._context.access is not None:
            self._context.end_access(attempt)  # it can send no further request
        self._workers.abandon(attempt)
        self.abandoned += 1
        self._on_abandoned(attempt)
