"""Handle SIGINT and SIGTERM while runs execute: the first signal stops the runs, the second raises KeyboardInterrupt.

Python calls handlers on the main thread, and only that thread can install them: runs that another thread starts are not
watched. The previous handlers are restored with the end of the last run. A signal that is ignored stays ignored: the
program, or the shell that started it in the background, has chosen that.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Protocol

WATCHED = (signal.SIGINT, signal.SIGTERM)


class Stoppable(Protocol):
    def stop(self, reason: str, signal: int | None = None) -> None: ...


# Used by the main thread only.
_watched: list[Stoppable] = []
_previous_handlers: dict[signal.Signals, Any] = {}
_is_stop_requested = False


def watch(run: Stoppable) -> bool:
    """Stop the run at the first signal. Return False on another than the main thread: the run is not watched."""
    if threading.current_thread() is not threading.main_thread():
        return False
    if not _watched:
        for signum in WATCHED:
            if signal.getsignal(signum) != signal.SIG_IGN:
                _previous_handlers[signum] = signal.signal(signum, _on_signal)
    _watched.append(run)
    return True


def unwatch(run: Stoppable) -> None:
    """Stop watching a run; no-op if it is not watched. On another than the main thread the handlers cannot be restored:
    they stay until the next run ends on the main thread."""
    global _is_stop_requested
    if run in _watched:
        _watched.remove(run)
    if _watched or not _previous_handlers or threading.current_thread() is not threading.main_thread():
        return
    _is_stop_requested = False
    for signum in tuple(_previous_handlers):
        # None: installed by C code, which Python cannot restore.
        signal.signal(signum, _previous_handlers.pop(signum) or signal.SIG_DFL)


def _on_signal(signum: int, _frame: FrameType | None) -> None:
    global _is_stop_requested
    if _is_stop_requested or not _watched:
        raise KeyboardInterrupt
    _is_stop_requested = True
    for run in _watched:
        run.stop("interrupted", signum)  # only posts a message: safe in a handler
