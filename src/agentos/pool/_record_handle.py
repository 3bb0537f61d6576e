"""RecordHandle: the handle of a lease whose record is in this process."""

from __future__ import annotations

from collections.abc import Callable

from ._rules.lease_states import REFUSED
from ._rules.records import LeaseRecord


class RecordHandle(LeaseRecord):
    """A lease record that its caller holds: handle and record are one object, which saves one per lease."""

    __slots__ = ("deliver",)

    deliver: Callable[[], None]  # called when the lease is live, or never can be; set before a request that waits

    @property
    def is_refused(self) -> bool:
        return self.state == REFUSED

    @property
    def provider(self) -> str | None:
        return None if self.credential is None else self.credential.provider.name
