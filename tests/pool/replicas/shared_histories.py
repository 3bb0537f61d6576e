"""Random histories of a shared pool: what several processes might say, in virtual time.

`python -m tests.pool.replicas.shared_histories SEED STEPS` prints what each batch comes to, and a digest of
the state now and then, so that processes with different hash seeds can be compared.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import OrderedDict, deque
from enum import Enum
from typing import Any, NamedTuple

from agentos.limits.reset_times import day_ends
from agentos.pool._replicas import shared_pool as shared
from agentos.pool._replicas.shared_pool import SharedPool
from agentos.pool._rules.lease_states import LIVE, WAITING
from agentos.verdict import AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED, TRANSIENT, Verdict

BEGAN_AT = 1_800_000_000.0
IDS = ["a", "b", "c", "d"]
TTLS = [2.0, 5.0, 30.0]
# requests per minute, tokens per minute, requests per day, at once, burst, when the day begins
LIMITS = [
    (None, None, None, 1, None, "00:00 UTC"),
    (None, None, None, 2, None, "00:00 UTC"),
    (60, None, None, 3, 2, "00:00 UTC"),
    (6, 1000, None, 1, 1, "00:00 UTC"),
    (None, 500, 5, 2, None, "12:30 UTC"),
]
PAUSES = [0.0, 0.001, 0.02, 0.1, 0.5, 0.99, 1.0, 1.1, 2.5, 6.0, 31.0, 70.0]


class Batch(NamedTuple):
    at: float
    session: str
    number: int
    statements: list[tuple[Any, ...]]


def new_copy() -> SharedPool:
    return SharedPool(BEGAN_AT, day_ends)


class Talk:
    """Makes up what is said next. It looks at a copy to say things that make sense, mostly."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = BEGAN_AT
        self.numbers: dict[str, int] = {}
        self.sessions: list[str] = []
        self.leases = 0
        self.said: list[Batch] = []

    def next(self, copy: SharedPool) -> Batch:
        chance = self.chance
        self.now += chance.choice(PAUSES)
        at = self.now
        if chance.random() < 0.05:
            at -= chance.choice([0.5, 3600.0])  # a clock that steps back
        if self.said and chance.random() < 0.06:  # a reply was lost: the same once more
            batch = chance.choice(self.said[-3:])._replace(at=at)
        else:
            batch = self._new(copy, at)
        self.said.append(batch)
        return batch

    def _new(self, copy: SharedPool, at: float) -> Batch:
        chance = self.chance
        if not self.sessions or (len(copy.sessions) < 3 and chance.random() < 0.3):
            name = f"s{len(self.sessions)}"
            self.sessions.append(name)
            self.numbers[name] = 0
            statements = [(shared.JOIN, "host", len(self.sessions), None, chance.choice(TTLS))]
            if chance.random() < 0.1:
                statements.append((shared.HOLD, chance.choice([0.5, 5.0])))
            statements += [self._add(id_) for id_ in IDS if chance.random() < 0.7]
        else:
            name = chance.choice(self.sessions[-4:])  # the older ones are silent, and maybe dead
            session = copy.sessions.get(name)
            statements = [self._statement(session) for _ in range(chance.choice([0, 1, 1, 2, 3]))]
        self.numbers[name] += 1
        return Batch(at, name, self.numbers[name], statements)

    def _add(self, id_: str) -> tuple[Any, ...]:
        chance = self.chance
        group = chance.choice(["g1", f"only {id_}"])
        scopes = chance.choice([[], [], ["x"]])
        limits = list(chance.choice(LIMITS))
        mark = f"mark {id_}" if chance.random() < 0.9 else f"another {id_}"
        return (shared.ADD, id_, group, chance.choice([None, "p"]), scopes, limits, mark)

    def _statement(self, session: shared.Session | None) -> tuple[Any, ...]:
        chance = self.chance
        kinds = [shared.ASK] * 6 + [shared.END] * 4 + [shared.CLAIM] * 3
        kinds += [shared.WITHDRAW, shared.SETTLE, shared.USE_MORE, shared.OBSERVED, shared.COOL_AND_END]
        kinds += [shared.COOL, shared.QUARANTINE, shared.RESTORE, shared.RESTORE, shared.ADD, shared.DROP]
        if chance.random() < 0.03:
            return (shared.LEAVE,)
        if chance.random() < 0.03:
            return (shared.USED, chance.choice(IDS), self._told(), chance.choice([0.0, 0.4, 30.0, 90.0]))
        kind = chance.choice(kinds)
        if kind == shared.ASK:
            return self._ask()
        if kind == shared.ADD:
            return self._add(chance.choice(IDS))
        if kind in (shared.DROP, shared.RESTORE):
            return (kind, chance.choice(IDS))
        if kind == shared.QUARANTINE:
            return (kind, chance.choice(IDS), "said so")
        if kind == shared.COOL:
            return (kind, chance.choice(IDS), chance.choice([0.5, 3.0, 100.0]))
        return self._about_a_lease(kind, session)

    def _told(self) -> tuple[Any, ...]:
        """What was used in a log that is lost."""
        chance = self.chance
        ages = sorted(chance.sample(range(60), chance.randint(0, 4)))
        requests = [(age, float(chance.randint(1, 3))) for age in ages]
        tokens = [(age, float(chance.choice([10, 100, 400]))) for age in ages]
        return (
            requests,
            tokens,
            chance.choice([0.0, 1.5, 4.0]),
            float(chance.randint(0, 5)),
            chance.choice([-1.0, 99.0]),
        )

    def _ask(self) -> tuple[Any, ...]:
        chance = self.chance
        self.leases += 1
        requests, tokens = chance.choice([(1, 0)] * 5 + [(1, 100), (2, 0), (1, 400), (1, 5000), (0, 10)])
        return (
            shared.ASK, self.leases, chance.choice([None, "i", "j"]), requests, tokens,
            chance.choice([None, None, "x", "y"]), chance.choice([None, None, "a"]), chance.random() < 0.2,
            chance.random() < 0.85, chance.random() < 0.1,
        )  # fmt: skip

    def _about_a_lease(self, kind: int, session: shared.Session | None) -> tuple[Any, ...]:
        chance = self.chance
        lease = chance.randint(1, max(1, self.leases))  # rarely one of its own
        if session is not None and session.leases and chance.random() < 0.9:
            of_use = {shared.CLAIM: list(session.offers), shared.WITHDRAW: list(session.leases)}.get(kind)
            lease = chance.choice(of_use or list(session.leases))
        if kind == shared.END:
            verdict = self._verdict() if chance.random() < 0.4 else None
            return (kind, lease, verdict, chance.random() < 0.5, chance.choice([0.0, 0.3, 0.9]))
        if kind == shared.OBSERVED:
            return (kind, lease, self._verdict(), chance.choice([0.0, 0.7]))
        if kind == shared.COOL_AND_END:
            return (kind, lease, chance.choice([0.3, 2.0]))
        if kind == shared.SETTLE:
            return (kind, lease, chance.choice([None, 0, 1, 3]), chance.choice([None, 0, 50, 700]))
        if kind == shared.USE_MORE:
            return (kind, lease, chance.choice([0, 1]), chance.choice([0, 60]))
        return (kind, lease)

    def _verdict(self) -> Verdict:
        chance = self.chance
        kind = chance.choice([RATE_LIMITED, RATE_LIMITED, AUTH_FAILED, OVERLOADED, QUOTA_EXHAUSTED, TRANSIENT, None])
        if kind is None:
            return Verdict(None, limit_requests=chance.choice([30.0, 600.0]), requests_period=60.0,
                           remaining_requests=chance.choice([0, 5, None]), reset_requests=2.0)  # fmt: skip
        return Verdict(kind, retry_after=chance.choice([None, 0.0, 0.5, 2.0]), message="no")


# --- looking --------------------------------------------------------------------------------------------------------


def dump(thing: Any) -> Any:
    """All that a copy consists of, in a form in which equal copies are equal: what is one object in the first is one
    object in the second."""
    return _dump(thing, {})


def _dump(thing: Any, known: dict[int, tuple[int, Any]]) -> Any:
    if thing is None or isinstance(thing, str | int | float | bool | Enum | type):
        return thing
    if isinstance(thing, frozenset | set):
        return "set", sorted(map(repr, thing))
    if isinstance(thing, tuple):
        return tuple(_dump(part, known) for part in thing)
    if id(thing) in known:
        return "see", known[id(thing)][0]
    known[id(thing)] = len(known), thing  # kept alive: an id must not come back
    if isinstance(thing, list | deque):
        return [_dump(part, known) for part in thing]
    if isinstance(thing, dict | OrderedDict):
        return [(_dump(key, known), _dump(value, known)) for key, value in thing.items()]
    if callable(thing) and hasattr(thing, "__qualname__"):
        return thing.__qualname__
    slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
    names = slots or sorted(vars(thing))
    parts = [(name, _dump(getattr(thing, name, None), known)) for name in names]
    return type(thing).__name__, parts


def digest(copy: SharedPool) -> str:
    return hashlib.blake2b(repr(dump(copy)).encode(), digest_size=16).hexdigest()


def live_leases(copy: SharedPool) -> dict[tuple[str, int], Any]:
    """By credential and fence."""
    credentials = [*copy.pool.credentials.values(), *copy.pool.members.leaving.values()]
    return {(c.id, fence): record for c in credentials for fence, record in c.leases.items()}


def check_books(copy: SharedPool) -> None:
    """What the sessions have is what the pool has given."""
    held = {id(r): r for s in copy.sessions.values() for r in s.leases.values() if r.state == LIVE}
    given = live_leases(copy)
    assert {id(record) for record in given.values()} == set(held)  # invariants 12, 16: no lease without a session
    aside = {id(r) for s in copy.sessions.values() for r in s.aside or ()}
    waits = {id(r) for s in copy.sessions.values() for r in s.leases.values() if r.state == WAITING}
    queued = {id(r) for queue in copy.pool.waiting.values() for r in queue.values()}
    assert queued == waits - aside  # invariants 9, 12
    for session in copy.sessions.values():
        assert session.expires_at > copy.at
        assert all(until > copy.at and session.leases[n].state == LIVE for n, until in session.offers.items())


def main(seed: int, steps: int) -> None:
    talk, copy = Talk(random.Random(seed)), new_copy()
    for step in range(steps):
        served = copy.apply(*talk.next(copy))
        print([(record.id, record.state, record.fence) for record in served], copy.take_events(), copy.next_at(),
              digest(copy) if step % 20 == 19 else "")  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
