"""Options of a run, checked: how many workers, retries and seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from agentos.costs.budget import Budget
from agentos.items.parallelism import FIXED, ParallelBound

if TYPE_CHECKING:
    from .scheduler import Halt

UNKNOWN_BEFORE = (
    "what the run has spent so far is not known, because the price of a model was not: a budget of money would count "
    'it as free. Start another run, with [price."MODEL"] in the keys file'
)


class Auto(NamedTuple):
    """No number of workers is given: `AutoParallel` decides it."""

    cap: int | None = None  # the most items at once
    cap_name: str = ""  # what sets the cap, as a shell writes it

    @property
    def bound(self) -> ParallelBound | None:
        """The cap as a bound; None if there is none."""
        return None if self.cap is None else ParallelBound(self.cap, FIXED, limit=self.cap_name)


class Options(NamedTuple):
    """How a run is executed; see ParallelCoordinator."""

    max_workers: int
    admission: bool  # an item starts only with a lease; else its worker leases by itself
    retries: int
    retry_on: tuple[type[BaseException], ...]
    classify: Callable[[BaseException], Any] | None
    timeout: float | None
    halt: Halt | None
    grace_seconds: float
    max_wait: float | None
    reporter: Callable[[Any], None] | None
    run_id: str = ""
    retry_failed: bool = False
    budget: Budget | None = None
    auto: Auto | None = None  # None: `max_workers` is fixed
