"""Invariants of the simulated system, checked after every step and when a history has ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE, WAITING
from agentos.pool._rules.records import CredentialRecord, LeaseRecord

from .checked_allocator import CheckedAllocator

if TYPE_CHECKING:
    from .process import Process
    from .world import World

# Seconds by which a member may miss its deadline for an exchange: two round trips, and its minimum interval.
MAX_LATENESS = 0.25
# Seconds after which an offer that its session has not claimed must have lapsed.
MAX_CLAIM_SECONDS = 1.0


def check(world: World) -> None:
    """Check pool, sessions and runs after one step. Raise `AssertionError` for a broken invariant."""
    if world.memory is not None:
        pool = world.memory._allocator
        _check_pool(pool, world.now + world.epoch)
    elif world.server.judge is not None and world.server.epoch:
        judge = world.server.judge
        _check_pool(judge.pool, judge.at)
        _check_sessions(world)
    for process in world.all_processes:
        if not process.is_dead:
            _check_run(process)


def _check_pool(pool: Allocator, now: float) -> None:
    assert isinstance(pool, CheckedAllocator)
    assert pool.oracle is not None
    live = 0
    for credential in (*pool.credentials.values(), *pool.members.leaving.values()):
        live += len(credential.leases)
        max_leases = pool.oracle.max_leases(credential)
        assert len(credential.leases) <= max_leases, f"{credential.id} has too many leases"  # invariant 1
        assert all(record.state == LIVE for record in credential.leases.values())
    oracle = pool.oracle
    oracle.drop_ended_requests()
    assert oracle.granted_count == oracle.released_count + live, "leases were lost"  # invariant 16
    wake_at = pool.next_wake_at()
    if wake_at is not None and wake_at <= now:
        return  # `advance` is due now and will be the next step
    for queue in pool.waiting.values():
        assert queue
        head = next(iter(queue.values()))
        _check_head(pool, head, wake_at, now)
    assert all(record.state == WAITING for queue in pool.waiting.values() for record in queue.values())


def _check_head(pool: CheckedAllocator, head: LeaseRecord, wake_at: float | None, now: float) -> None:
    """Invariants 7, 8 and 17: the head of a queue cannot be served now, some credential can serve it later, and the
    pool has scheduled a wake-up for that instant."""
    can_be_served = False
    for c in pool.credentials.values():
        if c.quarantine is not None or not c.serves(head.request_class):
            continue
        if c.group.pace.too_large(head.requests, head.tokens):
            continue
        can_be_served = True
        if len(c.leases) >= c.max_concurrent or _is_claimed(pool, c, head, now):
            continue
        at = max(c.usable_at(head.scope), c.paced_until(head.scope, head.requests, head.tokens, now))
        if head.waits_for_probe and not c.is_proven and c.leases:
            at = max(at, c.probe_deadline)
        assert at > now, f"{head.requester} waits although {c.id} could serve it now"
        assert wake_at is not None, f"no wake-up is scheduled for {head.requester}"
        assert wake_at <= at + 1e-6, f"{head.requester} is woken {wake_at - at:.3f} s too late"
    assert can_be_served, f"{head.requester} waits although no credential can ever serve it"


def _is_claimed(pool: Allocator, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
    """Return whether an older request of another class waits for more tokens of this credential than are free now: a
    younger request must not take them."""
    limiter = credential.group.pace.limiter
    if not record.tokens or limiter is None:
        return False
    return any(
        other.tokens and other.sequence < record.sequence and limiter.next_tokens_at(other.tokens, now)
        for request_class, queue in pool.waiting.items()
        if request_class != record.request_class and credential.serves(request_class)
        for other in queue.values()
    )


def _check_sessions(world: World) -> None:
    """Invariant 12: offers are claimed in time, and a connected member with waiters exchanges by its deadline."""
    server = world.server
    judge = server.judge
    assert judge is not None
    for session in judge.sessions.values():
        for lease in session.offers:
            age = judge.at - session.leases[lease].granted_at
            assert age <= MAX_CLAIM_SECONDS, (
                f"an offer to {session.id} has not been claimed for {age:.3f} s"
            )  # invariant 12
    for process in world.all_processes:
        member = process.member
        if process.is_dead or process.is_closed or member is None or process.paused_until:
            continue
        if (
            not member.handles.waiting
            or member.copy is None
            or member.lost_since is not None
            or member._epoch != server.epoch
        ):
            continue
        if process.connection is None or process.connection.is_cut or not process.connection.is_connected:
            continue
        if world.now - world.clock_stepped_at < 1.0 or member.not_before > process.clock.now():
            continue
        late = server.now() - judge.next_at()
        # An exchange that is due now, or was a moment ago, is not late: it may be in flight.
        is_exchanging = abs(process.exchange_at - world.now) < MAX_LATENESS
        assert late < MAX_LATENESS or is_exchanging, f"{process.name} is {late:.3f} s late with its exchange"


def _check_run(process: Process) -> None:
    run = process.run
    assert run.running == len(process.attempts), "the run's count of running attempts is wrong"
    assert run.running <= run.max_workers
    assert run.ready == sum(len(lane) for lane in run.lanes.values())
    pausing = len(run._pausing)
    if run.stopped is None:
        count = run.ready + sum(process.admission.open_by_scope.values()) + run.running + pausing
        assert len(run.unfinished) == count, "an unfinished item is in no state"  # invariant 19


def check_sent(world: World, process: Process, record: LeaseRecord) -> None:
    """Invariants 2 and 3 for the requests that were really sent, answered or not. Skipped once a process has redeclared
    limits; each log epoch has its own count."""
    assert record.credential is not None
    key = world.scenario.keys.get(record.credential.id)
    limits = None if key is None else key.limits
    if limits is None or limits.requests_per_minute is None or world.has_redeclared_keys:
        return
    epoch = "" if process.member is None else process.member._epoch
    admitted = world.sent.setdefault((key.group, epoch), [])
    insort(admitted, record.granted_at)
    for at in admitted[bisect_left(admitted, record.granted_at) :]:
        if at - record.granted_at >= 60.0:
            break
        count = bisect_right(admitted, at) - bisect_right(admitted, at - 60.0)
        assert count <= max(1.0, limits.requests_per_minute), f"{count} requests of {key.group} within a minute"


def check_handed_out(world: World, process: Process, record: LeaseRecord) -> None:
    """Invariant 11: a lease that a process starts to use is live in the log and does not expire soon."""
    assert record.state == LIVE
    member, server = process.member, world.server
    is_newest = member is None or (member._epoch == server.epoch and not server.is_restarted)
    _check_fence(world, record, is_newest=is_newest)
    if member is not None:
        assert record.credential is not None
        credential = None if member.copy is None else member.copy.pool.credentials.get(record.credential.id)
        assert credential is not None, f"{process.name} uses a lease of a credential that its replica does not have"
        assert credential.quarantine is None, f"{process.name} begins with a credential in quarantine"  # invariant 5
    if member is None or not is_newest or world.now - world.clock_stepped_at < 60.0:
        return
    judge = server.judge
    assert judge is not None
    early = server.oracle.not_before - server.now()
    assert early <= 0, f"{process.name} uses a lease {early:.3f} s before the leases of a lost log have expired"
    session = judge.sessions.get(member.session_id)
    assert session is not None, f"{process.name} uses a lease of a session that has ended"
    lease = session.leases.get(record.id)
    assert lease is not None, f"{process.name} uses a lease that is not in the log"
    assert lease.state == LIVE, f"{process.name} uses a lease that is {lease.state}"
    assert lease.fence == record.fence, f"{process.name} uses an older lease"
    seconds = session.expires_at - server.now()
    assert seconds >= 0.9 * session.ttl - 0.05, f"{process.name}: a lease has {seconds:.2f} s left of {session.ttl}"


def _check_fence(world: World, record: LeaseRecord, *, is_newest: bool) -> None:  # invariant 13
    assert record.credential is not None
    id_ = record.credential.id
    used_fences = world.used_fences.setdefault(id_, set())
    assert record.fence not in used_fences, f"{id_}: fence {record.fence} was used before"
    used_fences.add(record.fence)
    if is_newest:
        assert record.fence > world.lost_fences.get(id_, 0), f"{id_}: fences go back"


def check_finished(world: World) -> None:
    """Check a history that has ended: every item has an outcome, no lease, waiter or request in flight is left."""
    for ledger in world.ledgers:
        assert set(ledger.outcomes) == set(ledger.ids), "items were lost"  # invariant 19
    if world.memory is not None:
        pools: list[Allocator] = [world.memory._allocator]
    elif world.server.judge is not None and world.server.epoch:
        judge = world.server.judge
        judge.apply(judge.at + 1000.0, "", 0, ())  # far enough for the sessions of killed processes to expire
        pools = [judge.pool]
        assert not judge.sessions
    else:
        pools = []
    for pool in pools:  # invariant 16
        assert not pool.waiting, "a request still waits"
        assert not any(credential.leases for credential in pool.credentials.values()), "a lease is left"
        for credential in pool.credentials.values():
            for cooldown_scope in credential.paced_by:
                in_flight = [estimator.in_flight for estimator in cooldown_scope.pace.estimators.values()]
                assert not any(in_flight), f"{credential.id}: {in_flight} requests stay in flight"
