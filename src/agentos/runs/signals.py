"""SIGINT and SIGTERM, while runs are executing: the first asks them to stop, the second raises KeyboardInterrupt.

Python runs handlers on the main thread and lets only that thread install them, so runs that were started elsewhere are
not watched. The handlers that were there before come back with the last run.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    def stop(self, reason: str, signal: int | None = None) -> None: ...


# Only the main thread touches these two.
_watched: list[Stoppable] = []
_before: dict[signal.Signals, Any] = {}
_has_asked = False


def watch(run: Stoppable) -> bool:
    """False: this is not the main thread, and the run cannot be watched."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if not _watched:
        for signum in WATCHED:
            _before[signum] = signal.signal(signum, _on_signal)
    _watched.append(run)
    return True


def unwatch(run: Stoppable) -> None:
    """Harmless when the run is not watched. Handlers can be put back on the main thread only: from another one they
    stay until the next run that ends there."""
    global _has_asked
    if run in _watched:
        _watched.remove(run)
    if _watched or not _before or threading.current_thread() is not threading.main_thread():
        return
    _has_asked = False
    for signum in WATCHED:
        # None: it was installed by C code, and cannot be put back by Python.
        signal.signal(signum, _before.pop(signum) or signal.SIG_DFL)


def _on_signal(signum: int, _frame: FrameType | None) -> None:
    global _has_asked
    if _has_asked or not _watched:
        raise KeyboardInterrupt
    _has_asked = True
    for run in _watched:
        run.stop("interrupted", signum)  # only puts a fact into a queue: safe in a handler
