"""Admission by lease: an item starts only with a usable credential in hand, and waits for it without a worker."""

from __future__ import annotations

from collections.abc import Callable

from agentos.items.item import Item
from agentos.pool._rules.records import LIVE, REFUSED, LeaseRecord
from agentos.workflows.parallel.credential_coordinator import CredentialCoordinator


class Admission:
    """The items of a run that ask for a lease. Only the holder of the run's role calls it."""

    def __init__(self, pool: CredentialCoordinator, on_lease: Callable[[Item, LeaseRecord], None]) -> None:
        self._pool = pool
        self._store = pool._store
        self._request_now = pool._request_now
        self._on_lease = on_lease  # called from any thread: a lease has come, or never will
        self._asking: dict[Item, LeaseRecord] = {}
        self._by_scope: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self._asking)

    def scopes(self) -> tuple[str | None, ...]:
        return tuple(self._by_scope)

    def count(self, scope: str | None) -> int:
        return self._by_scope.get(scope, 0)

    def admit(self, item: Item) -> LeaseRecord | None:
        """A live lease, if it can be had at once. Else the item asks, and `on_lease` will be called."""
        record = LeaseRecord(item.id, 1, item.tokens, item.scope)
        record.is_patient = True
        if self._request_now(record):
            return record
        record.deliver = lambda: self._on_lease(item, record)
        self._asking[item] = record
        self._by_scope[item.scope] = self._by_scope.get(item.scope, 0) + 1
        # Those whom a provider sent back had their turn already: they ask in front of the others.
        if self._store.request(record, True, item.is_sent_back) or record.state == REFUSED:
            self._on_lease(item, record)
        return None

    def is_asking(self, item: Item, record: LeaseRecord) -> bool:
        """False: it stopped asking in the meantime, and the lease went back then."""
        return self._asking.get(item) is record

    def pick_up(self, item: Item, record: LeaseRecord) -> bool:
        """True: the lease is worth having, and the item no longer asks. False: it keeps asking."""
        if record.state != LIVE or not self._store.confirm(record):
            return False
        self._forget(item)
        return True

    def withdraw(self, item: Item) -> None:
        """The item stops asking; nothing stays queued or held for it."""
        self._store.withdraw(self._forget(item))

    def withdraw_all(self) -> list[Item]:
        """All stop asking; the last to ask comes first, so that putting each in front restores their order."""
        items = list(reversed(self._asking))
        for item in items:
            self.withdraw(item)
        return items

    def _forget(self, item: Item) -> LeaseRecord:
        left = self._by_scope[item.scope] - 1
        if left:
            self._by_scope[item.scope] = left
        else:
            del self._by_scope[item.scope]
        return self._asking.pop(item)
