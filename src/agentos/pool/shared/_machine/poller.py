"""Poller: wait until one of several descriptors can be read or written.

It is what `selectors` does, without an object per event: that costs more than the call of the system.
"""

from __future__ import annotations

import select

# Events. A closed or broken connection has others besides: test for "not only WRITABLE" before reading.
READABLE, WRITABLE = select.POLLIN, select.POLLOUT


class Poller:
    """Waits for events. Uses epoll, or poll where the system has none; both number the events alike."""

    def __init__(self) -> None:
        self._poll: select.epoll | select.poll
        if hasattr(select, "epoll"):
            self._poll, self._unit = select.epoll(), 1.0
        else:
            self._poll, self._unit = select.poll(), 1000.0
        self.register, self.modify, self.unregister = self._poll.register, self._poll.modify, self._poll.unregister

    def wait(self, timeout: float) -> list[tuple[int, int]]:
        """Return descriptors with their events; none if `timeout` seconds pass first."""
        return self._poll.poll(timeout * self._unit)

    def close(self) -> None:
        if hasattr(self._poll, "close"):
            self._poll.close()
