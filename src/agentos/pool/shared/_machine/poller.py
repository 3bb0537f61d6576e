"""Poller: wait until one of several descriptors can be read or written.

It is what `selectors` does, without an object per event: that costs more than the call of the system.
"""

from __future__ import annotations

import select
from collections.abc import Callable

# Events. A closed or broken connection has others besides: test for "not only WRITABLE" before reading.
READABLE, WRITABLE = select.POLLIN, select.POLLOUT


class Poller:
    """Waits for events. Uses epoll, or poll where the system has none; both number the events alike."""

    # Returns descriptors with their events; none if a number of seconds passes first.
    wait: Callable[[float], list[tuple[int, int]]]

    def __init__(self) -> None:
        self._poll: select.epoll | select.poll
        if hasattr(select, "epoll"):
            self._poll = select.epoll()
            self.wait = self._poll.poll
        else:
            self._poll = poll = select.poll()
            self.wait = lambda timeout: poll.poll(1000.0 * timeout)
        self.register, self.modify, self.unregister = self._poll.register, self._poll.modify, self._poll.unregister

    def close(self) -> None:
        if hasattr(self._poll, "close"):
            self._poll.close()
