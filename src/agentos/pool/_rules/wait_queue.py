"""What the first waiter of a queue cannot use, although others might.

A credential is offered to the first waiter only. Should another become the first, because that one was served elsewhere
or has left, it may be content with what the one before it was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter

from .cooldown_scope import Domain
from .records import CredentialRecord, LeaseRecord, Want


class Declined:
    """By want."""

    def __init__(self) -> None:
        # It asks for more tokens than there are: those with the most come first.
        self._too_small: dict[str | Want | None, list[tuple[float, int, CredentialRecord]]] = {}
        # It waits until they have proved themselves.
        self._unproven: dict[str | Want | None, dict[str, CredentialRecord]] = {}

    def __bool__(self) -> bool:
        return bool(self._too_small or self._unproven)

    def wants_of_tokens(self) -> tuple[str | Want | None, ...]:
        return tuple(self._too_small)

    def add(self, credential: CredentialRecord, record: LeaseRecord, most: int, now: float) -> None:
        """`most`: so many entries before those are thrown out that others have made worthless."""
        if record.is_patient and not credential.is_proven:
            self._unproven.setdefault(record.want, {})[credential.id] = credential
        if record.tokens or record.requests > 1:
            room = min(domain.pace.token_room(record.scope, now) for domain in credential.paced_by)
            too_small = self._too_small.setdefault(record.want, [])
            heappush(too_small, (-room, credential.last_used, credential))
            if len(too_small) > most:
                too_small[:] = {entry[2].id: entry for entry in sorted(too_small, key=itemgetter(1))}.values()
                heapify(too_small)

    def take_for(self, want: str | Want | None, first: LeaseRecord) -> Iterator[Domain]:
        """The groups of as many as have room for what is asked for now."""
        if not first.is_patient:
            for credential in self._unproven.pop(want, {}).values():
                yield credential.group
        too_small = self._too_small.get(want)
        while too_small and -too_small[0][0] >= first.tokens:
            yield heappop(too_small)[2].group

    def forget(self, want: str | Want | None) -> None:
        self._too_small.pop(want, None)
        self._unproven.pop(want, None)
