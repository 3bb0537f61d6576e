"""Regressions of the member of a shared pool that the simulation found, each in its shortest form."""

from __future__ import annotations

from agentos.pool._replicas import shared_pool as shared
from agentos.pool._replicas.handles import NumberedHandle
from agentos.pool._rules.lease_states import LIVE, WAITING

from .log_server import Connection
from .member import SimulatedMember
from .world import World

PUSHED, POLLED = 59, 98  # seeds whose store announces its log entries, or is polled for them


def joined(seed: int = PUSHED) -> tuple[World, SimulatedMember]:
    world = World(seed)
    world.has_stopped_faults = True
    process = world.all_processes[0]
    assert process.member is not None
    while process.member._position < 2:
        world.step()
    return world, process.member


def test_unclaimed_lease_of_lost_session_is_requested_again() -> None:
    """Otherwise its requester, already notified, finds an ended lease and waits for ever."""
    _, member = joined()
    unused, used = NumberedHandle("unused"), NumberedHandle("used")
    for record in (unused, used):
        member.ask(record, wait=True, front=False, by_thread=False)
        record.deliver = lambda: None
        served = NumberedHandle()
        served.id, served.state = record.id, LIVE
        member._serve(served, is_firm=True)
    member.handles.unclaimed.discard(used.id)  # as `confirm` says
    member._lose_session()
    assert (unused.state, used.state) == (WAITING, "ended")
    assert unused.id in [statement[1] for statement in member._box.statements if statement[0] == shared.ASK]
    assert member.handles.waiting == sum(record.state == WAITING for record in member.handles)


def test_member_silent_by_its_own_clock_sends_again() -> None:
    """The store's clock was set back: the session has not expired, so no reply will ever say that it has."""
    world, member = joined()
    batches, session_id = member._box.batches, member.session_id
    member.spoke_at -= member.ttl + 1.0
    member._box.send_by = 0.0
    for _ in range(5):
        member._wants_news = True
        member.exchange_once()
        world.now += 0.01
    assert member.session_id == session_id
    assert member._box.batches > batches
    assert member.now() - member.spoke_at < 1.0


def test_batch_with_lost_reply_counts_from_its_arrival() -> None:
    """Otherwise the member trusts a lease for longer than it lives."""  # invariant 11
    world, member = joined(POLLED)
    assert isinstance(member._log, Connection)
    member._log.replies_to_lose = 1
    member.say((shared.RESTORE, "k0"))
    arrived_at = member.now()
    member.exchange_once()
    assert member.lost_since is not None
    world.now += 0.5 * member.ttl
    while member.lost_since is not None:
        member.exchange_once()
    assert member.now() - arrived_at > 0.5 * member.ttl
    assert abs(member.spoke_at - arrived_at) < 0.1


def test_member_with_doubtful_join_uses_new_session_id() -> None:
    """The session may have joined and expired since. With the same id its leases would come back with other fences
    while the member trusts the old ones."""  # invariant 13
    world, member = joined(POLLED)
    assert isinstance(member._log, Connection)
    member._lose_session()
    member._box.statements.append((shared.HOLD, 3.0))
    first = member.session_id
    member._log.replies_to_lose = 1
    member.exchange_once()
    assert member.lost_since is not None
    world.now += member.ttl + 1.0
    while member.lost_since is not None:
        member.exchange_once()
    assert member.session_id != first
    assert member.copy is not None
    assert member.session_id in member.copy.sessions
    assert member.copy.store.cooling  # the HOLD of the first batch counts


def test_member_expired_while_closing_ends_its_exchange() -> None:
    """Otherwise it exchanges with the store for ever."""
    _, member = joined(POLLED)
    assert member.copy is not None
    del member.copy.sessions[member.session_id]
    member.spoke_at -= member.ttl + 1.0
    member.close()
    turns = iter(range(50))
    member.talk(lambda: next(turns, None) is None)
    assert next(turns, None) is not None
