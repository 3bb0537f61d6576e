"""What must hold after every step, whoever did what."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from agentos.pool._rules.allocator import Allocator
from agentos.pool._rules.records import CredentialRecord, LeaseRecord
from agentos.pool.lease_states import LIVE, WAITING

from .watched import WatchedAllocator

if TYPE_CHECKING:
    from .process import Process
    from .world import World

# A member may be so much later than the instant at which something had to be said: two exchanges, and its own pace.
LATE = 0.25
# Who does not claim an offer within so many seconds is passed over.
CLAIMED_WITHIN = 1.0


def check(world: World) -> None:
    if world.memory is not None:
        pool = world.memory._pool
        _check_pool(pool, world.now + world.epoch)
    elif world.server.judge is not None and world.server.epoch:
        judge = world.server.judge
        _check_pool(judge.pool, judge.at)
        _check_sessions(world)
    for process in world.everybody:
        if not process.is_dead:
            _check_run(process)


def _check_pool(pool: Allocator, now: float) -> None:
    assert isinstance(pool, WatchedAllocator)
    assert pool.watch is not None
    live = 0
    for credential in (*pool.credentials.values(), *pool.leaving.values()):
        live += len(credential.leases)
        most = pool.watch.most_leases(credential)
        assert len(credential.leases) <= most, f"{credential.id} is lent too often"  # invariant 1
        assert all(record.state == LIVE for record in credential.leases.values())
    watch = pool.watch
    watch.forget_places()
    assert watch.granted_count == watch.released_count + live, "leases were lost"  # invariant 16
    wake_at = pool.next_wake_at()
    if wake_at is not None and wake_at <= now:
        return  # its instant has just come, and is next
    for queue in pool.waiting.values():
        assert queue
        head = next(iter(queue.values()))
        _check_head(pool, head, wake_at, now)
    assert all(record.state == WAITING for queue in pool.waiting.values() for record in queue.values())


def _check_head(pool: WatchedAllocator, head: LeaseRecord, wake_at: float | None, now: float) -> None:
    """Invariants 7, 8 and 17: the first who waits cannot be served, but can hope, and the instant of that is known."""
    has_hope = False
    for c in pool.credentials.values():
        if c.quarantine is not None or not c.serves(head.request_class):
            continue
        if c.group.pace.too_large(head.requests, head.tokens):
            continue
        has_hope = True
        if len(c.leases) >= c.max_concurrent or _is_claimed(pool, c, head, now):
            continue
        at = max(c.usable_at(head.scope), c.paced_until(head.scope, head.requests, head.tokens, now))
        if head.waits_for_probe and not c.is_proven and c.leases:
            at = max(at, c.probe_deadline)
        assert at > now, f"{head.requester} waits beside {c.id}, which it could use"
        assert wake_at is not None, f"nobody wakes {head.requester}"
        assert wake_at <= at + 1e-6, f"{head.requester} is woken {wake_at - at:.3f} s too late"
    assert has_hope, f"{head.requester} waits for nothing"


def _is_claimed(pool: Allocator, credential: CredentialRecord, record: LeaseRecord, now: float) -> bool:
    """Somebody asked earlier for more of its tokens than there are now: who needs tokens, too, must not take them."""
    allowance = credential.group.pace.allowance
    if not record.tokens or allowance is None:
        return False
    return any(
        other.tokens and other.sequence < record.sequence and allowance.next_tokens_at(other.tokens, now)
        for request_class, queue in pool.waiting.items()
        if request_class != record.request_class and credential.serves(request_class)
        for other in queue.values()
    )


def _check_sessions(world: World) -> None:
    """Whoever lives and waits sees to it that time acts."""
    server = world.server
    judge = server.judge
    assert judge is not None
    for session in judge.sessions.values():
        for lease in session.offers:
            age = judge.at - session.leases[lease].granted_at
            assert age <= CLAIMED_WITHIN, (
                f"an offer to {session.id} has not been claimed for {age:.3f} s"
            )  # invariant 12
    for process in world.everybody:
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
        if process.link is None or process.link.is_cut or not process.link.is_connected:
            continue
        if world.now - world.stepped_at < 1.0 or member.not_before > process.clock.now():
            continue
        late = server.now() - judge.next_at()
        talks_in = process.talks_at - world.now  # or it was due a moment ago, and is on its way
        assert late < LATE or abs(talks_in) < LATE, f"{late:.3f} s have passed and {process.name} says nothing"


def _check_run(process: Process) -> None:
    run = process.run
    assert run.running == len(process.attempts), "a run lost count of what runs"
    assert run.running <= run.max_workers
    assert run.ready == sum(len(lane) for lane in run.lanes.values())
    pausing = len(run._pausing)
    if run.stopped is None:
        known = run.ready + len(process.admission) + run.running + pausing
        assert len(run.unfinished) == known, "an item is nowhere"  # invariant 19


def check_sent(world: World, process: Process, record: LeaseRecord) -> None:
    """Invariants 2 and 3, by what was really sent: it counts, whatever became of it. Only where nobody changes what was
    declared, and as long as nothing is forgotten."""
    assert record.credential is not None
    key = world.setting.keys.get(record.credential.id)
    limits = None if key is None else key.limits
    if limits is None or limits.requests_per_minute is None or world.has_changed_keys:
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
    """Invariant 11: a lease that is used is one, and lives for a while."""
    assert record.state == LIVE
    member, server = process.member, world.server
    is_newest = member is None or (member._epoch == server.epoch and not server.is_restarted)
    _check_fence(world, record, is_newest=is_newest)
    if member is not None:
        assert record.credential is not None
        known = None if member.copy is None else member.copy.pool.credentials.get(record.credential.id)
        assert known is not None, f"{process.name} uses a lease without knowing how things stand"
        assert known.quarantine is None, f"{process.name} begins with a credential in quarantine"  # invariant 5
    if member is None or not is_newest or world.now - world.stepped_at < 60.0:
        return
    judge = server.judge
    assert judge is not None
    early = server.watch.not_before - server.now()
    assert early <= 0, f"{process.name} uses a lease {early:.3f} s before those of a lost log have run out"
    session = judge.sessions.get(member.session_id)
    assert session is not None, f"{process.name} uses a lease of a session that has ended"
    lease = session.leases.get(record.id)
    assert lease is not None, f"{process.name} uses a lease that nobody knows"
    assert lease.state == LIVE, f"{process.name} uses a lease that is {lease.state}"
    assert lease.fence == record.fence, f"{process.name} uses an older lease"
    left = session.expires_at - server.now()
    assert left >= 0.9 * session.ttl - 0.05, f"{process.name} got a lease with {left:.2f} s left of {session.ttl}"


def _check_fence(world: World, record: LeaseRecord, *, is_newest: bool) -> None:  # invariant 13
    assert record.credential is not None
    id_ = record.credential.id
    handed_out = world.handed_out.setdefault(id_, set())
    assert record.fence not in handed_out, f"{id_}: the fence {record.fence} was there before"
    handed_out.add(record.fence)
    if is_newest:
        assert record.fence > world.lost_fences.get(id_, 0), f"{id_}: fences go back"


def check_at_rest(world: World) -> None:
    """Everything has ended, and nothing is left behind."""
    for ledger in world.ledgers:
        assert set(ledger.outcomes) == set(ledger.ids), "items were lost"  # invariant 19
    if world.memory is not None:
        pools: list[Allocator] = [world.memory._pool]
    elif world.server.judge is not None and world.server.epoch:
        judge = world.server.judge
        judge.apply(judge.at + 1000.0, "", 0, ())  # whoever was killed has been silent for so long by then
        pools = [judge.pool]
        assert not judge.sessions
    else:
        pools = []
    for pool in pools:  # invariant 16
        assert not pool.waiting, "somebody waits on"
        assert not any(credential.leases for credential in pool.credentials.values()), "a lease is left"
        for credential in pool.credentials.values():
            for cooldown_scope in credential.paced_by:
                in_flight = [learner.in_flight for learner in cooldown_scope.pace.learners.values()]
                assert not any(in_flight), f"{credential.id}: {in_flight} are on their way for ever"
