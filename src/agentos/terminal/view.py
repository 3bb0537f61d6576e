"""What a display may ask about a run."""

from __future__ import annotations

import time
from typing import Protocol

from agentos.events import PoolWaiting
from agentos.items.results import ProgressStats, RunningItem
from agentos.pool.lease_pool import LeasePool
from agentos.pool.states import CredentialState
from agentos.runs.streams import ResultStream

__all__ = ["PoolWaiting", "RunView", "RunningItem", "View"]


class View(Protocol):
    """Everything here may be asked from any thread, at any time, and answers at once."""

    @property
    def run_id(self) -> str: ...

    def stats(self) -> ProgressStats: ...

    def running(self, most: int | None = None) -> list[RunningItem]:
        """The oldest first; `most`: not more than so many."""

    def credentials(self) -> tuple[CredentialState, ...]: ...

    def waiting(self) -> PoolWaiting | None:
        """Why items wait for a credential, and until when; None when none does."""


class RunView:
    """Looks at a run and its pool. A run wants to know its reporter before it starts, and a reporter may want to know
    the run: so the stream can be set later, and until then the view is empty."""

    def __init__(self, stream: ResultStream | None = None, pool: LeasePool | None = None) -> None:
        self.stream = stream
        self._pool = pool
        self._nothing = ProgressStats(None, start_time=time.time())

    @property
    def run_id(self) -> str:
        return "" if self.stream is None else self.stream.run_id

    def stats(self) -> ProgressStats:
        return self._nothing if self.stream is None else self.stream.stats

    def running(self, most: int | None = None) -> list[RunningItem]:
        return [] if self.stream is None else self.stream.running(most)

    def credentials(self) -> tuple[CredentialState, ...]:
        return () if self._pool is None else self._pool.states()

    def waiting(self) -> PoolWaiting | None:
        return None if self.stream is None else self.stream.waiting()
