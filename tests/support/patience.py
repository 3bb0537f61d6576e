"""Waiting in tests. Imports little, because programs that tests start import it, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Seconds added to every promised bound, because a test machine may be busy. A violated bound takes far longer.
BUSY = 15.0


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Poll until a condition holds that another thread or process brings about; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.001)
