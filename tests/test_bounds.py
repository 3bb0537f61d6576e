"""What binds a run: one decision from facts, and one sentence for it."""

from __future__ import annotations

import time

import pytest

from agentos import bounds
from agentos.bounds import TRIAL, Bound, BoundTimes, RunFacts, bound_of_pool, decide
from agentos.events import EXHAUSTED, STORE_LOST, PoolWaiting
from agentos.items.parallelism import FIRST_ITEMS
from agentos.reporters.bound_text import bound_text
from agentos.verdict import OVERLOADED, QUOTA_EXHAUSTED, RATE_LIMITED

NOW = time.mktime((2026, 11, 18, 14, 3, 0, 0, 0, -1))
MIDNIGHT = time.mktime((2026, 11, 19, 0, 0, 0, 0, 0, -1))

AT_LIMIT = PoolWaiting(RATE_LIMITED, 1, 0, 1, 20.0, "input tokens per minute", None, "credential team-a", 1, 200_000)
OUT_OF_QUOTA = PoolWaiting(RATE_LIMITED, 4, 0, 4, MIDNIGHT - NOW, None, QUOTA_EXHAUSTED, None, 4)
ALL_IN_USE = PoolWaiting(EXHAUSTED, 3, 3, 0, None, at_once=12, leases=12)


def facts(running: int = 4, *, has_more: bool = True, **more: object) -> RunFacts:
    return RunFacts(4, running, has_more, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("of_run", "kind"),
    [
        (facts(), bounds.WORKERS),
        (facts(has_more=False), None),
        (facts(workers_by="memory"), bounds.WORKERS),
        (facts(workers_by=bounds.POOL, has_keys=True), bounds.AT_ONCE),
        (facts(1, waiting=AT_LIMIT), bounds.LIMIT),
        (facts(waiting=AT_LIMIT), bounds.LIMIT),  # through a gateway, requests wait although all workers are busy
        (facts(1, waiting=OUT_OF_QUOTA, is_over_budget=True), bounds.COOL_DOWN),
        (facts(1, waiting=ALL_IN_USE), bounds.AT_ONCE),
        (facts(1, waiting=ALL_IN_USE._replace(leases=3)), bounds.PROBE),
        (facts(1, waiting=PoolWaiting(EXHAUSTED, 0, 0, 0, None, quarantined=2)), bounds.NO_CREDENTIAL),
        (facts(1, waiting=PoolWaiting(STORE_LOST, 3, 0, 0, None)), bounds.STORE),
        (facts(is_reader_slow=True), bounds.READER),
        (facts(is_ledger_slow=True), bounds.LEDGER),
        (facts(waiting=AT_LIMIT, is_reader_slow=True), bounds.READER),  # nothing would start
        (facts(1, is_over_budget=True), bounds.BUDGET),
        (facts(1, is_over_budget=True, is_cost_unknown=True), bounds.COST),
        (facts(1, is_input_slow=True), bounds.INPUT),
        (facts(1, is_refused=True, is_pausing=True), bounds.REFUSALS),
        (facts(1, is_pausing=True), bounds.PAUSES),
        (facts(1), None),
    ],
)
def test_each_situation_has_one_bound(of_run: RunFacts, kind: str | None) -> None:
    bound = decide(of_run, NOW)
    assert (None if bound is None else bound.kind) == kind
    assert bound_text(bound, NOW)


@pytest.mark.parametrize(
    ("waiting", "text"),
    [
        (AT_LIMIT, "input tokens per minute on team-a (200,000); the next request fits at 14:03:20"),
        (
            AT_LIMIT._replace(on=None, groups=3, credentials=3, amount=600_000),
            "input tokens per minute on all 3 keys (600,000 together); the next request fits at 14:03:20",
        ),
        (
            AT_LIMIT._replace(on="org", credentials=3, held=3),
            "input tokens per minute on org (200,000); the next request fits at 14:03:20",
        ),
        (
            AT_LIMIT._replace(credentials=3, held=1),
            "input tokens per minute on team-a (200,000), while 2 more keys wait longer; the next "
            "request fits at 14:03:20",
        ),
        (
            AT_LIMIT._replace(on=None, groups=2, credentials=5, held=4),
            "input tokens per minute on 4 keys (200,000 together), while 1 more key waits longer; "
            "the next request fits at 14:03:20",
        ),
        (
            AT_LIMIT._replace(on=None, groups=2, credentials=2, held=2, learned=1, amount=300.0, usable_in=0.0),
            "input tokens per minute on all 2 keys (300 together, in part learned from answers)",
        ),
        (
            AT_LIMIT._replace(limit="learned requests per minute", amount=117.6, usable_in=0.0),
            "the requests per minute learned from answers on team-a (118)",
        ),
        (
            AT_LIMIT._replace(limit="slow start", amount=None),
            "a cautious start: the limit of team-a is not known yet; the next request fits at 14:03:20",
        ),
        (OUT_OF_QUOTA, "the used-up quota of all 4 keys; the first resets at 00:00 tomorrow"),
        (
            OUT_OF_QUOTA._replace(verdict=OVERLOADED, on="credential a", groups=1, credentials=1, usable_in=9e4),
            "the cool-down of a (overloaded); it ends at 15:03 tomorrow",
        ),
        (ALL_IN_USE, "max_concurrent: 12 requests at once on 3 keys, all in use"),
        (
            ALL_IN_USE._replace(cooling=2, paused=2, is_learned=True),
            "the learned max_concurrent: 12 requests at once on 1 key, all in use; 2 more are paused",
        ),
        (
            ALL_IN_USE._replace(credentials=40, cooling=34, paused=2),
            "max_concurrent: 12 requests at once on 6 keys, all in use; 32 more wait for a limit, 2 are paused",
        ),
        (
            PoolWaiting(RATE_LIMITED, 3, 3, 3, 9.0, verdict=TRIAL, groups=3, held=3),
            "the trial of all 3 keys after failures: one item each, before more use them",
        ),
        (
            PoolWaiting(RATE_LIMITED, 1, 1, 1, 9.0, verdict=TRIAL, on="credential a", groups=1, held=1),
            "the trial of a after failures: one item, before more use it",
        ),
        (ALL_IN_USE._replace(leases=3), "the first answers of 3 new keys, before more requests use them"),
        (
            PoolWaiting(EXHAUSTED, 0, 0, 0, None, quarantined=2),
            "the lack of a usable key: 2 quarantined",
        ),
        (
            PoolWaiting(EXHAUSTED, 0, 0, 0, None, quarantined=3, disabled=2),
            "the lack of a usable key: 1 quarantined, 2 disabled",
        ),
        (  # as the owner of a shared pool of an older version answers
            PoolWaiting(RATE_LIMITED, 3, 0, 3, 20.0),
            "the cool-downs of all 3 keys; the first ends at 14:03:20",
        ),
    ],
)
def test_sentence_has_numbers_and_clock_times(waiting: PoolWaiting, text: str) -> None:
    assert bound_text(bound_of_pool(waiting, NOW), NOW) == text


def test_sentence_about_workers_names_the_resource() -> None:
    assert bound_text(decide(facts(has_keys=True), NOW)) == "4 workers, not the keys"
    assert bound_text(decide(facts(), NOW)) == "4 workers"
    memory = decide(facts(workers_by="memory", workers_detail="memory, 1.0 GB per item"), NOW)
    assert bound_text(memory) == "memory, 1.0 GB per item: room for 4 items at once"
    assert bound_text(None) == "nothing: there is little to do"
    through_gateway = decide(facts(workers_by=bounds.POOL, has_keys=True, has_gateway=True), NOW)
    text = "the number of items at once: 4 items so far, more while no request waits for a key"
    assert bound_text(through_gateway) == text


def test_sentence_names_no_instant_that_is_over() -> None:
    bound = bound_of_pool(AT_LIMIT, NOW)
    assert "fits" not in bound_text(bound, NOW + 21)
    assert "fits" not in bound_text(bound._replace(until=float("inf")), NOW)
    assert "fits" not in bound_text(bound)


@pytest.mark.parametrize(("seconds", "has_instant"), [(0.4, False), (1.5, True)])
def test_instant_of_less_than_a_second_is_left_out(seconds: float, has_instant: bool) -> None:
    """Such an instant is over when the line is read."""
    assert ("fits" in bound_text(bound_of_pool(AT_LIMIT._replace(usable_in=seconds), NOW), NOW)) is has_instant


@pytest.mark.parametrize(
    ("seconds", "instant"),
    [(20.0, ""), (1800.0, ""), (MIDNIGHT - NOW, "; it ends at 00:00 on Nov 19"), (9e4, "; it ends at 15:03 on Nov 19")],
)
def test_ended_run_names_only_instants_far_ahead(seconds: float, instant: str) -> None:
    """The text is kept, and read hours later: an instant needs its date."""
    bound = bound_of_pool(OUT_OF_QUOTA._replace(verdict=OVERLOADED, credentials=1, groups=1, usable_in=seconds), NOW)
    assert bound_text(bound, NOW, is_over=True) == f"the cool-down of the key (overloaded){instant}"


@pytest.mark.parametrize("count", [4, 64])
def test_ended_run_of_first_items_says_what_to_do(count: int) -> None:
    bound = Bound(bounds.WORKERS, FIRST_ITEMS, amount=count, detail="the first items, until their use is known")
    assert bound_text(bound) == f"the first items, until their use is known: room for {count} items at once"
    text = f"the careful start of the run, which ended at {count} items at once; --parallel N starts N at once"
    assert bound_text(bound, NOW, is_over=True) == text


def test_names_in_sentences_cannot_move_the_cursor() -> None:
    assert "\x1b" not in bound_text(bound_of_pool(AT_LIMIT._replace(on="\x1b[2J", limit="\x1b[2J"), NOW), NOW)


def test_longest_cause_counts_over_all_its_groups() -> None:
    times = BoundTimes(0.0)
    times.note(Bound(bounds.WORKERS, amount=3), 0.0)
    times.note(Bound(bounds.LIMIT, "requests per minute", "a", 1), 5.0)
    times.note(Bound(bounds.LIMIT, "requests per minute", "b", 1, until=9.0), 8.0)
    times.note(Bound(bounds.LIMIT, "tokens per minute", "b", 1), 12.0)
    times.note(None, 13.0)
    assert times.longest() == Bound(bounds.LIMIT, "requests per minute", "b", 1, until=9.0)


def test_learned_and_declared_limit_count_as_one() -> None:
    times = BoundTimes(0.0)
    times.note(Bound(bounds.LIMIT, "learned requests per minute", "a", 1), 0.0)
    times.note(Bound(bounds.WORKERS, amount=3), 4.0)
    times.note(Bound(bounds.LIMIT, "requests per minute", "b", 1), 9.0)
    times.note(None, 12.0)
    assert times.longest() == Bound(bounds.LIMIT, "learned requests per minute", "a", 1)


def test_leases_at_once_have_the_numbers_that_held_longest() -> None:
    """For a second at the end the other key waits for its next request."""
    both = Bound(bounds.AT_ONCE, credentials=2, amount=4)
    times = BoundTimes(0.0)
    for second in (0.0, 10.0):
        times.note(both, second)
        times.note(both._replace(credentials=1, amount=2, paced=1), second + 9.0)
    times.note(None, 20.0)
    assert times.longest() == both


@pytest.mark.parametrize(("seconds", "is_reported"), [(0.9, False), (3.0, True)])
def test_bound_of_less_than_a_second_is_not_reported(seconds: float, is_reported: bool) -> None:
    times = BoundTimes(0.0)
    times.note(Bound(bounds.INPUT), 0.0)
    times.note(None, seconds)
    assert (times.longest() is not None) is is_reported


def test_ended_run_does_not_say_what_other_keys_waited_for() -> None:
    bound = bound_of_pool(AT_LIMIT._replace(credentials=3, held=1), NOW)
    assert bound_text(bound, is_over=True) == "input tokens per minute on team-a (200,000)"


def test_bound_that_ended_the_run_counts_however_short() -> None:
    times = BoundTimes(0.0)
    times.note(Bound(bounds.WORKERS, amount=3), 0.0)
    times.stop(Bound(bounds.COOL_DOWN, QUOTA_EXHAUSTED))
    times.stop(Bound(bounds.BUDGET))
    times.note(None, 1_000.0)
    assert times.longest() == Bound(bounds.COOL_DOWN, QUOTA_EXHAUSTED)


def full_and_limited(until: float) -> Bound:
    waiting = AT_LIMIT._replace(at_once=1, leases=1, usable_in=until)
    return bound_of_pool(waiting, 0.0)


@pytest.mark.parametrize(
    ("limit_seconds", "kind"), [(10.0, bounds.AT_ONCE), (24.0, bounds.AT_ONCE), (30.0, bounds.LIMIT)]
)
def test_limit_binds_if_it_outlasts_the_leases(limit_seconds: float, kind: str) -> None:
    """A credential that serves one request at once, each for 25 s, and one request per `limit_seconds`."""
    times = BoundTimes(0.0)
    for start in range(0, 300, 30):
        times.note(full_and_limited(start + limit_seconds), start, start)
        if limit_seconds > 25:
            times.note(full_and_limited(start + limit_seconds)._replace(at_once=None), start + 25, start + 25)
        else:
            times.note(None, start + 25, start + 25)
        times.note(None, start + 30, start + 30)
    longest = times.longest()
    assert longest is not None
    assert longest.kind == kind
