"""The pool's state where other processes share it, as callers see it: the same as in one process (`memory`).

Nothing here waits for the store, but those who say that they want to know how things stand now.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

from agentos.clock import Clock
from agentos.errors import StoreError, UnknownCredential
from agentos.events import STORE_LOST, PoolWaiting
from agentos.limits.reset_times import day_ends
from agentos.verdict import Verdict

from .._record_handle import RecordHandle
from .._rules import wait_reasons
from .._rules.allocator import Allocator
from .._rules.lease_states import ENDED, LIVE, WAITING
from .._rules.records import CredentialRecord, RestrictedScope
from ..credential import Credential, fingerprint
from ..states import CredentialForecast, CredentialState, credential_state, forecast
from . import shared_pool as shared
from .handles import NumberedHandle
from .log import Log
from .member import Member
from .shared_pool import SharedPool, Statement

T = TypeVar("T")

# A lease that is handed out has at least this share of its life before it.
FRESH_SHARE = 0.9
# How long those wait who want to know how things stand now.
SYNC_SECONDS = 5.0
# ... and those who look at it again and again: rather at what was known last than at nothing.
LOOK_SECONDS = 1.0

_jitter = random.random


class SharedStore:
    def __init__(self, log: Log, name: str, clock: Clock, on_event: Callable[[Any], None], ttl: float,
                 redact: Callable[[str], str], run: str | None = None) -> None:  # fmt: skip
        self._redact = redact
        self._clock = clock
        self.make_handle = NumberedHandle
        self._member = Member(log, name, clock, on_event, ttl)
        self._member.run_name = run

    def open(self) -> None:
        """Joins the pool; raises `StoreError` if that is not possible now."""
        reason = self._member.join(SYNC_SECONDS)
        if reason is not None:
            raise StoreError(f"the pool's store {self._member.name} cannot be used: {reason}")

    def close(self) -> None:
        """Gives back all that this process holds, if the store can be reached."""
        self._member.close()

    def arrive(self) -> None:
        """When this returns, all know what was said before, if the store can be reached."""
        self._member.sync(LOOK_SECONDS)

    # --- leases ---------------------------------------------------------------------------------------------------

    def request(self, record: RecordHandle, wait: bool = True, front: bool = False, blocks: bool = False) -> bool:
        """False: `record.deliver()` is called when it is live, or never can be. `wait=False`: now or not at all.
        `blocks`: the caller has nothing better to do than to wait."""
        member = self._member
        if record.requester is not None:
            record.requester = self._redact(record.requester)
        if not wait:
            record.deliver = member.tell_all
        with member.changed:
            member.ask(record, wait, front, by_thread=not blocks)
        if blocks:
            member.talk(lambda: record.state != WAITING)
        if wait:
            return False
        member.until(lambda: record.state != WAITING or member.lost_since is not None, SYNC_SECONDS)
        if record.state == WAITING:
            self.withdraw(record)
        with member.changed:
            member.handles.unclaimed.discard(record.id)
            return bool(record.state == LIVE)

    def request_now(self, record: RecordHandle, timeout: float | None = None) -> bool:
        """Return False for a request that may wait: it is not sent to the store twice."""
        return timeout is not None and timeout <= 0 and self.request(record, False)

    def end(self, record: RecordHandle, verdict: Verdict | None, success: bool = False) -> None:
        """Does nothing if the lease is not live."""
        jitter = 0.0 if verdict is None else _jitter()
        self._say_last(record, (shared.END, record.id, verdict, success, jitter), is_news=verdict is not None)

    def cool_and_end(self, record: RecordHandle, seconds: float) -> None:
        self._say_last(record, (shared.COOL_AND_END, record.id, seconds), is_news=True)

    def _say_last(self, record: RecordHandle, statement: Statement, *, is_news: bool) -> None:
        member = self._member
        with member.changed:
            if record.state == LIVE:
                member.handles.forget(record, ENDED)
                copy = member.copy
                member.say(statement, urgent=is_news or copy is None or bool(copy.pool.waiting))

    def use_more(self, record: RecordHandle, requests: int, tokens: int) -> None:
        self._say_of(record, (shared.USE_MORE, record.id, requests, tokens))

    def observed(self, record: RecordHandle, verdict: Verdict) -> None:
        self._say_of(record, (shared.OBSERVED, record.id, verdict, _jitter()))

    def settle(self, record: RecordHandle, requests: int | None, tokens: int | None) -> bool:
        if record.settled:
            return False
        record.settled = self._say_of(record, (shared.SETTLE, record.id, requests, tokens))
        return record.settled

    def _say_of(self, record: RecordHandle, statement: Statement) -> bool:
        with self._member.changed:
            if record.state != LIVE:
                return False
            self._member.say(statement)
            return True

    # --- waiting --------------------------------------------------------------------------------------------------

    def withdraw(self, record: RecordHandle) -> None:
        with self._member.changed:
            if record in self._member.handles:
                self._member.handles.forget(record, ENDED)
                self._member.say((shared.WITHDRAW, record.id))

    def expire(self, record: RecordHandle) -> None:
        with self._member.changed:
            is_late = record.state == WAITING and record in self._member.handles
            if is_late:
                self._member.handles.forget(record, ENDED)
                self._member.say((shared.WITHDRAW, record.id))
        if is_late:
            record.deliver()

    def confirm(self, record: RecordHandle) -> bool:
        """A waiter picks up its lease; False if it was worthless by then, and the waiter waits on."""
        member = self._member
        with member.changed:
            if record.state != LIVE:
                return False
            is_fresh = member.now() - member.spoke_at <= (1.0 - FRESH_SHARE) * member.ttl
            if is_fresh and self._is_usable(record):
                member.handles.unclaimed.discard(record.id)
                return True
            member.handles.wait_again(record)
            member.say((shared.CLAIM, record.id))
            return False

    def _is_usable(self, record: RecordHandle) -> bool:
        copy, leased = self._member.copy, record.credential
        if copy is None or leased is None or leased.id not in self._member.declared:
            return False
        known = copy.pool.credentials.get(leased.id)
        return known is not None and known.quarantine is None and known.usable_at(record.scope) <= copy.at

    # --- the pool -------------------------------------------------------------------------------------------------

    def add(self, credential: Credential) -> None:
        limits = credential.limits
        statement = (
            shared.ADD,
            credential.id,
            credential.quota_group,
            credential.provider,
            sorted(credential.scopes),
            [
                limits.requests_per_minute,
                limits.tokens_per_minute,
                limits.requests_per_day,
                limits.max_concurrent,
                limits.burst,
                limits.day_resets,
            ],
            fingerprint(credential.secret),
        )
        with self._member.changed:
            self._member.declared[credential.id] = statement
            if self._member.copy is not None:  # else it is said on joining
                self._member.say(statement)

    def remove(self, credential_id: str) -> None:
        self._check(credential_id)
        with self._member.changed:
            del self._member.declared[credential_id]
            self._member.say((shared.DROP, credential_id))

    def quarantine(self, credential_id: str, reason: str) -> None:
        self._say_of_credential(shared.QUARANTINE, credential_id, reason)

    def restore(self, credential_id: str) -> None:
        self._say_of_credential(shared.RESTORE, credential_id)

    def set_quarantine(self, credential_id: str, reason: str | None) -> None:
        """Of any credential, also one that only others have; None: it is restored."""
        said = (shared.RESTORE, credential_id) if reason is None else (shared.QUARANTINE, credential_id, reason)
        with self._member.changed:
            self._member.say(said)

    def cool(self, credential_id: str, seconds: float) -> None:
        self._say_of_credential(shared.COOL, credential_id, seconds)

    def _say_of_credential(self, kind: int, credential_id: str, *more: Any) -> None:
        self._check(credential_id)
        with self._member.changed:
            self._member.say((kind, credential_id, *more))

    def _check(self, credential_id: str) -> None:
        if credential_id not in self._member.declared:
            raise UnknownCredential("no credential with this id is in the pool")

    # --- looking --------------------------------------------------------------------------------------------------

    def live_leases(self, credential_id: str) -> list[RecordHandle]:
        """Of this process: nobody can give back another's."""
        with self._member.changed:
            live = [record for record in self._member.handles if record.state == LIVE]
            return [record for record in live if record.credential and record.credential.id == credential_id]

    def waiting_for(self, scope: str | None, need: tuple[int, int] | None = None) -> PoolWaiting:
        member = self._member
        with member.changed:
            copy = member.copy
            if copy is None or member.lost_since is not None:
                return PoolWaiting(STORE_LOST, len(member.declared), 0, 0, None)
            waiting = wait_reasons.explain(copy.pool, self._request_class(scope), copy.at, need)
            if waiting.usable_in is not None:
                passed = max(0.0, member.now() + member.ahead - copy.at)
                waiting = waiting._replace(usable_in=max(0.0, waiting.usable_in - passed))
            return waiting._replace(reason=STORE_LOST) if copy.store.cooling else waiting

    def reasons(self, scope: str | None) -> dict[str, str]:
        self._member.check_open()  # else that is why
        return self._look(lambda pool, _at: wait_reasons.reasons(self._own(pool), scope))

    def is_proven(self, credential_id: str) -> bool:
        def look(pool: Allocator, _at: float) -> bool:
            known = pool.credentials.get(credential_id)
            return known is not None and known.is_proven

        return self._look(look)

    def waiters(self) -> int:
        """Of this process."""
        return self._member.handles.waiting

    def available(self) -> int:
        self._member.sync(LOOK_SECONDS)
        return self._look(lambda pool, at: sum(c.is_usable(None, at) for c in self._own(pool)))

    def states(self, *, everybody: bool = False) -> list[CredentialState]:
        """Return the state of each credential; `everybody`: also of those that only other sessions have."""
        self._member.sync(LOOK_SECONDS)
        epoch = self._clock.epoch()

        def look(pool: Allocator, at: float) -> list[CredentialState]:
            credentials = list(pool.credentials.values()) if everybody else self._own(pool)
            elapsed = max(0.0, self._member.now() + self._member.ahead - at)
            return [credential_state(credential, at, epoch, elapsed) for credential in credentials]

        return self._look(look)

    def fastest(self) -> tuple[float | None, float]:
        return self._look(lambda pool, at: wait_reasons.fastest(self._own(pool), at))

    def forecasts(self) -> list[CredentialForecast]:
        self._member.sync(LOOK_SECONDS)
        return self._look(lambda pool, at: [forecast(c, at) for c in self._own(pool) if not c.quarantine])

    def _own(self, pool: Allocator) -> list[CredentialRecord]:
        return [pool.credentials[id_] for id_ in self._member.declared if id_ in pool.credentials]

    def _look(self, look: Callable[[Allocator, float], T]) -> T:
        """At the instant of the last batch: time acts on a copy only through the log."""
        with self._member.changed:
            copy = self._member.copy or self._member.seen or SharedPool(0.0, day_ends)
            return look(copy.pool, copy.at)

    def _request_class(self, scope: str | None) -> RestrictedScope:
        """What this process asks for."""
        copy = self._member.copy
        session = None if copy is None else copy.sessions.get(self._member.session_id)
        return (
            RestrictedScope(scope, frozenset(self._member.declared))
            if session is None
            else session.request_class(scope)
        )
