"""A shared pool, without any store: whatever is said, all copies are the same and keep the pool's promises."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.limits.reset_times import day_ends
from agentos.pool._replicas import shared_pool as shared
from agentos.pool._replicas.shared_pool import (
    ADD,
    ASK,
    CLAIM,
    CLAIM_SECONDS,
    DROP,
    END,
    GONE,
    HOLD,
    JOIN,
    LEAVE,
    QUARANTINE,
    USE_MORE,
    SharedPool,
)
from agentos.pool._replicas.states import freeze, thaw
from agentos.pool._rules.lease_states import LIVE, REFUSED, WAITING

from .shared_histories import BEGAN_AT, Batch, Talk, check_books, digest, dump, live_leases, new_copy

NO_LIMITS = [None, None, None, 1, None, "00:00 UTC"]


class Watched:
    """A copy, and what must hold of every batch that it takes."""

    def __init__(self) -> None:
        self.copy = new_copy()
        self.fences: dict[str, int] = {}

    def apply(self, batch: Batch) -> list[tuple[Any, ...]]:
        copy = self.copy
        before = live_leases(copy)
        counts = {c.id: len(c.leases) for c in copy.pool.credentials.values()}
        quarantined = {c.id for c in copy.pool.credentials.values() if c.quarantine is not None}
        silent = {s.id for s in copy.sessions.values() if s.aside is not None}
        served = told(copy.apply(*batch))
        silent |= {s.id for s in copy.sessions.values() if s.aside is not None}
        check_books(copy)
        granted = {key: record for key, record in live_leases(copy).items() if key not in before}
        for credential in copy.pool.credentials.values():  # invariant 1
            # Where less was declared than is in use, what is in use stays so.
            assert len(credential.leases) <= max(credential.max_concurrent, counts.get(credential.id, 0))
        for id_, fence in sorted(granted):
            assert fence > self.fences.get(id_, 0)  # invariant 13
            self.fences[id_] = fence
        if not any(said[0] in (ADD, shared.RESTORE) for said in batch.statements):
            assert not {id_ for id_, _ in granted} & quarantined  # invariant 5
        self.check_order([r for r in granted.values() if r.sequence], silent | {batch.session})
        self.check_nobody_waits_for_nothing()
        return served

    def check_order(self, granted: list[Any], silent: set[str]) -> None:
        """Of those who want the same, and no more than one request, the first is served first."""
        for record in granted:
            queue = self.copy.pool.waiting.get(record.request_class, {})
            for other in queue.values():
                is_plain = other.requests == 1 and not other.tokens and not other.waits_for_probe
                if is_plain and other.owner.id not in silent and not record.prefer and other.prefer is None:
                    assert record.sequence < other.sequence  # invariant 6

    def check_nobody_waits_for_nothing(self) -> None:
        copy = self.copy
        for request_class, queue in copy.pool.waiting.items():
            head = next(iter(queue.values()))
            for credential in copy.pool.credentials.values():
                if (
                    credential.serves(request_class)
                    and head.requests <= 1
                    and not head.tokens
                    and not head.waits_for_probe
                ):
                    assert not credential.is_usable(head.scope, copy.at)  # invariant 8
            assert any(
                c.quarantine is None and c.serves(request_class) for c in copy.pool.credentials.values()
            )  # invariant 17


@settings(max_examples=12)
@given(st.randoms(use_true_random=False))
def test_every_copy_of_any_history_is_the_same_and_keeps_the_promises(chance: random.Random) -> None:
    one_history(chance, steps=chance.randint(1, 40))


@pytest.mark.parametrize("seed", range(6))
def test_so_it_is_in_longer_histories(seed: int) -> None:
    one_history(random.Random(seed), steps=80)


def one_history(chance: random.Random, steps: int) -> None:
    talk, watched = Talk(chance), Watched()
    others = [
        SharedPool(BEGAN_AT - chance.choice([0.0, 0.3]), day_ends)
    ]  # has looked a little earlier; and one that joins somewhere in the middle
    for step in range(1, steps + 1):
        batch = talk.next(watched.copy)
        bystander = thaw(freeze(others[0])) if is_void(watched.copy, batch) and chance.random() < 0.3 else None
        served = watched.apply(batch)
        events = watched.copy.take_events()
        for other in others:
            assert told(other.apply(*batch)) == served
            assert other.take_events() == events
            assert other.next_at() == watched.copy.next_at()
        if step % 10 == 0 or step == steps or bystander is not None:
            found = dump(watched.copy)
            assert all(is_like(found, other) for other in others)
            if bystander is not None:  # invariant 14: only time has passed
                bystander.apply(batch.at, "nobody", 0, [])
                bystander.take_events()
                assert is_like(found, bystander)
        if chance.random() < 0.1:
            others[1:] = [thaw(freeze(others[0]))]
    leave_all(watched.copy, talk.now)


def told(served: list[Any]) -> list[tuple[Any, ...]]:
    return [(r.owner.id, r.id, r.state, r.fence, r.granted_at, r.credential and r.credential.id) for r in served]


def is_like(found: Any, copy: SharedPool) -> bool:
    """Not compared in an assertion: to tell two large dumps apart for people takes minutes."""
    return bool(dump(copy) == found)


def is_void(copy: SharedPool, batch: Batch) -> bool:
    """Whether nobody listens to it: said already, or by one that is not there any more."""
    session = copy.sessions.get(batch.session)
    if session is None or session.expires_at <= max(copy.at, batch.at):
        return not (batch.statements and batch.statements[0][0] == JOIN)
    return batch.number <= session.batch


def leave_all(copy: SharedPool, at: float) -> None:
    for session in tuple(copy.sessions.values()):
        copy.apply(at, session.id, session.batch + 1, [(LEAVE,)])
    assert not copy.sessions
    assert not copy.pool.waiting
    assert not live_leases(copy)  # invariant 16
    assert not copy.pool.members.leaving
    for credential in copy.pool.credentials.values():
        for cooldown_scope in credential.cooldown_scopes:
            assert all(estimator.in_flight == 0 for estimator in cooldown_scope.pace.estimators.values())


def test_no_hash_seed_changes_what_a_history_comes_to() -> None:
    program = [sys.executable, "-m", "tests.pool.replicas.shared_histories", "11", "200"]
    started = [
        subprocess.Popen(program, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, text=True)
        for seed in ("1", "2")
    ]
    one, other = (process.communicate()[0] for process in started)
    assert one == other
    assert len(one.splitlines()) == 200


# --- single rules ---------------------------------------------------------------------------------------------------


class Members:
    """Says things in the name of several sessions, one batch each."""

    def __init__(self, *names: str, ids: str = "a", ttl: float = 30.0, limits: list[Any] | None = None,
                 began_at: float = BEGAN_AT) -> None:  # fmt: skip
        self.copy = SharedPool(began_at, day_ends)
        self.at = began_at
        self.numbers = dict.fromkeys(names, 0)
        adds = [(ADD, id_, f"of {id_}", None, [], limits or NO_LIMITS, f"mark {id_}") for id_ in ids]
        for name in names:
            self.say(name, (JOIN, "host", 1, None, ttl), *adds)

    def say(self, name: str, *statements: tuple[Any, ...]) -> dict[int, str]:
        """Who was served by it, and how."""
        self.numbers[name] += 1
        served = self.copy.apply(self.at, name, self.numbers[name], list(statements))
        check_books(self.copy)
        return {record.id: record.state for record in served}

    def ask(self, name: str, lease: int, *, wait: bool = True) -> dict[int, str]:
        return self.say(name, (ASK, lease, None, 1, 0, None, None, False, wait, False))

    def end(self, name: str, lease: int) -> dict[int, str]:
        return self.say(name, (END, lease, None, True, 0.0))

    def state(self, name: str, lease: int) -> str:
        return self.copy.sessions[name].leases[lease].state

    def pass_time(self, seconds: float) -> dict[int, str]:
        self.at += seconds
        served = self.copy.apply(self.at, "nobody", 0, [])
        check_books(self.copy)
        return {record.id: record.state for record in served}


def test_what_a_session_is_granted_when_it_speaks_is_firm_and_what_others_leave_to_it_is_an_offer() -> None:
    pool = Members("one", "two")
    assert pool.ask("one", 1) == {1: LIVE}
    assert not pool.copy.sessions["one"].offers
    assert pool.ask("two", 2) == {}
    assert pool.end("one", 1) == {2: LIVE}
    assert set(pool.copy.sessions["two"].offers) == {2}
    assert pool.say("two", (CLAIM, 2)) == {2: LIVE}
    assert not pool.copy.sessions["two"].offers


def test_an_offer_that_is_not_claimed_goes_to_the_next_and_its_asker_keeps_its_place() -> None:  # invariants 6, 12
    pool = Members("one", "two", "three")
    pool.ask("one", 1)
    pool.ask("two", 2)
    pool.ask("three", 3)
    pool.ask("three", 4)
    pool.end("one", 1)
    assert pool.pass_time(CLAIM_SECONDS) == {3: LIVE}
    pool.say("three", (CLAIM, 3))
    pool.say("two")  # it was only slow
    assert pool.end("three", 3) == {2: LIVE}  # and asked before the fourth


def test_two_silent_sessions_delay_the_others_once_each() -> None:  # invariant 12
    """What the first leaves must not go to the second, which is silent, too."""
    pool = Members("holder", "first", "second", "alive", ids="ab")
    pool.ask("holder", 1)
    pool.ask("holder", 2)
    for lease in (10, 11, 12):
        pool.ask("first", lease)
        pool.ask("second", lease + 10)
    pool.ask("alive", 30)
    pool.ask("alive", 31)
    pool.say("holder", (END, 1, None, True, 0.0), (END, 2, None, True, 0.0))
    assert set(pool.copy.sessions["first"].offers) == {10}
    assert set(pool.copy.sessions["second"].offers) == {20}
    assert pool.pass_time(CLAIM_SECONDS) == {30: LIVE, 31: LIVE}
    pool.say("alive", (CLAIM, 30), (CLAIM, 31))
    pool.pass_time(CLAIM_SECONDS)
    assert pool.end("alive", 30) == {}
    assert pool.say("second") == {20: LIVE}


def test_sessions_that_end_together_leave_nothing_to_each_other() -> None:  # invariant 12
    pool = Members("first", "second", ttl=2.0)
    pool.ask("first", 1)
    pool.ask("second", 2)
    assert pool.pass_time(2.0) == {}
    assert not live_leases(pool.copy)


def test_what_is_said_after_leaving_does_not_count() -> None:  # invariant 16
    pool = Members("one")
    question = (ASK, 1, None, 1, 0, None, None, False, True, False)
    assert pool.say("one", (LEAVE,), question) == {}
    assert not live_leases(pool.copy)


def test_a_claim_of_a_credential_that_was_dropped_meanwhile_gets_another() -> None:
    pool = Members("one", "two", ids="ab")
    pool.ask("two", 1)
    pool.ask("two", 2)
    pool.ask("one", 3)
    pool.end("two", 1)  # offers "a"
    credential = pool.copy.sessions["one"].leases[3].credential
    assert credential is not None
    pool.say("one", (DROP, credential.id), (CLAIM, 3))
    assert pool.state("one", 3) == WAITING
    pool.end("two", 2)
    assert pool.say("one", (CLAIM, 3)) == {3: LIVE}
    other = pool.copy.sessions["one"].leases[3].credential
    assert other is not None
    assert other.id != credential.id


def test_after_something_was_forgotten_fences_are_greater_than_any_that_were_given() -> None:  # invariant 13
    pool = Members("one")
    pool.ask("one", 1)
    pool.end("one", 1)
    older = thaw(freeze(pool.copy))
    pool.ask("one", 2)
    forgotten = pool.copy.sessions["one"].leases[2].fence
    pool.copy, pool.at = older, pool.at + 0.5
    pool.numbers["two"] = 0
    pool.say(
        "two", (JOIN, "host", 2, None, 30.0), (shared.HOLD, 5.0), (ADD, "a", "of a", None, [], NO_LIMITS, "mark a")
    )
    assert pool.ask("two", 1) == {}
    assert pool.pass_time(5.0) == {1: LIVE}
    assert pool.copy.sessions["two"].leases[1].fence > forgotten


def test_a_session_is_only_given_what_it_has_declared() -> None:
    pool = Members("one", ids="a")
    pool.numbers["two"] = 0
    pool.say("two", (JOIN, "host", 2, None, 30.0), (ADD, "b", "of b", None, [], NO_LIMITS, "mark b"))
    assert pool.ask("two", 1) == {1: LIVE}
    assert pool.ask("two", 2) == {}
    assert pool.say("two", (QUARANTINE, "b", "bad")) == {2: REFUSED}
    assert pool.ask("one", 1) == {1: LIVE}


def test_of_what_two_declare_differently_the_strictest_counts_while_both_are_there() -> None:
    def add(per_minute: float, at_once: int) -> tuple[Any, ...]:
        return (ADD, "a", "of a", None, [], [per_minute, None, None, at_once, None, "00:00 UTC"], "mark a")

    def limits() -> tuple[float | None, int]:
        known = pool.copy.pool.credentials["a"]
        return known.limits.requests_per_minute, known.max_concurrent

    pool = Members("one", "two", ids="")
    pool.say("one", add(60, 3))
    assert limits() == (60, 3)
    pool.say("two", add(1200, 2))
    assert limits() == (60, 2)
    pool.say("one", add(90, 3))  # its own word may be changed
    assert limits() == (90, 2)
    pool.say("one", (LEAVE,))
    assert limits() == (1200, 2)
    pool.say("two", (shared.DROP, "a"))
    assert limits() == (1200, 2)  # until somebody else says what it is


def test_a_clock_that_steps_back_stands_still() -> None:
    pool = Members("one", "two", ttl=5.0)
    pool.ask("one", 1)
    pool.at -= 3600.0
    pool.ask("two", 2)
    assert pool.copy.at == BEGAN_AT
    assert pool.end("one", 1) == {2: LIVE}
    pool.at = BEGAN_AT
    pool.pass_time(5.0)
    assert not pool.copy.sessions


def test_a_batch_that_comes_twice_counts_once() -> None:
    """Its reply was lost, so it was sent again."""
    pool = Members("one", limits=[None, 1000, None, 1, None, "00:00 UTC"])
    pool.ask("one", 1)
    pool.say("one", (USE_MORE, 1, 0, 100))
    pool.numbers["one"] -= 1
    pool.say("one", (USE_MORE, 1, 0, 100))
    assert pool.copy.sessions["one"].leases[1].tokens == 100


def test_what_time_leaves_to_one_whose_batch_comes_twice_is_an_offer() -> None:  # invariant 14
    """It has said nothing new, and may be gone since it has."""
    pool = Members("one")
    pool.say("one", (shared.COOL, "a", 10.0))
    assert pool.ask("one", 1) == {}
    pool.at += 10.0
    pool.numbers["one"] -= 1
    pool.ask("one", 1)
    assert pool.state("one", 1) == LIVE
    assert list(pool.copy.sessions["one"].offers) == [1]


def test_what_an_expired_session_says_does_not_count() -> None:  # invariants 12, 14
    pool = Members("one", ttl=5.0)
    pool.ask("one", 1)
    pool.at += 5.0  # and nobody has said anything since
    assert pool.ask("one", 2) == {}
    assert "one" not in pool.copy.sessions
    assert not live_leases(pool.copy)


def test_a_session_lives_as_long_as_it_speaks() -> None:
    pool = Members("one", ttl=5.0)
    pool.ask("one", 1)
    for _ in range(3):
        pool.at += 4.0
        pool.say("one")
    assert pool.state("one", 1) == LIVE


def test_a_session_that_is_said_to_be_gone_is_ended_and_no_other() -> None:
    pool = Members("dead", "alive")
    pool.ask("dead", 1)
    assert pool.ask("alive", 2) == {}
    assert pool.say("alive", (GONE, "dead")) == {2: LIVE}
    assert set(pool.copy.sessions) == {"alive"}


def test_an_offer_lapses_also_if_nothing_else_happens() -> None:  # invariant 12
    """Whoever waits knows from `next_at` when to say that time has passed."""
    pool = Members("holder", "silent", "alive", ttl=3600.0)
    pool.ask("holder", 1)
    pool.ask("silent", 2)
    pool.ask("alive", 3)
    pool.end("holder", 1)
    assert pool.copy.next_at() == pool.at + CLAIM_SECONDS


def test_nothing_is_granted_while_leases_may_have_been_forgotten() -> None:  # invariants 1, 4
    pool = Members("one", ids="ab")
    pool.say("one", (HOLD, 10.0))
    assert pool.ask("one", 1) == {}
    assert pool.pass_time(9.9) == {}
    assert pool.pass_time(0.1) == {1: LIVE}


def test_fences_grow_where_an_older_log_was_lost() -> None:  # invariant 13
    before, after = Members("one"), Members("one", began_at=BEGAN_AT + 1.0)
    before.ask("one", 1)
    after.ask("one", 1)
    assert after.copy.pool.credentials["a"].fence > before.copy.pool.credentials["a"].fence


def test_fences_grow_where_the_end_of_a_log_was_lost() -> None:  # invariant 13
    """Whoever finds that out says HOLD, and anything may have been granted until then."""
    pool = Members("one")
    pool.ask("one", 1)
    pool.end("one", 1)
    pool.at += 5.0
    pool.say("one", (HOLD, 1.0))
    assert pool.copy.pool.credentials["a"].fence == int(pool.at * 1e6)


def test_another_secret_under_the_same_name_is_not_in_quarantine() -> None:
    pool = Members("one")
    pool.say("one", (QUARANTINE, "a", "refused"))
    pool.say("one", (ADD, "a", "of a", None, [], NO_LIMITS, "mark a"))
    assert pool.copy.pool.credentials["a"].quarantine == "refused"
    pool.say("one", (ADD, "a", "of a", None, [], NO_LIMITS, "another mark"))
    assert pool.copy.pool.credentials["a"].quarantine is None


# --- states as bytes ------------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call = call, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    "thing",
    [
        Evil(os.system, "true"),
        Evil(eval, "1"),
        Evil(getattr, SharedPool, "apply"),
        Evil(subprocess.Popen, ["true"]),
        {"state": Evil(os.getcwd)},
        random.Random,
        Exception("no"),
    ],
)
def test_a_state_that_names_anything_else_is_refused(thing: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="has no place in a pool"):
        thaw(pickle.dumps(thing, protocol=4))


def test_what_is_no_pool_or_no_pickle_is_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="not a pool"):
        thaw(pickle.dumps({"a": 1}))
    frozen = freeze(new_copy())
    for damaged in (b"", frozen[:-10], b"garbage" + frozen):
        with pytest.raises(Exception):
            thaw(damaged)


def test_a_state_of_a_busy_pool_comes_back_whole() -> None:
    talk, copy = Talk(random.Random(5)), new_copy()
    for _ in range(150):
        copy.apply(*talk.next(copy))
        copy.take_events()
    assert digest(thaw(freeze(copy))) == digest(copy)
