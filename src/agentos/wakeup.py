"""Wakeup: signal a consumer that sleeps, once, without losing a signal. Used by every thread or loop that sleeps until
other threads have published work for it."""

from __future__ import annotations

from collections.abc import Callable


class Wakeup:
    """A flag that decides whether a producer has to signal. No lock: a signal handler may notify while its own thread
    is in `notify`.

    The consumer takes the signal, calls `arm` and only then looks for work; it sleeps if there is none. A producer
    publishes its work and only then calls `notify`. Of the two orders of publishing (P) and arming (A):

    * P before A: the consumer looks after A, and finds the work.
    * A before P: the producer reads the flag after P. Armed: it signals. Not armed: another producer has read the flag
      after A, and that one signals.

    Two producers may both find it armed and both signal: a consumer has to accept a signal without work.
    """

    __slots__ = ("_signal", "is_armed")

    def __init__(self, signal: Callable[[], object], *, is_armed: bool = False) -> None:
        """`signal` wakes the consumer; it may be called from any thread, and must keep a signal that comes before the
        consumer sleeps (an entry in a queue, a byte in a pipe). `is_armed`: for a consumer that starts asleep."""
        self._signal = signal
        self.is_armed = is_armed

    def arm(self) -> None:
        """Ask for the next signal. Called by the consumer before it looks for work."""
        self.is_armed = True

    def notify(self) -> None:
        """Signal the consumer, unless a signal is on its way. Called by a producer after it has published its work."""
        if self.is_armed:
            self.is_armed = False
            self._signal()
