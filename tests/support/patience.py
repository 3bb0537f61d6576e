"""How long tests wait. Without anything else, so that programs that tests start have it, too, and start quickly."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

# Bounds of time are promised for an idle machine; a test machine may be busy. What a bound keeps out is far longer.
BUSY = 15.0


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Waits for a condition that others bring about, however busy the machine is; fails if they do not."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.001)
