"""Stall: for how long requests have waited for a credential while none was being answered. Pure code."""

from __future__ import annotations


class Stall:
    """Called on the gateway's loop, except for `seconds`."""

    __slots__ = ("_open", "_refused_until", "_since", "leased")

    def __init__(self) -> None:
        self.leased = 0  # requests that have a credential
        self._open = 0  # requests that have no answer yet
        self._since = 0.0  # when a request began to wait, or the last answer ended
        self._refused_until = 0.0  # requests were refused because no credential is usable before this instant

    def begin(self, now: float) -> None:
        """Note a request."""
        if not (self._open or self.leased or now < self._refused_until):
            self._since = now
        self._open += 1

    def end(self, until: float) -> None:
        """Note that a request has an answer, or was refused here: because no credential is usable before `until`."""
        self._open -= 1
        self._refused_until = max(until, self._refused_until)

    def answered(self, now: float) -> None:
        """Note that a request has given its credential back, which did not refuse it."""
        self.leased -= 1
        self._since, self._refused_until = now, 0.0

    def seconds(self, now: float) -> float:
        """Return for how long requests have waited, or were refused, without any that was answered. 0 while a request
        has a credential: it may be answered. Called from any thread."""
        if self.leased or not (self._open or now < self._refused_until):
            return 0.0
        return now - self._since
