"""The real pool rules as subclasses that report every decision to a `PoolOracle`."""

from __future__ import annotations

from typing import Any

from agentos.limits.amounts import Detail
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.cooldown_scope import CooldownScope
from agentos.pool._rules.feedback import ProviderFeedback
from agentos.pool._rules.free_leases import FreeLeases
from agentos.pool._rules.lease_end import LeaseEnd
from agentos.pool._rules.lease_states import ENDED, LIVE, REFUSED
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.pool._rules.wait_queue import WaitQueue
from agentos.verdict import Verdict

from .oracle import PoolOracle


class CheckedAllocator(Allocator):
    """An allocator with an oracle."""

    def __init__(self, oracle: PoolOracle | None, store: CooldownScope | None = None, first_fence: int = 0) -> None:
        super().__init__(store, first_fence)
        self.oracle = oracle
        self.in_answers = False
        self.feedback: ProviderFeedback = CheckedProviderFeedback(self)
        self.lease_end: LeaseEnd = CheckedLeaseEnd(self)
        self.queue: WaitQueue = CheckedWaitQueue(self)
        self.waiting = self.queue.by_class
        self.free: FreeLeases = CheckedFreeLeases(self)

    def request(self, record: LeaseRecord, now: float, wait: bool = True, front: bool = False) -> bool:
        if self.oracle is not None and front:
            self.oracle.queued_in_front(record)
        granted = super().request(record, now, wait, front)
        if self.oracle is not None and record.state == REFUSED:
            self.oracle.refused(record)
        return granted

    def _grant(self, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        super()._grant(record, credential, now)
        if self.oracle is not None:
            self.oracle.granted(self, record, credential, now)

    def grant_again(self, record: LeaseRecord, credential_id: str, fence: int, now: float) -> None:
        oracle = self.oracle
        if oracle is None or oracle.is_replaying:
            super().grant_again(record, credential_id, fence, now)
            return
        oracle.note("lease of a lost journal restored")
        oracle.is_replaying = True
        super().grant_again(record, credential_id, fence, now)
        oracle.is_replaying = False
        oracle.leases_at_redeclaration[credential_id] = len(self.members.find(credential_id).leases)

    def restore_lease(self, record: LeaseRecord, *args: Any) -> None:
        super().restore_lease(record, *args)
        if self.oracle is not None:
            self.oracle.granted_count += 1

    def correct(self, record: LeaseRecord, requests: int, tokens: int, detail: Detail | None, now: float) -> None:
        if self.oracle is not None and self.oracle.is_replaying:
            self.oracle.corrected(record, requests, tokens, now)
        super().correct(record, requests, tokens, detail, now)

    def settle(self, record: LeaseRecord, requests: int | None, tokens: int | None, now: float,
               detail: Detail | None = None) -> bool:  # fmt: skip
        if self.oracle is not None and record.state == LIVE and not record.settled:
            used = (record.requests if requests is None else requests, record.tokens if tokens is None else tokens)
            self.oracle.corrected(record, *used, now)
        return super().settle(record, requests, tokens, now, detail)

    def use_more(self, record: LeaseRecord, requests: int, tokens: int, now: float,
                 detail: Detail | None = None) -> None:  # fmt: skip
        if self.oracle is not None and record.state == LIVE:
            self.oracle.corrected(record, record.requests + requests, record.tokens + tokens, now)
        super().use_more(record, requests, tokens, now, detail)

    def cool(self, cooldown_scope: CooldownScope, scope: str | None, seconds: float, verdict: str, now: float) -> None:
        if self.oracle is not None and not self.in_answers:
            self.oracle.cooled((cooldown_scope.kind, cooldown_scope.name), scope, seconds, now)
        super().cool(cooldown_scope, scope, seconds, verdict, now)

    def quarantine(self, id: str, reason: str, now: float) -> None:  # noqa: A002
        if self.oracle is not None:
            self.oracle.quarantined(id)
        super().quarantine(id, reason, now)

    def restore(self, id: str, now: float) -> None:  # noqa: A002
        if self.oracle is not None:
            self.oracle.restored(id)
        super().restore(id, now)

    def remove(self, id: str, now: float) -> None:  # noqa: A002
        super().remove(id, now)
        if self.oracle is not None:
            self.oracle.removed(id)

    def redeclare(self, id: str, *args: Any, **options: Any) -> None:  # noqa: A002
        if self.oracle is None:
            super().redeclare(id, *args, **options)
            return
        with self.oracle.redeclaring(id, len(self.credentials[id].leases)):
            super().redeclare(id, *args, **options)


class CheckedWaitQueue(WaitQueue):
    """A wait queue that reports every request that it adds."""

    def __init__(self, allocator: CheckedAllocator) -> None:
        super().__init__(allocator.wake_ups)
        self.oracle = allocator.oracle

    def add(self, record: LeaseRecord, front: bool) -> None:
        if self.oracle is not None:
            self.oracle.queued(record, front)
        super().add(record, front)


class CheckedFreeLeases(FreeLeases):
    """Leases that take the short way, reported to the oracle."""

    def grant(self, record: LeaseRecord, now: float) -> bool:
        granted = super().grant(record, now)
        pool, credential = self._allocator, record.credential
        assert isinstance(pool, CheckedAllocator)
        if granted and credential is not None and pool.oracle is not None:
            pool.oracle.granted(pool, record, credential, now)
        return granted

    def end(self, record: LeaseRecord) -> bool:
        has_ended = super().end(record)
        pool = self._allocator
        assert isinstance(pool, CheckedAllocator)
        if has_ended and pool.oracle is not None:
            pool.oracle.released(record)
        return has_ended


class CheckedLeaseEnd(LeaseEnd):
    """Ends of leases, reported to the oracle; a lease that ends unused is reported with usage 0."""

    def __init__(self, allocator: CheckedAllocator) -> None:
        super().__init__(allocator)
        self.oracle = allocator.oracle

    def end(self, record: LeaseRecord, now: float, verdict: Verdict | None = None, success: bool = False,
            jitter: float = 0.5, *, next_state: str = ENDED) -> bool:  # fmt: skip
        has_ended = super().end(record, now, verdict, success, jitter, next_state=next_state)
        if has_ended and self.oracle is not None:
            self.oracle.released(record)
        return has_ended

    def withdraw(self, record: LeaseRecord, now: float) -> bool:
        self._note_unused(record, now)
        return super().withdraw(record, now)

    def set_aside(self, record: LeaseRecord, now: float) -> None:
        self._note_unused(record, now)
        if self.oracle is not None:
            self.oracle.set_aside = record
        super().set_aside(record, now)
        if self.oracle is not None:
            self.oracle.set_aside = None

    def _note_unused(self, record: LeaseRecord, now: float) -> None:
        if self.oracle is not None and record.state == LIVE:
            self.oracle.corrected(record, 0, 0, now)


class CheckedProviderFeedback(ProviderFeedback):
    """Feedback that also checks that a refusal quarantines no other credential."""

    def apply(self, credential: CredentialRecord, record: LeaseRecord | None, verdict: Verdict | None, now: float,
             jitter: float = 0.5) -> None:  # fmt: skip
        pool = self._allocator
        assert isinstance(pool, CheckedAllocator)
        if pool.oracle is not None:
            pool.oracle.answered(pool, credential, record, verdict, now)
        pool.in_answers = True
        before = {c.id for c in pool.credentials.values() if c.quarantine is not None}
        super().apply(credential, record, verdict, now, jitter)
        pool.in_answers = False
        after = {c.id for c in pool.credentials.values() if c.quarantine is not None}
        assert after - before <= {credential.id}, "a refusal quarantined another credential"  # invariant 5
