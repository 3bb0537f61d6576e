"""Whoever can write to a shared store can falsify the pool, but neither read a key there nor make us run anything."""

from __future__ import annotations

import builtins
import contextlib
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from agentos.limits.reset_times import day_ends
from agentos.pool._replicas.shared_pool import SharedPool
from agentos.pool._replicas.states import freeze, thaw
from agentos.workflows.parallel import CredentialCoordinator, Overloaded

CANARY = "sk-canary-Qx7WvZr2LmTk9"


class Calls:
    """What pickle would call when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("function", [os.system, builtins.eval, builtins.getattr, builtins.__import__, Path])
def test_a_state_that_calls_something_is_refused_and_nothing_runs(tmp_path: Path, function: Any) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(pickle.UnpicklingError, match="has no place in a pool"):
        thaw(pickle.dumps(Calls(function, f"open({str(mark)!r}, 'w')")))
    assert not mark.exists()


@pytest.mark.parametrize("state", [None, {"a": 1}, frozenset({1})])
def test_a_state_that_is_no_pool_is_refused(state: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match="not a pool"):
        thaw(pickle.dumps(state))


def test_a_pool_in_a_file_holds_no_key(tmp_path: Path) -> None:  # invariant 29
    with CredentialCoordinator([CANARY], store=f"sqlite:///{tmp_path}/pool.db") as pool:
        with pool.lease() as lease:
            assert lease.secret == CANARY
        with contextlib.suppress(Overloaded), pool.lease(timeout=5):
            raise Overloaded(f"not with {CANARY}")
        pool.quarantine(pool.states()[0].key_id, f"{CANARY} was shown")
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert CANARY.encode() not in path.read_bytes()
        assert (tmp_path / "pool.db").stat().st_mode & 0o077 == 0


def test_a_state_comes_back() -> None:
    assert isinstance(thaw(freeze(SharedPool(1e9, day_ends))), SharedPool)
