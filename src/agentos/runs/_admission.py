"""Admission by lease: an item starts only with a usable credential in hand, and waits for it without a worker."""

from __future__ import annotations

from collections.abc import Callable

from agentos.items.item import Item
from agentos.pool.lease_pool import LeasePool
from agentos.pool.lease_states import LIVE, REFUSED
from agentos.pool.store import LeaseHandle


class Admission:
    """The items of a run that ask for a lease. Only the holder of the run's role calls it."""

    def __init__(self, pool: LeasePool, on_lease: Callable[[Item, LeaseHandle], None]) -> None:
        self._pool = pool
        self._make_handle = pool.make_handle
        self._request_now = pool.request_now
        self._on_lease = on_lease  # called from any thread: a lease has come, or never will
        self._asking: dict[Item, LeaseHandle] = {}
        self._by_scope: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self._asking)

    def scopes(self) -> tuple[str | None, ...]:
        return tuple(self._by_scope)

    def count(self, scope: str | None) -> int:
        return self._by_scope.get(scope, 0)

    def admit(self, item: Item) -> LeaseHandle | None:
        """A live lease, if it can be had at once. Else the item asks, and `on_lease` will be called."""
        handle: LeaseHandle = self._make_handle(item.id, 1, item.tokens, item.scope)
        handle.waits_for_probe = True
        if self._request_now(handle):
            return handle
        handle.deliver = lambda: self._on_lease(item, handle)
        self._asking[item] = handle
        self._by_scope[item.scope] = self._by_scope.get(item.scope, 0) + 1
        # Those whom a provider sent back had their turn already: they ask in front of the others.
        if self._pool.request(handle, True, item.is_sent_back) or handle.state == REFUSED:
            self._on_lease(item, handle)
        return None

    def is_asking(self, item: Item, handle: LeaseHandle) -> bool:
        """False: it stopped asking in the meantime, and the lease went back then."""
        return self._asking.get(item) is handle

    def pick_up(self, item: Item, handle: LeaseHandle) -> bool:
        """True: the lease is worth having, and the item no longer asks. False: it keeps asking."""
        if handle.state != LIVE or not self._pool.confirm(handle):
            return False
        self._forget(item)
        return True

    def withdraw(self, item: Item) -> None:
        """The item stops asking; nothing stays queued or held for it."""
        self._pool.withdraw(self._forget(item))

    def withdraw_all(self) -> list[Item]:
        """All stop asking; the last to ask comes first, so that putting each in front restores their order."""
        items = list(reversed(self._asking))
        for item in items:
            self.withdraw(item)
        return items

    def _forget(self, item: Item) -> LeaseHandle:
        left = self._by_scope[item.scope] - 1
        if left:
            self._by_scope[item.scope] = left
        else:
            del self._by_scope[item.scope]
        return self._asking.pop(item)
