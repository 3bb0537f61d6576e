"""ParallelCoordinator through its public API, with threads and async workers."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.events import StillRunning
from agentos.limits import backoff
from agentos.testing import FakeClock
from agentos.workflows.parallel import (
    AuthFailed,
    Credential,
    CredentialCoordinator,
    Interrupted,
    InvalidItemId,
    JsonReporter,
    Limits,
    Overloaded,
    ParallelCoordinator,
    Permanent,
    PlainReporter,
    RateLimited,
    Transient,
    Verdict,
    WorkflowResult,
    current_item,
)
from tests.conftest import BUSY, eventually

KEYS = ["sk-alpha-000000", "sk-bravo-111111", "sk-charlie-222222"]


def quiet(
    max_workers: int | None = 3, pool: CredentialCoordinator | None = None, **options: Any
) -> ParallelCoordinator:
    return ParallelCoordinator(max_workers, pool, reporter=None, **options)


def by_id(results: list[WorkflowResult]) -> dict[str, WorkflowResult]:
    assert len({result.item_id for result in results}) == len(results)
    return {result.item_id: result for result in results}


@pytest.fixture
def _quick_collection() -> Iterator[None]:
    """What other tests have imported is not looked at each time: some of it is large."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)


# --- the sketches' rows ---------------------------------------------------------------------------------------------


def test_every_item_is_run_with_a_credential_and_its_result_returned() -> None:
    pool = CredentialCoordinator(KEYS)
    stats, results = quiet(3, pool).execute_parallel(
        range(20), lambda item, key: (item, str(key)), lambda i: f"item-{i}"
    )
    assert (stats.total, stats.completed, stats.success_count, stats.failed) == (20, 20, 20, 0)
    assert stats.completion_rate == 100
    assert stats.stopped is None
    assert stats.elapsed == stats.elapsed  # it stands still after the end
    found = by_id(results)
    assert found.keys() == {f"item-{n}" for n in range(20)}
    assert all(result.success and result.error is None and result.attempts == 1 for result in results)
    assert {result.value[1] for result in results} == set(KEYS)
    assert {result.credential_id for result in results} == {state.key_id for state in pool.states()}
    assert pool.get_available_count() == 3


def test_without_a_pool_the_worker_gets_none() -> None:
    _, results = quiet().execute_parallel(["a"], lambda _item, credential: credential)
    assert results[0].value is None
    assert results[0].credential_id is None


def test_one_items_failure_never_touches_another() -> None:
    def worker(item: str, _: Any) -> str:
        errors = {
            "e": ValueError("boom"),
            "s": SystemExit(3),
            "k": KeyboardInterrupt(),
            "m": MemoryError(),
            "n": OSError(),
        }
        if item in errors:
            raise errors[item]
        return item

    stats, results = quiet().execute_parallel(list("aebscknm"), worker)
    found = by_id(results)
    assert (stats.success_count, stats.failed) == (3, 5)
    assert found["e"].error == "boom"
    assert found["e"].metadata["error_type"] == "ValueError"
    assert "raise errors[item]" in found["e"].metadata["traceback"]
    assert found["n"].error == "OSError"  # no text of its own: its name


def test_the_defaults_and_the_cap(capsys: pytest.CaptureFixture[str]) -> None:
    assert ParallelCoordinator.DEFAULT_PARALLELISM == 3
    assert ParallelCoordinator.MAX_PARALLELISM == 10
    assert ParallelCoordinator().max_workers == 3
    assert capsys.readouterr().out == ""
    assert ParallelCoordinator(50).max_workers == 10
    out = capsys.readouterr().out
    assert "50" in out
    assert "10" in out
    assert ParallelCoordinator(50, max_parallelism=100).max_workers == 50
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "3", True])
def test_a_number_of_workers_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="max_workers"):
        ParallelCoordinator(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"workers": "greenlets"},
        {"admission": "maybe"},
        {"retries": -1},
        {"timeout": 0},
        {"grace_seconds": -1},
        {"halt": "whenever"},
        {"max_parallelism": 0},
        {"max_wait": "long"},
        {"retry_on": "ValueError"},
        {"retry_on": [1]},
        {"classify": 3},
        {"reporter": JsonReporter},
        {"grace_seconds": None},
        {"halt": 1},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ParallelCoordinator(**options)


def test_the_printed_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(item: str, _: Any) -> None:
        if item == "b":
            raise ValueError("went wrong")

    ParallelCoordinator(2).execute_parallel(["a", "b"], worker)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "[COORDINATOR] Starting parallel execution of 2 items with 2 workers"
    assert [line for line in lines if "Progress" in line] == [
        "[COORDINATOR] Progress: 1/2 (50.0%)",
        "[COORDINATOR] Progress: 2/2 (100.0%)",
    ]
    assert "[COORDINATOR] Failed: b: ValueError: went wrong" in lines
    summary = lines.index("[COORDINATOR] Execution complete:")
    assert lines[summary + 1 : summary + 4] == ["  Total: 2", "  Succeeded: 1", "  Failed: 1"]
    assert lines[summary + 4].startswith("  Duration: ")
    assert lines[summary + 5].startswith("  Bound by: ")


def test_a_dry_run_prints_the_ids_and_touches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS)
    touched: list[Any] = []
    coordinator = ParallelCoordinator(2, pool)
    stats, results = coordinator.execute_parallel(
        [1, 2], lambda *a: touched.append(a), lambda i: f"id-{i}", dry_run=True
    )
    out = capsys.readouterr().out
    assert "[COORDINATOR] Dry run mode" in out
    assert "  - id-1\n  - id-2" in out
    assert "Execution" not in out
    assert (stats.total, stats.completed, results, touched) == (2, 0, [], [])
    assert list(coordinator.stream([1, 2], lambda *a: touched.append(a), dry_run=True)) == []
    assert pool.get_available_count() == 3
    with pytest.raises(ValueError, match="'1'"):
        coordinator.execute_parallel([1, 1], print, dry_run=True)
    coordinator.execute_parallel(itertools.count(), print, dry_run=True)  # an endless input: only its beginning
    assert "  - 999" in capsys.readouterr().out


def test_an_id_cannot_forge_a_line_or_silence_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    ids = ["a\n[COORDINATOR] Execution complete:", "b\x1b[2J", "\ud800"]

    def worker(_item: str, _: Any) -> None:
        raise ValueError

    ParallelCoordinator(1).execute_parallel(ids, worker)
    out = capsys.readouterr().out
    assert out.count("\n[COORDINATOR] Execution complete:") == 1
    assert "\x1b" not in out
    assert "Progress: 3/3" in out


def test_reporter_none_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS[:1])
    quiet(3, pool).execute_parallel(range(5), lambda _i, _c: None)
    ParallelCoordinator(99, reporter=None)
    assert capsys.readouterr() == ("", "")


def test_a_reporter_that_breaks_does_not_end_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_event: Any) -> None:
        raise BrokenPipeError("nobody reads")

    stats, _ = ParallelCoordinator(2, reporter=broken).execute_parallel(range(5), lambda _i, _c: None)
    assert stats.success_count == 5
    assert capsys.readouterr().err.count("reporter failed") == 1


# --- bad input ------------------------------------------------------------------------------------------------------


def test_duplicate_ids_in_a_collection_are_found_before_anything_starts() -> None:
    touched: list[Any] = []
    with pytest.raises(ValueError, match="'x'"):
        quiet().execute_parallel(["a", "x", "b", "x"], lambda *a: touched.append(a))
    assert touched == []


def test_a_duplicate_id_in_a_stream_fails_that_item() -> None:
    stats, results = quiet().execute_parallel(iter(["a", "x", "b", "x"]), lambda item, _: item)
    assert (stats.success_count, stats.failed, stats.total) == (3, 1, 4)
    (failed,) = [result for result in results if not result.success]
    assert failed.item_id == "x"
    assert failed.attempts == 0
    assert "an id names one item" in (failed.error or "")


def test_a_worker_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="worker_func"):
        quiet().execute_parallel([1], "not a function")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="items must be iterable"):
        quiet().execute_parallel(7, print)  # type: ignore[arg-type]


@pytest.mark.parametrize("items", [[0, 1], iter([0, 1])], ids=["collection", "stream"])
def test_an_id_func_that_raises_or_returns_no_string_is_a_clear_error(items: Any) -> None:
    with pytest.raises(InvalidItemId, match=r"item number 1.*ZeroDivisionError"):
        quiet().execute_parallel(items, lambda _i, _c: None, lambda i: str(1 / i))
    with pytest.raises(InvalidItemId, match="must return a string"):
        quiet().execute_parallel([5], lambda _i, _c: None, lambda i: i)  # type: ignore[return-value]
    assert issubclass(InvalidItemId, ValueError)
    assert issubclass(InvalidItemId, TypeError)


def test_an_iterator_that_raises_half_way_lets_what_started_finish_and_then_raises() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise RuntimeError("the database went away")

    coordinator = quiet(2)
    seen: list[str] = []
    with pytest.raises(RuntimeError, match="the database went away"):
        seen.extend(result.item_id for result in coordinator.stream(items(), lambda item, _: item))
    assert set(seen) | set(coordinator.get_checkpoints()) == {"0", "1", "2", "3", "4"}
    with pytest.raises(RuntimeError) as caught:
        coordinator.execute_parallel(items(), lambda item, _: item)
    assert "partial_results" in caught.value.__notes__[0]
    ended = {result.item_id for result in coordinator.partial_results}
    assert ended | set(coordinator.get_checkpoints()) == {"0", "1", "2", "3", "4"}


def test_an_empty_input_is_a_run_of_nothing() -> None:
    for empty in ([], iter([]), range(0), {}):
        stats, results = quiet().execute_parallel(empty, lambda _i, _c: None)
        assert (stats.total, stats.completed, results) == (0, 0, [])
        assert stats.completion_rate == 0


@pytest.mark.parametrize(
    "items", [{"a": 1, "b": 2}, {"a", "b"}, ("a", "b"), frozenset("ab"), {"a": 1, "b": 2}.keys(), "ab"], ids=type
)
def test_any_collection_will_do(items: Any) -> None:
    stats, results = quiet().execute_parallel(items, lambda item, _: item)
    assert stats.total == 2
    assert by_id(results).keys() == {"a", "b"}


def test_a_sized_thing_that_can_be_read_once_is_read_once() -> None:
    class Once:
        def __init__(self) -> None:
            self._rest = iter("abc")

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[str]:
            return self._rest

    stats, _ = quiet().execute_parallel(Once(), lambda item, _: item)
    assert (stats.total, stats.success_count) == (3, 3)


def test_a_plain_function_that_returns_a_coroutine_fails_clearly() -> None:
    async def work() -> None:
        return None

    _, results = quiet().execute_parallel([1], lambda _item, _credential: work())
    assert "async def" in (results[0].error or "")


def test_tokens_and_scope_funcs_that_fail_fail_their_item_only() -> None:
    def tokens(item: int) -> int:
        return {1: -5}.get(item, 10)

    def scope(item: int) -> str:
        return {2: "x"}[item] if item == 3 else "model"

    pool = CredentialCoordinator(KEYS)
    stats, results = quiet(2, pool).execute_parallel(range(4), lambda i, _: i, tokens_func=tokens, scope_func=scope)
    assert stats.failed == 2
    assert {r.item_id for r in results if not r.success} == {"1", "3"}
    assert sum(state.tokens for state in pool.states()) == 20


# --- verdicts -------------------------------------------------------------------------------------------------------


def test_a_rate_limited_item_goes_on_with_another_credential_and_spends_no_retry() -> None:
    pool = CredentialCoordinator([Credential(k, id=k.split("-")[1]) for k in KEYS])

    def worker(item: str, key: str) -> str:
        if "alpha" in key:
            raise RateLimited(retry_after=60)
        return key

    stats, results = quiet(1, pool, retries=0).execute_parallel(["a", "b", "c"], worker)
    assert stats.success_count == 3
    assert by_id(results)["a"].attempts == 2
    assert pool.get_stats()["rate_limited"] == 1
    assert by_id(results)["a"].credential_id == "bravo"


def test_an_item_that_was_sent_back_comes_before_those_that_have_not_started() -> None:
    order: list[str] = []
    pool = CredentialCoordinator(KEYS[:1])

    def worker(item: str, _key: str) -> None:
        order.append(item)
        if order == ["a"]:
            raise RateLimited(retry_after=0.4)  # long enough for it to be back before that is over

    quiet(3, pool).execute_parallel(list("abcd"), worker)
    assert order == ["a", "a", "b", "c", "d"]


def test_waiting_for_a_limit_costs_no_worker() -> None:
    """Two items wait for a scope that cools; the one worker does all others meanwhile."""
    pool = CredentialCoordinator([Credential(KEYS[0], limits=Limits(max_concurrent=5))])
    with pytest.raises(RateLimited), pool.lease(scope="slow"):
        raise RateLimited(retry_after=1.0)
    order: list[int] = []
    quiet(1, pool).execute_parallel(
        range(20), lambda i, _: order.append(i), scope_func=lambda i: "slow" if i < 2 else "fast"
    )
    assert order == [*range(2, 20), 0, 1]


@pytest.mark.usefixtures("_short_pauses")
def test_transient_errors_spend_retries_with_a_pause() -> None:
    attempts: Counter[str] = Counter()

    def worker(item: str, _: Any) -> int:
        attempts[item] += 1
        if item == "always" or attempts[item] < 3:
            raise Transient("try again")
        return attempts[item]

    stats, results = quiet(retries=2).execute_parallel(["sometimes", "always"], worker)
    found = by_id(results)
    assert found["sometimes"].value == 3
    assert found["always"].error == "try again"
    assert found["always"].attempts == 3
    assert found["always"].metadata["verdict"] == "transient"
    assert stats.failed == 1


@pytest.mark.usefixtures("_short_pauses")
def test_a_connection_error_is_transient_and_retry_on_adds_to_that() -> None:
    seen: Counter[str] = Counter()

    def worker(item: str, _: Any) -> None:
        seen[item] += 1
        if seen[item] == 1:
            raise {"c": ConnectionResetError(), "k": KeyError("k"), "v": ValueError()}[item]

    _, results = quiet(retry_on=KeyError).execute_parallel(list("ckv"), worker)
    assert {r.item_id: r.success for r in results} == {"c": True, "k": True, "v": False}
    assert seen == {"c": 2, "k": 2, "v": 1}


@pytest.mark.usefixtures("_short_pauses")
def test_classify_has_the_first_word() -> None:
    class Busy(Exception):
        pass

    def classify(exc: BaseException) -> Any:
        return {"x": Verdict("rate_limited", retry_after=0.01), "y": "permanent", "z": "no such verdict"}.get(str(exc))

    pool = CredentialCoordinator(KEYS[:1])
    seen: Counter[str] = Counter()

    def worker(item: str, _: Any) -> None:
        seen[item] += 1
        if seen[item] == 1:
            raise Busy(item)

    _, results = quiet(1, pool, classify=classify, retry_on=Busy).execute_parallel(list("xyzw"), worker)
    found = by_id(results)
    assert {i: r.success for i, r in found.items()} == {"x": True, "y": False, "z": False, "w": True}
    assert "classify must return" in (found["z"].error or "")


def test_a_permanent_error_fails_at_once() -> None:
    _, results = quiet(retries=5).execute_parallel([1], lambda *_: (_ for _ in ()).throw(Permanent("too large")))
    assert (results[0].attempts, results[0].error) == (1, "too large")


def test_a_dead_key_is_quarantined_and_the_others_do_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    def worker(_item: int, key: str) -> None:
        if "alpha" in key:
            raise AuthFailed("Incorrect API key provided: " + key)

    clock = FakeClock()
    pool = CredentialCoordinator([Credential(k, id=k.split("-")[1]) for k in KEYS], clock=clock)
    for name in ("one", "two"):
        with pytest.raises(AuthFailed), pool.lease(name, prefer="alpha") as lease:
            worker(0, lease.secret)
        clock.advance(5)
    stats, _ = ParallelCoordinator(2, pool).execute_parallel(range(10), worker)
    assert stats.success_count == 10
    assert pool.get_stats()["quarantined"] == 1
    (state,) = [s for s in pool.states() if s.quarantined]
    assert state.key_id == "alpha"
    assert KEYS[0] not in repr(pool.states())
    assert KEYS[0] not in capsys.readouterr().out


def test_a_run_stops_when_no_credential_can_become_usable_without_a_person() -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="alpha")])
    coordinator = quiet(2, pool)
    started = threading.Event()

    def worker(item: int, _: str) -> int:
        started.set()
        pool.quarantine("alpha", "the card expired")
        return item

    stats, results = coordinator.execute_parallel(range(10), worker)
    assert stats.stopped is not None
    assert "the card expired" in stats.stopped
    assert [r.success for r in results] == [True]  # what ran, finished
    assert len(coordinator.get_checkpoints()) == 9
    assert stats.failed == 0


def test_max_wait_stops_a_run_in_which_nothing_can_start() -> None:
    pool = CredentialCoordinator(KEYS[:1])
    pool.mark_rate_limited(KEYS[0], 3600)
    coordinator = quiet(2, pool, max_wait=30)
    start = time.monotonic()
    stats, results = coordinator.execute_parallel(range(3), lambda *_: None)
    assert time.monotonic() - start < 1 + BUSY  # the provider's own figure is longer: no need to wait for it
    assert "within 30 s" in (stats.stopped or "")
    assert results == []
    assert coordinator.get_checkpoints() == ["0", "1", "2"]

    pool = CredentialCoordinator(KEYS[:1])
    with pool.lease():  # in use by somebody else, nobody knows for how long
        stats, _ = quiet(2, pool, max_wait=0.05).execute_parallel(range(3), lambda *_: None)
    assert "within 0.05 s" in (stats.stopped or "")


def test_overload_sends_items_back_until_it_is_over() -> None:
    pool = CredentialCoordinator([Credential(k, provider="p") for k in KEYS])
    calls = itertools.count()

    def worker(_item: int, _key: str) -> None:
        if next(calls) < 1:
            raise Overloaded

    stats, _ = quiet(1, pool, retries=0).execute_parallel(range(4), worker)
    assert stats.success_count == 4


def test_secrets_are_taken_out_of_errors_and_tracebacks() -> None:
    pool = CredentialCoordinator(KEYS)

    def worker(item: int, key: str) -> None:
        raise ValueError(f"cannot use {key!s} for {item}") from RuntimeError(str(key))

    _, results = quiet(2, pool).execute_parallel(range(3), worker)
    for result in results:
        assert result.error == f"cannot use **** for {result.item_id}"
        assert not any(key in repr(result) for key in KEYS)


def test_no_key_is_told_also_when_the_input_or_a_result_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS)

    def items() -> Iterator[int]:
        yield 1
        raise RuntimeError(f"https://host/?key={KEYS[0]}")

    for reporter in (PlainReporter(), JsonReporter()):
        with pytest.raises(RuntimeError):
            ParallelCoordinator(1, pool, reporter=reporter).execute_parallel(
                items(), lambda _i, key: {"auth": str(key)}
            )
    out = capsys.readouterr().out
    assert "the input failed" in out
    assert "****" in out
    assert not any(key in out for key in KEYS)


def test_a_run_in_which_nothing_ends_says_that_it_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    pool = CredentialCoordinator(KEYS[:1], clock=clock)
    pool.mark_rate_limited(KEYS[0], 100)
    events: list[Any] = []

    def reporter(event: Any) -> None:
        events.append(event)
        PlainReporter()(event)

    def watch() -> None:
        eventually(lambda: pool.get_stats()["waiting"] > 0)
        clock.advance(30)
        eventually(lambda: any(isinstance(event, StillRunning) for event in events))
        clock.advance(70)

    threading.Thread(target=watch, daemon=True).start()
    stats, _ = ParallelCoordinator(1, pool, clock=clock, reporter=reporter).execute_parallel([1], lambda *_: None)
    assert stats.success_count == 1
    out = capsys.readouterr().out
    assert re.search(r"Still here: 0 done, 0 running, 1 waiting, about \d+\.\d s to go: all 1 usable credentials", out)
    assert "Bound by: the providers' limits on 1 credentials" in out


def test_a_timeout_of_for_ever_does_not_stop_the_clock() -> None:
    pause = threading.Event()
    quiet(1, timeout=float("inf")).execute_parallel([1], lambda *_: pause.wait(0.05))
    quiet(1, timeout=1e10).execute_parallel([1], lambda *_: pause.wait(0.05))
    pool = CredentialCoordinator(KEYS[:1])
    pool.mark_rate_limited(KEYS[0], 0.05)
    assert pool.reserve(timeout=10) == KEYS[0]


# --- halting --------------------------------------------------------------------------------------------------------


def test_halt_soon_lets_running_items_finish_and_starts_no_more() -> None:
    coordinator = quiet(1, halt="soon,fail=2")

    def worker(item: int, _: Any) -> None:
        if item in (1, 3):
            raise ValueError

    stats, results = coordinator.execute_parallel(range(100), worker)
    assert [r.item_id for r in results] == ["0", "1", "2", "3"]
    assert stats.stopped == "halted: 2 failed (soon,fail=2)"
    assert coordinator.get_checkpoints() == [str(n) for n in range(4, 100)]


def test_halt_now_tells_running_items_to_stop() -> None:
    barrier = threading.Barrier(2, timeout=60)

    def worker(item: str, _: Any) -> None:
        barrier.wait()
        if item == "bad":
            raise ValueError("boom")
        eventually(lambda: current_item().should_stop)
        raise Interrupted

    coordinator = quiet(2, halt="now,fail=1")
    stats, results = coordinator.execute_parallel(["bad", "good", "never"], worker)
    assert [r.item_id for r in results] == ["bad"]
    assert stats.stopped == "halted: 1 failed (now,fail=1)"
    assert sorted(coordinator.get_checkpoints()) == ["good", "never"]


def test_halt_by_percent_of_all_items() -> None:
    stats, results = quiet(1, halt="soon,fail=10%").execute_parallel(range(50), lambda i, _: 1 / (i % 2))
    assert stats.failed == 5
    assert len(results) == 9


# --- streaming ------------------------------------------------------------------------------------------------------


def test_results_are_yielded_as_items_end() -> None:
    gate = threading.Event()
    with quiet(2).stream(["slow", "fast"], lambda item, _: item == "slow" and gate.wait(60)) as results:
        assert next(results).item_id == "fast"
        gate.set()
        assert next(results).item_id == "slow"
        assert next(results, None) is None
        assert results.stats.completed == 2


def test_an_endless_input_is_read_only_as_far_ahead_as_there_is_room() -> None:  # invariant 26
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in itertools.count():
            read = number
            yield number

    with quiet(3).stream(items(), lambda item, _: item) as results:
        for _ in range(200):
            next(results)
        eventually(lambda: results._run.results._wakeup.is_armed and results.stats.running == 0)  # it slows the run
        assert read < 200 + 64 + 4 * 3
    assert results.stats.stopped == "left early"


def test_leaving_early_is_a_shutdown_with_grace() -> None:
    has_begun, told = threading.Event(), threading.Event()

    def worker(item: int, _: Any) -> int:
        if item > 2:
            has_begun.set()
            eventually(lambda: current_item().should_stop)
            told.set()
            raise Interrupted
        return item

    coordinator = quiet(2)
    with coordinator.stream(itertools.count(), worker) as results:
        for _ in range(3):
            next(results)
        assert has_begun.wait(60)
    assert told.is_set()
    checkpoints = coordinator.get_checkpoints()
    assert checkpoints
    assert all(int(item_id) > 2 for item_id in checkpoints)


def test_a_forgotten_stream_stops_its_run_and_its_unfinished_items_are_named() -> None:
    coordinator = quiet(2)
    for _ in coordinator.stream(range(1000), lambda item, _: item):
        break
    eventually(lambda: len(coordinator.get_checkpoints()) > 800)
    assert not coordinator._runs


@pytest.mark.usefixtures("_quick_collection")
def test_a_forgotten_async_stream_stops_its_run_and_gives_the_signals_back() -> None:
    handler = signal.getsignal(signal.SIGTERM)

    async def worker(item: int, _: Any) -> int:
        return item

    async def main() -> None:
        coordinator = quiet(2)
        async for _ in coordinator.astream(range(1000), worker):
            break
        while coordinator._runs:
            gc.collect()
            await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(lambda: None))])
        assert len(coordinator.get_checkpoints()) > 800

    asyncio.run(main())
    assert signal.getsignal(signal.SIGTERM) is handler


def test_after_leaving_early_every_item_is_in_a_result_or_a_checkpoint() -> None:
    coordinator = quiet(2)
    with coordinator.stream(range(100), lambda item, _: item) as results:
        first = next(results)
        eventually(lambda: results.stats.completed > 50)
    rest = [result.item_id for result in results]
    ids = [first.item_id, *rest, *coordinator.get_checkpoints()]
    assert sorted(ids, key=int) == [str(n) for n in range(100)]

    async def main() -> None:
        async def worker(item: int, _: Any) -> int:
            return item

        async with coordinator.astream(range(100), worker) as stream:
            first = await anext(stream)
        ids = [first.item_id, *[r.item_id async for r in stream], *coordinator.get_checkpoints()]
        assert sorted(ids, key=int) == [str(n) for n in range(100)]

    asyncio.run(main())


def test_a_slow_input_does_not_hold_up_results() -> None:
    more = threading.Event()

    def items() -> Iterator[str]:
        yield "first"
        more.wait(60)
        yield "second"

    results = quiet(2).stream(items(), lambda item, _: item)
    assert next(results).item_id == "first"
    more.set()
    assert [result.item_id for result in results] == ["second"]


def test_an_input_that_blocks_for_ever_does_not_hold_up_a_shutdown() -> None:
    never = threading.Event()

    def items() -> Iterator[str]:
        yield "first"
        never.wait()
        yield "second"

    coordinator = quiet(2, grace_seconds=0.1)
    results = coordinator.stream(items(), lambda item, _: item)
    next(results)
    coordinator.request_shutdown()
    assert list(results) == []
    assert results.stats.stopped == "interrupted"
    never.set()


def test_lots_of_items_through_lots_of_workers_each_end_once() -> None:
    limits = Limits(max_concurrent=3, requests_per_minute=10**9, burst=10**9)  # none that is to be learned
    pool = CredentialCoordinator([Credential(k, limits=limits) for k in KEYS])
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def worker(item: int, _: str) -> None:
        with lock:
            seen[item] += 1
            first = seen[item] == 1
        if first and item % 7 == 0:
            raise RateLimited(retry_after=0.001)

    stats, results = quiet(20, pool, max_parallelism=20).execute_parallel(range(3000), worker)
    assert stats.success_count == 3000
    assert len(by_id(results)) == 3000
    assert sum(seen.values()) == 3000 + len(range(0, 3000, 7))
    assert pool.get_stats()["reserved"] == 0


# --- async workers --------------------------------------------------------------------------------------------------


def test_async_workers_run_by_the_thousand() -> None:
    limits = Limits(max_concurrent=1000, requests_per_minute=10**9, burst=10**9)  # none that is to be learned
    pool = CredentialCoordinator([Credential(k, limits=limits) for k in KEYS])
    running = most = 0
    all_in = asyncio.Event()

    async def worker(item: int, key: str) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2000:
            all_in.set()
        await asyncio.wait_for(all_in.wait(), 60)
        running -= 1
        return current_item().attempt if current_item().id == str(item) else -1

    stats, results = quiet(2000, pool, max_parallelism=2000).execute_parallel(range(4000), worker)
    assert stats.success_count == 4000
    assert most == 2000
    assert {result.value for result in results} == {1}


def test_the_sync_call_works_inside_a_running_loop() -> None:
    async def worker(item: int, _: Any) -> int:
        return item

    async def main() -> int:
        return quiet().execute_parallel(range(5), worker)[0].success_count

    assert asyncio.run(main()) == 5


def test_the_async_twin_runs_workers_on_the_callers_loop() -> None:
    async def main() -> None:
        here = asyncio.get_running_loop()

        async def worker(item: int, _: Any) -> bool:
            return asyncio.get_running_loop() is here

        stats, results = await quiet().execute_parallel_async(range(50), worker)
        assert stats.success_count == 50
        assert all(result.value for result in results)
        seen = []
        async with quiet().astream(itertools.count(), worker) as stream:
            async for result in stream:
                seen.append(result.item_id)
                if len(seen) == 30:
                    break
        assert stream.stats.stopped == "left early"
        stats, _ = await quiet().execute_parallel_async(range(5), lambda item, _: item)  # plain functions: threads
        assert stats.success_count == 5

    asyncio.run(main())


def test_one_async_items_failure_never_touches_another() -> None:
    async def worker(item: str, _: Any) -> str:
        errors = {"s": SystemExit(3), "k": KeyboardInterrupt(), "c": asyncio.CancelledError(), "v": ValueError("boom")}
        if item in errors:
            raise errors[item]
        return item

    stats, results = quiet().execute_parallel(list("askcvb"), worker)
    assert {r.item_id for r in results if r.success} == {"a", "b"}
    assert stats.failed == 4


def test_cancelling_the_async_twin_is_a_shutdown() -> None:
    async def main() -> None:
        started = asyncio.Event()
        ended = []

        async def worker(_item: int, _: Any) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        coordinator = quiet(2)
        task = asyncio.create_task(coordinator.execute_parallel_async(range(5), worker))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ended) >= 1
        assert len(coordinator.get_checkpoints()) == 5

        async def half(item: int, _: Any) -> int:
            if item == 5:  # which begins when all before the fifth have ended
                limit.reschedule(asyncio.get_running_loop().time())
            if item > 3:
                await asyncio.Event().wait()
            return item

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                await coordinator.execute_parallel_async(range(8), half)
        assert sorted(result.item_id for result in coordinator.partial_results) == ["0", "1", "2", "3"]

    asyncio.run(main())


def test_a_shutdown_in_the_same_turn_as_a_start_returns_the_lease_at_once() -> None:
    """A task that is cancelled before its first step never runs, so it cannot say that it has ended."""
    pool = CredentialCoordinator([Credential(KEYS[0], limits=Limits(max_concurrent=50))])

    async def worker(item: int, _: Any) -> None:
        if item == 0:
            coordinator.request_shutdown()

    for _ in range(20):
        coordinator = quiet(50, pool, max_parallelism=50, grace_seconds=60)
        start = time.monotonic()
        _, results = coordinator.execute_parallel(range(2000), worker)
        assert time.monotonic() - start < 1 + BUSY
        assert len(results) + len(coordinator.get_checkpoints()) == 2000
        eventually(lambda: pool.get_stats()["reserved"] == 0)


def test_a_callable_object_with_an_async_call_is_an_async_worker() -> None:
    class Worker:
        async def __call__(self, item: int, _: Any) -> int:
            return item + 1

    _, results = quiet().execute_parallel([1], Worker())
    assert results[0].value == 2


# --- time-outs ------------------------------------------------------------------------------------------------------


def test_a_thread_that_takes_too_long_is_abandoned_and_keeps_its_lease() -> None:
    gate = threading.Event()
    clock = FakeClock()
    pool = CredentialCoordinator(KEYS[:2])
    told: list[bool] = []

    def worker(item: str, _: str) -> str:
        if item == "stuck":
            gate.wait(60)
            told.append(current_item().should_stop)
        return item

    coordinator = quiet(2, pool, timeout=5, retries=5, clock=clock)
    with coordinator.stream(["stuck", "a", "b", "c"], worker) as results:
        found = by_id([next(results) for _ in "abc"])
        clock.advance(5)
        found.update(by_id(list(results)))
    stats = results.stats
    assert found["stuck"].metadata["error_type"] == "AttemptTimeout"
    assert found["stuck"].attempts == 1  # not tried again: the first one may still be at work
    assert stats.success_count == 3
    assert pool.get_stats()["reserved"] == 1
    gate.set()
    eventually(lambda: pool.get_stats()["reserved"] == 0)
    assert told == [True]


def test_a_run_stops_when_as_many_threads_as_workers_have_been_abandoned() -> None:
    gate = threading.Event()
    coordinator = quiet(2, timeout=0.02)
    stats, results = coordinator.execute_parallel(range(10), lambda _i, _c: gate.wait(30))
    gate.set()
    assert len(results) in (2, 3)  # a replacement may have started before the second was given up
    assert "did not end with their time-out" in (stats.stopped or "")
    assert len(coordinator.get_checkpoints()) == 10 - len(results)


@pytest.mark.usefixtures("_short_pauses")
def test_an_async_attempt_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    async def worker(item: str, _: Any) -> int:
        if item == "slow" and current_item().attempt == 1:
            await asyncio.Event().wait()
        return current_item().attempt

    clock = FakeClock()
    with quiet(2, timeout=5, clock=clock).stream(["slow", "quick"], worker) as results:
        first = next(results)
        assert (first.item_id, first.value) == ("quick", 1)
        clock.advance(5)
        eventually(lambda: clock.advance(0.0001) or results.stats.completed == 2)  # the pause before it goes on
        assert [(result.item_id, result.value) for result in results] == [("slow", 2)]


def test_an_async_attempt_that_ignores_its_cancellation_is_left_to_itself() -> None:
    async def worker(_item: str, _: Any) -> None:
        end = asyncio.get_running_loop().create_future()
        while True:
            try:
                await asyncio.shield(end)
            except asyncio.CancelledError:
                if not current_item().should_stop:
                    return

    pool = CredentialCoordinator(KEYS[:1])
    coordinator = quiet(1, pool, timeout=0.05, grace_seconds=0.05)
    stats, results = coordinator.execute_parallel(["stubborn", "next"], worker)
    assert results[0].metadata["error_type"] == "AttemptTimeout"
    assert stats.stopped is not None
    eventually(lambda: pool.get_stats()["reserved"] == 0)  # closed with its loop


# --- what a worker may ask for --------------------------------------------------------------------------------------


def test_current_item_tells_who_is_working_on_what() -> None:
    pool = CredentialCoordinator([Credential(KEYS[0], id="alpha")])

    def worker(item: str, _: str) -> tuple[Any, ...]:
        here = current_item()
        return here.id, here.attempt, here.run_id, here.credential_id, here.should_stop

    _, results = quiet(1, pool).execute_parallel(["a"], worker, run_id="my-run")
    assert results[0].value == ("a", 1, "my-run", "alpha", False)
    with pytest.raises(RuntimeError, match="no item is running here"):
        current_item()
    with pytest.raises(ValueError, match="Invalid identifier"):
        quiet().execute_parallel([1], worker, run_id="../etc")


@pytest.mark.usefixtures("_short_pauses")
def test_a_checkpoint_and_the_workflow_db_survive_from_one_attempt_to_the_next() -> None:
    def worker(_item: str, _: Any) -> tuple[Any, str, bool]:
        here = current_item()
        if here.attempt == 1:
            here.checkpoint.save({"step": 2})
            here.workflow_db.write_text("state")
            raise Transient
        return here.checkpoint.load(), here.workflow_db.read_text(), "../.." in str(here.workflow_db)

    _, results = quiet().execute_parallel(["../../etc/passwd"], worker)
    assert results[0].value == ({"step": 2}, "state", False)


@pytest.mark.usefixtures("_quick_collection")
def test_the_files_of_a_run_are_gone_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gate = threading.Event()

    def worker(item: str, _: Any) -> None:
        current_item().workflow_db.write_text("state")
        if item == "stuck":
            gate.wait(30)

    quiet(2).execute_parallel(["a", "b"], worker)
    assert list(tmp_path.iterdir()) == []
    clock = FakeClock()
    with quiet(1, timeout=5, clock=clock).stream(["stuck"], worker) as stream:
        eventually(lambda: list(tmp_path.rglob("*.db")))
        clock.advance(5)
        assert [result.success for result in stream] == [False]
    del stream
    assert len(list(tmp_path.iterdir())) == 1  # its thread may still use them
    gate.set()
    eventually(lambda: gc.collect() >= 0 and not list(tmp_path.iterdir()))


def test_reported_usage_settles_the_lease_and_is_in_the_result() -> None:
    pool = CredentialCoordinator(KEYS[:1])

    def worker(_item: str, _: str) -> None:
        current_item().report_usage(requests=2, tokens=100)
        current_item().report_usage(tokens=50, cost=0.25)

    _, results = quiet(1, pool).execute_parallel(["a"], worker)
    assert results[0].metadata["usage"] == {"requests": 2, "tokens": 150, "cost": 0.25}
    assert (pool.states()[0].requests, pool.states()[0].tokens) == (2, 150)


@pytest.mark.parametrize("cost", [-1, 1e15, 1e308, float("inf"), float("nan")])
def test_a_cost_that_no_sum_can_be_made_of_is_refused(cost: float) -> None:
    _, results = quiet(1, None).execute_parallel(["a"], lambda *_: current_item().report_usage(cost=cost))
    assert "usage is counted from 0" in str(results[0].error)


def test_a_worker_leases_its_own_credential_first_so_that_nobody_waits_in_a_circle() -> None:
    pool = CredentialCoordinator(KEYS[:2])
    barrier = threading.Barrier(2, timeout=60)

    def worker(_item: int, key: str) -> bool:
        barrier.wait()  # both keys are in use now
        with current_item().lease(timeout=60) as lease:
            return lease.secret == key

    _, results = quiet(2, pool).execute_parallel(range(2), worker)
    assert all(result.value is True for result in results), results
    assert pool.get_stats()["reserved"] == 0


def test_a_second_lease_at_the_same_time_comes_from_the_pool() -> None:
    pool = CredentialCoordinator(KEYS[:2])

    def worker(_item: int, key: str) -> tuple[int, int]:
        with current_item().lease() as first, current_item().lease() as second:
            different = len({first.secret, second.secret})
        with current_item().lease(scope="another") as third:
            return different, int(third.secret in KEYS)

    _, results = quiet(1, pool).execute_parallel([1], worker)
    assert results[0].value == (2, 1)
    assert pool.get_stats()["reserved"] == 0


def test_without_admission_a_worker_leases_by_itself() -> None:
    pool = CredentialCoordinator(KEYS[:1])

    async def worker(item: int, credential: Any) -> Any:
        assert credential is None
        async with current_item().lease() as lease:
            return lease.secret

    stats, results = quiet(10, pool, admission="none").execute_parallel(range(30), worker)
    assert stats.success_count == 30, results
    assert {result.value for result in results} == set(KEYS[:1])


def test_a_worker_can_show_an_answer_to_the_pool() -> None:
    class Answer:
        status_code = 429
        headers = {"retry-after": "60"}  # noqa: RUF012

    pool = CredentialCoordinator(KEYS[:1])
    quiet(1, pool).execute_parallel([1], lambda _i, _c: current_item().observe(Answer()))
    assert pool.get_stats()["rate_limited"] == 1


# --- shutdown from code ---------------------------------------------------------------------------------------------


def test_request_shutdown_returns_what_ended_and_lists_all_that_did_not() -> None:
    coordinator = quiet(2, grace_seconds=30)
    running = threading.Barrier(3, timeout=60)

    def worker(item: int, _: Any) -> int:
        if item < 4:
            return item
        running.wait()
        eventually(lambda: current_item().should_stop)
        if item == 4:
            return item  # finishes within the grace: a result like any other
        raise Interrupted

    def shut_down() -> None:
        running.wait()
        coordinator.request_shutdown()

    threading.Thread(target=shut_down, daemon=True).start()
    stats, results = coordinator.execute_parallel(range(20), worker)
    assert stats.stopped == "interrupted"
    assert sorted(int(r.item_id) for r in results) == [0, 1, 2, 3, 4]
    # Not only what was in flight, but also what was never started, or even read.
    assert sorted(map(int, coordinator.get_checkpoints())) == list(range(5, 20))
    assert stats.failed == 0


def test_a_worker_that_ignores_everything_does_not_hold_up_the_end() -> None:  # invariant 25
    gate = threading.Event()
    started = threading.Event()
    coordinator = quiet(1, grace_seconds=0.2)

    def worker(_item: int, _: Any) -> None:
        started.set()
        gate.wait(60)

    def shut_down() -> None:
        started.wait(60)
        coordinator.request_shutdown()

    threading.Thread(target=shut_down, daemon=True).start()
    start = time.monotonic()
    stats, results = coordinator.execute_parallel(range(3), worker)
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    gate.set()
    assert (stats.stopped, results) == ("interrupted", [])
    assert coordinator.get_checkpoints() == ["0", "1", "2"]


def test_an_async_worker_that_blocks_its_loop_does_not_hold_up_the_end() -> None:  # invariant 25
    gate = threading.Event()
    started = threading.Event()
    coordinator = quiet(3, grace_seconds=0.2)

    async def worker(_item: int, _: Any) -> None:
        started.set()
        gate.wait(60)  # not await: nothing else can run on this loop

    def shut_down() -> None:
        started.wait(60)
        coordinator.request_shutdown()

    threading.Thread(target=shut_down, daemon=True).start()
    start = time.monotonic()
    stats, results = coordinator.execute_parallel(range(5), worker)
    assert time.monotonic() - start < 0.2 + 1 + BUSY
    gate.set()
    assert (stats.stopped, results) == ("interrupted", [])
    assert sorted(coordinator.get_checkpoints()) == ["0", "1", "2", "3", "4"]


def test_a_coordinator_can_be_made_and_used_in_any_thread() -> None:
    results: list[Any] = []

    def run() -> None:
        results.append(quiet().execute_parallel(range(5), lambda item, _: item)[0].success_count)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [5, 5, 5, 5]


def test_checkpoints_are_those_of_the_last_run() -> None:
    coordinator = quiet(1, halt="now,fail=1")
    coordinator.execute_parallel([0, 1, 2], lambda i, _: 1 / i)
    assert coordinator.get_checkpoints() == ["1", "2"]
    coordinator.execute_parallel([1, 2], lambda i, _: 1 / i)
    assert coordinator.get_checkpoints() == []


def test_the_summary_names_what_bound_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    pool = CredentialCoordinator(KEYS)
    pause = threading.Event()
    ParallelCoordinator(1, pool).execute_parallel(range(5), lambda *_: pause.wait(0.03))
    assert "Bound by: 1 workers, not the keys" in capsys.readouterr().out
    ParallelCoordinator(8, pool).execute_parallel(range(20), lambda *_: pause.wait(0.03))
    assert "Bound by: the 3 credentials, all in use, not the workers" in capsys.readouterr().out
