"""MemoryStore: the state of a pool in this process: an allocator behind one lock, with a clock.

Every method decides under the lock and notifies outside it: waiters are woken and events reported after the lock is
free, so that no callback runs while it is held.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from agentos.clock import Clock, Timer
from agentos.errors import UnknownCredential
from agentos.events import PoolWaiting
from agentos.limits.amounts import Detail
from agentos.limits.reset_times import seconds_to_reset
from agentos.verdict import RATE_LIMITED, Verdict

from ._record_handle import RecordHandle
from ._rules import wait_reasons
from ._rules.allocator import Allocator
from ._rules.lease_states import LIVE, WAITING
from ._rules.order import LEAST_LOADED
from ._rules.records import CredentialRecord, RestrictedScope, request_class_of
from ._rules.wait_reasons import NO_RESTS, Rests
from .credential import Credential
from .states import CredentialForecast, CredentialState, credential_state, forecast

T = TypeVar("T")

_jitter = random.random


class MemoryStore:
    """A `Store` of one process."""

    def __init__(self, clock: Clock, on_event: Callable[[Any], None], order: str = LEAST_LOADED) -> None:
        self._now = clock.now
        self._clock = clock
        self._on_event = on_event
        self._lock = threading.Lock()  # guards _allocator and _wake
        self._allocator = Allocator(order=order)
        self._wake: Timer | None = None
        self.make_handle = RecordHandle

    # --- leases: the paths that every item takes ------------------------------------------------------------------

    def request(self, record: RecordHandle, wait: bool = True, front: bool = False, _idle_until: float = 0.0) -> bool:
        """Return True if the lease is live. Else `record.deliver()` is called when it is, or never can be."""
        allocator = self._allocator
        self._lock.acquire()
        try:
            granted = allocator.request(record, self._now(), wait, front)
            if not (allocator.served or allocator.events or allocator.waiting):
                return granted
            served, events = self._collect()
        finally:
            self._lock.release()
        self._notify(served, events)
        return granted

    def request_now(self, record: RecordHandle, _timeout: float | None = None) -> bool:
        """Return True if the lease is live at once; else nothing has changed."""
        allocator = self._allocator  # not `request(record, False)`: one call less for each lease
        self._lock.acquire()
        try:
            now = self._now()
            if allocator.free.grant(record, now):
                return True
            granted = allocator.request(record, now, False)
            if not (allocator.served or allocator.events or allocator.waiting):
                return granted
            served, events = self._collect()
        finally:
            self._lock.release()
        self._notify(served, events)
        return granted

    def avoid(self, record: RecordHandle, excluded_ids: frozenset[str], later_ids: frozenset[str]) -> None:
        """Restrict a request that is about to be made, see `Store.avoid`."""
        with self._lock:
            ids = frozenset(self._allocator.credentials)
        every = RestrictedScope(record.scope, ids if record.only is None else ids & {record.only}, record.for_provider)
        record.request_class = every.without(excluded_ids, later_ids)

    def end(self, record: RecordHandle, verdict: Verdict | None, success: bool = False) -> None:
        """End a lease together with the provider's answer: a verdict, a success or nothing. No-op if it is not live."""
        allocator = self._allocator
        self._lock.acquire()
        try:
            if success and verdict is None and allocator.free.end(record):
                return
            jitter = 0.0 if verdict is None else _jitter()
            allocator.lease_end.end(record, self._now(), verdict, success, jitter)
            if not (allocator.served or allocator.events or allocator.waiting):
                return
            served, events = self._collect()
        finally:
            self._lock.release()
        self._notify(served, events)

    def cool_and_end(self, record: RecordHandle, seconds: float, address: str | None = None) -> None:
        """End a lease and cool its credential's group. No-op if it is not live."""
        self._locked(lambda allocator, now: allocator.lease_end.cool_and_end(record, seconds, now, address))

    def use_more(self, record: RecordHandle, requests: int, tokens: int, detail: Detail | None = None) -> None:
        """Add to what a live lease uses, beyond its reservation: that is debt. No-op if it is not live."""
        self._locked(
            lambda allocator, now: (
                allocator.use_more(record, requests, tokens, now, detail) if record.state == LIVE else None
            ),
        )

    def observed(self, record: RecordHandle, verdict: Verdict) -> None:
        """Apply the verdict on an answer in the middle of a lease."""
        with self._lock:
            self._allocator.feedback.apply_verdict(record, verdict, self._now(), _jitter())
            served, events = self._collect()
        self._notify(served, events)

    def settle(
        self, record: RecordHandle, requests: int | None, tokens: int | None, detail: Detail | None = None
    ) -> bool:
        """Set what a live lease really used; return False if it is not live or was settled before."""
        with self._lock:
            settled = self._allocator.settle(record, requests, tokens, self._now(), detail)
            served, events = self._collect()
        self._notify(served, events)
        return settled

    # --- waiting --------------------------------------------------------------------------------------------------

    def withdraw(self, record: RecordHandle) -> None:
        """End a request whose caller gave up, also if it was granted in the meantime: nothing stays queued or held."""
        self._locked(lambda allocator, now: allocator.lease_end.withdraw(record, now))

    def expire(self, record: RecordHandle) -> None:
        """End a request at its deadline and notify its caller; no-op if it was granted just before."""
        with self._lock:
            is_late = record.state == WAITING and self._allocator.lease_end.withdraw(record, self._now())
        if is_late:
            record.deliver()

    def confirm(self, record: RecordHandle) -> bool:
        """Return True if a caller may use its granted lease. False: its credential became unusable since the grant, and
        the request is at the head of its queue again."""
        credential = record.credential
        if record.state == LIVE and credential is not None and credential.is_unrestricted():
            return True  # without the lock: a later change comes after the hand-over
        return self._locked(lambda allocator, now: allocator.confirm(record, now))

    # --- the pool -------------------------------------------------------------------------------------------------

    def add(self, credential: Credential) -> None:
        self._declare(Allocator.add, credential)

    def redeclare(self, credential: Credential) -> None:
        self._declare(Allocator.redeclare, credential)

    def _declare(self, change: Callable[..., None], credential: Credential) -> None:
        """Add or redeclare a credential: `change` is the allocator's method."""
        limits = credential.limits
        what = (credential.id, credential.quota_group, credential.provider, credential.scopes, limits)
        self._locked(lambda allocator, now: change(allocator, *what, now, self._ends_after))

    def _ends_after(self, resets: str, now: float) -> float:
        """Return the end of a calendar window."""
        return now + seconds_to_reset(resets, self._clock.epoch() + now - self._clock.now())

    def remove(self, credential_id: str) -> None:
        self._locked(lambda allocator, now: allocator.remove(self._find(credential_id).id, now))

    def quarantine(self, credential_id: str, reason: str) -> None:
        self._locked(lambda allocator, now: allocator.quarantine(self._find(credential_id).id, reason, now))

    def restore(self, credential_id: str) -> None:
        self._locked(lambda allocator, now: allocator.restore(self._find(credential_id).id, now))

    def clear(self, credential_id: str) -> None:
        self._locked(lambda allocator, now: allocator.clear(self._find(credential_id).id, now))

    def cool(self, credential_id: str, seconds: float) -> None:
        """Cool the credential's group, in all scopes."""
        self._locked(
            lambda allocator, now: allocator.cool(self._find(credential_id).group, None, seconds, RATE_LIMITED, now)
        )

    # --- queries --------------------------------------------------------------------------------------------------

    def live_leases(self, credential_id: str) -> list[RecordHandle]:
        with self._lock:
            credential = self._allocator.credentials.get(credential_id) or self._allocator.members.leaving.get(
                credential_id
            )
            return cast(list[RecordHandle], list(credential.leases.values())) if credential else []

    def waiting_for(self, scope: str | None, need: wait_reasons.Need | None = None, for_provider: str | None = None,
                    only: str | None = None, rests: Rests = NO_RESTS) -> PoolWaiting:  # fmt: skip
        request_class = request_class_of(scope, for_provider, only)
        return self._locked(lambda allocator, now: wait_reasons.explain(allocator, request_class, now, need, rests))

    def reasons(self, scope: str | None, for_provider: str | None = None, only: str | None = None) -> dict[str, str]:
        restriction = (scope, for_provider, only)
        return self._locked(lambda allocator, _now: wait_reasons.reasons(allocator.credentials.values(), *restriction))

    def is_proven(self, credential_id: str) -> bool:
        with self._lock:
            credential = self._allocator.credentials.get(credential_id)
            return credential is not None and credential.is_proven

    def waiters(self) -> int:
        with self._lock:
            return len(self._allocator.queue)

    def first_waiting(self) -> RecordHandle | None:
        with self._lock:
            return cast(RecordHandle | None, self._allocator.queue.first())

    def available(self) -> int:
        return self._locked(lambda allocator, now: sum(c.is_usable(None, now) for c in allocator.credentials.values()))

    def states(self) -> list[CredentialState]:
        epoch = self._clock.epoch()
        return self._locked(
            lambda allocator, now: [credential_state(c, now, epoch) for c in allocator.credentials.values()]
        )

    def snapshot(self, scope: str | None, need: wait_reasons.Need | None = None, for_provider: str | None = None,
                 only: str | None = None, rests: Rests = NO_RESTS
                 ) -> tuple[list[CredentialState], PoolWaiting]:  # fmt: skip
        epoch, request_class = self._clock.epoch(), request_class_of(scope, for_provider, only)

        def look(allocator: Allocator, now: float) -> tuple[list[CredentialState], PoolWaiting]:
            states = [credential_state(c, now, epoch) for c in allocator.credentials.values()]
            return states, wait_reasons.explain(allocator, request_class, now, need, rests)

        return self._locked(look)

    def fastest(self) -> tuple[float | None, float]:
        return self._locked(lambda allocator, now: wait_reasons.fastest(allocator.credentials.values(), now))

    def forecasts(self) -> list[CredentialForecast]:
        """Return the forecast of each credential that is not quarantined."""
        return self._locked(
            lambda allocator, now: [forecast(c, now) for c in allocator.credentials.values() if not c.quarantine]
        )

    # --- membership: this store has one member ----------------------------------------------------------------------

    def open(self) -> None:
        """No-op: there is nothing to join."""

    def arrive(self) -> None:
        """No-op: every change takes effect at once."""

    def close(self) -> None:
        """No-op: no other process can use this pool's leases."""

    # --- inside ---------------------------------------------------------------------------------------------------

    def _locked(self, decide: Callable[[Allocator, float], T]) -> T:
        with self._lock:
            now = self._now()
            self._allocator.advance(now)
            decision = decide(self._allocator, now)
            served, events = self._collect()
        self._notify(served, events)
        return decision

    def _find(self, credential_id: str) -> CredentialRecord:
        try:
            return self._allocator.credentials[credential_id]
        except KeyError:
            raise UnknownCredential("no credential with this id is in the pool") from None

    def _collect(self) -> tuple[list[RecordHandle], list[Any]]:
        """Take what has to be reported, and set the timer for the next wake-up. The lock is held."""
        allocator = self._allocator
        served = cast(list[RecordHandle], allocator.served)  # every record that is requested here is a handle
        allocator.served = []
        events, allocator.events = allocator.events, []
        wake_at = allocator.next_wake_at()
        if wake_at is not None and (self._wake is None or wake_at < self._wake.at):
            if self._wake is not None:
                self._wake.cancel()
            self._wake = self._clock.call_at(wake_at, self._on_wake)
        return served, events

    def _notify(self, served: list[RecordHandle], events: list[Any]) -> None:
        """Call waiters and report events. The lock is not held. A refusal is told after the event that caused it: a run
        that stops because of it reports why first."""
        refused = []
        for record in served:
            if record.is_refused:
                refused.append(record)
            else:
                record.deliver()
        try:
            for event in events:
                self._on_event(event)
        finally:
            for record in refused:
                record.deliver()

    def _on_wake(self) -> None:
        with self._lock:
            self._wake = None
            self._allocator.advance(self._now())
            served, events = self._collect()
        self._notify(served, events)
