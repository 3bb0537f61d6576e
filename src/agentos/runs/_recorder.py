"""What the holder of a run's role does with the run's record: nothing is told of before it is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agentos.items.attempt import Attempt
from agentos.items.item import INTERRUPTED
from agentos.items.results import WorkflowResult
from agentos.ledger.record import RunRecord

from ._attempt_context import RunContext
from ._progress import Account


class Recording:
    def __init__(self, record: RunRecord, context: RunContext, account: Account) -> None:
        self._record = record
        self._context = context
        self._account = account
        self.item_ended = record.item_ended
        self.attempt_ended = record.attempt_ended
        self.encode_result = record.encode_result
        self.is_full = record.is_full
        self.is_lost = False  # nothing can be written any more

    def start(
        self, on_recorded: Callable[[list[WorkflowResult], int], None], on_lost: Callable[[BaseException], None]
    ) -> None:
        self._record.start(on_recorded, on_lost)

    def prepare(self, attempt: Attempt) -> None:
        """It is about to start."""
        item = attempt.item
        attempt.prepare_record()
        item.waiting_since = None
        if item.is_changed:  # what is on record belongs to another input
            self._record.discard_item(item)
            self._context.forget(item.id)
            item.is_changed = item.has_record = False

    def note_running(self, running: Iterable[Attempt]) -> None:
        """Those that have been running for a while are on record as started; short ones are written down once.

        One that is still being prepared has no process yet: it is written down when it has, and with its group.
        """
        for attempt in running:
            if not attempt.is_on_record and not attempt.is_preparing:
                self._record.attempt_started(attempt)
                if attempt.process_group is not None:
                    self._record.process_started(attempt.process_group)

    def is_pending(self) -> bool:
        """Whether something has ended that will be on record soon, and can only then be told of."""
        if self.is_lost or not self._record.is_waiting():
            return False
        self._record.commit_now()
        return True

    def tell(self, results: list[WorkflowResult], size: int) -> None:
        """They are on record now."""
        self._record.results_delivered(results, size)
        if self._context.has_files:
            for result in results:
                if result.success:
                    self._context.forget(result.item_id)
        self._account.deliver_all(results, size)

    def close(self, running: Iterable[Attempt], now: float, stopped: str | None, *, at_once: bool) -> None:
        """Raises if something cannot be written: see `unwritten_ids`."""
        for attempt in running:
            attempt.ended_at = now
            self._record.attempt_ended(attempt, INTERRUPTED, None)
        self._record.close(stopped, at_once=at_once)

    def unwritten_ids(self) -> list[str]:
        return self._record.unwritten_ids()
