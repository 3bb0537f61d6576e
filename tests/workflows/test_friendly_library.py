"""What a newcomer's program meets first: pools from files and variables, "auto", ids, order, and clear refusals."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentos.errors import KeysFileError
from agentos.workflows.parallel import (
    Credential,
    CredentialCoordinator,
    Limits,
    ParallelCoordinator,
    WorkflowResult,
)


def quiet(workers: Any = 4, pool: CredentialCoordinator | None = None, **options: Any) -> ParallelCoordinator:
    return ParallelCoordinator(workers, pool, reporter=None, **options)


def echo(item: Any, _credential: Any) -> Any:
    return item


# --- pools -----------------------------------------------------------------------------------------------------------


def test_from_file_reads_credentials_and_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-from-environment")
    file = tmp_path / "keys.toml"
    file.write_text('store = "memory:"\n[[credential]]\nid = "a"\nsecret = "env:SOME_KEY"\nmax_concurrent = 4\n')
    with CredentialCoordinator.from_file(str(file)) as pool:
        assert [(state.key_id, state.max_concurrent) for state in pool.states()] == [("a", 4)]
        assert pool.reserve() == "sk-from-environment"
    with pytest.raises(KeysFileError, match=r"keys\.toml, line 1"):
        CredentialCoordinator.from_file(tmp_path / "keys.toml" if file.write_text("credential = 1") else file)


def test_from_file_warns_of_plain_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[credential]]\nid = "a"\nsecret = "sk-in-plain-text"\n')
    file.chmod(0o600)
    with pytest.warns(UserWarning, match="holds keys in plain text") as caught:
        CredentialCoordinator.from_file(file).close()
    assert caught[0].filename == __file__


def test_from_env_takes_all_matching_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MY_KEY_1", "MY_KEY_2", "OTHER_KEY"):
        monkeypatch.setenv(name, f"sk-{name}")
    with CredentialCoordinator.from_env("MY_KEY_*", "OTHER_KEY", "MY_KEY_1") as pool:
        assert [state.key_id for state in pool.states()] == ["my-key-1", "my-key-2", "other-key"]
    with pytest.raises(KeysFileError, match="no environment variable matches NOT_SET"):
        CredentialCoordinator.from_env("NOT_SET_*")
    with pytest.raises(TypeError, match="name the variables"):
        CredentialCoordinator.from_env()


def test_string_that_looks_like_reference_warns() -> None:
    with pytest.warns(UserWarning, match=r"begins with env: .* Credential\('env:…'\)") as caught:
        pool = CredentialCoordinator(["env:SOME_KEY", "sk-one"])
    assert caught[0].filename == __file__
    assert "SOME_KEY" not in str(caught[0].message)  # it may be a key
    with pytest.warns(UserWarning, match="begins with file:"):
        pool.add("file:/run/key")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CredentialCoordinator([Credential("env:HOME", id="home"), "sk-two"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CredentialCoordinator([None]), "not NoneType: is the variable set"),  # type: ignore[list-item]
        (lambda: CredentialCoordinator([5]), "a credential is a string or a Credential, not int"),  # type: ignore[list-item]
        (lambda: CredentialCoordinator(5), "must be a list of strings or Credential objects, not int"),  # type: ignore[arg-type]
        (lambda: CredentialCoordinator("sk-one"), r"for a single one write \[key\]"),
        (lambda: ParallelCoordinator(3, ["sk-one"]), r"not list: pass CredentialCoordinator\("),  # type: ignore[arg-type]
    ],
)
def test_wrong_object_says_what_to_pass(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_pool_in_place_of_workers_says_where_it_belongs() -> None:
    pool = CredentialCoordinator(["sk-one"])
    with pytest.raises(ValueError, match="pass it as credential_coordinator="):
        ParallelCoordinator(pool)  # type: ignore[arg-type]


# --- auto ------------------------------------------------------------------------------------------------------------


def test_auto_runs_as_many_as_credentials_admit() -> None:
    limits = Limits(max_concurrent=6)
    pool = CredentialCoordinator([Credential("sk-one", limits=limits), Credential("sk-two", limits=limits)])
    coordinator = quiet("auto", pool)
    assert coordinator.max_workers == 12
    together = threading.Barrier(12)
    stats, _ = coordinator.execute_parallel(range(12), lambda *_: together.wait(30))
    assert stats.success_count == 12
    assert quiet("auto", pool, max_parallelism=5).max_workers == 5
    assert quiet("auto").max_workers >= 1
    with pytest.raises(ValueError, match="a whole number from 1, or 'auto', not 'all'"):
        quiet("all")


# --- order and ids ---------------------------------------------------------------------------------------------------


def ended_in_reverse(count: int) -> Any:
    """Return a worker whose item N ends after item N + 1."""
    ended = [threading.Event() for _ in range(count + 1)]
    ended[count].set()

    def work(item: int, _credential: Any) -> int:
        assert ended[item + 1].wait(30)
        ended[item].set()
        return item

    return work


@pytest.mark.parametrize("as_stream", [False, True])
def test_results_have_input_order_streams_completion_order(as_stream: bool) -> None:
    items = iter(range(8)) if as_stream else range(8)
    _, results = quiet(8).execute_parallel(items, ended_in_reverse(8))
    assert [result.value for result in results] == list(range(8))
    with quiet(8).stream(range(8), ended_in_reverse(8)) as stream:
        assert [result.value for result in stream] == list(reversed(range(8)))


def test_async_results_have_input_order() -> None:
    async def work(item: int, _credential: Any) -> int:
        await asyncio.sleep((8 - item) / 1000)
        return item

    async def main() -> list[WorkflowResult[int]]:
        return (await quiet(8).execute_parallel_async(range(8), work))[1]

    assert [result.value for result in asyncio.run(main())] == list(range(8))


def test_resumed_results_have_input_order(tmp_path: Path) -> None:
    items = [f"item-{number}" for number in random.Random(1).sample(range(50), 50)]
    coordinator = quiet(8, ledger=tmp_path / "ledger.db")
    coordinator.execute_parallel(items[10:30], echo)
    _, results = coordinator.execute_parallel(items, echo)
    assert [result.item_id for result in results] == items


def test_repeated_id_of_stream_stands_beside_the_first() -> None:
    _, results = quiet(1).execute_parallel(iter(["a", "b", "a", "c"]), echo)
    assert [(result.item_id, result.success) for result in results] == [
        ("a", True),
        ("a", False),
        ("b", True),
        ("c", True),
    ]


def test_partial_results_have_input_order() -> None:
    def items() -> Iterator[int]:
        yield from range(4)
        raise OSError("the input broke")

    coordinator = quiet(4)
    with pytest.raises(OSError, match="the input broke"):
        coordinator.execute_parallel(items(), echo)
    assert [result.value for result in coordinator.partial_results] == list(range(4))


def test_dict_items_use_their_id() -> None:
    items = [{"id": "a"}, {"id": 7}, {"id": ""}, {"id": None}, {"name": "x"}, {"id": True}]
    _, results = quiet().execute_parallel(items, echo)
    ids = [result.item_id for result in results]
    assert ids == ["a", "7", "{'id': ''}", "{'id': None}", "{'name': 'x'}", "{'id': True}"]
    with pytest.raises(ValueError, match="two items have the id 'a'"):
        quiet().execute_parallel([{"id": "a", "n": 1}, {"id": "a", "n": 2}], echo)


# --- workers and items -----------------------------------------------------------------------------------------------


def one(item: Any) -> Any:
    return item


def three(item: Any, credential: Any, model: str) -> Any:
    return item


def keyword(item: Any, credential: Any, *, model: str) -> Any:
    return item


def generator(item: Any, _credential: Any) -> Iterator[Any]:
    yield item


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        (one, r"worker one\(item: .*too many positional arguments; define it as def one\(item, credential\)"),
        (three, "missing a required argument: 'model'"),
        (keyword, "missing a required"),
        (generator, "is a generator, and its code would never run"),
        (3, "must be a function of"),
    ],
)
def test_worker_with_wrong_signature_is_refused_before_start(worker: Any, message: str) -> None:
    started = []

    def items() -> Iterator[int]:
        started.append(1)
        yield 1

    with pytest.raises(TypeError, match=message):
        quiet().execute_parallel(items(), worker)
    assert not started


@pytest.mark.parametrize(
    "worker", [functools.partial(three, model="m"), lambda *arguments: arguments[0], max, {}.setdefault]
)
def test_workers_of_other_kinds_are_accepted(worker: Any) -> None:
    """`max` has no signature that can be read; a partial and a method have one that fits."""
    stats, _ = quiet().execute_parallel([1, 2], worker)
    assert stats.completed == 2
