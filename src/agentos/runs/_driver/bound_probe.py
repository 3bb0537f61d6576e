"""BoundProbe: collects the facts from which `agentos.bounds` decides what binds a run."""

from __future__ import annotations

from agentos.bounds import POOL_KINDS, Bound, BoundTimes, RunFacts, decide
from agentos.events import PoolWaiting
from agentos.items.parallelism import FIXED
from agentos.pool.store import LeaseHandle
from agentos.verdict import RATE_LIMITED

from .._parts.run_parts import RunParts

# Seconds between two queries to the pool about the reason for waiting: a query per item would cost too much.
POOL_SECONDS = 0.5


class BoundProbe:
    """Called by the thread that processes the run's messages, except where a method says otherwise."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._scheduler = parts.scheduler
        self._admission = parts.admission
        self._times: BoundTimes = parts.progress.bound_times
        self._now = parts.clock.now
        self._epoch = parts.clock.epoch
        self._pool_due_at = 0.0
        self._full: tuple[bool, int, str] | None = None  # the facts of the last update, if all workers were busy
        self._has_gateway = parts.context.access is not None

    def update(self, requested: int) -> None:
        """Find out what binds the run from now on. `requested`: items that the input was asked for and that have not
        come yet."""
        scheduler = self._scheduler
        full = None
        if scheduler.running >= scheduler.max_workers:
            auto = self._parts.auto
            by = "" if auto is None else auto.bound.by
            full = (scheduler.ready > 0 or not scheduler.is_source_ended, scheduler.max_workers, by)
            # Decided once, and not for every item that ends and makes room for the next.
            if full == self._full and not (self._has_gateway and self._now() >= self._pool_due_at):
                return
        elif self._is_waiting_still():
            return
        self._full = full
        self._pool_due_at = self._now() + POOL_SECONDS
        self._note(self.facts(self.waiting(), requested))

    def _is_waiting_still(self) -> bool:
        """Return whether requests wait for a credential, and the pool said why a moment ago."""
        present = self._times.present
        is_of_pool = present is not None and present.kind in POOL_KINDS
        is_open = self._admission is not None and bool(self._admission.open_by_scope)
        return is_of_pool and is_open and self._now() < self._pool_due_at

    def note_slow_reader(self) -> None:
        """Note that the results wait for the code that reads them."""
        self._note_slow(RunFacts(0, 0, has_more=True, is_reader_slow=True))

    def note_slow_ledger(self) -> None:
        """Note that the results wait for the disk."""
        self._note_slow(RunFacts(0, 0, has_more=True, is_ledger_slow=True))

    def _note_slow(self, facts: RunFacts) -> None:
        self._full = None
        self._note(facts)

    def _note(self, facts: RunFacts) -> None:
        epoch = self._epoch()
        self._times.note(decide(facts, epoch), self._now(), epoch)

    def note_stop(self) -> None:
        """Note that what binds the run now has ended it: nothing can start."""
        self._times.stop(self.now_bound())

    def now_bound(self) -> Bound | None:
        """Return what binds the run now. Called from any thread."""
        return decide(self.facts(self.waiting()), self._epoch())

    def waiting(self) -> PoolWaiting | None:
        """Return why items wait for a credential, or the requests of items in a run with a gateway; None if none does.
        Called from any thread."""
        pool, request = self._parts.pool, self.waiting_request()
        if pool is None or (request is None and not self._has_refused()):
            return None
        rests = self.rests()
        return self.accepted(request, pool.waiting_for(None) if request is None else pool.waiting_of(request, rests))

    def open_waiting(self) -> PoolWaiting | None:
        """Return why items wait for a credential although a worker is free; None if none does. Called from any
        thread."""
        return self.waiting() if self._admission is not None and self._admission.open_by_scope else None

    def waiting_request(self) -> LeaseHandle | None:
        """Return the request that waits longest for a credential: of an item, or in a run with a gateway also of a
        program that works on one. None if none waits, or all workers are busy. Called from any thread."""
        admission = self._admission
        if admission is None or (self._scheduler.running >= self._scheduler.max_workers and not self._has_gateway):
            return None
        return admission.first_waiting()

    def accepted(self, request: LeaseHandle | None, waiting: PoolWaiting) -> PoolWaiting | None:
        """Return why a request waits; without one, why the next of an item that was refused will have to. None if,
        by the pool, it will not."""
        if request is None and not (self._has_refused() and waiting.reason == RATE_LIMITED):
            return None
        return waiting

    def _has_refused(self) -> bool:
        scheduler = self._scheduler
        return scheduler.sent_back > 0 and (scheduler.running < scheduler.max_workers or self._has_gateway)

    def held_requests(self) -> int:
        """Return how many requests of running items the gateway holds until a credential is usable. Called from any
        thread."""
        pool, admission = self._parts.pool, self._admission
        if pool is None or admission is None or not self._has_gateway:
            return 0
        return max(0, pool.waiters() - sum(tuple(admission.open_by_scope.values())))

    def rests(self) -> dict[str, tuple[float, str]]:
        """Return the credentials that rest in this run for the items that wait. Called from any thread."""
        scopes = () if self._admission is None else tuple(self._admission.open_by_scope)
        return self._parts.breaker.rests(self._now(), scopes)

    def facts(self, waiting: PoolWaiting | None, requested: int = 0) -> RunFacts:
        """Return what is known about the run. `waiting`: why items wait for a credential. Called from any thread."""
        scheduler, auto = self._scheduler, self._parts.auto
        at_once = None if auto is None else auto.bound
        return RunFacts(
            scheduler.max_workers,
            scheduler.running,
            has_more=scheduler.ready > 0 or not scheduler.is_source_ended,
            waiting=waiting,
            workers_by=None if at_once is None or at_once.by == FIXED else at_once.by,
            workers_detail=None if at_once is None else at_once.resource,
            has_keys=self._parts.pool is not None,
            has_gateway=self._has_gateway,
            is_over_budget=scheduler.ready > 0 and not self._parts.spending.admits_item(),
            is_cost_unknown=self._parts.spending.is_cost_unknown(),
            is_input_slow=requested > 0,
            is_refused=scheduler.sent_back > 0,
            is_pausing=scheduler.is_pausing,
        )
