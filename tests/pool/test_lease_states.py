"""The table of lease states against the rules: random histories make exactly the transitions of the table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

from agentos.limits.declaration import Limits
from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import ENDED, FINAL, INITIAL, LIVE, REFUSED, TRANSITIONS, WAITING, LeaseEvent
from agentos.pool._rules.records import LeaseRecord
from agentos.verdict import RATE_LIMITED, Verdict

HISTORIES = 60
STEPS = 80
TABLE = {(row.state, row.event, row.next_state) for row in TRANSITIONS}
# The event behind a state that the rules assign. A final state is the event of the call that is under way.
EVENT_OF = {LIVE: LeaseEvent.GRANT, REFUSED: LeaseEvent.REFUSE, WAITING: LeaseEvent.SET_ASIDE}


class Recorder:
    """Collects every (state, event, next state) of the records of one history."""

    def __init__(self) -> None:
        self.transitions: set[tuple[str, LeaseEvent, str]] = set()
        self._call: tuple[LeaseRecord, LeaseEvent] | None = None

    @contextmanager
    def call(self, record: LeaseRecord, event: LeaseEvent) -> Iterator[None]:
        """Run a call that is about one record. A final state stays; an event that leaves the state is recorded, too."""
        before, self._call = record.state, (record, event)
        yield
        self._call = None
        if before in FINAL:
            assert record.state == before, f"{event} has left the final state {before}"
        elif record.state == before and event not in (LeaseEvent.RELEASE, LeaseEvent.GRANT):
            self.transitions.add((before, event, before))

    def assigned(self, record: LeaseRecord, before: str, after: str) -> None:
        if after == ENDED:
            assert self._call is not None, "a lease ended without a call"
            assert self._call[0] is record, "a call about one lease ended another"
            event = self._call[1]
        else:
            event = EVENT_OF[after]
        self.transitions.add((before, event, after))


class RecordedLease(LeaseRecord):
    """A lease record that reports every state that the rules assign."""

    __slots__ = ("_state", "recorder")

    def __init__(self, recorder: Recorder, tokens: int, scope: str | None) -> None:
        self.recorder = recorder
        super().__init__("item", 1, tokens, scope)
        assert self._state == INITIAL

    @property
    def state(self) -> str:  # type: ignore[override]
        return self._state

    @state.setter
    def state(self, state: str) -> None:
        before = getattr(self, "_state", state)
        self._state = state
        if state != before:
            self.recorder.assigned(self, before, state)


class History:
    """One pool of three credentials, its leases, and random calls about them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.recorder = Recorder()
        self.allocator = Allocator()
        self.now = 1000.0
        self.leases: list[RecordedLease] = []
        self.aside: list[RecordedLease] = []
        for number in range(3):
            limits = Limits(max_concurrent=2, tokens_per_minute=1000)
            scopes = frozenset({"small"}) if number else frozenset()
            self.allocator.add(f"k{number}", f"g{number % 2}", None, scopes, limits, self.now)

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 0.1, 1.0, 30.0])
        steps = [self.request, self.request, self.end, self.confirm, self.withdraw, self.lose, self.set_aside]
        self.rng.choice([*steps, self.put_back, self.cool, self.quarantine, self.restore])()
        self.allocator.advance(self.now)
        self.allocator.served.clear()
        self.allocator.events.clear()

    def lease(self) -> RecordedLease | None:
        """Any lease, also an ended one, that was not set aside."""
        leases = [lease for lease in self.leases if lease not in self.aside]
        return self.rng.choice(leases) if leases else None

    def request(self) -> None:
        lease = RecordedLease(self.recorder, self.rng.choice([0, 0, 400, 5000]), self.rng.choice([None, "small"]))
        with self.recorder.call(lease, LeaseEvent.QUEUE):
            self.allocator.request(lease, self.now, front=self.rng.random() < 0.2)
        self.leases.append(lease)

    def end(self) -> None:
        if (lease := self.lease()) is not None:
            verdict = self.rng.choice([None, Verdict(RATE_LIMITED, retry_after=5)])
            with self.recorder.call(lease, LeaseEvent.RELEASE):
                self.allocator.lease_end.end(lease, self.now, verdict, success=verdict is None)

    def confirm(self) -> None:
        live = [lease for lease in self.leases if lease.state == LIVE]
        if live:
            lease = self.rng.choice(live)
            with self.recorder.call(lease, LeaseEvent.CONFIRM):
                self.allocator.confirm(lease, self.now)

    def withdraw(self) -> None:
        if (lease := self.lease()) is not None:
            with self.recorder.call(lease, LeaseEvent.WITHDRAW):
                self.allocator.lease_end.withdraw(lease, self.now)

    def lose(self) -> None:
        if (lease := self.lease()) is not None:
            with self.recorder.call(lease, LeaseEvent.LOSE):
                self.allocator.lease_end.lose(lease, self.now)

    def set_aside(self) -> None:
        lease = self.lease()
        if lease is not None and lease.state not in FINAL and lease.sequence:
            with self.recorder.call(lease, LeaseEvent.SET_ASIDE):
                self.allocator.lease_end.set_aside(lease, self.now)
            self.aside.append(lease)

    def put_back(self) -> None:
        leases = sorted(self.aside, key=lambda lease: lease.sequence)
        self.aside.clear()
        self.allocator.put_back(list(leases), self.now)

    def cool(self) -> None:
        group = self.allocator.credentials[self.rng.choice(["k0", "k1", "k2"])].group
        self.allocator.cool(group, None, self.rng.choice([1.0, 40.0]), RATE_LIMITED, self.now)

    def quarantine(self) -> None:
        self.allocator.quarantine(self.rng.choice(["k0", "k1", "k2"]), "refused", self.now)

    def restore(self) -> None:
        self.allocator.restore(self.rng.choice(["k0", "k1", "k2"]), self.now)


def test_random_histories_make_exactly_the_listed_transitions() -> None:
    """No illegal transition, and none in the table that the rules never make."""
    transitions: set[tuple[str, LeaseEvent, str]] = set()
    for seed in range(HISTORIES):
        history = History(seed)
        for _ in range(STEPS):
            history.step()
        transitions |= history.recorder.transitions
    assert transitions == TABLE


def test_each_state_has_one_next_state_per_event() -> None:
    assert len({(state, event) for state, event, _ in TABLE}) == len(TRANSITIONS)
    assert {state for state, _, _ in TABLE}.isdisjoint(FINAL)


def test_every_state_is_reachable() -> None:
    reachable = {INITIAL}
    for _ in TABLE:
        reachable |= {next_state for state, _, next_state in TABLE if state in reachable}
    assert reachable == {WAITING, LIVE, *FINAL}
