"""Invariants of the simulated system, checked after every step and when a history has ended."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.lease_states import LIVE, WAITING
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.pool.shared._member.handles import MemberHandle

from .checked_allocator import CheckedAllocator

if TYPE_CHECKING:
    from .process import Handle, Process
    from .world import World

DAY = 86_400.0


def check(world: World) -> None:
    """Check pool and runs after one step. Raise `AssertionError` for a broken invariant."""
    if world.memory is not None:
        _check_pool(world.memory._allocator, world.now + world.epoch)
    else:
        owner = world.store.owner
        if owner is not None and not owner.is_dead and owner.turned_at == world.store.now():
            _check_pool(owner.owner.allocator, owner.turned_at)
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
        if c.quarantine is not None or not c.can_ever_serve(head.request_class):
            continue
        if c.group.pace.too_large(head.requests, head.tokens):
            continue
        can_be_served = True
        if not c.serves(head.request_class):
            continue  # the requester leaves it alone for now, and asks again
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
    if record.is_plain or limiter is None:
        return False
    return any(
        not other.is_plain
        and other.sequence < record.sequence
        and limiter.next_room_at(other.scope, other.tokens, other.detail, now, record.scope)
        for request_class, queue in pool.waiting.items()
        if request_class != record.request_class and credential.serves(request_class)
        for other in queue.values()
    )


def _check_run(process: Process) -> None:
    run = process.run
    assert run.running == len(process.attempts), "the run's count of running attempts is wrong"
    assert run.running <= run.max_workers
    assert run.ready == sum(len(lane) for lane in run.lanes.values())
    pausing = len(run._pausing)
    if run.stopped is None:
        count = run.ready + sum(process.admission.open_by_scope.values()) + run.running + pausing
        assert len(run.unfinished) == count, "an unfinished item is in no state"  # invariant 19


def check_sent(world: World, record: Handle) -> None:
    """Invariants 2, 3 and 47 for the requests that were really sent, by the instants at which owners granted them:
    whichever owners did. Skipped once a process has redeclared limits; after a loss it starts anew, because processes
    that were killed cannot report what they used."""
    key = world.scenario.keys.get(record.credential_id or "")
    if key is None or world.has_redeclared_keys:
        return
    limits, epoch = key.limits, (world.store.identity, world.losses)
    admitted = world.sent.setdefault((key.group, *epoch), [])
    insort(admitted, record.granted_at)
    if limits.requests_per_minute is not None:
        for at in admitted[bisect_left(admitted, record.granted_at) :]:
            if at - record.granted_at >= 60.0:
                break
            count = bisect_right(admitted, at) - bisect_right(admitted, at - 60.0)
            assert count <= max(1.0, limits.requests_per_minute), f"{count} requests of {key.group} within a minute"
    if limits.requests_per_day is not None and not world.has_stepped_clock:
        day = int(record.granted_at // DAY)
        count = sum(int(at // DAY) == day for at in admitted)
        assert count <= limits.requests_per_day, f"{count} requests of {key.group} in a day"


def check_handed_out(world: World, process: Process, record: Handle) -> None:
    """Invariants 1, 11, 12 and 47: a lease that a process starts to use is live in the owner and expires not soon."""
    assert record.state == LIVE
    _check_fence(world, record)
    member, owner_process = process.member, world.store.owner
    if member is None or owner_process is None or owner_process.is_dead or world.loss_unnoticed_until > world.now:
        return
    if record.granted_at <= world.lost_at + world.epoch:
        return  # the owner holds until such leases have expired
    owner = owner_process.owner
    session = owner.sessions.get(member.session_id)
    assert session is not None, f"{process.name} uses a lease of a session that has ended"
    assert isinstance(record, MemberHandle)
    lease = session.leases.get(record.id)
    assert lease is not None, f"{process.name} uses a lease that its owner does not know"
    assert lease.state == LIVE, f"{process.name} uses a lease that is {lease.state}"
    assert (lease.fence, lease.credential_id) == (record.fence, record.credential_id), f"{process.name}: an older lease"
    credential = owner.allocator.members.find(record.credential_id or "")
    assert len(credential.leases) <= owner_process.oracle.max_leases(credential)
    seconds = session.expires_at - world.store.now()
    assert seconds >= 0.9 * session.ttl - 0.05, f"{process.name}: a lease has {seconds:.2f} s left of {session.ttl}"


def _check_fence(world: World, record: Handle) -> None:  # invariant 13
    id_ = record.credential_id or ""
    used_fences = world.used_fences.setdefault(id_, set())
    assert record.fence not in used_fences, f"{id_}: fence {record.fence} was used before"
    used_fences.add(record.fence)


def check_finished(world: World) -> None:
    """Check a history that has ended: every item has an outcome, no lease, waiter or request in flight is left."""
    for ledger in world.ledgers:
        assert set(ledger.outcomes) == set(ledger.ids), "items were lost"  # invariant 19
    if world.memory is not None:
        pool: Allocator = world.memory._allocator
    else:
        world.store.locked_until = 0.0
        owner = world.store.connect().owner
        owner.advance(world.store.now() + 1000.0)  # far enough for the sessions of killed processes to expire
        assert not owner.sessions
        pool = owner.allocator
    assert not pool.waiting, "a request still waits"  # invariant 16
    assert not any(credential.leases for credential in pool.credentials.values()), "a lease is left"
    for credential in pool.credentials.values():
        in_flight = [estimator.in_flight for estimator in credential.group.pace.estimators.values()]
        assert not any(in_flight), f"{credential.id}: {in_flight} requests stay in flight"
