"""Properties of runs with dead, limited and slandered keys, in virtual time. Invariants 41 and 42."""

from __future__ import annotations

import itertools
import json

from hypothesis import strategies as st

from agentos.events import CredentialQuarantined, RunStopping
from agentos.items.attempt import Attempt
from agentos.providers import verdicts
from agentos.runs._rules.circuit_breaker import MAX_AUTH_REFUSALS
from agentos.testing import FakeClock
from tests.support.properties import holds_for
from tests.support.virtual_runs import Outcome, VirtualRun, command_failed, run_all

from .test_dead_keys import ECHO_401, ECHO_429, ITEM_SECONDS, LIMITED, REFUSED, failed_items, items, keys, make_pool


@holds_for(
    examples=60,
    dead=st.sets(st.integers(0, 5)),
    limited=st.sets(st.integers(0, 5)),
    printed=st.sets(st.integers(0, 5)),
    count=st.integers(2, 6),
    broken=st.sets(st.integers(0, 29), max_size=6),
    workers=st.integers(1, 8),
    max_concurrent=st.integers(1, 3),
    retries=st.integers(0, 2),
)
def test_no_item_is_lost_to_keys_that_never_work(
    dead: set[int], limited: set[int], printed: set[int], count: int, broken: set[int], workers: int,
    max_concurrent: int, retries: int,
) -> None:  # fmt: skip
    """Random keys: dead (silent or printing 401), limited for the first minute, or good; and some broken items."""
    dead = {number for number in dead if number < count} - {count - 1}  # the last key works
    names = items(30)
    broken_names = {names[number] for number in broken}
    clock = FakeClock()
    limited_until = clock.now() + 60.0

    def behave(attempt: Attempt) -> Outcome:
        number = int((attempt.credential_id or "").removeprefix("key-"))
        if number in dead:
            return Outcome(0.05, command_failed(REFUSED) if number in printed else command_failed())
        if number in limited and clock.now() < limited_until:
            return Outcome(0.05, command_failed(LIMITED))
        return Outcome(ITEM_SECONDS, command_failed() if attempt.id in broken_names else None)

    pool = make_pool(clock, keys(count), max_concurrent)
    run = VirtualRun(names, behave, pool, clock, workers=workers, retries=retries)
    run_all(clock, run)
    assert run.is_ended
    assert set(failed_items(run)) == broken_names
    assert len(run.collected) == len(names)
    for result in run.collected:
        assert result.attempts <= 1 + retries + 10 + 25


def _with_headers(wait: int, kind: str, limit: int) -> str:
    headers = {"retry-after": f"{wait}", f"x-ratelimit-limit-{kind}": f"{limit}", f"x-ratelimit-remaining-{kind}": "0"}
    return json.dumps({"error": {"code": "rate_limit_exceeded", "message": "slow"}, "headers": headers})


_TEXTS = st.one_of(
    st.sampled_from([ECHO_401, ECHO_429, "HTTP 401 Unauthorized", "curl: (22) The requested URL returned error: 429"]),
    st.builds(
        "Error: {} {{'type': 'error', 'error': {{'type': '{}', 'message': 'try again in {} seconds'}}}}".format,
        st.sampled_from([401, 403, 429, 503, 529]),
        st.sampled_from(["rate_limit_error", "authentication_error", "overloaded_error", "insufficient_quota"]),
        st.integers(0, 10**6),
    ),
    st.builds("Claude AI usage limit reached|{}".format, st.integers(1_800_000_000, 1_900_000_000)),
    st.builds("anthropic.AuthenticationError: Error code: 401 - invalid x-api-key {}".format, st.integers()),
    st.builds(_with_headers, st.integers(0, 10**6), st.sampled_from(["requests", "tokens"]), st.integers(1, 10)),
    st.text(max_size=60),
)


@holds_for(
    examples=60,
    texts=st.lists(_TEXTS, min_size=1, max_size=6),
    count=st.integers(1, 3),
    status=st.sampled_from([0, 1, 41, 75]),
)
def test_no_text_takes_a_key_out_of_use(texts: list[str], count: int, status: int) -> None:
    """Items print texts of known families, and random ones, with every key. The pool does not change, another run has
    every key at once, and their own run uses each key again within a minute."""
    clock = FakeClock()
    pool = make_pool(clock, keys(count))
    outputs = dict(zip(items(len(texts), "echo"), texts, strict=True))

    def behave(attempt: Attempt) -> Outcome:
        text = outputs.get(attempt.id)
        if text is None:
            return Outcome(ITEM_SECONDS)
        verdict = verdicts.from_output(text, status, provider="anthropic", now=clock.epoch())
        assert verdict.is_printed is (verdict.kind is not None)
        return Outcome(0.1, None if status == 0 and verdict.kind is None else command_failed(verdict, status))

    run = VirtualRun([*outputs, *items(30)], behave, pool, clock)
    for _ in range(400):
        run_all(clock, run, seconds=0.5)
        for state in pool.states():
            assert state.quarantined is None
            assert state.cooled_until is None
            assert not state.cooling
            assert not state.learned
            assert state.waits_for is None
    run_all(clock, run)
    assert [id_ for id_ in failed_items(run) if id_ not in outputs] == []
    if run.events_of(RunStopping):  # every key was called dead MAX_AUTH_REFUSALS times in a row
        assert len(texts) >= MAX_AUTH_REFUSALS
        return
    for id_ in pool.ids:
        starts = [start.at for start in run.starts if start.credential_id == id_]
        good = [start.at for start in run.starts if not start.item_id.startswith("echo")]
        before_last = [at for at in starts if at <= max(good)]
        assert all(later - earlier < 61.0 for earlier, later in itertools.pairwise([1000.0, *before_last]))
    assert not run.events_of(CredentialQuarantined)
