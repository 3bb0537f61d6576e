"""Messages of one run: all that can happen to it. The driver has one handler for each type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.items.results import WorkflowResult
from agentos.items.sources import ReadItem
from agentos.pool.store import LeaseHandle
from agentos.verdict import Verdict


class Message:
    """Something that has happened to a run, or that is asked of it."""

    __slots__ = ()


@dataclass(slots=True)
class RunStart(Message):
    """The first message of a run."""


# --- items --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ItemsRead(Message):
    """The thread that reads the input has read items."""

    items: list[ReadItem]


@dataclass(slots=True)
class RecordedItemsFound(Message):
    """The input holds items whose outcome an earlier launch has recorded."""

    succeeded: int
    failed: int


@dataclass(slots=True)
class SourceEnded(Message):
    """The input has no more items, or raised."""

    error: BaseException | None


@dataclass(slots=True)
class LeaseDelivered(Message):
    """The pool has granted or refused the lease that an item requested."""

    item: Item
    handle: LeaseHandle


# --- attempts -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class AttemptSucceeded(Message):
    attempt: Attempt
    value: Any
    encoded: str | None  # the value as JSON, if the run has a ledger


@dataclass(slots=True)
class AttemptFailed(Message):
    attempt: Attempt
    error: BaseException
    kind: str | None  # of a verdict, WORKER_DIED, INTERRUPTED, or None
    verdict: Verdict | None


@dataclass(slots=True)
class TimeoutExpired(Message):
    attempt: Attempt
    paused: float  # seconds that the program had not run (`Clock.paused`) when the timer was set
    has_ended: bool = False  # then already: the outcome has had one more time-out to be processed


@dataclass(slots=True)
class TimeoutIgnored(Message):
    """An attempt goes on although it was killed after its time-out."""

    attempt: Attempt


# --- results and the ledger ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class ResultsTaken(Message):
    """The result queue, which was full, has room."""


@dataclass(slots=True)
class ResultsRecorded(Message):
    """The ledger has committed results."""

    results: list[WorkflowResult[Any]]
    size: int  # characters that were written


@dataclass(slots=True)
class RecordLost(Message):
    """The ledger cannot be written any more."""

    error: BaseException


# --- timers -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StartsDue(Message):
    """Attempts that are still running are to be recorded as started."""


@dataclass(slots=True)
class UsageDue(Message):
    """What running attempts have used is to be recorded: only in a run with a gateway and a ledger."""


@dataclass(slots=True)
class LookDue(Message):
    """The number of items at once is to be decided anew: only in a run without a fixed number."""


@dataclass(slots=True)
class PauseOver(Message):
    """An item may be tried again."""


@dataclass(slots=True)
class RestOver(Message):
    """A credential has rested long enough, or its probe has."""


@dataclass(slots=True)
class MaxWaitOver(Message):
    """`max_wait` seconds have passed since an item began to wait, or since the last start."""


@dataclass(slots=True)
class StallDue(Message):
    """Requests of running items may have waited for a credential for `max_wait` seconds."""


@dataclass(slots=True)
class HeartbeatDue(Message):
    """The run reports that it goes on, unless an item has ended since the last heartbeat."""


# --- stopping, and events of the pool -----------------------------------------------------------------------------


@dataclass(slots=True)
class StopRequested(Message):
    reason: str
    signal: int | None


@dataclass(slots=True)
class KillRequested(Message):
    """The run has to end now: nothing is waited for."""


@dataclass(slots=True)
class PoolEvent(Message):
    event: Any  # one of `agentos.events`
