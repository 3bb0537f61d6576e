"""The short way of a lease: its grant and its end in one call each, if nothing restricts its credential.

Nearly every lease takes this way. It changes what `Allocator.request` and `LeaseEnd.end` change in the same case, and
nothing else happens then: no request waits, no time has come, no limit counts. In every other case it changes nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from agentos.limits.pace import IDLE_SECONDS

from .lease_states import ENDED, LIVE
from .ready_heaps import MAX_STALE_ENTRIES
from .records import LeaseRecord

if TYPE_CHECKING:
    from .allocator import Allocator


class FreeLeases:
    """Grants and ends the leases of an allocator that nothing restricts."""

    __slots__ = ("_allocator", "_by_class", "_due", "_ready", "_waiting")

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._ready = allocator.ready
        self._by_class = allocator.ready.by_class
        self._waiting = allocator.waiting
        self._due = allocator.due

    def grant(self, record: LeaseRecord, now: float) -> bool:
        """Return True if the lease is live; False, and change nothing, if a closer look is needed."""
        heap = self._by_class.get(record.request_class)
        if not heap or self._waiting or record.tokens or record.prefer is not None:
            return False
        _, last_used, credential = heap[0]
        pace = credential.group.pace
        if not credential.is_healthy or credential.cooled or last_used != credential.last_used or not pace.is_free:
            return False
        if self._due and self._due[0][0] <= now:
            return False
        allocator, leases, ready = self._allocator, credential.leases, self._ready
        allocator.sequence = credential.last_used = last_used = allocator.sequence + 1
        allocator.announced = None
        credential.fence = record.fence = fence = credential.fence + 1
        leases[fence] = record
        record.at_once = at_once = len(leases)
        record.credential = credential
        record.credential_id = credential.id
        record.state = LIVE
        record.granted_at = now
        if now - pace.last_at > IDLE_SECONDS:
            pace.count(record.requests, now)
        else:  # the same, without a call
            pace.last_at = now
            pace.sent += record.requests
        if at_once >= credential.max_concurrent:
            heappop(heap)
        elif len(self._by_class) == 1 and not credential.scopes and not ready.has_ranks:
            heapreplace(heap, (at_once / credential.max_concurrent, last_used, credential))
            credential.offered[record.request_class] = last_used
        else:
            heappop(heap)
            ready.push(credential, now)
        return True

    def end(self, record: LeaseRecord) -> bool:
        """End a lease whose request has succeeded; return False, and change nothing, if a closer look is needed."""
        credential = record.credential
        if record.state != LIVE or credential is None or record.charge is not None or record.tokens or self._waiting:
            return False
        if not credential.is_healthy or credential.concurrency is not None or not self._ready.orders_by_load_only:
            return False
        if credential.cooled or credential.scopes or not credential.group.pace.is_free:
            return False
        leases = credential.leases
        record.state = ENDED
        del leases[record.fence]
        allocator = self._allocator
        allocator.sequence = credential.last_used = last_used = allocator.sequence + 1
        credential.used_requests += record.requests
        if len(leases) < credential.max_concurrent:
            # `ReadyHeaps.offer`, without its call and its look for a valid hint: `last_used` is new.
            load = len(leases) / credential.max_concurrent if leases else 0.0
            offered = credential.offered
            for request_class, heap in self._by_class.items():
                heappush(heap, (load, last_used, credential))
                offered[request_class] = last_used
                if len(heap) > MAX_STALE_ENTRIES:
                    self._ready.remove_stale(heap)
        return True
