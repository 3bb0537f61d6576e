"""RunParts: the objects that the parts of one run share, and how they are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agentos.clock import Clock
from agentos.items.access import AttemptAccess
from agentos.items.attempt import Attempt
from agentos.items.item import Item
from agentos.items.results import Spent
from agentos.pool.lease_pool import LeasePool
from agentos.pool.store import LeaseHandle
from agentos.workers.base import Workers
from agentos.workers.capacity import room_for_run

from .._rules.auto_parallel import AutoParallel
from .._rules.circuit_breaker import CircuitBreaker
from .._rules.run_options import Auto, Options
from .._rules.scheduler import Scheduler
from .admission import AccessAdmission, Admission
from .attempt_context import RunContext
from .messages import LeaseDelivered, Message, ResultsTaken
from .progress import RunProgress
from .recorder import LedgerRecorder, NullRecorder, Recorder
from .result_queue import ResultQueue
from .spending import RunSpending
from .timers import Timers

if TYPE_CHECKING:
    from agentos.ledger.record import RunRecord

# Size of the result queue with a ledger: results come in batches, and a batch must not wait for the last one's reader.
RECORDED_QUEUE_SIZE = 20_000
# Size of the result queue where the number of workers changes.
AUTO_QUEUE_SIZE = 1_000


class RunParts(NamedTuple):
    """Only the thread that processes the run's messages changes them, except for `results`."""

    options: Options
    clock: Clock
    pool: LeasePool | None
    workers: Workers
    context: RunContext
    scheduler: Scheduler
    admission: Admission | None  # None: items start without a lease
    breaker: CircuitBreaker
    spending: RunSpending
    running: dict[Attempt, None]  # attempts, in the order of their start
    timers: Timers
    results: ResultQueue
    progress: RunProgress
    recorder: Recorder
    auto: AutoParallel | None  # None: a fixed number of workers
    post: Callable[[Message], None]
    report: Callable[[Any], None]


def make_parts(
    options: Options,
    total: int | None,
    workers: Workers,
    pool: LeasePool | None,
    clock: Clock,
    post: Callable[[Message], None],
    run_record: RunRecord | None,
    checkpoints: Path | None,
    access: AttemptAccess | None,
) -> RunParts:
    """`total`: the number of items, if it is known. `checkpoints`: the folder of the checkpoint folders of commands.
    `access`: the gateway of the attempts, if the run has one."""
    before = Spent() if run_record is None or run_record.launch == 1 else run_record.spent_before()
    spending = RunSpending(options.budget, before, run_record, has_gateway=access is not None)
    tracked = spending if spending.is_tracked else None
    context = RunContext(options.run_id, pool, run_record, checkpoints, access, tracked)
    auto = None if options.auto is None else _make_auto(options, options.auto, workers, pool, access)
    max_workers = options.max_workers if auto is None else auto.limit(0)
    scheduler = Scheduler(
        max_workers=max_workers, retries=options.retries, halt=options.halt, total=total, now=clock.now()
    )
    admission = None
    breaker = CircuitBreaker()
    if pool is not None and options.admission:
        admission = _make_admission(pool, access, breaker, clock, post)
    size = options.max_workers if auto is None else AUTO_QUEUE_SIZE
    if run_record is not None:
        size = max(size, RECORDED_QUEUE_SIZE)
    results = ResultQueue(size, lambda: post(ResultsTaken()))
    progress = RunProgress(
        options.run_id,
        scheduler,
        pool,
        options.reporter,
        clock,
        results,
        spending,
        is_recorded=run_record is not None,
        has_gateway=access is not None,
        auto=auto,
    )
    recorder: Recorder = NullRecorder(context, progress)
    if run_record is not None:
        recorder = LedgerRecorder(run_record, context, progress)
    return RunParts(
        options=options,
        clock=clock,
        pool=pool,
        workers=workers,
        context=context,
        scheduler=scheduler,
        admission=admission,
        breaker=breaker,
        spending=spending,
        running={},
        timers=Timers(clock, post),
        results=results,
        progress=progress,
        recorder=recorder,
        auto=auto,
        post=post,
        report=progress.report,
    )


def _make_auto(
    options: Options, auto: Auto, workers: Workers, pool: LeasePool | None, access: AttemptAccess | None
) -> AutoParallel:
    machine = workers.machine_use()
    room = room_for_run(is_command=machine is not None)
    if room is not None and (auto.cap is None or room.attempts < auto.cap):
        auto = Auto(max(1, room.attempts), room.limit)
    return AutoParallel(
        machine,
        admitted=None if pool is None else pool.admitted(),
        has_leases=options.admission and access is None,
        cap=auto.cap,
        cap_name=auto.cap_name,
    )


def _make_admission(
    pool: LeasePool, access: AttemptAccess | None, breaker: CircuitBreaker, clock: Clock,
    post: Callable[[Message], None],
) -> Admission:  # fmt: skip
    def deliver(item: Item, handle: LeaseHandle) -> None:
        post(LeaseDelivered(item, handle))

    if access is None:
        return Admission(pool, deliver, breaker, clock)
    return AccessAdmission(pool, deliver, breaker, clock, access.hold)
