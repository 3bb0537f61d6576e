"""The allocator against a model without heaps, queues per scope and timers, which scans everything every time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import ENDED, LIVE, REFUSED, WAITING
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.verdict import AUTH_FAILED, OVERLOADED, RATE_LIMITED, Verdict

SCOPES = [None, "x", "y"]
IDS = ["a", "b", "c", "d", "e"]
GROUPS = ["g1", "g2", "g3"]
PROVIDERS = [None, "p"]
SECONDS = st.sampled_from([0.0, 0.5, 1.0, 5.0, 60.0])

scopes = st.sampled_from(SCOPES)
ids = st.sampled_from(IDS)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pool = Allocator()
        self.now = 1000.0
        self.waiting: list[LeaseRecord] = []  # in the order in which they must be served, per scope
        self.live: list[LeaseRecord] = []
        self.request_count = 0
        self.cooling: dict[tuple[str, str | None, str | None], float] = {}  # (kind, name, scope) -> until
        self.fences: dict[str, int] = {}
        self.granted = self.returned = 0

    # --- the model ------------------------------------------------------------------------------------------------

    def cooled_until(self, credential: CredentialRecord, scope: str | None) -> float:
        names = [
            ("credential", credential.id),
            ("group", credential.group.name),
            ("provider", credential.provider.name),
        ]
        return max(self.cooling.get((kind, name, s), 0.0) for kind, name in names for s in {None, scope})

    def is_usable(self, credential: CredentialRecord, scope: str | None) -> bool:
        return (
            credential.quarantine is None
            and len([r for r in self.live if r.credential is credential]) < credential.max_concurrent
            and (scope is None or not credential.scopes or scope in credential.scopes)
            and self.cooled_until(credential, scope) <= self.now
            and not credential.paced_until(scope, 1, 0, self.now)  # limits have their own model, in tests/limits
        )

    def usable(self, scope: str | None) -> list[CredentialRecord]:
        return [c for c in self.pool.credentials.values() if self.is_usable(c, scope)]

    def note_grant(self, record: LeaseRecord) -> None:
        credential = record.credential
        assert credential is not None
        assert credential.quarantine is None  # invariant 5
        assert self.cooled_until(credential, record.scope) <= self.now  # invariant 4
        assert record.fence > self.fences.get(credential.id, 0)  # invariant 13
        self.fences[credential.id] = record.fence
        self.live.append(record)
        self.granted += 1

    def take_served(self) -> None:
        for record in self.pool.served:
            queue = [r for r in self.waiting if r.scope == record.scope]
            if record.state == LIVE:
                assert record is queue[0]  # invariant 6: the first of its request class
                self.note_grant(record)
            else:
                assert record.state == REFUSED
            self.waiting.remove(record)
        self.pool.served.clear()

    def note_cooling(self, kind: str, name: str | None, scope: str | None, seconds: float) -> None:
        key = (kind, name, scope)
        self.cooling[key] = max(self.cooling.get(key, 0.0), self.now + seconds)

    # --- the events -----------------------------------------------------------------------------------------------

    @rule(id_=ids, group=st.sampled_from(GROUPS), provider=st.sampled_from(PROVIDERS),
          scopes=st.sampled_from([frozenset(), frozenset({"x"})]), max_concurrent=st.integers(1, 3))  # fmt: skip
    def add(self, id_: str, group: str, provider: str | None, scopes: frozenset[str], max_concurrent: int) -> None:
        if id_ not in self.pool.credentials:
            self.cooling = {k: v for k, v in self.cooling.items() if k[:2] != ("credential", id_)}
            self.pool.add(id_, group, provider, scopes, Limits(max_concurrent=max_concurrent), self.now)
            self.take_served()

    @rule(scope=scopes, prefer=st.sampled_from([None, "a"]), front=st.booleans())
    def ask(self, scope: str | None, prefer: str | None, front: bool) -> None:
        record = LeaseRecord(scope=scope, prefer=prefer)
        candidates = self.usable(scope)
        nobody_waits = not any(r.scope == scope for r in self.waiting)
        best = min(
            candidates,
            key=lambda c: (len(c.leases) / c.max_concurrent, c.last_used),
            default=None,
        )
        granted = self.pool.request(record, self.now, True, front)
        assert granted == (nobody_waits and bool(candidates))  # invariant 8
        if granted:
            wished = next((c for c in candidates if c.id == prefer), None)
            assert record.credential is (wished or best)
            self.note_grant(record)
        elif record.state == WAITING:
            self.waiting.insert(0, record) if front else self.waiting.append(record)
        else:
            assert record.state == REFUSED
        self.take_served()

    @rule(scope=scopes)
    def ask_without_waiting(self, scope: str | None) -> None:
        record = LeaseRecord(scope=scope)
        expected = not any(r.scope == scope for r in self.waiting) and bool(self.usable(scope))
        assert self.pool.request(record, self.now, wait=False) == expected
        if expected:
            self.note_grant(record)
        self.take_served()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.live))
        self.live.remove(record)
        self.returned += 1
        assert self.pool.lease_end.end(record, self.now)
        self.take_served()
        assert not self.pool.lease_end.end(record, self.now)  # invariant 15
        assert not self.pool.served

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:  # invariant 9
        record = data.draw(st.sampled_from(self.waiting))
        self.waiting.remove(record)
        assert self.pool.lease_end.withdraw(record, self.now)
        assert record.state == ENDED
        self.take_served()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:  # invariant 11
        record = data.draw(st.sampled_from(self.live))
        credential = record.credential
        assert credential is not None
        is_in_use = credential.quarantine is None and not credential.removed
        is_worth_having = is_in_use and self.cooled_until(credential, record.scope) <= self.now
        if is_worth_having:
            assert self.pool.confirm(record, self.now)
            return
        self.live.remove(record)
        self.returned += 1
        is_granted = self.pool.confirm(record, self.now)  # another credential was usable
        if record.state == REFUSED:
            self.waiting.append(record)
        self.take_served()  # waiters that can use the returned credential came before it
        if is_granted:
            self.note_grant(record)
        elif record.state != REFUSED:
            self.waiting.insert(0, record)

    @precondition(lambda self: self.pool.credentials)
    @rule(data=st.data(), scope=scopes, seconds=SECONDS)
    def rate_limited(self, data: st.DataObject, scope: str | None, seconds: float) -> None:
        credential = data.draw(st.sampled_from(sorted(self.pool.credentials.values(), key=lambda c: c.id)))
        verdict = Verdict(RATE_LIMITED, cool_down=seconds or 1.0)
        self.pool.feedback.apply(credential, LeaseRecord(scope=scope), verdict, self.now)
        self.note_cooling("group", credential.group.name, scope, seconds or 1.0)
        self.take_served()

    @precondition(lambda self: self.pool.credentials)
    @rule(data=st.data(), scope=scopes)
    def overloaded(self, data: st.DataObject, scope: str | None) -> None:
        credential = data.draw(st.sampled_from(sorted(self.pool.credentials.values(), key=lambda c: c.id)))
        record = LeaseRecord(scope=scope)
        record.granted_at = self.now
        self.pool.feedback.apply(credential, record, Verdict(OVERLOADED), self.now)
        until = credential.provider.cooling[scope]
        assert until > self.now
        self.cooling["provider", credential.provider.name, scope] = until
        self.take_served()

    @precondition(lambda self: self.pool.credentials)
    @rule(data=st.data(), requester=st.sampled_from(["i", "j"]))
    def refused(self, data: st.DataObject, requester: str) -> None:
        credential = data.draw(st.sampled_from(sorted(self.pool.credentials.values(), key=lambda c: c.id)))
        quarantines = {c.id: c.quarantine for c in self.pool.credentials.values() if c is not credential}
        self.pool.feedback.apply(credential, LeaseRecord(requester), Verdict(AUTH_FAILED), self.now)
        if credential.cooldown_scopes[0].cooling.get(None) == self.now + 5.0:  # else it was quarantined
            self.note_cooling("credential", credential.id, None, 5.0)
        else:
            assert credential.quarantine is not None
        assert quarantines == {c.id: c.quarantine for c in self.pool.credentials.values() if c is not credential}
        self.take_served()

    @precondition(lambda self: self.pool.credentials)
    @rule(data=st.data())
    def succeeded(self, data: st.DataObject) -> None:
        credential = data.draw(st.sampled_from(sorted(self.pool.credentials.values(), key=lambda c: c.id)))
        self.pool.feedback.apply(credential, None, None, self.now)
        assert credential.auth_failures == 0

    @rule(id_=ids, action=st.sampled_from(["quarantine", "restore", "remove"]))
    def change(self, id_: str, action: str) -> None:
        if id_ not in self.pool.credentials:
            return
        if action == "quarantine":
            self.pool.quarantine(id_, "said so", self.now)
        elif action == "restore":
            self.pool.restore(id_, self.now)
        else:
            self.pool.remove(id_, self.now)
        self.take_served()

    @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 4.9, 5.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        """Let time pass as a store does: call `advance` at every instant of `next_wake_at`."""
        end = self.now + seconds
        while (wake_at := self.pool.next_wake_at()) is not None and wake_at <= end:
            self.now = max(self.now, wake_at)
            self.pool.advance(self.now)
            self.take_served()
        self.now = end
        self.pool.advance(end)
        self.take_served()

    # --- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def no_credential_has_too_many_leases(self) -> None:  # invariant 1
        for credential in self.pool.credentials.values():
            assert len(credential.leases) <= credential.max_concurrent
            assert set(credential.leases.values()) == {r for r in self.live if r.credential is credential}

    @invariant()
    def no_request_waits_beside_a_usable_credential(self) -> None:  # invariants 7, 8
        for scope in {record.scope for record in self.waiting}:
            assert not self.usable(scope)

    @invariant()
    def nobody_waits_without_hope(self) -> None:  # invariant 17
        for record in self.waiting:
            assert any(c.quarantine is None and c.serves(record.scope) for c in self.pool.credentials.values())

    @invariant()
    def the_end_of_each_awaited_cool_down_is_known(self) -> None:  # invariant 7
        for record in self.waiting:
            ends = [
                max(self.cooled_until(c, record.scope), c.paced_until(record.scope, 1, 0, self.now))
                for c in self.pool.credentials.values()
                if c.has_room() and c.serves(record.scope)
            ]
            if ends:
                wake_at = self.pool.next_wake_at()
                assert wake_at is not None
                assert wake_at <= min(ends)

    @invariant()
    def the_books_balance(self) -> None:  # invariant 16
        assert self.granted == self.returned + len(self.live)
        assert len(self.pool.queue) == len(self.waiting)


TestPoolMachine = PoolMachine.TestCase
