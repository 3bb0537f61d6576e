"""CommitThread: the only thread that writes to a ledger, with group commit.

A commit syncs the disk, which takes half a millisecond or more for any number of rows. The writer therefore waits
GATHER_SECONDS before a commit, and rows that arrive meanwhile share it. A caller that waits for its commit skips the
delay with `request_now`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from agentos.wakeup import Wakeup

# Seconds that the writer waits for more rows before a commit: the delay of a result before it is reported.
GATHER_SECONDS = 0.005


class CommitThread:
    """Calls `write` on a thread of its own. `write` commits all pending rows and returns whether there were any.

    If `write` raises, `on_failed` is called once with the exception, and nothing is written after that.
    """

    def __init__(self, write: Callable[[], bool], on_failed: Callable[[BaseException], None]) -> None:
        self._write = write
        self._on_failed = on_failed
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: without the delay
        self._wakeup = Wakeup(partial(self._calls.put, False), is_armed=True)
        self.request = self._wakeup.notify  # wakes the writer: there are rows to commit; called for every item
        self._is_closing = False
        self.is_ended = False  # nothing will be written any more
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="agentos-ledger", daemon=True)
        self._thread.start()

    def request_now(self) -> None:
        """Wake the writer, which commits without the delay. Returns at once."""
        self._calls.put(True)

    def close(self, timeout: float | None = None) -> bool:
        """Commit the remaining rows and end the thread. Return False if that takes longer than `timeout` seconds."""
        self._is_closing = True
        self.request_now()
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
        while not self._is_closing and (remaining := deadline - time.monotonic()) > 0:
            try:
                if self._calls.get(timeout=remaining):
                    return
            except Empty:
                return
