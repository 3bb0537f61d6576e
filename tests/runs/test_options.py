"""Options of a coordinator: defaults, limits and errors."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentos.workflows.parallel import (
    CredentialCoordinator,
    JsonReporter,
    ParallelCoordinator,
)

from .coordinators import KEYS, quiet


def test_max_workers_defaults_to_three_and_is_capped(capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("value", [0, -1, 2.5, "3", True])
def test_wrong_max_workers_raises(value: Any) -> None:
    with pytest.raises(ValueError, match="max_workers"):
        ParallelCoordinator(value)


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
def test_wrong_option_raises_with_its_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ParallelCoordinator(**options)


def test_wrong_worker_func_or_items_raise() -> None:
    with pytest.raises(TypeError, match="worker_func"):
        quiet().execute_parallel([1], "not a function")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="items must be iterable"):
        quiet().execute_parallel(7, print)  # type: ignore[arg-type]


def test_infinite_timeout_does_not_block_other_timers() -> None:
    pause = threading.Event()
    quiet(1, timeout=float("inf")).execute_parallel([1], lambda *_: pause.wait(0.05))
    quiet(1, timeout=1e10).execute_parallel([1], lambda *_: pause.wait(0.05))
    pool = CredentialCoordinator(KEYS[:1])
    pool.mark_rate_limited(KEYS[0], 0.05)
    assert pool.reserve(timeout=10) == KEYS[0]


@pytest.mark.parametrize(
    "options", [{}, {"credential_coordinator": CredentialCoordinator(["sk-1"]), "admission": "none"}]
)
def test_max_wait_without_waiting_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="max_wait is for runs that wait"):
        ParallelCoordinator(max_wait=5, **options)
