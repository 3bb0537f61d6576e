"""Recorder: the run's side of the ledger. A result is delivered only when it is committed; without a ledger, at once.

Called by the thread that processes the run's messages, except for `encode_result`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from agentos.events import RunResumed
from agentos.items.access import AttemptUsage
from agentos.items.attempt import Attempt
from agentos.items.item import INTERRUPTED, Item
from agentos.items.results import WorkflowResult

from .attempt_context import RunContext
from .messages import ResultsRecorded
from .progress import RunProgress

if TYPE_CHECKING:
    from agentos.ledger.record import RunRecord

# Back-pressure: with this many results that wait for a commit, or this many characters of them, no further item starts.
# Fewer than `duplicates.MAX_REMEMBERED`: of two items with one id, the first is either remembered or recorded.
MAX_UNDELIVERED = 20_000
MAX_UNDELIVERED_SIZE = 64_000_000


class Recorder(Protocol):
    """What the driver has to record."""

    is_durable: bool  # there is a ledger
    is_full: bool  # the run has to wait for a commit before it starts another item

    def start(
        self, on_recorded: Callable[[list[WorkflowResult[Any]], int], None], on_lost: Callable[[BaseException], None]
    ) -> None:
        """Begin to write. Both functions are called by the ledger's thread: results were committed; the ledger cannot
        be written any more."""

    def resumed_event(self, total: int | None, *, retry_failed: bool) -> RunResumed | None:
        """Return the event to report if this launch continues an earlier one."""

    def encode_result(self, value: Any) -> str | None:
        """Return a result as the ledger stores it; raise UnrecordableValue if that is not possible. Called by the
        thread on which the attempt ended."""

    def note_request(self, item: Item, now: float) -> None:
        """Note that the item waits for a credential from now on, unless it did already."""

    def prepare(self, attempt: Attempt) -> None:
        """Prepare the record of an attempt that is about to start."""

    def note_running(self, attempts: Iterable[Attempt]) -> None:
        """Record attempts that have been running for a while as started."""

    def note_usage(self, attempts: Iterable[Attempt]) -> None:
        """Record what the requests of running attempts have used so far, if that has changed. Only with a gateway."""

    def attempt_ended(self, attempt: Attempt, verdict: str, error: str | None) -> None:
        """Record an attempt after which the item goes on."""

    def item_ended(
        self, item: Item, attempt: Attempt | None, result: WorkflowResult[Any], value: str | None, /
    ) -> None:
        """Record the item's result, and deliver it when it is committed."""

    def is_pending(self) -> bool:
        """Return whether results will be committed soon that are not delivered yet."""

    def deliver(self, message: ResultsRecorded) -> None:
        """Deliver results that are committed."""

    def mark_lost(self) -> None:
        """Note that nothing can be written any more."""

    def close(self, attempts: Iterable[Attempt], now: float, stopped: str | None, *, at_once: bool) -> None:
        """Record running attempts as interrupted and write the rest; raise if that fails: see `unwritten_ids`."""

    def unwritten_ids(self) -> list[str]:
        """Return the items whose result could not be written."""


class NullRecorder:
    """For a run without a ledger: delivers results at once."""

    is_durable = False
    is_full = False

    def __init__(self, context: RunContext, progress: RunProgress) -> None:
        self._context = context
        self._progress = progress

    def start(
        self, on_recorded: Callable[[list[WorkflowResult[Any]], int], None], on_lost: Callable[[BaseException], None]
    ) -> None:
        """No-op: there is nothing to write."""

    def resumed_event(self, total: int | None, *, retry_failed: bool) -> None:
        """Return None: only a ledger knows earlier launches."""

    def encode_result(self, value: Any) -> None:
        """Return None: the value is passed on as it is."""

    def note_request(self, item: Item, now: float) -> None:
        """No-op: waiting times are only recorded."""

    def prepare(self, attempt: Attempt) -> None:
        """No-op: there is no record of the attempt."""

    def note_running(self, attempts: Iterable[Attempt]) -> None:
        """No-op: there is no record of the attempts."""

    def note_usage(self, attempts: Iterable[Attempt]) -> None:
        """No-op: there is no record of the attempts."""

    def attempt_ended(self, attempt: Attempt, verdict: str, error: str | None) -> None:
        """No-op: there is no record of the attempt."""

    def item_ended(self, _: Item, __: Attempt | None, result: WorkflowResult[Any], ___: str | None) -> None:
        if result.success and self._context.has_files:
            self._context.forget(result.item_id)
        self._progress.deliver(result)

    def is_pending(self) -> bool:
        return False

    def deliver(self, message: ResultsRecorded) -> None:
        """No-op: results were delivered when their items ended."""

    def mark_lost(self) -> None:
        """No-op: nothing is written."""

    def close(self, attempts: Iterable[Attempt], now: float, stopped: str | None, *, at_once: bool) -> None:
        """No-op: there is nothing to write."""

    def unwritten_ids(self) -> list[str]:
        return []


class LedgerRecorder:
    """For a run with a ledger."""

    is_durable = True

    def __init__(self, run_record: RunRecord, context: RunContext, progress: RunProgress) -> None:
        self._run_record = run_record
        self._context = context
        self._progress = progress
        self._is_lost = False
        self._noted_usage: dict[Attempt, AttemptUsage | None] = {}  # of running attempts, as recorded last
        self._undelivered = self._undelivered_size = 0  # results, and their characters, that wait for a commit
        self.is_full = False
        self.start = run_record.start
        self.attempt_ended = run_record.attempt_ended
        self.encode_result = run_record.encode_result
        self.unwritten_ids = run_record.unwritten_ids

    def resumed_event(self, total: int | None, *, retry_failed: bool) -> RunResumed | None:
        run_record = self._run_record
        if run_record.launch == 1:
            return None
        counts = run_record.counts_before
        selected = total if total is not None and total < sum(counts) else None
        return RunResumed(run_record.run_id, run_record.launch, *counts, retry_failed, selected)

    def note_request(self, item: Item, now: float) -> None:
        if item.waiting_since is None:
            item.waiting_since = now

    def prepare(self, attempt: Attempt) -> None:
        item = attempt.item
        item.waiting_since = None
        if item.is_changed:  # the record belongs to another input
            self._run_record.discard_item(item)
            self._context.forget(item.id)
            item.is_changed = item.has_record = False

    def note_usage(self, attempts: Iterable[Attempt]) -> None:
        usage = {attempt: attempt.request_usage for attempt in attempts if attempt.is_on_record}
        for attempt, used in usage.items():
            if used != self._noted_usage.get(attempt):
                self._run_record.attempt_started(attempt)
        self._noted_usage = usage

    def note_running(self, attempts: Iterable[Attempt]) -> None:
        for attempt in attempts:
            # An attempt that is being prepared has no process yet: it is recorded later, together with its group.
            if not attempt.is_on_record and not attempt.is_preparing:
                self._run_record.attempt_started(attempt)
                if attempt.process_group is not None:
                    self._run_record.process_started(attempt.process_group)

    def item_ended(
        self, item: Item, attempt: Attempt | None, result: WorkflowResult[Any], value: str | None, /
    ) -> None:
        self._count_undelivered(1, self._run_record.item_ended(item, attempt, result, value))

    def _count_undelivered(self, count: int, size: int) -> None:
        self._undelivered += count
        self._undelivered_size += size
        self.is_full = self._undelivered >= MAX_UNDELIVERED or self._undelivered_size >= MAX_UNDELIVERED_SIZE

    def is_pending(self) -> bool:
        if self._is_lost or not self._undelivered:
            return False
        self._run_record.commit_now()
        return True

    def deliver(self, message: ResultsRecorded) -> None:
        results, size = message.results, message.size
        self._count_undelivered(-len(results), -size)
        if self._context.has_files:
            for result in results:
                if result.success:
                    self._context.forget(result.item_id)
        self._progress.deliver_all(results, size)

    def mark_lost(self) -> None:
        self._is_lost = True

    def close(self, attempts: Iterable[Attempt], now: float, stopped: str | None, *, at_once: bool) -> None:
        for attempt in attempts:
            attempt.ended_at = now
            self._run_record.attempt_ended(attempt, INTERRUPTED, None)
        self._run_record.close(stopped, at_once=at_once)
