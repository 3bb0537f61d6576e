"""`current_item()`: the interface of a running worker to its item and run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

# Upper bound of a reported cost: larger values are mistakes, and sums of them could exceed what JSON can represent. The
# reader of command reports applies the same bound; it is repeated there because `agentos report`, started inside every
# command, must not load this module.
MAX_AMOUNT = 1e15

# Set by the workers of a run around the call of a worker function.
running_item: ContextVar[CurrentItem] = ContextVar("agentos_current_item")


def current_item() -> CurrentItem:
    """Return the item of the calling worker: in a thread, a task or a worker process. Raise `RuntimeError` outside."""
    try:
        return running_item.get()
    except LookupError:
        raise RuntimeError("current_item() is for workers: no item is running here") from None


class UsableLease(Protocol):
    """The operations of a lease that a worker can use in any process."""

    @property
    def secret(self) -> str: ...

    @property
    def credential_id(self) -> str: ...

    @property
    def base_url(self) -> str | None: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    def settle(self, *, requests: int | None = None, tokens: int | None = None) -> None: ...

    def observe(self, response: Any) -> None: ...


class LeaseBlock(Protocol):
    """The context manager that `current_item().lease()` returns, for `with` and `async with`."""

    def __enter__(self) -> UsableLease: ...

    def __exit__(self, *exc: Any) -> None: ...

    async def __aenter__(self) -> UsableLease: ...

    async def __aexit__(self, *exc: Any) -> None: ...


class CurrentItem(ABC):
    """One attempt at one item, as its worker sees it."""

    __slots__ = ("attempt", "credential_id", "id", "should_stop", "usage")

    id: str
    attempt: int  # 1 for the first
    credential_id: str | None
    should_stop: bool  # the run is shutting down, or the attempt timed out: finish, or raise Interrupted
    usage: dict[str, float] | None

    @property
    @abstractmethod
    def run_id(self) -> str: ...

    @property
    def gateway_url(self) -> str | None:
        """Return the address of the run's gateway, without a path; None in a run without a gateway."""
        return None

    @property
    def client_token(self) -> str | None:
        """Return the token that this attempt shows the gateway in place of a key; None in a run without a gateway."""
        return None

    @property
    def checkpoint(self) -> Checkpoint:
        """Return the checkpoint of this item, which all its attempts share."""
        return Checkpoint(self)

    @property
    @abstractmethod
    def workflow_db(self) -> Path:
        """Return a path for this item's own SQLite file: the same in every attempt, removed when the item succeeds."""

    def report_usage(self, *, requests: int = 0, tokens: int = 0, cost: float = 0.0) -> None:
        """Add to the usage of this attempt. The lease is settled with the sum when the attempt ends. Raise `ValueError`
        for a negative number, or a cost from MAX_AMOUNT, and `BudgetExceeded` if the item has spent its own budget."""
        self.add_usage(requests=requests, tokens=tokens, cost=cost)

    def add_usage(self, *, requests: int, tokens: int, cost: float) -> None:
        """Add to the usage of this attempt, whatever the budget of its item. Raise `ValueError` as `report_usage`."""
        if requests < 0 or tokens < 0 or not 0 <= cost < MAX_AMOUNT:
            raise ValueError(
                f"usage must be at least 0, a cost below {MAX_AMOUNT:g}, not {requests!r} requests, {tokens!r} tokens, "
                f"cost {cost!r}"
            )
        usage = self.usage
        if usage is None:
            usage = self.usage = {"requests": 0, "tokens": 0, "cost": 0.0}
        usage["requests"] += int(requests)
        usage["tokens"] += int(tokens)
        usage["cost"] += float(cost)

    @abstractmethod
    def observe(self, response: Any) -> None:
        """Report a response that raised no exception to the pool, which reads limits from it."""

    @abstractmethod
    def lease(
        self, *, requests: int = 1, tokens: int = 0, scope: str | None = None, timeout: float | None = None
    ) -> LeaseBlock:
        """Return a lease for a `with` or `async with` block: the attempt's own first, else one from the pool."""

    @abstractmethod
    def _load(self) -> Any: ...

    @abstractmethod
    def _save(self, obj: Any) -> None: ...

    def __repr__(self) -> str:
        return f"<item {self.id!r}, attempt {self.attempt} of run {self.run_id}>"


class Checkpoint:
    """The object that an unfinished item saves, for its next attempt to continue from."""

    __slots__ = ("_attempt",)

    def __init__(self, attempt: CurrentItem) -> None:
        self._attempt = attempt

    def load(self) -> Any:
        """Return the object that was saved last, or None."""
        return self._attempt._load()

    def save(self, obj: Any) -> None:
        """Replace the saved object. Without a ledger it lives as long as the run. With a ledger, this blocks until the
        object is committed; it must be plain data, and `load` returns it as plain data."""
        self._attempt._save(obj)

    async def asave(self, obj: Any) -> None:
        """Replace the saved object like `save`, without blocking the event loop of an async worker."""
        import asyncio  # loaded in any case where this runs; not with the package

        await asyncio.to_thread(self._attempt._save, obj)
