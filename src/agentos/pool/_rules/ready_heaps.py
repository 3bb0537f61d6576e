"""Which credentials could be granted now: one heap per request class, the least loaded credential first.

An entry is only a hint. It counts if the credential's `last_used` is still the one it was pushed with; every change
that makes a credential usable pushes it again, so that nothing ever has to be searched.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappush

from .records import CredentialRecord, RequestClass, RestrictedScope, scope_of
from .wake_ups import WakeUps

# Heaps are kept for this many request classes. Past that all are dropped, and built again when requested.
MAX_CLASSES = 256
# Stale hints that a heap may hold beside two per credential before they are removed.
MAX_STALE_ENTRIES = 500

Entry = tuple[float, int, CredentialRecord]  # load from 0 to 1, `last_used`, credential


class ReadyHeaps:
    """The heaps of a pool. Credentials of groups whose limits admit nothing now are not in them, but have a wake-up."""

    def __init__(self, credentials: Mapping[str, CredentialRecord], wake_ups: WakeUps) -> None:
        self.by_class: dict[RequestClass, list[Entry]] = {}
        self._credentials = credentials
        self._wake_ups = wake_ups

    @property
    def max_entries(self) -> int:
        """The length of a heap at which stale hints are removed: it stays small, at next to no cost."""
        return 2 * len(self._credentials) + MAX_STALE_ENTRIES

    def push(self, credential: CredentialRecord, now: float) -> None:
        """Offer a credential that has room to every request class that it may serve now."""
        is_paced = not credential.group.pace.is_free
        if is_paced and (full_until := credential.full_until(now)) > now:
            self._wake_ups.look_again(credential.group, full_until)
            return
        last_used = credential.last_used
        entry = (len(credential.leases) / credential.max_concurrent, last_used, credential)
        offered = credential.offered
        serves_all = not (credential.cooled or credential.scopes)
        for request_class, heap in self.by_class.items():
            if offered.get(request_class) == last_used:
                continue  # its hint is still valid
            if (serves_all and type(request_class) is not RestrictedScope) or (
                credential.serves(request_class) and not credential.usable_at(scope_of(request_class))
            ):
                if is_paced and (at := credential.paced_until(scope_of(request_class), 1, 0, now)):
                    self._wake_ups.look_again(credential.group, at)
                    continue
                heappush(heap, entry)
                offered[request_class] = last_used
                if len(heap) > MAX_STALE_ENTRIES and len(heap) > self.max_entries:
                    heap[:] = [e for e in heap if e[1] == e[2].last_used]
                    heapify(heap)

    def build(self, request_class: RequestClass, now: float) -> list[Entry]:
        """Build and return the heap of a class that has none."""
        scope = scope_of(request_class)
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
                    heap.append((len(credential.leases) / credential.max_concurrent, credential.last_used, credential))
                    credential.offered[request_class] = credential.last_used
        heapify(heap)
        self.by_class[request_class] = heap
        return heap
