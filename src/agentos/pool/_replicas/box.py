"""What this process says to the others of a shared pool. It lies in a box until somebody talks to the store, and goes
out in one batch; a batch whose reply was lost is sent again under the same number, and counts once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from .shared_pool import Statement

# What nobody waits for may lie in the box for so long, where it was soon followed by a question the last time.
LINGER = 0.003

_encode = msgspec.msgpack.Encoder().encode
# A batch: the session, its number, and what is said.
read_batch = msgspec.msgpack.Decoder(tuple[str, int, list[tuple[Any, ...]]]).decode


class Box:
    """Whoever uses it has the member's lock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lingers_since = -1e9
        self._is_quick = False  # the last question came soon after what could have waited for it
        self.start_over([])
        self.send_by = math.inf  # what is in it

    def start_over(self, statements: list[Statement]) -> None:
        """With what a new session says first."""
        self.statements = statements
        self.send_by = 0.0
        self.batches = 0  # that were sent
        self.unconfirmed: bytes | None = None  # the last of them, if its reply is not there yet
        self.sent_at = 0.0  # that one, for the first time

    def put(self, statement: Statement, *, urgent: bool) -> float:
        """Returns by when it has to be sent; 0 for now."""
        self.statements.append(statement)
        by = 0.0
        if not urgent:
            self._lingers_since = self._now()
            by = self._lingers_since + LINGER if self._is_quick else 0.0
        self.send_by = min(self.send_by, by)
        return by

    def ask(self) -> None:
        """A question comes next."""
        self._is_quick = self._now() - self._lingers_since < LINGER

    def next_batch(self, session_id: str) -> bytes:
        """All that is in it."""
        self.batches += 1
        self.unconfirmed = _encode((session_id, self.batches, self.statements))
        self.statements = []
        self.send_by = math.inf
        self.sent_at = self._now()
        return self.unconfirmed

    def unheard(self) -> list[Statement]:
        """What nobody may have heard yet."""
        return self.statements if self.unconfirmed is None else [*read_batch(self.unconfirmed)[2], *self.statements]

    def is_empty(self) -> bool:
        """Whether all that was said has arrived."""
        return not self.statements and self.unconfirmed is None

    def empty(self) -> None:
        """Nobody listens any more."""
        self.statements, self.unconfirmed, self.send_by = [], None, math.inf
