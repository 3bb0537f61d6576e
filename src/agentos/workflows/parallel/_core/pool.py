"""The pool: who may use which credential now, and who is next.

Facts go in (`request`, `release`, `cool`, `quarantine`, …) with `now`; the pool changes its records and leaves what
has to be acted on in two lists for its owner to take: `served` (waiters that now hold a lease, or never can) and
`events` (what should be told). It knows credential ids, never secrets.

How it stays cheap with many credentials and many waiters:

* `_ready` has, per scope, a heap of credentials that could be granted, ordered by load and then by last use. An entry
  is only a hint: it counts if the credential's `last_used` is still the one it was pushed with. Whatever makes a
  credential usable pushes it again, so that nothing ever has to be searched.
* `waiting` has, per scope, the waiters in the order of asking. If a scope has waiters, no credential is usable for
  that scope: every change that makes one usable serves the first of them at once. So a newcomer need not look.
* `_ends` has the instants at which cool-downs end. `advance(now)` is the only place where time acts.

Wherever a function says *scope*, None is the scope of those who named none.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Any

from . import backoff
from .cooling import DEFAULT_COOL_DOWN, MOST_COOL_DOWN, Domain, cool_down
from .events import (
    AUTH_FAILED,
    EXHAUSTED,
    OVERLOADED,
    QUOTA_EXHAUSTED,
    RATE_LIMITED,
    CoolDownStarted,
    CredentialQuarantined,
    PoolWaiting,
    Verdict,
)
from .records import ENDED, LIVE, REFUSED, WAITING, CredentialRecord, LeaseRecord

# Heaps per scope are kept for this many scopes; past that they are made anew when asked for.
MOST_SCOPES = 256
# Spent hints that may lie in a heap before they are thrown out: it stays small, and that costs next to nothing.
SPENT_ENTRIES = 500
# So many refusals in a row quarantine a credential even if they all came from one requester.
AUTH_FAILURES_IN_A_ROW = 3


class Pool:
    def __init__(self) -> None:
        self.credentials: dict[str, CredentialRecord] = {}
        self.leaving: dict[str, CredentialRecord] = {}  # removed, but still leased
        self.served: list[LeaseRecord] = []
        self.events: list[Any] = []
        self._groups: dict[str, Domain] = {}
        self._providers: dict[str | None, Domain] = {}
        self._ready: dict[str | None, list[tuple[float, int, CredentialRecord]]] = {}
        self.waiting: dict[str | None, OrderedDict[int, LeaseRecord]] = {}
        self._ends: list[tuple[float, int, Domain, str | None]] = []
        self._most_entries = SPENT_ENTRIES  # in a heap, before the spent ones are thrown out
        self._sequence = 0
        self._fences: dict[str, int] = {}  # of removed credentials: a fence only grows, also if one comes back
        self._announced: str | None = None  # the reason that was told, in this episode of waiting

    # --- asking ---------------------------------------------------------------------------------------------------

    def request(self, record: LeaseRecord, now: float, wait: bool = True, front: bool = False) -> bool:
        """True: the lease is live. False: it waits its turn (or, with `wait=False`, nothing has changed).

        `front` is for those who had their turn already and were sent back by the provider. A request that no
        credential can ever serve becomes REFUSED.
        """
        if self._ends and self._ends[0][0] <= now:
            self.advance(now)
        if record.scope not in self.waiting:
            credential = self._choose(record.scope, record.prefer)
            if credential is not None:
                self._grant(record, credential)
                if credential.max_concurrent > len(credential.leases):
                    self._push(credential)
                self._announced = None
                return True
        if not wait:
            return False
        if not self._is_hopeful(record.scope):
            record.state = REFUSED
            return False
        self._enqueue(record, front)
        self._announce(record.scope, now)
        return False

    def withdraw(self, record: LeaseRecord, now: float) -> bool:
        """The asker gives up. True if it was still waiting; a lease already granted goes back unused, to the next."""
        if record.state == WAITING and record.sequence:
            self._dequeue(record)
            record.state = ENDED
            return True
        if record.state == LIVE:
            record.requests = record.tokens = 0
            self.release(record, now)
        return False

    def confirm(self, record: LeaseRecord, now: float) -> bool:
        """A waiter picks up what it was served. False: the credential was cooled or taken out of use on the way, and
        the waiter is back at the head of its queue."""
        if self._ends and self._ends[0][0] <= now:
            self.advance(now)
        credential = record.credential
        if record.state != LIVE or credential is None:
            return False
        if credential.quarantine is None and not credential.removed and credential.usable_at(record.scope) <= now:
            return True
        requests, tokens = record.requests, record.tokens
        self.withdraw(record, now)
        record.requests, record.tokens = requests, tokens
        record.state = WAITING
        record.credential = None
        if self.request(record, now, front=True):
            return True
        if record.state == REFUSED:
            self.served.append(record)
        return False

    # --- giving back ----------------------------------------------------------------------------------------------

    def settle(self, record: LeaseRecord, requests: int | None, tokens: int | None) -> bool:
        """What was really used, said once and only by a live lease."""
        if record.state != LIVE or record.settled:
            return False
        record.settled = True
        record.requests = record.requests if requests is None else requests
        record.tokens = record.tokens if tokens is None else tokens
        return True

    def release(self, record: LeaseRecord, now: float) -> bool:
        """Ends a lease. A second release, or one after the lease was lost, changes nothing."""
        if self._ends and self._ends[0][0] <= now:
            self.advance(now)
        if record.state != LIVE:
            return False
        credential = record.credential
        assert credential is not None
        record.state = ENDED
        del credential.leases[record.fence]
        self._sequence = credential.last_used = self._sequence + 1
        # A failed request is not refunded: providers count it.
        credential.used_requests += record.requests
        credential.used_tokens += record.tokens
        if self.waiting or credential.removed or credential.quarantine is not None:
            self._serve(credential)
        else:
            self._push(credential)
        return True

    def answered(self, credential: CredentialRecord, record: LeaseRecord | None, verdict: Verdict | None, now: float,
                 jitter: float = 0.5) -> None:  # fmt: skip
        """What the provider answered to this credential; None is a success. Cools or quarantines; frees nothing."""
        scope = record.scope if record is not None else None
        if verdict is None:
            credential.is_proven = True
            credential.auth_failures = 0
            credential.auth_failed_by = None
            credential.provider.overloads.pop(scope, None)
            credential.is_trusted = not credential.provider.overloads
        elif verdict.kind in (RATE_LIMITED, QUOTA_EXHAUSTED):
            self.cool(credential.group, verdict.scope or scope, cool_down(verdict), verdict.kind, now)
        elif verdict.kind == OVERLOADED:
            self._overloaded(credential.provider, verdict, verdict.scope or scope, now, jitter)
        elif verdict.kind == AUTH_FAILED:
            self._auth_failed(credential, record.requester if record is not None else None, verdict, now)

    # --- changing the pool ----------------------------------------------------------------------------------------

    def add(self, id: str, group: str, provider: str | None, scopes: frozenset[str], max_concurrent: int,  # noqa: A002
            now: float) -> None:  # fmt: skip
        in_group = self._groups.setdefault(group, Domain("group", group))
        of_provider = self._providers.setdefault(provider, Domain("provider", provider))
        credential = CredentialRecord(id, in_group, of_provider, scopes, max_concurrent)
        credential.fence = self._fences.pop(id, 0)
        credential.last_used = self._next()
        credential.cooled = sum(len(domain.cooling) for domain in credential.domains)
        for domain in credential.domains:
            domain.members[id] = credential
        self.credentials[id] = credential
        self._most_entries = 2 * len(self.credentials) + SPENT_ENTRIES
        self._serve(credential)

    def remove(self, id: str, now: float) -> None:  # noqa: A002
        """Grants it no more. Leases that are live stay valid until they are released."""
        credential = self.credentials.pop(id)
        credential.removed = True
        self._fences[id] = credential.fence
        if credential.leases:
            self.leaving[id] = credential
        for domain in credential.domains:
            del domain.members[id]
        self._refuse_the_hopeless()

    def quarantine(self, id: str, reason: str, now: float) -> None:  # noqa: A002
        credential = self.credentials[id]
        if credential.quarantine is None:
            self.events.append(CredentialQuarantined(id, reason))
        credential.quarantine = reason
        credential.is_proven = False
        self._refuse_the_hopeless()

    def restore(self, id: str, now: float) -> None:  # noqa: A002
        credential = self.credentials[id]
        credential.quarantine = None
        credential.auth_failures = 0
        credential.auth_failed_by = None
        self._serve(credential)

    def cool(self, domain: Domain, scope: str | None, seconds: float, verdict: str, now: float) -> None:
        """Not used until `now + seconds`; of two cool-downs the later end holds."""
        asked = seconds if seconds > MOST_COOL_DOWN else None
        seconds = min(seconds, MOST_COOL_DOWN)
        until = now + seconds
        before = domain.cooling.get(scope, 0.0)
        if until <= max(before, now):
            return
        if not before:
            for member in domain.members.values():
                member.cooled += 1
        domain.cooling[scope] = until
        heappush(self._ends, (until, self._next(), domain, scope))
        self.events.append(CoolDownStarted(domain.kind, domain.name, scope, seconds, verdict, asked))

    def advance(self, now: float) -> None:
        """Ends the cool-downs whose instant has come, and serves those who waited for them."""
        ended: dict[str, CredentialRecord] = {}
        while self._ends and self._ends[0][0] <= now:
            until, _, domain, scope = heappop(self._ends)
            if domain.cooling.get(scope) == until:  # else it was prolonged since
                del domain.cooling[scope]
                for member in domain.members.values():
                    member.cooled -= 1
                ended.update(domain.members)
        for credential in ended.values():
            self._serve(credential)

    # --- looking --------------------------------------------------------------------------------------------------

    def next_wake_at(self) -> float | None:
        """When `advance` must be called at the latest; None when nobody waits for time to pass."""
        return self._ends[0][0] if self.waiting and self._ends else None

    def waiters(self) -> int:
        return sum(len(queue) for queue in self.waiting.values())

    def is_usable(self, credential: CredentialRecord, scope: str | None, now: float) -> bool:
        return credential.has_room() and credential.usable_at(scope) <= now

    def waiting_for(self, scope: str | None, now: float) -> PoolWaiting:
        """Why a request for this scope would wait: all that could serve it are in use, or the provider says wait."""
        candidates = [c for c in self.credentials.values() if c.quarantine is None and c.serves(scope)]
        ends = [c.usable_at(scope) for c in candidates]
        cooling = sum(1 for end in ends if end > now)
        reason = RATE_LIMITED if candidates and cooling == len(candidates) else EXHAUSTED
        in_use = sum(1 for c in candidates if c.leases)
        usable_in = min((end - now for end in ends if end > now), default=None)
        return PoolWaiting(reason, len(candidates), in_use, cooling, usable_in)

    def reasons(self, scope: str | None) -> dict[str, str]:
        """Why each credential is of no use for this scope."""
        return {c.id: c.quarantine or f"does not serve scope {scope}" for c in self.credentials.values()}

    # --- the rules inside -----------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _choose(self, scope: str | None, prefer: str | None) -> CredentialRecord | None:
        """Usable now; of those the least loaded; of those the least recently used. A wish comes first, if usable."""
        if prefer is not None:
            wished = self.credentials.get(prefer)
            if wished is not None and wished.has_room() and wished.serves(scope) and not wished.usable_at(scope):
                return wished
        heap = self._ready.get(scope)
        if heap is None:
            heap = self._build_heap(scope)
        while heap:
            _, last_used, credential = heappop(heap)
            if (
                last_used == credential.last_used
                and credential.quarantine is None
                and not credential.removed
                and not (credential.cooled and credential.usable_at(scope))
            ):
                return credential
        return None

    def _grant(self, record: LeaseRecord, credential: CredentialRecord) -> None:
        self._sequence = credential.last_used = self._sequence + 1
        credential.fence = fence = credential.fence + 1
        credential.leases[fence] = record
        record.credential = credential
        record.fence = fence
        record.state = LIVE

    def _serve(self, credential: CredentialRecord) -> None:
        """A credential may have become usable: its waiters first, then whoever comes."""
        if credential.removed and not credential.leases and self.leaving.get(credential.id) is credential:
            del self.leaving[credential.id]
        while self.waiting and credential.has_room():
            record = self._first_waiter(credential)
            if record is None:
                break
            self._dequeue(record)
            self._grant(record, credential)
            self.served.append(record)
        if credential.has_room():
            self._push(credential)

    def _first_waiter(self, credential: CredentialRecord) -> LeaseRecord | None:
        first: LeaseRecord | None = None
        for scope, queue in self.waiting.items():
            if credential.serves(scope) and not credential.usable_at(scope):
                head = next(iter(queue.values()))
                if first is None or head.sequence < first.sequence:
                    first = head
        return first

    def _enqueue(self, record: LeaseRecord, front: bool) -> None:
        queue = self.waiting.setdefault(record.scope, OrderedDict())
        if not record.sequence:
            record.sequence = self._next()
        queue[record.sequence] = record
        if front:
            queue.move_to_end(record.sequence, last=False)

    def _announce(self, scope: str | None, now: float) -> None:
        """Once per episode, which ends when somebody is served without waiting; and once more if in the meantime all
        credentials cool, because then it is the provider that has to be waited for."""
        if self._announced is not None and (
            self._announced == RATE_LIMITED
            or not all(c.cooled or c.quarantine is not None for c in self.credentials.values())
        ):
            return
        waiting = self.waiting_for(scope, now)
        if waiting.reason != self._announced:
            self._announced = waiting.reason
            self.events.append(waiting)

    def _dequeue(self, record: LeaseRecord) -> None:
        queue = self.waiting[record.scope]
        del queue[record.sequence]
        if not queue:
            del self.waiting[record.scope]

    def _push(self, credential: CredentialRecord) -> None:
        """Offers a credential that has room to every scope that it may serve now."""
        entry = (len(credential.leases) / credential.max_concurrent, credential.last_used, credential)
        is_free = not (credential.cooled or credential.scopes)
        for scope, heap in self._ready.items():
            if is_free or (credential.serves(scope) and not credential.usable_at(scope)):
                heappush(heap, entry)
                if len(heap) > self._most_entries:
                    heap[:] = [e for e in heap if e[1] == e[2].last_used]  # the rest are spent hints
                    heapify(heap)

    def _build_heap(self, scope: str | None) -> list[tuple[float, int, CredentialRecord]]:
        if len(self._ready) >= MOST_SCOPES:
            self._ready.clear()
        heap = [
            (len(c.leases) / c.max_concurrent, c.last_used, c)
            for c in self.credentials.values()
            if c.has_room() and c.serves(scope) and not c.usable_at(scope)
        ]
        heapify(heap)
        self._ready[scope] = heap
        return heap

    def _is_hopeful(self, scope: str | None) -> bool:
        return any(c.quarantine is None and c.serves(scope) for c in self.credentials.values())

    def _refuse_the_hopeless(self) -> None:
        for scope in [scope for scope in self.waiting if not self._is_hopeful(scope)]:
            for record in self.waiting.pop(scope).values():
                record.state = REFUSED
                self.served.append(record)

    def _overloaded(self, provider: Domain, verdict: Verdict, scope: str | None, now: float, jitter: float) -> None:
        in_a_row = provider.overloads[scope] = provider.overloads.get(scope, 0) + 1
        for member in provider.members.values():
            member.is_trusted = False
        seconds = backoff.delay(in_a_row, jitter, base=DEFAULT_COOL_DOWN[OVERLOADED])
        if verdict.retry_after is not None or verdict.cool_down is not None:
            seconds = max(seconds, cool_down(verdict))
        self.cool(provider, scope, seconds, OVERLOADED, now)

    def _auth_failed(self, credential: CredentialRecord, requester: str | None, verdict: Verdict, now: float) -> None:
        """One refusal may be a blip, or the item's own fault: a second opinion decides, or the third in a row."""
        credential.is_trusted = False
        credential.auth_failures += 1
        by_another = credential.auth_failures > 1 and (requester is None or requester != credential.auth_failed_by)
        credential.auth_failed_by = requester
        if by_another or credential.auth_failures >= AUTH_FAILURES_IN_A_ROW:
            reason = f"refused by the provider {credential.auth_failures} times in a row"
            self.quarantine(credential.id, f"{reason}: {verdict.message}" if verdict.message else reason, now)
        else:
            self.cool(credential.domains[0], None, cool_down(verdict), AUTH_FAILED, now)
