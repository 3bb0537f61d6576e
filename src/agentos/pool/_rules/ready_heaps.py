"""Which credentials could be granted now: one heap per request class, in the order of the pool or the class.

An entry is only a hint. It counts if the credential's `last_used` is still the one it was pushed with; every change
that makes a credential usable pushes it again, so that nothing ever has to be searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappush
from typing import Any

from .order import LEAST_LOADED, rank
from .records import CredentialRecord, RequestClass, RestrictedScope, scope_of
from .wake_ups import WakeUps

# Heaps are kept for this many request classes. Past that all are dropped, and built again when requested.
MAX_CLASSES = 256
# Stale hints that a heap may hold beside two per credential before they are removed.
MAX_STALE_ENTRIES = 500

Entry = tuple[Any, int, CredentialRecord]  # rank by `order`, `last_used`, credential


class ReadyHeaps:
    """The heaps of a pool. Credentials of groups whose limits admit nothing now are not in them, but have a wake-up."""

    def __init__(self, credentials: Mapping[str, CredentialRecord], wake_ups: WakeUps, order: str) -> None:
        self._order = order
        self._has_own_orders = False  # a class has an order that is not that of the pool
        self.has_ranks = order != LEAST_LOADED  # the pool or a class has another order than by load
        self.has_restrictions = False  # a class does not admit all credentials
        self.orders_by_load_only = not self.has_ranks  # neither of the two
        self.by_class: dict[RequestClass, list[Entry]] = {}
        self._credentials = credentials
        self._wake_ups = wake_ups

    @property
    def max_entries(self) -> int:
        """The length of a heap at which stale hints are removed: it stays small, at next to no cost."""
        return 2 * len(self._credentials) + MAX_STALE_ENTRIES

    def push(self, credential: CredentialRecord, now: float) -> None:
        """Offer a credential that has room to every request class that it may serve now."""
        if credential.cooled or credential.scopes or self.has_ranks or not credential.group.pace.is_free:
            self._push_where_usable(credential, now)
        else:
            self.offer(credential)

    def offer(self, credential: CredentialRecord) -> None:
        """Offer a credential without cool-downs, scopes and limits, by its load."""
        last_used, offered = credential.last_used, credential.offered
        # One object for all idle credentials: heaps compare equal ranks by identity first.
        load = len(credential.leases) / credential.max_concurrent if credential.leases else 0.0
        for request_class, heap in self.by_class.items():
            if offered.get(request_class) == last_used:
                continue  # its hint is still valid
            if not self.has_restrictions or credential.serves(request_class):
                heappush(heap, (load, last_used, credential))
                offered[request_class] = last_used
                if len(heap) > MAX_STALE_ENTRIES:
                    self.remove_stale(heap)

    def _push_where_usable(self, credential: CredentialRecord, now: float) -> None:
        """`push` for a credential or classes with restrictions."""
        is_paced, last_used = not credential.group.pace.is_free, credential.last_used
        if is_paced and (full_until := credential.full_until(now)) > now:
            self._wake_ups.look_again(credential.group, full_until)
            return
        if self._order == LEAST_LOADED:
            entry: Entry = (len(credential.leases) / credential.max_concurrent, last_used, credential)
        else:
            entry = (rank(self._order, credential, now), last_used, credential)
        serves_all = not (credential.cooled or credential.scopes)
        for request_class, heap in self.by_class.items():
            if credential.offered.get(request_class) == last_used:
                continue
            if (serves_all and type(request_class) is not RestrictedScope) or (
                credential.serves(request_class) and not credential.usable_at(scope_of(request_class))
            ):
                if is_paced and (at := credential.paced_until(scope_of(request_class), 1, 0, now)):
                    self._wake_ups.look_again(credential.group, at)
                    continue
                if self._has_own_orders:
                    entry = (rank(self.order_of(request_class), credential, now), last_used, credential)
                heappush(heap, entry)
                credential.offered[request_class] = last_used
                if len(heap) > MAX_STALE_ENTRIES:
                    self.remove_stale(heap)

    def remove_stale(self, heap: list[Entry]) -> None:
        """Remove stale hints if there are many."""
        if len(heap) > self.max_entries:
            heap[:] = [entry for entry in heap if entry[1] == entry[2].last_used]
            heapify(heap)

    def order_of(self, request_class: RequestClass) -> str:
        """Return the order in which requests of a class are granted credentials."""
        own = request_class.order if type(request_class) is RestrictedScope else None
        return self._order if own is None else own

    def moved(self, entry: Entry, request_class: RequestClass, now: float) -> Entry | None:
        """Return the entry with its present rank, if time or an answer has changed it; else None. Only ranks of
        SOONEST_RESET, which are tuples, change."""
        present = rank(self.order_of(request_class), entry[2], now)
        return None if present == entry[0] else (present, *entry[1:])

    def build(self, request_class: RequestClass, now: float) -> list[Entry]:
        """Build and return the heap of a class that has none."""
        scope, order = scope_of(request_class), self.order_of(request_class)
        self._has_own_orders = self._has_own_orders or order != self._order
        self.has_ranks = self.has_ranks or self._has_own_orders
        self.has_restrictions = self.has_restrictions or type(request_class) is RestrictedScope
        self.orders_by_load_only = not (self.has_ranks or self.has_restrictions)
        if len(self.by_class) >= MAX_CLASSES:
            self.by_class.clear()
            for credential in self._credentials.values():
                credential.offered.clear()
        heap: list[Entry] = []
        for credential in self._credentials.values():
            if credential.has_room() and credential.serves(request_class) and not credential.usable_at(scope):
                at = credential.paced_until(scope, 1, 0, now)
                if at:
                    self._wake_ups.look_again(credential.group, at)
                else:
                    heap.append((rank(order, credential, now), credential.last_used, credential))
                    credential.offered[request_class] = credential.last_used
        heapify(heap)
        self.by_class[request_class] = heap
        return heap
