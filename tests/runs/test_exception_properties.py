"""Exceptions whose class runs code of the worker when they are read: they fail their own item, and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from agentos.errors import CommandFailed, WorkerError, WorkerVerdict
from agentos.verdict import NO_VERDICT, Verdict
from agentos.workflows.parallel import WorkflowResult
from tests.support.properties import holds_for

from .coordinators import by_id, quiet


class Sneaky(str):
    """A text whose methods raise."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


def _raise(error: Callable[[], BaseException]) -> Callable[..., Any]:
    def method(*_: Any) -> Any:
        raise error()

    return method


# What a method of an exception can do instead of its job.
ACTIONS: dict[str, Callable[..., Any]] = {
    "raises Exception": _raise(lambda: ValueError("hostile")),
    "raises SystemExit": _raise(lambda: SystemExit(3)),
    "raises KeyboardInterrupt": _raise(KeyboardInterrupt),
    "raises CancelledError": _raise(asyncio.CancelledError),
    "recurses": lambda self, *args: repr(self) + str(self) + self.recursion,
    "returns a number": lambda *_: 7,
    "returns a hostile text": lambda *_: Sneaky("hostile"),
    "returns an own list": lambda *_: [object()],
}
METHODS = ("__getattr__", "__getattribute__", "__str__", "__repr__", "__hash__", "__eq__", "__bool__", "__reduce__")
PROPERTIES = (
    "__class__", "__dict__", "__notes__", "__cause__", "__context__", "__traceback__", "response", "args", "kind",
    "retry_after", "verdict", "details", "type_name", "trace", "original",
)  # fmt: skip
BASES: tuple[type[BaseException], ...] = (Exception, SystemExit, WorkerVerdict, CommandFailed, WorkerError)


def hostile_exception(names: dict[str, str], base: type[BaseException] = Exception) -> BaseException:
    """Return an exception of a new class with these methods and properties, given with their actions."""
    members = {
        name: ACTIONS[action] if name in METHODS else property(ACTIONS[action]) for name, action in names.items()
    }
    cls = type("Hostile", (base,), {"__init__": lambda *_: None, **members})
    return cls.__new__(cls)


def run_with(error: BaseException, *, is_async: bool = False, **options: Any) -> dict[str, WorkflowResult]:
    """Run 22 items, the third of which raises the error; return the results."""

    def worker(item: int, _: Any) -> int:
        if item == 2:
            raise error
        return item

    async def task(item: int, _: Any) -> int:
        return worker(item, _)

    chosen: Any = task if is_async else worker
    return by_id(quiet(2, retries=0, **options).execute_parallel(range(22), chosen)[1])


class Unreadable(Exception):
    """An exception that worker processes can pickle, and that cannot be read."""

    def __getattribute__(self, name: str) -> Any:
        raise ValueError(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return Unreadable, ()


def raise_unreadable(item: int, _: Any) -> int:
    if item == 2:
        raise Unreadable
    return item


class Unrecordable:
    """A result whose conversion to plain data ends the program."""

    def model_dump(self, **_: Any) -> Any:
        sys.exit(3)


def assert_one_failed(results: dict[str, WorkflowResult]) -> None:
    assert [item_id for item_id, result in results.items() if not result.success] == ["2"]
    assert len(results) == 22
    assert type(results["2"].error) is str
    assert results["2"].error


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("name", [*METHODS, *PROPERTIES])
def test_hostile_member_fails_its_own_item_only(name: str, action: str) -> None:
    assert_one_failed(run_with(hostile_exception({name: action})))


@holds_for(
    names=st.dictionaries(st.sampled_from([*METHODS, *PROPERTIES]), st.sampled_from(list(ACTIONS))),
    base=st.sampled_from(BASES),
)
def test_any_hostile_exception_fails_its_own_item_only(names: dict[str, str], base: type[BaseException]) -> None:
    assert_one_failed(run_with(hostile_exception(names, base)))


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", ["__getattr__", "__getattribute__", "__str__", "details"])
def test_hostile_exception_is_recorded_as_failed(tmp_path: Path, name: str, is_async: bool) -> None:
    error = hostile_exception({name: "raises SystemExit"}, CommandFailed if name == "details" else Exception)
    results = run_with(error, is_async=is_async, ledger=tmp_path / "run.db")
    assert_one_failed(results)
    assert results["2"].metadata["error_type"] == "Hostile"
    assert "raise error" in results["2"].metadata["traceback"]


def test_unreadable_exception_of_worker_process_fails_its_item() -> None:
    results = by_id(quiet(2, retries=0, workers="processes").execute_parallel(range(22), raise_unreadable)[1])
    assert_one_failed(results)
    assert results["2"].metadata["error_type"] == "Unreadable"


def test_command_failure_with_unrecordable_details_fails_its_item(tmp_path: Path) -> None:
    error = CommandFailed("no", exit_status=1, verdict=NO_VERDICT, details={"object": object()})
    assert_one_failed(run_with(error, ledger=tmp_path / "run.db"))


@pytest.mark.parametrize(
    "answer",
    [Verdict("lost"), Verdict("rate_limited", retry_after="soon"), Verdict(["permanent"])],  # type: ignore[arg-type]
)
def test_classify_with_unusable_verdict_fails_the_item(answer: Verdict) -> None:
    assert_one_failed(run_with(ValueError("no"), classify=lambda _: answer))


def test_classify_that_exits_fails_the_item() -> None:
    results = run_with(ValueError("no"), classify=lambda _: sys.exit(3))
    assert_one_failed(results)
    assert results["2"].metadata["error_type"] == "SystemExit"


def test_result_whose_conversion_exits_fails_its_item(tmp_path: Path) -> None:
    def worker(item: int, _: Any) -> Any:
        return Unrecordable() if item == 2 else item

    assert_one_failed(by_id(quiet(2, ledger=tmp_path / "run.db").execute_parallel(range(22), worker)[1]))


@pytest.mark.parametrize("action", ["raises Exception", "raises SystemExit", "returns a number"])
@pytest.mark.parametrize("name", ["__repr__", "__str__", "__getattribute__"])
def test_hostile_exception_of_tokens_func_fails_its_own_item(name: str, action: str) -> None:
    def tokens(item: int) -> int:
        if item == 2:
            raise hostile_exception({name: action})
        return 1

    _, results = quiet(2).execute_parallel(range(22), lambda item, _: item, tokens_func=tokens)
    assert_one_failed(by_id(results))
