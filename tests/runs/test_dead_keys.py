"""Runs over pools with dead, limited and slandered keys, in virtual time. Invariants 41 and 42."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection

import pytest

from agentos.events import (
    AttemptEnded,
    CredentialBenched,
    CredentialQuarantined,
    CredentialRecovered,
    CredentialRested,
    RunStopping,
)
from agentos.items.attempt import Attempt
from agentos.providers import verdicts
from agentos.testing import FakeClock
from agentos.verdict import RETRY_ON_OTHER_KEY, Verdict
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits
from tests.support.virtual_runs import Behaviour, Outcome, VirtualRun, command_failed, run_all

ECHO_401 = "Error: 401 Invalid authentication credentials"
ECHO_429 = "Error: 429 Too Many Requests, try again in 3600 seconds"
REFUSED = Verdict("auth_failed", message=ECHO_401, is_printed=True)
LIMITED = Verdict("rate_limited", message="HTTP 429", is_printed=True)
LIMITED_FOR_AN_HOUR = Verdict("rate_limited", 3600.0, message=ECHO_429, is_printed=True)
ITEM_SECONDS = 0.5


def keys(count: int) -> list[str]:
    return [f"key-{number}" for number in range(count)]


def make_pool(clock: FakeClock, ids: Collection[str], max_concurrent: int = 1) -> CredentialCoordinator:
    limits = Limits(max_concurrent=max_concurrent)
    credentials = [Credential(f"secret-of-{id_}", id=id_, limits=limits) for id_ in ids]
    return CredentialCoordinator(credentials, clock=clock, reporter=lambda _: None)


def items(count: int, name: str = "item") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def with_dead(dead: Collection[str], verdict: Verdict | None = None, broken: Collection[str] = ()) -> Behaviour:
    """Attempts with dead keys fail, silently or with a printed verdict; broken items fail with every key."""

    def behave(attempt: Attempt) -> Outcome:
        if attempt.credential_id in dead:
            return Outcome(0.05, command_failed() if verdict is None else command_failed(verdict))
        return Outcome(ITEM_SECONDS, command_failed() if attempt.id in broken else None)

    return behave


def execute(behave: Behaviour, ids: list[str], names: list[str], **options: int) -> VirtualRun:
    clock = FakeClock()
    run = VirtualRun(names, behave, make_pool(clock, ids, options.pop("max_concurrent", 1)), clock, **options)
    run_all(clock, run)
    assert run.is_ended
    return run


def failed_items(run: VirtualRun) -> list[str]:
    return [result.item_id for result in run.collected if not result.success]


# --- invariant 41: no item is lost to a key that never works --------------------------------------------------------


@pytest.mark.parametrize("verdict", [None, REFUSED, LIMITED, LIMITED_FOR_AN_HOUR], ids=["silent", "401", "429", "hour"])
@pytest.mark.parametrize("workers", [1, 4, 16])
def test_dead_key_costs_no_item(verdict: Verdict | None, workers: int) -> None:
    """300 items over 4 keys, of which one never works, without retries."""
    run = execute(with_dead({"key-0"}, verdict), keys(4), items(300), workers=workers, max_concurrent=4)
    assert len(run.collected) == 300
    assert failed_items(run) == []
    tries = Counter(start.credential_id for start in run.starts)
    assert tries["key-0"] <= 40  # it was set aside, and probed now and then


def test_breaker_speaks_once_and_items_go_on() -> None:
    run = execute(with_dead({"key-1"}), keys(2), items(200), workers=2)
    (event,) = run.events_of(CredentialBenched)
    assert (event.credential_id, event.failures) == ("key-1", 3)
    assert not run.events_of(CredentialRecovered)
    assert not run.events_of(CredentialQuarantined)


def test_first_items_that_meet_dead_keys_are_tried_elsewhere() -> None:
    """Nothing is known yet, one worker, and all keys but the last are dead."""
    run = execute(with_dead(keys(6)[:5]), keys(6), items(1), workers=1)
    assert failed_items(run) == []
    assert run.results["item-0"].attempts == 6


def test_broken_item_fails_after_one_try_with_a_working_key() -> None:
    run = execute(with_dead((), broken={"item-5"}), keys(4), items(40))
    assert failed_items(run) == ["item-5"]
    assert run.results["item-5"].attempts <= 2
    assert not run.events_of(CredentialBenched)


def test_broken_item_has_its_retries_and_bounded_free_tries() -> None:
    run = execute(with_dead((), broken={"item-0"}), keys(4), items(1), retries=2)
    assert run.results["item-0"].attempts == 1 + 3 + 2


def test_failures_with_keys_that_served_are_the_items_own() -> None:
    """Every eighth item fails; all keys have served an item since the failure before."""
    flaky = set(items(60)[12::8])

    def behave(attempt: Attempt) -> Outcome:
        return Outcome(ITEM_SECONDS, command_failed() if attempt.id in flaky else None)

    run = execute(behave, keys(4), items(60), workers=4)
    assert set(failed_items(run)) == flaky
    assert all(result.attempts == 1 for result in run.collected)


def test_item_that_times_out_is_tried_with_one_other_key() -> None:
    def behave(attempt: Attempt) -> Outcome:
        attempt.is_timed_out = True
        return Outcome(ITEM_SECONDS, command_failed())

    run = execute(behave, keys(10), items(3), workers=2, timeout=100)
    assert [result.attempts for result in run.collected] == [2, 2, 2]


def test_lone_broken_item_is_tried_with_six_keys() -> None:
    """Of ten keys none has worked: one more item would show which do."""
    run = execute(with_dead((), broken={"item-0"}), keys(10), items(1))
    (result,) = run.collected
    assert (result.attempts, result.metadata["keys_tried"]) == (6, 6)
    assert [event.keys_tried for event in run.events_of(AttemptEnded)] == [1, 2, 3, 4, 5]


def test_item_that_fails_with_three_keys_waits_for_running_ones() -> None:
    """All other items run when the first one fails with one key after the other; the sixth key works soon."""

    def behave(attempt: Attempt) -> Outcome:
        return Outcome(0.1, command_failed()) if attempt.id == "item-0" else Outcome(1.0)

    run = execute(behave, keys(10), items(5), workers=5)
    assert failed_items(run) == ["item-0"]
    assert run.results["item-0"].attempts == 4


def test_item_that_fails_with_three_keys_lets_others_go_first() -> None:
    """The first item fails with each of ten keys; the items after it work."""
    run = execute(with_dead((), broken={"item-0"}), keys(10), items(40), workers=1)
    assert failed_items(run) == ["item-0"]
    assert run.results["item-0"].attempts <= 4


def test_free_try_says_why_it_is_made() -> None:
    run = execute(with_dead({"key-0"}), keys(2), items(20), workers=1)
    (first, *_) = run.events_of(AttemptEnded)
    assert first.suspicion == "key key-0 has not worked yet in this run"


def test_all_items_broken_bench_no_key() -> None:
    names = items(60)
    run = execute(with_dead((), broken=names), keys(4), names)
    assert sorted(failed_items(run)) == sorted(names)
    assert not run.events_of(CredentialBenched)
    assert max(result.attempts for result in run.collected) <= 4


def test_work_that_always_fails_costs_few_free_tries() -> None:
    """500 items fail with each of 20 keys: after ten failures with each key, an item is tried twice."""
    names = items(500)
    run = execute(with_dead((), broken=names), keys(20), names, workers=8)
    assert sorted(failed_items(run)) == sorted(names)
    assert len(run.starts) <= 2 * len(names) + 10 * 20 + 8


def test_only_key_is_never_set_aside() -> None:
    names = items(20)
    run = execute(with_dead({"key-0"}), keys(1), names)
    assert sorted(failed_items(run)) == sorted(names)
    assert all(result.attempts == 1 for result in run.collected)
    assert not run.events_of(CredentialBenched)


def test_recovered_key_is_probed_and_used_again() -> None:
    clock = FakeClock()
    revived_at = clock.now() + 30.0

    def behave(attempt: Attempt) -> Outcome:
        is_dead = attempt.credential_id == "key-0" and clock.now() < revived_at
        return Outcome(0.05, command_failed()) if is_dead else Outcome(ITEM_SECONDS)

    run = VirtualRun(items(400), behave, make_pool(clock, keys(2)), clock)
    run_all(clock, run)
    assert failed_items(run) == []
    assert len(run.events_of(CredentialRecovered)) == 1
    late = Counter(start.credential_id for start in run.starts if start.at > revived_at + 60.0)
    assert late["key-0"] > 0.4 * sum(late.values())


def test_probe_goes_alone_and_pauses_grow() -> None:
    """After a rest one item tries the key; the others follow after its success or ten seconds."""
    run = execute(with_dead({"key-0"}), keys(2), items(600), workers=8, max_concurrent=4)
    tries = [start.at for start in run.starts if start.credential_id == "key-0"]
    (opened,) = run.events_of(CredentialBenched)
    assert opened.seconds == 1.0
    gaps = [round(later - earlier) for earlier, later in itertools.pairwise(tries) if later - earlier > 0.5]
    assert gaps[:5] == [1, 2, 4, 8, 16]
    assert max(gaps) <= 60


def test_key_that_stops_working_costs_one_attempt() -> None:
    clock = FakeClock()
    dies_at = clock.now() + 10.0

    def behave(attempt: Attempt) -> Outcome:
        is_dead = attempt.credential_id == "key-0" and clock.now() >= dies_at
        return Outcome(0.05, command_failed()) if is_dead else Outcome(ITEM_SECONDS)

    run = VirtualRun(items(200), behave, make_pool(clock, keys(2)), clock)
    run_all(clock, run)
    assert len(failed_items(run)) <= 1


# --- invariant 42: printed text is weak evidence --------------------------------------------------------------------


@pytest.mark.parametrize("verdict", [REFUSED, LIMITED_FOR_AN_HOUR, LIMITED], ids=["401", "hour", "429"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_items_that_echo_refusals_hold_up_their_run_briefly(verdict: Verdict, count: int) -> None:
    """Four of forty items echo a refusal with every key. The others succeed, also with a single key."""

    def behave(attempt: Attempt) -> Outcome:
        is_echo = attempt.id.startswith("echo")
        return Outcome(0.1, command_failed(verdict)) if is_echo else Outcome(ITEM_SECONDS)

    clock = FakeClock()
    pool = make_pool(clock, keys(count))
    other = VirtualRun(items(100, "other"), lambda _: Outcome(ITEM_SECONDS), pool, clock)
    run = VirtualRun([*items(4, "echo"), *items(36)], behave, pool, clock)
    began = clock.now()
    run_all(clock, run, other)
    assert sorted(failed_items(run)) == items(4, "echo")
    assert failed_items(other) == []
    assert not run.events_of(CredentialQuarantined)
    last = max(start.at for start in run.starts if start.item_id.startswith("item"))
    # The run shares the keys with another one, and each of 20 free rotations of an echo rests a key for seconds.
    assert last - began < (140 * ITEM_SECONDS + 4 * 20 * 2.0) / count
    # The other run got every key all the time.
    last_of_other = max(start.at for start in other.starts)
    assert last_of_other - began <= 141 * ITEM_SECONDS / count


def test_single_key_that_prints_refusals_stops_the_run() -> None:
    run = execute(with_dead({"key-0"}, REFUSED), keys(1), items(50), workers=4)
    (stopping,) = run.events_of(RunStopping)
    assert stopping.reason.startswith("no usable credential: 1 refused\nkey-0: refused: 5 times in a row")
    assert failed_items(run) == []
    assert len(run.starts) < 15


def test_few_items_that_are_all_refused_stop_the_run_soon() -> None:
    run = execute(with_dead(keys(2), REFUSED), keys(2), items(2), workers=2)
    (stopping,) = run.events_of(RunStopping)
    assert "key-1: refused: 2 times in a row, as its commands printed: Error: 401" in stopping.reason
    assert len(run.starts) <= 5


def test_item_outlives_a_limit_of_hours_that_was_printed() -> None:
    """One key, whose agents print that its limit resets in five hours: no item fails, and few attempts are spent."""
    clock = FakeClock()
    resets_at = clock.now() + 5 * 3600.0

    def behave(attempt: Attempt) -> Outcome:
        left = resets_at - clock.now()
        if left > 0:
            return Outcome(1.0, command_failed(Verdict("quota_exhausted", left, message="limit", is_printed=True)))
        return Outcome(ITEM_SECONDS)

    run = VirtualRun(items(3), behave, make_pool(clock, keys(1), 4), clock)
    run_all(clock, run)
    assert failed_items(run) == []
    assert len(run.starts) < 5 * 3600 / 50 + 20
    assert len(run.events_of(CredentialRested)) <= 7


def test_max_wait_counts_printed_refusals_as_waiting() -> None:
    clock = FakeClock()
    began = clock.now()
    printed = Verdict("quota_exhausted", 7200.0, message="limit", is_printed=True)
    run = VirtualRun(
        items(3), lambda _: Outcome(1.0, command_failed(printed)), make_pool(clock, keys(1)), clock, max_wait=600.0
    )
    run_all(clock, run)
    assert run.events_of(RunStopping)
    assert clock.now() - began < 1400.0
    assert failed_items(run) == []


def test_every_kind_of_command_evidence_is_marked() -> None:
    """Verdicts that are not marked would reach other runs."""
    for text in (ECHO_401, ECHO_429, '{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}'):
        verdict = verdicts.from_output(text, 1)
        assert verdict.kind in RETRY_ON_OTHER_KEY
        assert verdict.is_printed
