"""Waiting requests: a queue per request class, first come first served, and what the head of each queue cannot use.

If a class has waiters, no credential is usable for its head: every change that makes one usable serves the head at
once, so a new request of that class need not look.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from operator import itemgetter

from .cooldown_scope import CooldownScope
from .records import CredentialRecord, LeaseRecord, RequestClass
from .wake_ups import WakeUps

# Waiters that are passed over because they need more than a credential ever allows, to serve one behind them.
MAX_PASSED_OVER = 16


class BlockedForHead:
    """Credentials that were offered to the head of a queue in vain, by request class.

    A credential is offered to the head only. When another request becomes the head, because the one before it was
    served elsewhere or has left, it may be content with a credential that its predecessor could not use.
    """

    def __init__(self) -> None:
        # The head needs more tokens than these have: a heap, the one with the most tokens first.
        self._too_small: dict[RequestClass, list[tuple[float, int, CredentialRecord]]] = {}
        # The head waits for a probe of these.
        self._unproven: dict[RequestClass, dict[str, CredentialRecord]] = {}

    def __bool__(self) -> bool:
        return bool(self._too_small or self._unproven)

    def classes_with_tokens(self) -> tuple[RequestClass, ...]:
        """Return the classes whose head needs more tokens than it was offered."""
        return tuple(self._too_small)

    def add(self, credential: CredentialRecord, head: LeaseRecord, max_entries: int, now: float) -> None:
        """Note that a head cannot use a credential. Stale entries are removed at `max_entries`."""
        if head.waits_for_probe and not credential.is_proven:
            self._unproven.setdefault(head.request_class, {})[credential.id] = credential
        if not head.is_plain:
            room = credential.group.pace.token_room(head.scope, now)
            too_small = self._too_small.setdefault(head.request_class, [])
            heappush(too_small, (-room, credential.last_used, credential))
            if len(too_small) > max_entries:
                too_small[:] = {entry[2].id: entry for entry in sorted(too_small, key=itemgetter(1))}.values()
                heapify(too_small)

    def pop_groups_for(self, head: LeaseRecord) -> Iterator[CooldownScope]:
        """Yield the groups of credentials that a new head may be able to use."""
        if not head.waits_for_probe:
            for credential in self._unproven.pop(head.request_class, {}).values():
                yield credential.group
        too_small = self._too_small.get(head.request_class)
        while too_small and -too_small[0][0] >= head.tokens:
            yield heappop(too_small)[2].group

    def forget(self, request_class: RequestClass) -> None:
        """Drop the entries of a class that has no waiters."""
        self._too_small.pop(request_class, None)
        self._unproven.pop(request_class, None)


class WaitQueue:
    """The waiting requests of a pool."""

    def __init__(self, wake_ups: WakeUps) -> None:
        self.by_class: dict[RequestClass, OrderedDict[int, LeaseRecord]] = {}  # by sequence, in the order of service
        self.blocked_for_head = BlockedForHead()
        self._wake_ups = wake_ups
        self._last_sequence = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self.by_class.values())

    def first(self) -> LeaseRecord | None:
        """Return the request that waits longest; None if none waits."""
        heads = [next(iter(queue.values())) for queue in self.by_class.values() if queue]
        return min(heads, key=lambda head: head.sequence, default=None)

    def add(self, record: LeaseRecord, front: bool) -> None:
        """Append a request, or put it in front. Its sequence number stays that of its first request."""
        queue = self.by_class.setdefault(record.request_class, OrderedDict())
        if not record.sequence:
            self._last_sequence += 1
            record.sequence = self._last_sequence
        queue[record.sequence] = record
        if front:
            queue.move_to_end(record.sequence, last=False)

    def put_back(self, record: LeaseRecord) -> None:
        """Insert a request where it was: by its sequence number."""
        queue = self.by_class.pop(record.request_class, OrderedDict())
        ahead = OrderedDict((n, waiter) for n, waiter in queue.items() if n < record.sequence)
        behind = {n: waiter for n, waiter in queue.items() if n > record.sequence}
        self.by_class[record.request_class] = ahead
        ahead[record.sequence] = record
        ahead.update(behind)

    def remove(self, record: LeaseRecord) -> None:
        """Remove a request; if it was the head, what it blocked is offered to the heads that are left."""
        queue = self.by_class[record.request_class]
        was_head = self.blocked_for_head and next(iter(queue.values())) is record
        del queue[record.sequence]
        if not queue:
            del self.by_class[record.request_class]
            self.blocked_for_head.forget(record.request_class)
        if was_head:
            if queue:
                self._offer_blocked(record.request_class)
            if not record.is_plain:  # its claim on tokens of other classes has ended, too
                for request_class in self.blocked_for_head.classes_with_tokens():
                    if request_class != record.request_class:
                        self._offer_blocked(request_class)

    def _offer_blocked(self, request_class: RequestClass) -> None:
        head = next(iter(self.by_class[request_class].values()))
        for group in self.blocked_for_head.pop_groups_for(head):
            self._wake_ups.look_again(group, 0.0)

    def has_older_token_claim(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
        """Return whether the head of another class, which came earlier, waits for tokens of the same group.

        Later requests must leave these tokens to it: else small requests of other classes starve a large one.
        """
        limiter = credential.group.pace.limiter
        if limiter is None:
            return False
        for request_class, queue in self.by_class.items():
            head = next(iter(queue.values()))
            if (
                request_class != record.request_class
                and not head.is_plain
                and (not record.sequence or head.sequence < record.sequence)
                and credential.serves(request_class)
                and not limiter.too_large(head.requests, head.tokens, head.scope, head.detail)
            ):
                at = limiter.next_room_at(head.scope, head.tokens, head.detail, now, record.scope)
                if at:
                    self._wake_ups.look_again(credential.group, at)
                    return True
        return False


def first_that_fits(queue: OrderedDict[int, LeaseRecord], credential: CredentialRecord) -> LeaseRecord | None:
    """Return the first waiter that does not need more than a credential's limits ever allow."""
    for record in islice(queue.values(), MAX_PASSED_OVER):
        if not credential.group.pace.too_large(record.requests, record.tokens, record.scope, record.detail):
            return record
    return None
