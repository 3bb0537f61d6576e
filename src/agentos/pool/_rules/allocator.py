"""The pool: who may use which credential now, and who is next.

Facts go in (`request`, `release`, `cool`, `quarantine`, …) with `now`; the pool changes its records and leaves what
has to be acted on in two lists for its owner to take: `served` (waiters that now hold a lease, or never can) and
`events` (what should be told). It knows credential ids, never secrets.

How it stays cheap with many credentials and many waiters:

* `_ready` has, for each want, a heap of credentials that could be granted, ordered by load and then by last use. An
  entry is only a hint: it counts if the credential's `last_used` is still the one it was pushed with. Whatever makes a
  credential usable pushes it again, so that nothing ever has to be searched.
* `waiting` has, for each want, the waiters in the order of asking. If a want has waiters, no credential is usable for
  it: every change that makes one usable serves the first of them at once. So a newcomer need not look.
* `_ends` has the instants at which cool-downs end, or at which a group's limits admit more. `advance(now)` is the only
  place where time acts. A group whose limits admit nothing now is not offered, and always has its instant there.

Wherever a function says *scope*, None is the scope of those who named none. A *want* is a scope, or a scope together
with the credentials that the asker may use at all (`records.RestrictedScope`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import Any

from agentos.events import CoolDownStarted, CredentialQuarantined
from agentos.limits.backoff import MAX_COOL_DOWN
from agentos.limits.declaration import Limits
from agentos.verdict import RATE_LIMITED

from ..lease_states import ENDED, LIVE, REFUSED, WAITING
from .cooldown_scope import CooldownScope
from .feedback import ProviderFeedback
from .records import CredentialRecord, LeaseRecord, RequestClass, RestrictedScope, scope_of
from .wait_queue import BlockedForHead
from .wait_reasons import explain

# A run gives a credential that nobody has used yet one request, and the next ones when it was answered well or after so
# many seconds: a dead key says so at once.
PROVING_SECONDS = 2.0
# Waiting so long (seconds) for the next request that a limit admits is told.
SHORT_WAIT = 5.0
# Heaps are kept for this many wants; past that they are made anew when asked for.
MOST_SCOPES = 256
# Spent hints that may lie in a heap before they are thrown out: it stays small, and that costs next to nothing.
SPENT_ENTRIES = 500
# So many waiters who ask for more than a credential ever allows are passed over, to serve one behind them.
MOST_PASSED_OVER = 16


class _Paced:
    """Beside the scopes in the list of instants: not the end of a cool-down, but a group whose limits admit more by
    then."""


_PACED: Any = _Paced  # the class itself, which stays the same wherever a pool is copied to


def _in_a_day(now: float) -> float:
    return now + 86_400.0


class Allocator:
    """`store`: cools down as a whole when what was granted may have been forgotten; only a store that can be lost has
    it. `first_fence`: greater than any that were given before that."""

    def __init__(self, store: CooldownScope | None = None, first_fence: int = 0) -> None:
        self.store = store
        self.first_fence = first_fence
        self.credentials: dict[str, CredentialRecord] = {}
        self.leaving: dict[str, CredentialRecord] = {}  # removed, but still leased
        self.served: list[LeaseRecord] = []
        self.events: list[Any] = []
        self._groups: dict[str, CooldownScope] = {}
        self._providers: dict[str | None, CooldownScope] = {}
        self._ready: dict[RequestClass, list[tuple[float, int, CredentialRecord]]] = {}
        self.waiting: dict[RequestClass, OrderedDict[int, LeaseRecord]] = {}
        self._ends: list[tuple[float, int, CooldownScope, str | None]] = []
        self._blocked_for_head = BlockedForHead()
        self._most_entries = SPENT_ENTRIES  # in a heap, before the spent ones are thrown out
        self._sequence = 0
        self._fences: dict[str, int] = {}  # of removed credentials: a fence only grows, also if one comes back
        self._announced: str | None = None  # the reason that was told, in this episode of waiting
        self._announce_after = 0.0
        self.feedback = ProviderFeedback(self)

    # --- asking ---------------------------------------------------------------------------------------------------

    def request(self, record: LeaseRecord, now: float, wait: bool = True, front: bool = False) -> bool:
        """True: the lease is live. False: it waits its turn (or, with `wait=False`, nothing has changed).

        `front` is for those who had their turn already and were sent back by the provider. A request that no
        credential can ever serve becomes REFUSED.
        """
        if self._ends and self._ends[0][0] <= now:
            self.advance(now)
        if front or record.request_class not in self.waiting:  # who is in front may need less than those behind
            credential = self._choose(record, now)
            if credential is not None:
                self._grant(record, credential, now)
                if credential.max_concurrent > len(credential.leases):
                    self._push(credential, now)
                self._announced = None
                return True
        if wait and not self._is_hopeful(record):
            record.state = REFUSED
        if not wait or record.state == REFUSED:
            if record.request_class not in self.waiting:
                self._blocked_for_head.forget(record.request_class)
            return False
        self._enqueue(record, front)
        self._announce(record.request_class, now)
        return False

    def withdraw(self, record: LeaseRecord, now: float) -> bool:
        """The asker gives up. True if it was still waiting; a lease already granted goes back unused, to the next."""
        if record.state == WAITING and record.sequence:
            self._dequeue(record)
            record.state = ENDED
            return True
        if record.state == LIVE:
            self._correct(record, 0, 0, now)
            record.is_unused = True
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
        self.set_aside(record, now)
        if self.request(record, now, front=True):
            return True
        if record.state == REFUSED:
            self.served.append(record)
        return False

    def set_aside(self, record: LeaseRecord, now: float) -> None:
        """Its asker does not answer: what it was offered goes to the next, and it is passed over until `take_back`."""
        requests, tokens = record.requests, record.tokens
        if record.state == WAITING:
            self._dequeue(record)
        else:
            self._correct(record, 0, 0, now)
            record.is_unused = True
            self.release(record, now)
            record.requests, record.tokens = requests, tokens
            record.is_unused = record.is_answered = record.settled = False
            record.charges = ()
            record.state = WAITING
            record.credential = None

    def take_back(self, records: list[LeaseRecord], now: float) -> None:
        """They are in the queue again, where they were."""
        for record in records:
            if not self._is_hopeful(record):
                record.state = REFUSED
                self.served.append(record)
                continue
            queue = self.waiting.pop(record.request_class, OrderedDict())
            ahead = OrderedDict((n, other) for n, other in queue.items() if n < record.sequence)
            behind = {n: other for n, other in queue.items() if n > record.sequence}
            self.waiting[record.request_class] = ahead
            ahead[record.sequence] = record
            ahead.update(behind)
        for credential in self.credentials.values():
            self.serve(credential, now)

    # --- giving back ----------------------------------------------------------------------------------------------

    def settle(self, record: LeaseRecord, requests: int | None, tokens: int | None, now: float) -> bool:
        """What was really used, said once and only by a live lease. More than was reserved is debt."""
        if record.state != LIVE or record.settled:
            return False
        record.settled = True
        requests = record.requests if requests is None else requests
        tokens = record.tokens if tokens is None else tokens
        if requests != record.requests or tokens != record.tokens:
            self._correct(record, requests, tokens, now)
        return True

    def use_more(self, record: LeaseRecord, requests: int, tokens: int, now: float) -> None:
        """A live lease is used again, beyond what was reserved: that is debt."""
        self._correct(record, record.requests + requests, record.tokens + tokens, now)

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
        if record.tokens:
            credential.used_tokens += record.tokens
        if record.charges or self.feedback.sharing.suspicions:
            self._learn_from_end(record, credential, now)
        if self.waiting or credential.removed or credential.quarantine is not None:
            self.serve(credential, now)
            self.advance(now)
        elif len(credential.leases) < credential.max_concurrent:  # else it was lent to more than it may be now
            self._push(credential, now)
        return True

    def _learn_from_end(self, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        is_slow = False
        for cooldown_scope, charge in record.charges:
            is_slow = is_slow or (charge.estimator is not None and charge.estimator.slow_start is not None)
            cooldown_scope.pace.end(charge, record, now)
        if self.feedback.sharing.suspicions and not (record.is_answered or record.is_unused):
            self.feedback.admitted(credential, record, now)
        if is_slow and len(credential.paced_as.members) > 1:  # where one has succeeded, more may go at once
            self._look_again(credential.paced_as, 0.0)

    def lose(self, record: LeaseRecord, now: float) -> None:
        """Its holder or asker is gone, and nobody knows how far it came: what was reserved counts as used, and nothing
        is learned from it."""
        if record.state == LIVE:
            for _, charge in record.charges:
                if charge.estimator is not None and not record.is_answered:
                    charge.estimator.in_flight -= 1
            record.is_answered = True
            self.release(record, now)
        else:
            self.withdraw(record, now)

    # --- changing the pool ----------------------------------------------------------------------------------------

    def add(self, id: str, group: str, provider: str | None, scopes: frozenset[str], limits: Limits,  # noqa: A002
            now: float, day_ends_after: Callable[[float], float] = _in_a_day) -> None:  # fmt: skip
        credential = self._join(id, group, provider, scopes, limits)
        credential.group.pace.declare(limits, day_ends_after, now)
        self._refuse_the_hopeless()
        self.serve(credential, now)

    def _join(
        self, id_: str, group: str, provider: str | None, scopes: frozenset[str], limits: Limits
    ) -> CredentialRecord:
        in_group = self._groups.setdefault(group, CooldownScope("group", group))
        of_provider = self._providers.setdefault(provider, CooldownScope("provider", provider))
        credential = CredentialRecord(id_, in_group, of_provider, scopes, limits)
        if self.store is not None:
            credential.cooldown_scopes = (*credential.cooldown_scopes, self.store)
        credential.fence = self._fences.pop(id_, self.first_fence)
        credential.last_used = self._next()
        credential.cooled = sum(len(cooldown_scope.cooling) for cooldown_scope in credential.cooldown_scopes)
        for cooldown_scope in credential.cooldown_scopes:
            cooldown_scope.members[id_] = credential
        self.credentials[id_] = credential
        self._most_entries = 2 * len(self.credentials) + SPENT_ENTRIES
        return credential

    def redeclare(self, id: str, group: str, provider: str | None, scopes: frozenset[str], limits: Limits,  # noqa: A002
                  now: float, day_ends_after: Callable[[float], float] = _in_a_day) -> None:  # fmt: skip
        """The same credential, described in other words. Leases that are live stay so, and count."""
        old = self.credentials[id]
        self._leave(id, now)  # nobody is told to give up hope meanwhile
        self.leaving.pop(id, None)
        credential = self._join(id, group, provider, scopes, limits)
        own = old.cooldown_scopes[0]  # goes on cooling
        own.members[id] = credential
        credential.cooldown_scopes = (own, *credential.cooldown_scopes[1:])
        credential.cooled += len(own.cooling)
        credential.leases = old.leases
        for record in credential.leases.values():
            record.credential = credential
        credential.quarantine, credential.is_proven = old.quarantine, old.is_proven
        credential.auth_failures, credential.auth_failed_by = old.auth_failures, old.auth_failed_by
        credential.used_requests, credential.used_tokens = old.used_requests, old.used_tokens
        for group_ in dict.fromkeys((old.group, credential.group)):
            group_.pace.restate([member.limits for member in group_.members.values()], day_ends_after, now)
        self._refuse_the_hopeless()
        self.serve_all((old.group, credential.group), now)

    def remove(self, id: str, now: float) -> None:  # noqa: A002
        """Grants it no more. Leases that are live stay valid until they are released."""
        self._leave(id, now)
        self._refuse_the_hopeless()

    def _leave(self, id_: str, now: float) -> None:
        credential = self.credentials.pop(id_)
        credential.removed = True
        self._fences[id_] = credential.fence
        if credential.leases:
            self.leaving[id_] = credential
        self.feedback.sharing.leave(credential, now)
        self.feedback.sharing.changed.pop(id_, None)
        for cooldown_scope in credential.cooldown_scopes:
            cooldown_scope.members.pop(id_, None)
        credential.group.pace.max_concurrent -= credential.max_concurrent

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
        self.serve(credential, now)

    def cool(self, cooldown_scope: CooldownScope, scope: str | None, seconds: float, verdict: str, now: float) -> None:
        """Not used until `now + seconds`; of two cool-downs the later end holds."""
        asked = seconds if seconds > MAX_COOL_DOWN else None
        seconds = min(seconds, MAX_COOL_DOWN)
        until = now + seconds
        before = cooldown_scope.cooling.get(scope, 0.0)
        if until <= max(before, now):
            return
        if not before:
            for member in cooldown_scope.members.values():
                member.cooled += 1
        cooldown_scope.cooling[scope] = until
        cooldown_scope.cooled_by[scope] = verdict
        heappush(self._ends, (until, self._next(), cooldown_scope, scope))
        self.events.append(CoolDownStarted(cooldown_scope.kind, cooldown_scope.name, scope, seconds, verdict, asked))

    def advance(self, now: float) -> None:
        """Ends the cool-downs whose instant has come, and serves those who waited for them."""
        while self._ends and self._ends[0][0] <= now:  # again, if another has become the first of its queue
            self._end_what_is_due(now)

    def _end_what_is_due(self, now: float) -> None:
        ended: dict[str, CredentialRecord] = {}
        while self._ends and self._ends[0][0] <= now:
            until, _, cooldown_scope, scope = heappop(self._ends)
            if scope is _PACED:
                if cooldown_scope.pace.wake_at == until:  # else it was brought forward since
                    cooldown_scope.pace.wake_at = inf
                    ended.update(cooldown_scope.members)
            elif cooldown_scope.cooling.get(scope) == until:  # else it was prolonged since
                del cooldown_scope.cooling[scope]
                del cooldown_scope.cooled_by[scope]
                for member in cooldown_scope.members.values():
                    member.cooled -= 1
                ended.update(cooldown_scope.members)
        for credential in ended.values():
            self.serve(credential, now)

    def raise_fences(self, least: int) -> None:
        """The last of those that were given may have been forgotten: the next are greater than `least`."""
        self.first_fence = max(self.first_fence, least)
        self._fences = {id_: max(fence, least) for id_, fence in self._fences.items()}
        for credential in (*self.credentials.values(), *self.leaving.values()):
            credential.fence = max(credential.fence, least)

    # --- looking --------------------------------------------------------------------------------------------------

    def next_wake_at(self) -> float | None:
        """When `advance` must be called at the latest; None when nobody waits for time to pass."""
        return self._ends[0][0] if self.waiting and self._ends else None

    def waiters(self) -> int:
        return sum(len(queue) for queue in self.waiting.values())

    # --- the rules inside -----------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _choose(self, record: LeaseRecord, now: float) -> CredentialRecord | None:
        """Usable now; of those the least loaded; of those the least recently used. A wish comes first, if usable."""
        scope, request_class = record.scope, record.request_class
        if record.prefer is not None:
            wished = self.credentials.get(record.prefer)
            if (
                wished is not None
                and wished.has_room()
                and wished.serves(request_class)
                and not wished.usable_at(scope)
                and self._is_admitted(wished, record, now)
            ):
                return wished
        heap = self._ready.get(request_class)
        if heap is None:
            heap = self._build_heap(request_class, now)
        passed_over = []
        chosen = None
        while heap:
            entry = heappop(heap)
            _, last_used, credential = entry
            if last_used != credential.last_used:
                continue  # a spent hint
            if (
                credential.quarantine is None
                and not credential.removed
                and not (credential.cooled and credential.usable_at(scope))
            ):
                if self._is_admitted(credential, record, now):
                    chosen = credential
                    break
                if not credential.paced_until(scope, 1, 0, now):  # what is asked for is too much, not one request
                    passed_over.append(entry)
                    continue
            del credential.offered[request_class]
        for entry in passed_over:
            heappush(heap, entry)
            if chosen is None:
                self._blocked_for_head.add(entry[2], record, self._most_entries, now)
        return chosen

    def _is_admitted(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
        """By its limits. If not, its group is looked at again when that may have changed."""
        is_free = credential.group.pace.is_free
        at = 0.0 if is_free else credential.paced_until(record.scope, record.requests, record.tokens, now)
        if not at and record.waits_for_probe and not credential.is_proven and credential.leases:
            at = credential.probe_deadline if credential.probe_deadline > now else 0.0
        if not at:
            return not (record.tokens and self.waiting and self._has_older_claim(credential, record, now))
        if record.tokens or record.requests > 1:
            # Whoever is the first waiter by then may need less than this one.
            at = min(at, credential.changes_at(record.scope, record.tokens, now))
        self._look_again(credential.group, at)
        return False

    def _look_again(self, group: CooldownScope, at: float) -> None:
        """Its limits admit something only at an instant."""
        if at < group.pace.wake_at:
            group.pace.wake_at = at
            heappush(self._ends, (at, self._next(), group, _PACED))

    def _grant(self, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        self._sequence = credential.last_used = self._sequence + 1
        credential.fence = fence = credential.fence + 1
        credential.leases[fence] = record
        record.credential = credential
        record.fence = fence
        record.state = LIVE
        record.granted_at = now
        group = credential.group
        if group.pace.is_free:
            group.pace.count(record.requests, now)
        elif credential.shared is None:
            record.charges = ((group, group.pace.take(record, now)),)
        else:
            record.charges = [
                (cooldown_scope, cooldown_scope.pace.take(record, now)) for cooldown_scope in credential.paced_by
            ]
        if not credential.is_proven and not credential.probe_deadline:
            credential.probe_deadline = now + PROVING_SECONDS

    def _correct(self, record: LeaseRecord, requests: int, tokens: int, now: float) -> None:
        """A live lease uses so much, and not what was reserved for it."""
        is_given_back = requests < record.requests or tokens < record.tokens
        for cooldown_scope, charge in record.charges:
            cooldown_scope.pace.correct(charge, record, requests, tokens, now)
        record.requests, record.tokens = requests, tokens
        if is_given_back:  # also to a group that its credential has left
            self.serve_all((cooldown_scope for cooldown_scope, _ in record.charges), now)

    def serve_all(self, cooldown_scopes: Iterable[CooldownScope], now: float) -> None:
        """All their credentials: there may be more room than before."""
        for member in {m.id: m for cooldown_scope in cooldown_scopes for m in cooldown_scope.members.values()}.values():
            self.serve(member, now)

    def serve(self, credential: CredentialRecord, now: float) -> None:
        """A credential may have become usable: its waiters first, then whoever comes."""
        if credential.removed and not credential.leases and self.leaving.get(credential.id) is credential:
            del self.leaving[credential.id]
        while self.waiting and credential.has_room():
            record = self._first_waiter(credential, now)
            if record is None:
                break
            self._dequeue(record)
            self._grant(record, credential, now)
            self.served.append(record)
        if credential.has_room():
            self._push(credential, now)

    def _first_waiter(self, credential: CredentialRecord, now: float) -> LeaseRecord | None:
        first: LeaseRecord | None = None
        full_until = credential.full_until(now)
        for request_class, queue in self.waiting.items():
            if credential.serves(request_class) and not (
                credential.cooled and credential.usable_at(scope_of(request_class))
            ):
                head: LeaseRecord | None = next(iter(queue.values()))
                assert head is not None
                if full_until > now and head.requests:
                    self._look_again(credential.group, full_until)
                    continue
                if head.tokens or head.requests > 1:
                    head = self._first_that_fits(queue, credential)
                    if head is None:
                        self._blocked_for_head.add(credential, next(iter(queue.values())), self._most_entries, now)
                        continue
                if first is None or head.sequence < first.sequence:
                    if self._is_admitted(credential, head, now):
                        first = head
                    else:
                        self._blocked_for_head.add(credential, head, self._most_entries, now)
        return first

    def _first_that_fits(
        self, queue: OrderedDict[int, LeaseRecord], credential: CredentialRecord
    ) -> LeaseRecord | None:
        """The first waiter, unless it asks for more than this credential's limit ever allows: then a later one."""
        for record in islice(queue.values(), MOST_PASSED_OVER):
            if not credential.group.pace.too_large(record.requests, record.tokens):
                return record
        return None

    def _has_older_claim(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
        """Whether somebody who asked earlier, for something else, waits for tokens of the same group: those who need
        tokens too must not take them away, or a large request would never be served."""
        limiter = credential.group.pace.limiter
        for request_class, queue in self.waiting.items():
            head = next(iter(queue.values()))
            if (
                request_class != record.request_class
                and head.tokens
                and (not record.sequence or head.sequence < record.sequence)
                and credential.serves(request_class)
                and limiter is not None
                and not limiter.too_large(head.requests, head.tokens)
                and limiter.next_tokens_at(head.tokens, now)
            ):
                self._look_again(credential.group, limiter.next_tokens_at(head.tokens, now))
                return True
        return False

    def _enqueue(self, record: LeaseRecord, front: bool) -> None:
        queue = self.waiting.setdefault(record.request_class, OrderedDict())
        if not record.sequence:
            record.sequence = self._next()
        queue[record.sequence] = record
        if front:
            queue.move_to_end(record.sequence, last=False)

    def _announce(self, request_class: RequestClass, now: float) -> None:
        """Once per episode, which ends when somebody is served without waiting; and once more if in the meantime all
        credentials cool, because then it is the provider that has to be waited for. To wait a moment for a limit is
        how a limit is kept, and not worth a word."""
        if now < self._announce_after:
            return
        if self._announced is not None and (
            self._announced == RATE_LIMITED
            or not all(c.cooled or c.quarantine is not None for c in self.credentials.values())
        ):
            return
        waiting = explain(self, request_class, now)
        if waiting.limit is not None and waiting.usable_in is not None and waiting.usable_in < SHORT_WAIT:
            self._announce_after = now + SHORT_WAIT
        elif waiting.reason != self._announced:
            self._announced = waiting.reason
            self.events.append(waiting)

    def _dequeue(self, record: LeaseRecord) -> None:
        queue = self.waiting[record.request_class]
        was_first = self._blocked_for_head and next(iter(queue.values())) is record
        del queue[record.sequence]
        if not queue:
            del self.waiting[record.request_class]
            self._blocked_for_head.forget(record.request_class)
        if was_first:
            if queue:
                self._offer_blocked(record.request_class)
            if record.tokens:  # what it had claimed is for others now
                for request_class in self._blocked_for_head.classes_with_tokens():
                    if request_class != record.request_class:
                        self._offer_blocked(request_class)

    def _offer_blocked(self, request_class: RequestClass) -> None:
        """Another waiter is the first."""
        for group in self._blocked_for_head.take_for(request_class, next(iter(self.waiting[request_class].values()))):
            self._look_again(group, 0.0)

    def _push(self, credential: CredentialRecord, now: float) -> None:
        """Offers a credential that has room to every want that it may serve now."""
        is_paced = not credential.group.pace.is_free
        if is_paced and (full_until := credential.full_until(now)) > now:
            self._look_again(credential.group, full_until)
            return
        last_used = credential.last_used
        entry = (len(credential.leases) / credential.max_concurrent, last_used, credential)
        offered = credential.offered
        serves_all = not (credential.cooled or credential.scopes)
        for request_class, heap in self._ready.items():
            if offered.get(request_class) == last_used:
                continue  # and still is
            if (serves_all and type(request_class) is not RestrictedScope) or (
                credential.serves(request_class) and not credential.usable_at(scope_of(request_class))
            ):
                if is_paced and (at := credential.paced_until(scope_of(request_class), 1, 0, now)):
                    self._look_again(credential.group, at)
                    continue
                heappush(heap, entry)
                offered[request_class] = last_used
                if len(heap) > self._most_entries:
                    heap[:] = [e for e in heap if e[1] == e[2].last_used]  # the rest are spent hints
                    heapify(heap)

    def _build_heap(self, request_class: RequestClass, now: float) -> list[tuple[float, int, CredentialRecord]]:
        scope = scope_of(request_class)
        if len(self._ready) >= MOST_SCOPES:
            self._ready.clear()
            for c in self.credentials.values():
                c.offered.clear()
        heap = []
        for c in self.credentials.values():
            if c.has_room() and c.serves(request_class) and not c.usable_at(scope):
                at = c.paced_until(scope, 1, 0, now)
                if at:
                    self._look_again(c.group, at)
                else:
                    heap.append((len(c.leases) / c.max_concurrent, c.last_used, c))
                    c.offered[request_class] = c.last_used
        heapify(heap)
        self._ready[request_class] = heap
        return heap

    def _is_hopeful(self, record: LeaseRecord) -> bool:
        """Whether any credential can ever serve it. One that asks for more than any limit allows learns so."""
        too_large = None
        for credential in self.credentials.values():
            if credential.quarantine is None and credential.serves(record.request_class):
                too_large = credential.group.pace.too_large(record.requests, record.tokens)
                if too_large is None:
                    return True
        record.too_large = too_large
        return False

    def _refuse_the_hopeless(self) -> None:
        for queue in tuple(self.waiting.values()):
            is_plain_hopeful = None  # those who ask for one request and no tokens all have the same hope
            for record in tuple(queue.values()):
                is_plain = record.requests <= 1 and not record.tokens
                if is_plain and is_plain_hopeful is not None:
                    is_hopeful = is_plain_hopeful
                else:
                    is_hopeful = self._is_hopeful(record)
                    if is_plain:
                        is_plain_hopeful = is_hopeful
                if not is_hopeful:
                    self._dequeue(record)
                    record.state = REFUSED
                    self.served.append(record)
