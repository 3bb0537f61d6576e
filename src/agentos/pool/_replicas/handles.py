"""The leases that this process has asked for and not given back, as its callers have them. These are not the records in
the copy of the pool: they say what the caller was told, and survive that the copy is made anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .._record_handle import RecordHandle
from .._rules.lease_states import LIVE, WAITING
from .._rules.records import LeaseRecord


class NumberedHandle(RecordHandle):
    """A handle with the number that its session chose for the lease."""

    __slots__ = ("id",)


class Handles:
    """Whoever uses it has the member's lock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._by_number: dict[int, RecordHandle] = {}  # in the order of asking: those that wait or live
        self._numbers = 0
        self.unclaimed: set[int] = set()  # live, but nobody has picked them up yet
        self.waiting = 0
        self.waited_at = -1e9  # when somebody waited here last

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[RecordHandle]:
        """May be changed meanwhile."""
        return iter(tuple(self._by_number.values()))

    def __contains__(self, record: RecordHandle) -> bool:
        return record.id in self._by_number

    def get(self, number: int) -> RecordHandle | None:
        return self._by_number.get(number)

    def add(self, record: RecordHandle) -> None:
        self._numbers += 1
        record.id = self._numbers
        self._by_number[record.id] = record
        self._count_waiting(1)

    def forget(self, record: RecordHandle, state: str) -> None:
        if record.state == WAITING:
            self._count_waiting(-1)
        record.state = state
        self.unclaimed.discard(record.id)
        self._by_number.pop(record.id, None)

    def serve(self, handle: RecordHandle, record: LeaseRecord) -> None:
        """With what the copy says; its waiter has yet to come for it."""
        self._count_waiting(-1)
        handle.state = LIVE
        self.unclaimed.add(handle.id)
        handle.credential, handle.credential_id = record.credential, record.credential_id
        handle.fence, handle.granted_at = record.fence, record.granted_at

    def wait_again(self, handle: RecordHandle) -> None:
        """What it was served is worth nothing, or lost."""
        handle.state = WAITING
        self._count_waiting(1)
        self.unclaimed.discard(handle.id)

    def _count_waiting(self, change: int) -> None:
        self.waiting += change
        self.waited_at = self._now()
