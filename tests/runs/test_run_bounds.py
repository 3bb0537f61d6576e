"""What binds a run, as its summary and its snapshots say."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from agentos import bounds
from agentos.bounds import TRIAL
from agentos.events import RunEnded
from agentos.items.item import Item
from agentos.pool.states import CredentialState
from agentos.reporters.bound_text import bound_text
from agentos.runs._rules.circuit_breaker import CircuitBreaker
from agentos.runs.run_snapshot import matching_states, with_rests
from agentos.testing import FakeClock
from agentos.verdict import RATE_LIMITED, Verdict
from agentos.workflows.parallel import (
    Command,
    Credential,
    CredentialCoordinator,
    Limits,
    ParallelCoordinator,
    QuotaExhausted,
)
from tests.conftest import eventually


def keys(count: int, **limits: Any) -> list[Credential]:
    return [Credential(f"sk-bound-{n}", id=f"key-{n}", limits=Limits(**limits)) for n in range(count)]


def bound_by(coordinator: ParallelCoordinator, events: list[Any], items: int, worker: Any = lambda *_: None) -> str:
    coordinator.execute_parallel(range(items), worker)
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    return str(ended.bound_by)


def test_run_stopped_by_used_up_quotas_is_bound_by_them() -> None:
    """The keys are out for longer than `max_wait` after some time with all workers busy."""
    clock, events = FakeClock(), []
    pool = CredentialCoordinator(keys(4, max_concurrent=4), clock=clock)
    coordinator = ParallelCoordinator(4, pool, clock=clock, reporter=events.append, max_wait=60)

    def worker(item: int, _: str) -> None:
        if item < 4:
            clock.advance(10)
        raise QuotaExhausted(until=clock.epoch() + 40_000)

    text = bound_by(coordinator, events, 8, worker)
    assert text.startswith("the used-up quota of all 4 keys; the first resets at ")


def test_bound_of_an_automatic_number_names_the_resource(tmp_path: Path) -> None:
    """What bounds the first items is known from the start."""
    end = tmp_path / "end"
    pool = CredentialCoordinator(keys(4, max_concurrent=20))
    coordinator = ParallelCoordinator("auto", pool, reporter=None)
    worker = Command(["sh", "-c", 'until test -e "$0"; do sleep 0.05; done', str(end)], credential_env="KEY")
    with coordinator.stream(range(6), worker) as results:
        eventually(lambda: (bound := results.bound()) is not None and bound.kind == bounds.WORKERS)
        bound = results.bound()
        end.touch()
        assert len(list(results)) == 6
    assert "at once" in bound_text(bound)
    assert "not the keys" not in bound_text(bound)


def test_run_without_usable_credential_says_so() -> None:
    events: list[Any] = []
    pool = CredentialCoordinator(keys(1))
    coordinator = ParallelCoordinator(1, pool, reporter=events.append)
    text = bound_by(coordinator, events, 3, lambda *_: pool.quarantine("key-0", "tested"))
    assert text == "the lack of a usable key: 1 quarantined"


@pytest.mark.parametrize(
    ("limits", "tokens", "text"),
    [
        ({"input_tokens_per_minute": 200}, 200, "input tokens per minute on key-0 (200)"),
        ({"output_tokens_per_minute": 200}, 200, "output tokens per minute on key-0 (200)"),
        ({"requests_per_minute": 1}, 0, "requests per minute on key-0 (1)"),
        ({"tokens_per_day": 200}, 200, "tokens per day on key-0 (200)"),
    ],
)
def test_run_at_a_declared_limit_names_it(limits: dict[str, Any], tokens: int, text: str) -> None:
    """Before, a declared limit was called "learned limit" while the group started slowly."""
    clock = FakeClock()
    pool = CredentialCoordinator(keys(1, max_concurrent=4, **limits), clock=clock)
    coordinator = ParallelCoordinator(4, pool, clock=clock, reporter=None)
    with coordinator.stream(range(2), lambda *_: None, tokens_func=lambda _: tokens) as results:
        next(results)
        eventually(lambda: results.waiting() is not None)
        snapshot = results.snapshot(10)
        assert snapshot.bound is not None
        assert snapshot.bound.until is not None
        assert snapshot.bound.until > clock.epoch()
        assert snapshot.bound.kind == bounds.LIMIT
        clock.advance(86_400)
        assert len(list(results)) == 1
        assert bound_text(snapshot.bound) == text


def test_snapshot_shows_running_items_on_credentials_in_use() -> None:
    pool = CredentialCoordinator(keys(6))
    coordinator = ParallelCoordinator(3, pool, reporter=None)
    is_over = threading.Event()
    with coordinator.stream(range(400), lambda *_: None) as results:
        thread = threading.Thread(target=lambda: (list(results), is_over.set()), daemon=True)
        thread.start()
        while not is_over.is_set():
            snapshot = results.snapshot(10)
            in_use = {state.key_id for state in snapshot.credentials if state.in_use}
            assert {item.credential_id for item in snapshot.running} <= in_use
            assert snapshot.stats.running == len(snapshot.running)
        thread.join(30)


def test_snapshot_counts_leases_that_the_pool_did_not_know() -> None:
    free = CredentialState("a", max_concurrent=2)
    (state,) = matching_states([free], {"a": 2})
    assert (state.in_use, state.live_leases, state.is_available) == (True, 2, False)
    assert matching_states([free], {}) == (free,)


def test_credential_resting_in_the_run_is_shown_as_paused() -> None:
    states = [CredentialState("a"), CredentialState("b", rate_limited_until=500.0)]
    a, b = with_rests(states, {"a": (30.0, "auth_failed"), "b": (30.0, "auth_failed")}, 100.0)
    assert (a.cooled_until, a.cooled_by) == (130.0, {"": "auth_failed"})
    assert b == states[1]


def test_credential_on_trial_is_not_shown_as_paused() -> None:
    states = [CredentialState("a", in_use=True, live_leases=1)]
    assert with_rests(states, {"a": (9.0, TRIAL)}, 100.0) == tuple(states)


def test_trial_after_a_rest_is_named_as_such() -> None:
    """The rest of a second is over: the ten seconds that the trial may take are no rest."""
    breaker = CircuitBreaker()
    item = Item("item-0", "item-0")
    breaker.refused(item, "a", Verdict(RATE_LIMITED, retry_after=0.4), 0.0, 1.0, 0.5)
    assert breaker.rests(1.25) == {"a": (0.75, RATE_LIMITED)}
    breaker.started(item, "a", 2.0)
    assert breaker.rests(3.0) == {"a": (9.0, TRIAL)}
