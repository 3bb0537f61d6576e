"""Inputs of a run: collections, streams, and errors in them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agentos.workflows.parallel import (
    CredentialCoordinator,
    InvalidItemId,
)
from tests.conftest import eventually

from .coordinators import KEYS, by_id, quiet


def test_duplicate_id_in_collection_raises_before_any_start() -> None:
    calls: list[Any] = []
    with pytest.raises(ValueError, match="'x'"):
        quiet().execute_parallel(["a", "x", "b", "x"], lambda *a: calls.append(a))
    assert calls == []


def test_duplicate_id_in_stream_fails_that_item() -> None:
    stats, results = quiet().execute_parallel(iter(["a", "x", "b", "x"]), lambda item, _: item)
    assert (stats.success_count, stats.failed, stats.total) == (3, 1, 4)
    (failed,) = [result for result in results if not result.success]
    assert failed.item_id == "x"
    assert failed.attempts == 0
    assert "ids must be unique" in (failed.error or "")


@pytest.mark.parametrize("items", [[0, 1], iter([0, 1])], ids=["collection", "stream"])
def test_wrong_item_id_func_raises_invalid_item_id(items: Any) -> None:
    with pytest.raises(InvalidItemId, match=r"item number 1.*ZeroDivisionError"):
        quiet().execute_parallel(items, lambda _i, _c: None, lambda i: str(1 / i))
    with pytest.raises(InvalidItemId, match="must return a string"):
        quiet().execute_parallel([5], lambda _i, _c: None, lambda i: i)  # type: ignore[return-value]
    assert issubclass(InvalidItemId, ValueError)
    assert issubclass(InvalidItemId, TypeError)


def test_input_error_is_raised_after_started_items_end() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise RuntimeError("the database went away")

    coordinator = quiet(2)
    ids: list[str] = []
    with pytest.raises(RuntimeError, match="the database went away"):
        ids.extend(result.item_id for result in coordinator.stream(items(), lambda item, _: item))
    assert set(ids) | set(coordinator.get_checkpoints()) == {"0", "1", "2", "3", "4"}
    with pytest.raises(RuntimeError) as caught:
        coordinator.execute_parallel(items(), lambda item, _: item)
    assert "partial_results" in caught.value.__notes__[0]
    ended_ids = {result.item_id for result in coordinator.partial_results}
    assert ended_ids | set(coordinator.get_checkpoints()) == {"0", "1", "2", "3", "4"}


def test_empty_input_ends_without_results() -> None:
    for empty in ([], iter([]), range(0), {}):
        stats, results = quiet().execute_parallel(empty, lambda _i, _c: None)
        assert (stats.total, stats.completed, results) == (0, 0, [])
        assert stats.completion_rate == 0


@pytest.mark.parametrize(
    "items", [{"a": 1, "b": 2}, {"a", "b"}, ("a", "b"), frozenset("ab"), {"a": 1, "b": 2}.keys(), "ab"], ids=type
)
def test_every_kind_of_collection_is_accepted(items: Any) -> None:
    stats, results = quiet().execute_parallel(items, lambda item, _: item)
    assert stats.total == 2
    assert by_id(results).keys() == {"a", "b"}


def test_sized_iterator_is_read_once() -> None:
    class Once:
        def __init__(self) -> None:
            self._iterator = iter("abc")

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[str]:
            return self._iterator

    stats, _ = quiet().execute_parallel(Once(), lambda item, _: item)
    assert (stats.total, stats.success_count) == (3, 3)


def test_failing_tokens_or_scope_func_fails_its_item_only() -> None:
    def tokens(item: int) -> int:
        return {1: -5}.get(item, 10)

    def scope(item: int) -> str:
        return {2: "x"}[item] if item == 3 else "model"

    pool = CredentialCoordinator(KEYS)
    stats, results = quiet(2, pool).execute_parallel(range(4), lambda i, _: i, tokens_func=tokens, scope_func=scope)
    assert stats.failed == 2
    assert {r.item_id for r in results if not r.success} == {"1", "3"}
    assert sum(state.tokens for state in pool.states()) == 20


def test_endless_input_is_read_within_bounds() -> None:  # invariant 26
    last_read = 0

    def items() -> Iterator[int]:
        nonlocal last_read
        for number in itertools.count():
            last_read = number
            yield number

    with quiet(3).stream(items(), lambda item, _: item) as results:
        for _ in range(200):
            next(results)
        eventually(lambda: results._run.results._wakeup.is_armed and results.stats.running == 0)  # back-pressure
        assert last_read < 200 + 64 + 4 * 3
    assert results.stats.stopped == "stream closed early"


def test_slow_input_does_not_delay_results() -> None:
    more = threading.Event()

    def items() -> Iterator[str]:
        yield "first"
        more.wait(60)
        yield "second"

    results = quiet(2).stream(items(), lambda item, _: item)
    assert next(results).item_id == "first"
    more.set()
    assert [result.item_id for result in results] == ["second"]


def test_blocked_input_does_not_delay_shutdown() -> None:
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
