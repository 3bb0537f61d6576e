"""Intake: reads items from the source of a run, no further ahead than its workers need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from agentos.items.item import Item
from agentos.items.sources import CollectionSource, Problem, Receiver, StreamSource

from .._parts.admission import Admission
from .._rules.scheduler import Scheduler

if TYPE_CHECKING:
    from agentos.ledger.resume_filter import ResumeFilter

Source: TypeAlias = "CollectionSource | StreamSource | ResumeFilter"


class RunReceiver(Receiver, Protocol):
    """What the intake needs of the driver. A reader thread calls the methods of a `Receiver` and `items_recorded`; the
    intake itself calls the other two."""

    def items_recorded(self, succeeded: int, failed: int) -> None:
        """Receive the numbers of items whose recorded outcome is used."""

    def reject(self, item: Item, problem: Problem) -> None:
        """Fail an item that cannot be started."""

    def on_source_ended(self, error: BaseException | None) -> None:
        """Note that the input has ended, or raised."""


class Intake:
    """Called by the thread that processes the run's messages."""

    def __init__(
        self, source: Source, scheduler: Scheduler, admission: Admission | None, receiver: RunReceiver
    ) -> None:
        self.requested = 0  # items that a reader thread was asked for and has not delivered
        self.has_scopes = source.has_scopes
        self._source = source
        self._scheduler = scheduler
        self._admission = admission
        self._receiver = receiver

    def read_if_due(self) -> bool:
        """Read items, or ask the reader thread for them, if few are ready. Return whether items were read."""
        scheduler = self._scheduler
        if scheduler.is_source_ended or self.requested:
            return False
        blocked = self._blocked() if self.has_scopes else 0
        if scheduler.ready > scheduler.max_workers // 2 + blocked:
            return False
        room = scheduler.room(blocked)
        if room <= 0:
            return False
        source = self._source
        if source.has_reader_thread:
            self.requested += room
            source.request(room, self._receiver)
            return False
        assert isinstance(source, CollectionSource)
        for item, problem in source.read(room):
            if problem is None:
                scheduler.add(item)
            else:
                self._receiver.reject(item, problem)
        if source.is_ended:
            self._receiver.on_source_ended(source.error)
        return True

    def items_came(self, count: int) -> None:
        """Count items that the reader thread has delivered. A resume filter may deliver more than were requested."""
        self.requested = max(0, self.requested - count)

    def _blocked(self) -> int:
        """Return how many ready items cannot start although a worker is free, because their scope has to wait."""
        if self._admission is None:
            return 0
        open_by_scope = self._admission.open_by_scope
        return sum(len(lane) for scope, lane in self._scheduler.lanes.items() if scope in open_by_scope)
