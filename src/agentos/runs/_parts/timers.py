"""Timers: the named timers of one run, each of which posts a message."""

from __future__ import annotations

from collections.abc import Callable

from agentos.clock import Clock, Timer

from .messages import Message


class Timers:
    """Called by the thread that processes the run's messages."""

    def __init__(self, clock: Clock, post: Callable[[Message], None]) -> None:
        self._clock = clock
        self._post = post
        self._timers: dict[str, Timer] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._timers

    def set(self, name: str, at: float, message: Message) -> None:
        """Post the message at an instant. Replaces the timer of the same name."""
        previous = self._timers.get(name)
        if previous is not None:
            previous.cancel()
        self._timers[name] = self._clock.call_at(at, lambda: self._post(message))

    def remove(self, name: str) -> None:
        """Forget a timer whose message has come."""
        del self._timers[name]

    def cancel_all(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
