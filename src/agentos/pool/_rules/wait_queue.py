"""What the first waiter of a queue cannot use, although others might.

A credential is offered to the first waiter only. Should another become the first, because that one was served elsewhere
or has left, it may be content with what the one before it was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter

from .cooldown_scope import CooldownScope
from .records import CredentialRecord, LeaseRecord, RequestClass


class BlockedForHead:
    """By want."""

    def __init__(self) -> None:
        # It asks for more tokens than there are: those with the most come first.
        self._too_small: dict[RequestClass, list[tuple[float, int, CredentialRecord]]] = {}
        # It waits until they have proved themselves.
        self._unproven: dict[RequestClass, dict[str, CredentialRecord]] = {}

    def __bool__(self) -> bool:
        return bool(self._too_small or self._unproven)

    def classes_with_tokens(self) -> tuple[RequestClass, ...]:
        return tuple(self._too_small)

    def add(self, credential: CredentialRecord, record: LeaseRecord, most: int, now: float) -> None:
        """`most`: so many entries before those are thrown out that others have made worthless."""
        if record.waits_for_probe and not credential.is_proven:
            self._unproven.setdefault(record.request_class, {})[credential.id] = credential
        if record.tokens or record.requests > 1:
            room = min(cooldown_scope.pace.token_room(record.scope, now) for cooldown_scope in credential.paced_by)
            too_small = self._too_small.setdefault(record.request_class, [])
            heappush(too_small, (-room, credential.last_used, credential))
            if len(too_small) > most:
                too_small[:] = {entry[2].id: entry for entry in sorted(too_small, key=itemgetter(1))}.values()
                heapify(too_small)

    def take_for(self, request_class: RequestClass, first: LeaseRecord) -> Iterator[CooldownScope]:
        """The groups of as many as have room for what is asked for now."""
        if not first.waits_for_probe:
            for credential in self._unproven.pop(request_class, {}).values():
                yield credential.group
        too_small = self._too_small.get(request_class)
        while too_small and -too_small[0][0] >= first.tokens:
            yield heappop(too_small)[2].group

    def forget(self, request_class: RequestClass) -> None:
        self._too_small.pop(request_class, None)
        self._unproven.pop(request_class, None)
