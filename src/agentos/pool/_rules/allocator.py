"""Allocator: which request gets which credential now, and which is next.

Its owner calls it with `now` for every request, end of a lease (`lease_end`), answer (`feedback`) or change of a
credential. It changes its records and leaves work for its owner in two lists: `served` (waiters that hold a lease now,
or never can) and `events`. It knows credential ids, never secrets. `lease_states` has the state machine of a lease.

It stays cheap with many credentials and many waiters because nothing is searched: `ready_heaps` has the credentials
that could be granted, `wait_queue` the requests that wait, `wake_ups` the instants at which time changes something.
Time acts in `advance` only. A group whose limits admit nothing now is in no heap, and always has a wake-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from agentos.limits.amounts import Detail
from agentos.limits.pace import NO_CHARGE
from agentos.limits.usage_state import LeaseShare
from agentos.verdict import RATE_LIMITED

from .cooldown_scope import CooldownScope
from .credential_changes import CredentialChanges
from .feedback import ProviderFeedback
from .free_leases import FreeLeases
from .guessed_cool_downs import GuessedCoolDowns
from .lease_end import LeaseEnd
from .lease_states import LIVE, REFUSED
from .membership import Membership
from .order import LEAST_LOADED
from .ready_heaps import ReadyHeaps
from .records import CredentialRecord, LeaseRecord, RequestClass, later_ids_of, scope_of, sum_of
from .wait_queue import WaitQueue, first_that_fits
from .wait_reasons import explain
from .wake_ups import WakeUps

# Seconds that the probe of an unused credential may take. A run sends a new credential one request and holds back
# others until it has succeeded, or until this time has passed: a dead key fails at once.
PROBE_SECONDS = 2.0
# Waits for a limit are announced from this many seconds on: shorter waits are normal pacing.
SHORT_WAIT = 5.0


class Allocator(CredentialChanges):
    """The rules of one pool. `store` and `first_fence`: see `Membership`. `order`: see the module of that name."""

    def __init__(self, store: CooldownScope | None = None, first_fence: int = 0, order: str = LEAST_LOADED) -> None:
        self.served: list[LeaseRecord] = []
        self.events: list[Any] = []
        self.members = Membership(store, first_fence)
        self.credentials = self.members.credentials
        self.wake_ups = WakeUps()
        self.due = self.wake_ups.heap
        self.ready = ReadyHeaps(self.credentials, self.wake_ups, order)
        self.queue = WaitQueue(self.wake_ups)
        self.waiting = self.queue.by_class
        self.feedback = ProviderFeedback(self)
        self.lease_end = LeaseEnd(self)
        self.free = FreeLeases(self)
        self.guessed = GuessedCoolDowns(self)
        self.sequence = 0  # of grants and releases: orders credentials by last use
        self.announced: str | None = None  # the reason that was announced for the present episode of waiting
        self._announce_after = 0.0

    # --- requests -------------------------------------------------------------------------------------------------

    def request(self, record: LeaseRecord, now: float, wait: bool = True, front: bool = False) -> bool:
        """Return True if the lease is live; False if it waits (or, with `wait=False`, nothing has changed).

        `front` puts a request that waits at the head of its queue: the provider refused it after its turn. A request
        that no credential can ever serve becomes REFUSED.
        """
        if self.due and self.due[0][0] <= now:
            self.advance(now)
        if self.free.grant(record, now):
            return True
        if front or record.request_class not in self.waiting:  # a request in front may need less than those behind it
            credential = self._choose(record, now)
            if credential is not None:
                self._grant(record, credential, now)
                if credential.max_concurrent > len(credential.leases):
                    self.ready.push(credential, now)
                self.announced = None
                return True
        if wait and not self._is_servable(record):
            record.state = REFUSED
        if not wait or record.state == REFUSED:
            if record.request_class not in self.waiting:
                self.queue.blocked_for_head.forget(record.request_class)
            return False
        self.queue.add(record, front)
        self._announce(record.request_class, now)
        return False

    def confirm(self, record: LeaseRecord, now: float) -> bool:
        """Return True if a served lease can be handed to its waiter.

        False: its credential was cooled or taken out of use since the grant, and the request is back at the head of its
        queue.
        """
        if self.due and self.due[0][0] <= now:
            self.advance(now)
        credential = record.credential
        if record.state != LIVE or credential is None:
            return False
        if (
            credential.quarantine is None
            and not credential.removed
            and (credential.usable_at(record.scope) <= now or self.guessed.is_probe(record, credential.group))
        ):
            return True
        self.lease_end.set_aside(record, now)
        if self.request(record, now, front=True):
            return True
        if record.state == REFUSED:
            self.served.append(record)
        return False

    def put_back(self, records: list[LeaseRecord], now: float) -> None:
        """Queue requests again that were set aside, each at its old position."""
        for record in records:
            if not self._is_servable(record):
                record.state = REFUSED
                self.served.append(record)
                continue
            self.queue.put_back(record)
        for credential in self.credentials.values():
            self.serve(credential, now)

    # --- usage ----------------------------------------------------------------------------------------------------

    def settle(self, record: LeaseRecord, requests: int | None, tokens: int | None, now: float,
               detail: Detail | None = None) -> bool:  # fmt: skip
        """Set what a live lease really used; return False if it is not live or was settled before. More than was
        reserved is debt. `detail`: None if only `tokens` is known, or nothing."""
        if record.state != LIVE or record.settled:
            return False
        record.settled = True
        requests = record.requests if requests is None else requests
        if detail is None and record.detail is not None:  # what is not stated stays as it was reserved
            detail = record.detail if tokens is None else Detail(tokens, tokens, record.detail.cost)
        tokens = record.tokens if tokens is None else tokens
        if requests != record.requests or tokens != record.tokens or detail != record.detail:
            self.correct(record, requests, tokens, detail, now)
        return True

    def use_more(self, record: LeaseRecord, requests: int, tokens: int, now: float,
                 detail: Detail | None = None) -> None:  # fmt: skip
        """Add to what a live lease uses, beyond its reservation: that is debt."""
        total = sum_of(record, tokens, detail)
        self.correct(record, record.requests + requests, record.tokens + tokens, total, now)

    def correct(self, record: LeaseRecord, requests: int, tokens: int, detail: Detail | None, now: float) -> None:
        """Replace the reservation of a live lease by its usage."""
        is_refund = requests < record.requests or tokens < record.tokens or detail != record.detail
        if record.charge is not None:
            group, charge = record.charge
            group.pace.correct(charge, record, requests, tokens, detail, now)
        elif record.credential is not None and not record.credential.group.pace.is_free:  # its limits are newer
            record.credential.group.pace.correct(NO_CHARGE, record, requests, tokens, detail, now)
        record.requests, record.tokens, record.detail = requests, tokens, detail
        if is_refund and record.charge is not None:  # also to a group that its credential has left
            self.serve_all((record.charge[0],), now)

    # --- time -----------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """End the cool-downs whose instant has come, and serve the requests that waited for them."""
        while self.due and self.due[0][0] <= now:  # again, if another request has become the head of its queue
            for credential in self.wake_ups.pop_due(now).values():
                self.serve(credential, now)

    def next_wake_at(self) -> float | None:
        """Return when `advance` must be called at the latest; None if no request waits for time to pass."""
        return self.due[0][0] if self.waiting and self.due else None

    # --- grants ---------------------------------------------------------------------------------------------------

    def _next_use(self) -> int:
        self.sequence += 1
        return self.sequence

    def _choose(self, record: LeaseRecord, now: float) -> CredentialRecord | None:
        """Return the usable credential that is first by the order, of several the least recently used; or the preferred
        one, if usable."""
        scope, request_class = record.scope, record.request_class
        if record.prefer is not None:
            preferred = self.credentials.get(record.prefer)
            if preferred is not None and self._is_grantable(preferred, record, now):
                return preferred
        heap = self.ready.by_class.get(request_class)
        if heap is None:
            heap = self.ready.build(request_class, now)
        passed_over = []
        chosen = None
        while heap:
            entry = heappop(heap)
            _, last_used, credential = entry
            if last_used != credential.last_used:
                continue  # a stale hint
            if type(entry[0]) is tuple and (moved := self.ready.moved(entry, request_class, now)) is not None:
                heappush(heap, moved)
                continue
            if (
                credential.quarantine is None
                and not credential.removed
                and not (credential.cooled and credential.usable_at(scope))
            ):
                # The first test is `_is_admitted` for the common case, without a call.
                if (credential.is_proven and not record.tokens and credential.group.pace.is_free) or self._is_admitted(
                    credential, record, now
                ):
                    chosen = credential
                    break
                if not credential.paced_until(scope, 1, 0, now):  # it could serve a smaller request
                    passed_over.append(entry)
                    continue
            del credential.offered[request_class]
        for entry in passed_over:
            heappush(heap, entry)
            if chosen is None:
                self._block(entry[2], record, now)
        return chosen

    def _is_grantable(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
        return (
            credential.has_room()
            and credential.serves(record.request_class)
            and not credential.usable_at(record.scope)
            and self._is_admitted(credential, record, now)
        )

    def _is_admitted(self, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
        """Return whether a credential's limits admit a request; if not, plan to look again when that may change."""
        is_free = credential.group.pace.is_free
        at = (
            0.0 if is_free else credential.paced_until(record.scope, record.requests, record.tokens, now, record.detail)
        )
        if not at and record.waits_for_probe and not credential.is_proven and credential.leases:
            at = credential.probe_deadline if credential.probe_deadline > now else 0.0
        if not at:
            return not (
                self.waiting and not record.is_plain and self.queue.has_older_token_claim(credential, record, now)
            )
        if not record.is_plain:
            # The head of the queue at that time may need less than this request.
            at = min(at, credential.changes_at(record, now))
        self.wake_ups.look_again(credential.group, at)
        return False

    def _grant(self, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        self.sequence = credential.last_used = self.sequence + 1
        credential.fence = fence = credential.fence + 1
        credential.leases[fence] = record
        record.at_once = len(credential.leases)
        record.credential = credential
        record.credential_id = credential.id
        record.fence = fence
        record.state = LIVE
        record.granted_at = now
        group = credential.group
        if group.pace.is_free:
            group.pace.count(record.requests, now)
        else:
            record.charge = group, group.pace.take(record, now)
        if not credential.is_proven and not credential.probe_deadline:
            credential.probe_deadline = now + PROBE_SECONDS
        if group.guesses:
            self.guessed.granted(record, group, now)

    def grant_again(self, record: LeaseRecord, credential_id: str, fence: int, now: float) -> None:
        """Make a lease live that was granted before with this fence: for a pool that is restored."""
        credential = self.members.find(credential_id)
        newest, credential.fence = credential.fence, fence - 1
        self._grant(record, credential, now)
        credential.fence = max(newest, fence)

    def restore_lease(self, record: LeaseRecord, credential_id: str, fence: int, usage: Sequence[LeaseShare] | None,
                      now: float) -> None:  # fmt: skip
        """Make a lease live that was live in a stored state; `usage` is what it occupied of the limits then."""
        credential = self.members.find(credential_id)
        credential.leases[fence] = record
        credential.fence = max(credential.fence, fence)
        record.credential, record.credential_id = credential, credential_id
        record.fence, record.state = fence, LIVE
        if credential.group.pace.limiter is not None or not credential.group.pace.is_free:
            record.charge = credential.group, credential.group.pace.restore_lease(record, usage, now)

    def serve_all(self, cooldown_scopes: Iterable[CooldownScope], now: float) -> None:
        """Serve waiters with all credentials of these scopes, which may have more room than before."""
        for member in {m.id: m for scope in cooldown_scopes for m in scope.members.values()}.values():
            self.serve(member, now)

    def serve(self, credential: CredentialRecord, now: float) -> None:
        """Grant a credential that may have become usable to its waiters; then offer it to new requests."""
        if credential.removed and not credential.leases and self.members.leaving.get(credential.id) is credential:
            del self.members.leaving[credential.id]
        while self.waiting and credential.has_room():
            record = self._first_waiter(credential, now)
            if record is None:
                break
            self.queue.remove(record)
            self._grant(record, credential, now)
            self.served.append(record)
        if credential.has_room():
            self.ready.push(credential, now)

    def _first_waiter(self, credential: CredentialRecord, now: float) -> LeaseRecord | None:
        """Return the oldest waiter that a credential may serve now."""
        first: LeaseRecord | None = None
        full_until = credential.full_until(now)
        for request_class, queue in self.waiting.items():
            if credential.serves(request_class) and not (
                credential.cooled and credential.usable_at(scope_of(request_class))
            ):
                head: LeaseRecord | None = next(iter(queue.values()))
                assert head is not None
                if full_until > now and head.requests:
                    self.wake_ups.look_again(credential.group, full_until)
                    continue
                if not head.is_plain:
                    head = first_that_fits(queue, credential)
                    if head is None:
                        self._block(credential, next(iter(queue.values())), now)
                        continue
                if first is None or head.sequence < first.sequence:
                    if self._is_admitted(credential, head, now):
                        first = head
                    else:
                        self._block(credential, head, now)
        return first

    def _block(self, credential: CredentialRecord, head: LeaseRecord, now: float) -> None:
        """Remember a credential that the head of a queue cannot use: the next head may."""
        self.queue.blocked_for_head.add(credential, head, self.ready.max_entries, now)

    def _announce(self, request_class: RequestClass, now: float) -> None:
        """Announce once per episode of waiting why requests wait; and once more if then all credentials cool, because
        from there on the provider is the reason. An episode ends when a request is granted without waiting."""
        if now < self._announce_after or later_ids_of(request_class):  # the requester knows why it waits
            return
        if self.announced is not None and (
            self.announced == RATE_LIMITED
            or not all(c.cooled or c.quarantine is not None for c in self.credentials.values())
        ):
            return
        waiting = explain(self, request_class, now)
        if waiting.limit is not None and waiting.usable_in is not None and waiting.usable_in < SHORT_WAIT:
            self._announce_after = now + SHORT_WAIT
        elif waiting.reason != self.announced:
            self.announced = waiting.reason
            self.events.append(waiting)

    def _is_servable(self, record: LeaseRecord) -> bool:
        """Return whether any credential can ever serve a request; if all limits are too small, note which in it."""
        too_large = None
        for credential in self.credentials.values():
            if credential.quarantine is None and credential.can_ever_serve(record.request_class):
                too_large = credential.group.pace.too_large(record.requests, record.tokens, record.scope, record.detail)
                if too_large is None:
                    return True
        record.too_large = too_large
        return False

    def _refuse_unservable(self) -> None:
        """Refuse the waiters that no credential can serve any more."""
        for queue in tuple(self.waiting.values()):
            is_plain_servable = None  # the same for all plain ones
            for record in tuple(queue.values()):
                if not record.is_plain:
                    is_servable = self._is_servable(record)
                else:
                    if is_plain_servable is None:
                        is_plain_servable = self._is_servable(record)
                    is_servable = is_plain_servable
                if not is_servable:
                    self.queue.remove(record)
                    record.state = REFUSED
                    self.served.append(record)
