"""What the simulator has found in a member of a shared pool: each history in its shortest form."""

from __future__ import annotations

from agentos.pool._record_handle import RecordHandle
from agentos.pool._replicas import shared_pool as shared
from agentos.pool.lease_states import LIVE, WAITING

from .member import Talker
from .server import Link
from .world import World

TOLD, POLLED = 59, 98  # seeds whose store tells its news, or is asked for them


def joined(seed: int = TOLD) -> tuple[World, Talker]:
    world = World(seed)
    world.is_calm = True
    process = world.everybody[0]
    assert process.member is not None
    while process.member._position < 2:
        world.step()
    return world, process.member


def test_a_lease_that_was_lost_before_it_was_picked_up_is_asked_for_again() -> None:
    """Else whoever was told of it finds that it has ended, and waits for ever."""
    _, member = joined()
    unused, used = RecordHandle("unused"), RecordHandle("used")
    for record in (unused, used):
        member.ask(record, wait=True, front=False, by_thread=False)
        record.deliver = lambda: None
        served = RecordHandle()
        served.id, served.state = record.id, LIVE
        member._serve(served, is_firm=True)
    member.handles.unclaimed.discard(used.id)  # as `confirm` says
    member._lose_session()
    assert (unused.state, used.state) == (WAITING, "ended")
    assert unused.id in [said[1] for said in member._box.statements if said[0] == shared.ASK]
    assert member.handles.waiting == sum(record.state == WAITING for record in member.handles)


def test_who_was_silent_only_by_its_own_clock_speaks_again() -> None:
    """The store's clock was set back: nobody has given it up, so nobody will ever tell it that."""
    world, member = joined()
    batches, session_id = member._box.batches, member.session_id
    member.spoke_at -= member.ttl + 1.0
    member._box.send_by = 0.0
    for _ in range(5):
        member._wants_news = True
        member.talk_once()
        world.now += 0.01
    assert member.session_id == session_id
    assert member._box.batches > batches
    assert member.now() - member.spoke_at < 1.0


def test_what_arrived_before_its_reply_was_lost_was_said_then() -> None:
    """Else a lease is handed out, and counted on, for longer than it lives."""  # invariant 11
    world, member = joined(POLLED)
    assert isinstance(member._log, Link)
    member._log.loses_replies = 1
    member.say((shared.RESTORE, "k0"))
    arrived_at = member.now()
    member.talk_once()
    assert member.lost_since is not None
    world.now += 0.5 * member.ttl
    while member.lost_since is not None:
        member.talk_once()
    assert member.now() - arrived_at > 0.5 * member.ttl
    assert abs(member.spoke_at - arrived_at) < 0.1


def test_who_may_have_joined_and_expired_since_joins_under_another_name() -> None:
    """Else its leases come back, as others, while it believes in the old ones."""  # invariant 13
    world, member = joined(POLLED)
    assert isinstance(member._log, Link)
    member._lose_session()
    member._box.statements.append((shared.HOLD, 3.0))
    first = member.session_id
    member._log.loses_replies = 1
    member.talk_once()
    assert member.lost_since is not None
    world.now += member.ttl + 1.0
    while member.lost_since is not None:
        member.talk_once()
    assert member.session_id != first
    assert member.copy is not None
    assert member.session_id in member.copy.sessions
    assert member.copy.store.cooling  # what was said then counts


def test_who_was_given_up_while_it_closed_has_nothing_more_to_say() -> None:
    """Else whoever hears the last news goes on talking for ever."""
    _, member = joined(POLLED)
    assert member.copy is not None
    del member.copy.sessions[member.session_id]
    member.spoke_at -= member.ttl + 1.0
    member.close()
    turns = iter(range(50))
    member.talk(lambda: next(turns, None) is None)
    assert next(turns, None) is not None
