"""The pool's state in this process: the rules of `_core.pool` behind one lock and a clock.

Every method decides under the lock and acts outside it: waiters are woken, events told and timers set after it is
free again, so that no callback can ever meet the lock held.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from agentos.clock import Clock, Timer
from agentos.errors import UnknownCredential
from agentos.events import PoolWaiting
from agentos.limits.reset_times import seconds_to_reset
from agentos.verdict import RATE_LIMITED, RETRY_ON_OTHER_KEY, Verdict

from ._record_handle import RecordHandle
from ._rules import wait_reasons
from ._rules.allocator import Allocator
from ._rules.records import CredentialRecord
from .credential import Credential
from .lease_states import LIVE, WAITING
from .states import CredentialForecast, CredentialSnapshot, forecast, snapshot

T = TypeVar("T")

_jitter = random.random


class MemoryStore:
    is_shared = False

    def __init__(self, clock: Clock, on_event: Callable[[Any], None]) -> None:
        self._now = clock.now
        self._clock = clock
        self._on_event = on_event
        self._lock = threading.Lock()  # guards _pool and _wake
        # The two paths that every item takes use these: half the cost of a `with`.
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._pool = Allocator()
        self._wake: Timer | None = None
        self.make_handle = RecordHandle

    # --- leases: the paths that every item takes ------------------------------------------------------------------

    def request(self, record: RecordHandle, wait: bool = True, front: bool = False, _blocks: bool = False) -> bool:
        """True: the lease is live. False: `record.deliver()` is called when it is, or never can be."""
        pool = self._pool
        self._acquire()
        try:
            granted = pool.request(record, self._now(), wait, front)
            if not (pool.served or pool.events or pool.waiting):
                return granted
            served, events = self._collect()
        finally:
            self._release()
        self._act(served, events)
        return granted

    def end(self, record: RecordHandle, verdict: Verdict | None, success: bool = False) -> None:
        """Ends a lease, together with what the provider answered (a verdict, a success, or nothing), so that nobody is
        given a credential that is about to cool down. Does nothing if the lease is not live."""
        pool = self._pool
        self._acquire()
        try:
            if record.state != LIVE:
                return
            now = self._now()
            credential = record.credential
            assert credential is not None
            if verdict is None:
                if success and not credential.success_is_noop:
                    pool.feedback.apply(credential, record, None, now)
            elif verdict.kind in RETRY_ON_OTHER_KEY:
                pool.feedback.apply(credential, record, verdict, now, _jitter())
            else:
                pool.feedback.observe(record, verdict, now)
            pool.release(record, now)
            if not (pool.served or pool.events or pool.waiting):
                return
            served, events = self._collect()
        finally:
            self._release()
        self._act(served, events)

    def cool_and_end(self, record: RecordHandle, seconds: float) -> None:
        """Ends a lease and cools its credential's group. Does nothing if the lease is not live."""

        def decide(pool: Allocator, now: float) -> None:
            if record.state == LIVE and record.credential is not None:
                pool.cool(record.credential.group, None, seconds, RATE_LIMITED, now)
                pool.release(record, now)

        self._locked(decide)

    def use_more(self, record: RecordHandle, requests: int, tokens: int) -> None:
        """A live lease is used for more than was reserved: that is debt."""
        self._locked(
            lambda pool, now: pool.use_more(record, requests, tokens, now) if record.state == LIVE else None,
        )

    def observed(self, record: RecordHandle, verdict: Verdict) -> None:
        """An answer in the middle of a lease."""
        with self._lock:
            if record.credential is not None:
                now = self._now()
                if verdict.kind in RETRY_ON_OTHER_KEY:
                    self._pool.feedback.apply(record.credential, record, verdict, now, _jitter())
                else:
                    self._pool.feedback.observe(record, verdict, now)
            served, events = self._collect()
        self._act(served, events)

    def settle(self, record: RecordHandle, requests: int | None, tokens: int | None) -> bool:
        with self._lock:
            settled = self._pool.settle(record, requests, tokens, self._now())
            served, events = self._collect()
        self._act(served, events)
        return settled

    # --- waiting --------------------------------------------------------------------------------------------------

    def withdraw(self, record: RecordHandle) -> None:
        """The asker is gone, whatever it has got in the meantime: nothing stays queued or held for it."""
        self._locked(lambda pool, now: pool.withdraw(record, now))

    def expire(self, record: RecordHandle) -> None:
        """The asker's time is up: it leaves the queue and is told, unless it has been served just now."""
        with self._lock:
            is_late = record.state == WAITING and self._pool.withdraw(record, self._now())
        if is_late:
            record.deliver()

    def confirm(self, record: RecordHandle) -> bool:
        """A waiter picks up its lease; False if it was worthless by then and the waiter is at the head again."""
        credential = record.credential
        if record.state == LIVE and credential is not None and credential.has_no_objection():
            return True  # without the lock: what changes from here on, changes after the hand-over
        return self._locked(lambda pool, now: pool.confirm(record, now))

    # --- the pool -------------------------------------------------------------------------------------------------

    def add(self, credential: Credential) -> None:
        ends_after = self._day_ends_after(credential.limits.day_resets)
        self._locked(
            lambda pool, now: pool.add(
                credential.id,
                credential.quota_group,
                credential.provider,
                credential.scopes,
                credential.limits,
                now,
                ends_after,
            )
        )

    def _day_ends_after(self, day_resets: str) -> Callable[[float], float]:
        clock = self._clock
        return lambda now: now + seconds_to_reset(day_resets, clock.epoch() + now - clock.now())

    def remove(self, credential_id: str) -> None:
        self._locked(lambda pool, now: pool.remove(self._find(credential_id).id, now))

    def quarantine(self, credential_id: str, reason: str) -> None:
        self._locked(lambda pool, now: pool.quarantine(self._find(credential_id).id, reason, now))

    def restore(self, credential_id: str) -> None:
        self._locked(lambda pool, now: pool.restore(self._find(credential_id).id, now))

    def cool(self, credential_id: str, seconds: float) -> None:
        """Cools the credential's group, in all scopes."""
        self._locked(lambda pool, now: pool.cool(self._find(credential_id).group, None, seconds, RATE_LIMITED, now))

    # --- looking --------------------------------------------------------------------------------------------------

    def live_leases(self, credential_id: str) -> list[RecordHandle]:
        with self._lock:
            credential = self._pool.credentials.get(credential_id) or self._pool.leaving.get(credential_id)
            return cast(list[RecordHandle], list(credential.leases.values())) if credential else []

    def waiting_for(self, scope: str | None, need: tuple[int, int] | None = None) -> PoolWaiting:
        return self._locked(lambda pool, now: wait_reasons.explain(pool, scope, now, need))

    def reasons(self, scope: str | None) -> dict[str, str]:
        return self._locked(lambda pool, _now: wait_reasons.reasons(pool.credentials.values(), scope))

    def is_proven(self, credential_id: str) -> bool:
        with self._lock:
            credential = self._pool.credentials.get(credential_id)
            return credential is not None and credential.is_proven

    def waiters(self) -> int:
        with self._lock:
            return self._pool.waiters()

    def available(self) -> int:
        return self._locked(lambda pool, now: sum(c.is_usable(None, now) for c in pool.credentials.values()))

    def snapshot(self) -> list[CredentialSnapshot]:
        return self._locked(lambda pool, now: [snapshot(c, now) for c in pool.credentials.values()])

    def fastest(self) -> tuple[float | None, float]:
        return self._locked(lambda pool, now: wait_reasons.fastest(pool.credentials.values(), now))

    def forecasts(self) -> list[CredentialForecast]:
        """What a plan needs to know of each credential that can be used."""
        return self._locked(lambda pool, now: [forecast(c, now) for c in pool.credentials.values() if not c.quarantine])

    # --- as a shared store does, which this is not ------------------------------------------------------------------

    def open(self) -> None:
        """It is there."""

    def arrive(self) -> None:
        """What was said is known."""

    def close(self) -> None:
        """Nobody else would be glad of what is held here."""

    # --- inside ---------------------------------------------------------------------------------------------------

    def _locked(self, decide: Callable[[Allocator, float], T]) -> T:
        with self._lock:
            now = self._now()
            self._pool.advance(now)
            decision = decide(self._pool, now)
            served, events = self._collect()
        self._act(served, events)
        return decision

    def _find(self, credential_id: str) -> CredentialRecord:
        try:
            return self._pool.credentials[credential_id]
        except KeyError:
            raise UnknownCredential("no credential with this id is in the pool") from None

    def _collect(self) -> tuple[list[RecordHandle], list[Any]]:
        """Under the lock: takes what has to be acted on, and sees to it that the next cool-down's end is not missed."""
        pool = self._pool
        served = cast(list[RecordHandle], pool.served)  # whatever is requested here is one
        pool.served = []
        events, pool.events = pool.events, []
        wake_at = pool.next_wake_at()
        if wake_at is not None and (self._wake is None or wake_at < self._wake.at):
            if self._wake is not None:
                self._wake.cancel()
            self._wake = self._clock.call_at(wake_at, self._on_wake)
        return served, events

    def _act(self, served: list[RecordHandle], events: list[Any]) -> None:
        """Outside the lock."""
        for record in served:
            record.deliver()
        for event in events:
            self._on_event(event)

    def _on_wake(self) -> None:
        with self._lock:
            self._wake = None
            self._pool.advance(self._now())
            served, events = self._collect()
        self._act(served, events)
