"""Types of the arguments of a run, for type checkers: workers by what they return, and the keyword options."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypedDict, TypeVar

ItemT = TypeVar("ItemT")
# The type that a worker returns; that of an `async def` function after it was awaited.
ValueT = TypeVar("ValueT")

AsyncWorker: TypeAlias = Callable[[ItemT, Any], Coroutine[Any, Any, ValueT]]
PlainWorker: TypeAlias = Callable[[ItemT, Any], ValueT]
Worker: TypeAlias = Callable[[Any, Any], Any] | Callable[[Any, Any], Awaitable[Any]]


class RunKeywords(TypedDict, total=False):
    """The options that every method which starts a run takes by keyword."""

    run_id: str | None
    retry_failed: bool | None
    tokens_func: Callable[[Any], int] | None
    scope_func: Callable[[Any], str | None] | None
