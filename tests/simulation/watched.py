"""The real pool, with somebody watching: each decision is shown to a `Watch` when it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentos.pool._replicas import shared_pool as shared
from agentos.pool._replicas.shared_pool import Session, SharedPool
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.cooldown_scope import CooldownScope
from agentos.pool._rules.feedback import ProviderFeedback
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.pool.lease_states import LIVE, REFUSED
from agentos.verdict import Verdict

from .watch import Watch


class WatchedAllocator(Allocator):
    def __init__(self, watch: Watch | None, store: CooldownScope | None = None, first_fence: int = 0) -> None:
        super().__init__(store, first_fence)
        self.watch = watch
        self.in_answers = False
        self.feedback: ProviderFeedback = WatchedProviderFeedback(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watch": None}

    def request(self, record: LeaseRecord, now: float, wait: bool = True, front: bool = False) -> bool:
        if self.watch is not None and front:
            self.watch.comes_first(record)
        granted = super().request(record, now, wait, front)
        if self.watch is not None and record.state == REFUSED:
            self.watch.refused(record)
        return granted

    def _enqueue(self, record: LeaseRecord, front: bool) -> None:
        if self.watch is not None:
            self.watch.queued(record, front)
        super()._enqueue(record, front)

    def _grant(self, record: LeaseRecord, credential: CredentialRecord, now: float) -> None:
        super()._grant(record, credential, now)
        if self.watch is not None:
            self.watch.granted(self, record, credential, now)

    def release(self, record: LeaseRecord, now: float) -> bool:
        released = super().release(record, now)
        if released and self.watch is not None:
            self.watch.released(record)
        return released

    def withdraw(self, record: LeaseRecord, now: float) -> bool:
        self._note_unused(record, now)
        return super().withdraw(record, now)

    def set_aside(self, record: LeaseRecord, now: float) -> None:
        self._note_unused(record, now)
        super().set_aside(record, now)

    def _note_unused(self, record: LeaseRecord, now: float) -> None:
        if self.watch is not None and record.state == LIVE:
            self.watch.corrected(record, 0, 0, now)

    def settle(self, record: LeaseRecord, requests: int | None, tokens: int | None, now: float) -> bool:
        if self.watch is not None and record.state == LIVE and not record.settled:
            used = (record.requests if requests is None else requests, record.tokens if tokens is None else tokens)
            self.watch.corrected(record, *used, now)
        return super().settle(record, requests, tokens, now)

    def use_more(self, record: LeaseRecord, requests: int, tokens: int, now: float) -> None:
        if self.watch is not None and record.state == LIVE:
            self.watch.corrected(record, record.requests + requests, record.tokens + tokens, now)
        super().use_more(record, requests, tokens, now)

    def cool(self, cooldown_scope: CooldownScope, scope: str | None, seconds: float, verdict: str, now: float) -> None:
        if self.watch is not None and not self.in_answers:
            self.watch.cooled((cooldown_scope.kind, cooldown_scope.name), scope, seconds, now)
        super().cool(cooldown_scope, scope, seconds, verdict, now)

    def quarantine(self, id: str, reason: str, now: float) -> None:  # noqa: A002
        if self.watch is not None:
            self.watch.quarantined(id)
        super().quarantine(id, reason, now)

    def restore(self, id: str, now: float) -> None:  # noqa: A002
        if self.watch is not None:
            self.watch.restored(id)
        super().restore(id, now)

    def remove(self, id: str, now: float) -> None:  # noqa: A002
        super().remove(id, now)
        if self.watch is not None:
            self.watch.removed(id)

    def redeclare(self, id: str, *what: Any, **more: Any) -> None:  # noqa: A002
        if self.watch is None:
            super().redeclare(id, *what, **more)
            return
        with self.watch.keeping(id, len(self.credentials[id].leases)):
            super().redeclare(id, *what, **more)


class WatchedProviderFeedback(ProviderFeedback):
    def apply(self, credential: CredentialRecord, record: LeaseRecord | None, verdict: Verdict | None, now: float,
             jitter: float = 0.5) -> None:  # fmt: skip
        pool = self._pool
        assert isinstance(pool, WatchedAllocator)
        if pool.watch is not None:
            pool.watch.answered(pool, credential, record, verdict, now)
        pool.in_answers = True
        before = {c.id for c in pool.credentials.values() if c.quarantine is not None}
        super().apply(credential, record, verdict, now, jitter)
        pool.in_answers = False
        after = {c.id for c in pool.credentials.values() if c.quarantine is not None}
        assert after - before <= {credential.id}, "a refusal quarantined another credential"  # invariant 5


class WatchedSharedPool(SharedPool):
    """The judge: a copy that nobody uses."""

    def __init__(self, began_at: float, day_ends: Callable[[str], Callable[[float], float]], watch: Watch) -> None:
        super().__init__(began_at, day_ends)
        self.pool = WatchedAllocator(watch, self.store, self.pool.first_fence)
        self.watch: Watch | None = watch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "watch": None}

    def _pass_over(self, session: Session, at: float) -> list[LeaseRecord]:
        if self.watch is not None:
            self.watch.passed_over(session.id)
        return super()._pass_over(session, at)

    def _check(self, at: float) -> None:
        before = set(self.sessions)
        super()._check(at)
        if self.watch is not None:
            for _ in before - set(self.sessions):
                self.watch.note("session expired")

    def _take(self, session: Session, statement: shared.Statement, at: float) -> None:
        if self.watch is not None and statement[0] == shared.DROP:
            known = self.pool.credentials.get(statement[1])
            if known is not None and any(record.owner is session for record in known.leases.values()):
                self.watch.note("credential dropped in use")
        super()._take(session, statement, at)

    def _about(self, session: Session, record: LeaseRecord, kind: int, statement: shared.Statement, at: float) -> None:
        fence = record.fence
        super()._about(session, record, kind, statement, at)
        if self.watch is not None and kind == shared.CLAIM and fence:
            is_same = record.state == LIVE and record.fence == fence
            self.watch.note("offer claimed" if is_same else "offer worthless when claimed")
