"""What a run returns: one `WorkflowResult` per item that ended, and `ProgressStats` for the whole."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from .parallelism import ParallelBound

# Below this number of completed items, a rate computed from them is noise.
MIN_ITEMS_FOR_RATE = 3
# Seconds: a shorter time that only the limits impose is not given before an item has ended, which may take longer.
MIN_SECONDS_BY_LIMITS = 60.0


T = TypeVar("T")


@dataclass(slots=True)
class WorkflowResult(Generic[T]):
    """The outcome of one item. `T` is the type that the worker returns."""

    item_id: str
    success: bool
    error: str | None = None
    duration: float = 0.0  # seconds from the first start to the end
    metadata: dict[str, Any] = field(default_factory=dict)  # for a failure: verdict, error_type, traceback
    value: T | None = None  # what the worker returned; None if the item failed
    attempts: int = 1
    credential_id: str | None = None  # of the last attempt


def sort_by_input(results: list[WorkflowResult[Any]], ids: list[str]) -> None:
    """Sort results, in place, in the order of the ids of the input. An id that came twice counts where it was first."""
    positions: dict[str, int] = {}
    for item_id in ids:
        positions.setdefault(item_id, len(positions))
    results.sort(key=lambda result: positions[result.item_id])


class Counts(NamedTuple):
    """How many of a run's started items have each outcome."""

    succeeded: int
    failed: int
    unfinished: int  # running, or interrupted

    @property
    def total(self) -> int:
        """Return the number of started items."""
        return self.succeeded + self.failed + self.unfinished


class Spent(NamedTuple):
    """What earlier launches of a run have spent."""

    cost: float | None = 0.0  # None: the price of a model is not known
    tokens: int = 0  # input and output, without what was read from a prompt cache
    ended: int = 0  # items that have ended
    by_item: Mapping[str, float] = MappingProxyType({})  # cost of the items that have not succeeded, by id
    ended_cost: float = 0.0  # of the items that have ended: others have spent a part of what they will
    ended_tokens: int = 0

    @property
    def item_cost(self) -> float | None:
        """Return what an item costs, by those that have ended; None if that is not known."""
        return self.ended_cost / self.ended if self.cost and self.ended else None


class RunningItem(NamedTuple):
    """One attempt that is running."""

    id: str
    attempt: int
    credential_id: str | None
    age_seconds: float


@dataclass(slots=True)
class ProgressStats:
    """The progress of a run. `total` is None while the number of items is not known."""

    total: int | None
    completed: int = 0
    failed: int = 0
    success_count: int = 0
    start_time: float = field(default_factory=time.time)  # epoch
    end_time: float | None = None
    waiting: int = 0  # items that were read and wait for a credential, a worker or their next attempt
    running: int = 0
    rate_limited: int = 0  # waiting items whose last attempt a provider refused
    stopped: str | None = None  # why the run ended early
    recorded: int = 0  # completed items whose outcome an earlier launch recorded
    recorded_failed: int = 0  # of them, that failed
    fastest: float | None = None  # items per second that the limits of the credentials allow, if known
    not_before: float = 0.0  # seconds during which no credential can be used
    cost: float | None = None  # money spent by all launches; None: not known, or nothing counts it
    tokens: int = 0  # used by all launches, where that is counted
    expected_cost: float | None = None  # of the whole run, by the mean of the items that have ended; None: not known
    budget: float | None = None  # money that the run may spend
    budget_tokens: int | None = None
    item_budget: float | None = None  # money that each item may spend
    items_over_budget: int = 0  # that have spent more than it: what a request costs is known after it
    max_item_cost: float = 0.0  # the most that such an item has spent
    at_once: ParallelBound | None = None  # items at once, and what bounds them; None: a fixed number of workers

    @property
    def elapsed(self) -> float:
        """Return the seconds from the start until now, or until the end of the run."""
        return (time.time() if self.end_time is None else self.end_time) - self.start_time

    @property
    def completion_rate(self) -> float:
        """Return the completed items in percent; 0 while the number of items is not known."""
        return completion_rate(self.completed, self.total)

    @property
    def eta(self) -> float | None:
        """Return the remaining seconds, at the rate so far and within the limits; None if not known."""
        return seconds_to_go(self.completed, self.total, self.elapsed, self.recorded, self.fastest, self.not_before)


def completion_rate(completed: int, total: int | None) -> float:
    """Return the completed items in percent of all items; 0 if there are none, or if their number is not known."""
    return completed / total * 100 if total else 0.0


def seconds_to_go(
    completed: int,
    total: int | None,
    elapsed: float,
    recorded: int = 0,
    fastest: float | None = None,
    not_before: float = 0.0,
) -> float | None:
    """Return the remaining time at the rate so far, but at least the time that the limits impose; None if not known.

    `recorded`: completed items that an earlier launch recorded, which tell nothing about the rate. `fastest`: items per
    second that the limits allow. `not_before`: seconds during which nothing can start.
    """
    if total is None:
        return None
    remaining = total - completed
    if not remaining:
        return 0.0
    by_limits = None if fastest is None and not not_before else not_before + (remaining / fastest if fastest else 0.0)
    measured = completed - recorded
    if measured < min(MIN_ITEMS_FOR_RATE, total - recorded):
        # Before items have ended, the limits give no more than the shortest time.
        return by_limits if measured or by_limits is None or by_limits >= MIN_SECONDS_BY_LIMITS else None
    by_rate = remaining * elapsed / measured if measured else 0.0
    return by_rate if by_limits is None else max(by_rate, by_limits)
