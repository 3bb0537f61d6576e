"""The runs of one coordinator that have started and not finished, and the ids of items that they leave unfinished."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import signals

if TYPE_CHECKING:
    from .start import RunHandle


class ActiveRuns:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the three below
        self._runs: list[RunHandle] = []
        self._unfinished: list[str] = []
        self._unread: list[Iterator[str]] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: RunHandle) -> None:
        """Note that a run starts. The first of several forgets what earlier runs left unfinished."""
        with self._lock:
            if not self._runs:
                self._unfinished, self._unread = [], []
            self._runs.append(run)
        signals.watch(run)

    def finished(self, run: RunHandle) -> None:
        """Keep the ids of the unfinished items of a run that has ended."""
        with self._lock:
            if run in self._runs:
                self._runs.remove(run)
            self._unfinished.extend(run.unfinished_ids)
            if run.unread_ids is not None:
                self._unread.append(run.unread_ids)

    def stop(self, reason: str) -> None:
        with self._lock:
            runs = tuple(self._runs)
        for run in runs:
            run.stop(reason)

    def unfinished_ids(self) -> list[str]:
        with self._lock:
            while self._unread:
                self._unfinished.extend(self._unread[-1])
                self._unread.pop()
            return list(self._unfinished)
