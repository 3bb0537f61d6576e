"""The one thread that writes to a ledger: whatever has come together is one transaction.

A commit is a sync of the disk, half a millisecond or more, whatever it holds. So the writer waits a moment before it
starts, and what comes in the meantime shares the commit. Whoever needs it sooner says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from agentos.wakeup import Wakeup

# How long the writer waits for others to join; a result is on record about that much later than it was known.
GATHER_SECONDS = 0.005


class Writer:
    """`write` is called on the writer's thread and has committed all that was there when it returns; it says whether
    there was anything. If it raises, `on_failed` is called once, and nothing is written any more."""

    def __init__(self, write: Callable[[], bool], on_failed: Callable[[BaseException], None]) -> None:
        self._write = write
        self._on_failed = on_failed
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: at once
        self._wakeup = Wakeup(lambda: self._calls.put(False), is_armed=True)
        self.call = self._wakeup.notify  # there is something to write; called for every item
        self._is_closing = False
        self.is_ended = False  # nothing more will be written
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="agentos-ledger", daemon=True)
        self._thread.start()

    def call_at_once(self) -> None:
        """Write without waiting for more to share the transaction."""
        self._calls.put(True)

    def close(self, timeout: float | None = None) -> bool:
        """Writes what is left. False: that could not be done in time."""
        self._is_closing = True
        self.call_at_once()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_closing:
                if not self._calls.get():
                    self._gather()
                self._wakeup.arm()
                self._write()
            while self._write():
                pass
        except BaseException as error:
            self.error = error
            self._on_failed(error)
        finally:
            self.is_ended = True

    def _gather(self) -> None:
        deadline = time.monotonic() + GATHER_SECONDS
        while not self._is_closing and (left := deadline - time.monotonic()) > 0:
            try:
                if self._calls.get(timeout=left):
                    return
            except Empty:
                return
