"""A log that begins as another one stands, and is nobody else's: for plans, and for those who only look."""

from __future__ import annotations

import time
from collections.abc import Callable

from .log import Answer, Entry, Log, Start


class CopiedLog:
    poll_seconds: float | None = None

    def __init__(self, log: Log) -> None:
        self._log = log
        self._ahead = 0.0  # of the monotonic clock
        self._position = 0  # of the copy
        self._added: list[Entry] = []

    def look(self) -> Start | None:
        return self._log.look()

    def load(self, ttl: float) -> Start:  # noqa: ARG002
        try:
            start = self._log.look() or Start("copy", time.time(), None, 0, [], is_doubtful=False)
        finally:
            self._log.close()
        self._ahead = start.at - time.monotonic()
        self._position = start.position + len(start.entries)
        self._added = []
        return start

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:  # noqa: ARG002
        now = time.monotonic() + self._ahead
        if batch is not None:
            self._added.append((now, batch))
        return Answer(epoch, now, self._added[max(0, position - self._position) :])

    def has_news(self) -> bool:
        return False

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None:
        """Nobody else says anything."""

    def keep(self, epoch: str, position: int, state: bytes) -> None:
        """Nobody joins."""

    def abandon(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """It was closed when it was copied."""
