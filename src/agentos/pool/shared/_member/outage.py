"""Outage: since when a shared pool's store cannot be reached, and what was announced of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentos.clock import Clock
from agentos.events import StoreReached, StoreUnreachable

# A break that lasts shorter is not announced, in seconds: another owner takes over in less.
GRACE_SECONDS = 1.5


class Outage:
    """The breaks of one session. `now` passes evenly; `announce` is called with an event for the pool's listeners."""

    def __init__(self, name: str, clock: Clock, now: Callable[[], float], announce: Callable[[Any], None]) -> None:
        self._name = name  # of the store, for people
        self._clock = clock
        self._now = now
        self._announce = announce
        self._broken_at: float | None = None  # since when there is no link to an owner
        self._is_announced = False
        self.lost_since: float | None = None
        self.because = ""
        self.refused_because = ""  # what a person must change

    def is_longer_than(self, seconds: float) -> bool:
        return self.lost_since is not None and self._now() - self.lost_since >= seconds

    def has_just_begun(self) -> bool:
        """Return whether the link broke a moment ago: it is worth to look for an owner at once."""
        return self._broken_at is not None and self._now() - self._broken_at < 0.1

    def on_break(self, reason: str, is_known: bool) -> None:
        """Note that there is no link. `is_known`: there was an owner before; else the caller of `open` is told."""
        if self._broken_at is None:
            self._broken_at = self._now()
        if self._now() - self._broken_at >= GRACE_SECONDS:
            self.begin(reason, is_known)

    def on_refusal(self, reason: str, is_known: bool) -> None:
        """Note that the store does not serve this program until a person has changed something."""
        self._broken_at = self._broken_at or self._now()
        self.refused_because = reason
        self.begin(reason, is_known)

    def begin(self, reason: str, is_known: bool) -> None:
        """Announce once that the store is lost."""
        if self.lost_since is None:
            self.lost_since = self._broken_at or self._now()
            self.because = reason
            if is_known:
                since = self._clock.epoch() - (self._now() - self.lost_since)
                self._announce(StoreUnreachable(self._name, reason, since))
                self._is_announced = True

    def end(self) -> None:
        """Announce that the store can be reached again, if its loss was announced."""
        self._broken_at = None
        self.refused_because = ""
        if self.lost_since is not None:
            lost_for = self._now() - self.lost_since
            self.lost_since = None
            if self._is_announced:
                self._is_announced = False
                self._announce(StoreReached(self._name, lost_for))
