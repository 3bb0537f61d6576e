"""The owner of a shared pool, by the messages that it gets and the replies that it sends."""

from __future__ import annotations

import pytest

from agentos.events import PoolWaiting
from agentos.limits.declaration import Limits, Window
from agentos.pool.shared import messages as wire
from agentos.pool.shared._owner import entries as kinds
from agentos.pool.shared._owner.restore import restore
from agentos.pool.shared.shared_store import read_state
from agentos.pool.shared.transport import Loaded, OwnerStart
from agentos.verdict import RATE_LIMITED, Verdict

from .owned_pool import START, TTL, Client, OwnedPool, declaration, new_owner


@pytest.fixture
def pool() -> OwnedPool:
    return OwnedPool()


def live(pool: OwnedPool, id_: str = "k0") -> int:
    return len(pool.owner.allocator.credentials[id_].leases)


def request_of(client: Client, lease: int) -> wire.Request:
    return wire.Request(lease, "me", 1, 0, None, None)


# --- greetings ----------------------------------------------------------------------------------------------------


def test_greeting_is_answered_and_declares(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(max_concurrent=2))
    (welcome,) = client.of(wire.Welcome)
    assert (welcome.identity, welcome.lost, welcome.wants_usage) == (pool.owner.journal_id, [], False)
    assert pool.owner.allocator.credentials["k0"].max_concurrent == 2


def test_repeated_greeting_adds_nothing_to_journal(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    pool.commit(everything=True)
    batches = len(pool.batches)
    client.greet()
    pool.commit(everything=True)
    assert len(pool.batches) == batches
    assert len(pool.owner.sessions) == 1


@pytest.mark.parametrize("distance", [-1, 1])
def test_neighbouring_protocol_is_served(pool: OwnedPool, distance: int) -> None:
    client = pool.client("m", declaration(), greets=False)
    client.greet(protocol=wire.PROTOCOL + distance)
    assert client.of(wire.Welcome)


@pytest.mark.parametrize("distance", [-2, 2])
def test_distant_protocol_is_dismissed(pool: OwnedPool, distance: int) -> None:
    client = pool.client("m", declaration(), greets=False)
    client.greet(protocol=wire.PROTOCOL + distance)
    (dismissed,) = client.of(wire.Dismissed)
    assert "version" in dismissed.reason
    assert not pool.owner.sessions


def test_unknown_limit_is_dismissed_without_effect(pool: OwnedPool) -> None:
    client = pool.client("m", wire.Declaration("k0", "g", None, [], {"requests_per_fortnight": 3}, ""), greets=False)
    client.greet()
    assert "requests_per_fortnight" in client.of(wire.Dismissed)[0].reason
    assert not pool.owner.allocator.credentials


def test_message_without_greeting_is_answered_by_expired(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(), greets=False)
    pool.clients[client.connection] = client
    client.request()
    assert client.of(wire.Expired)


def test_session_without_messages_expires_and_comes_back(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    lease = client.request()
    held = client.held()
    pool.advance(TTL + 0.1)
    assert live(pool) == 0
    client.send(wire.Heartbeat([lease]))
    assert client.of(wire.Expired)
    client.greet(held=held)
    assert client.of(wire.Welcome)[0].lost == [lease]


def test_sessions_that_expire_together_grant_each_other_nothing(pool: OwnedPool) -> None:
    first, second = pool.client("a", declaration()), pool.client("b", declaration())
    first.request()
    second.request()
    pool.advance(TTL + 0.1)
    assert pool.owner.allocator.credentials["k0"].used_requests == 1


def test_heartbeat_keeps_session(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    lease = client.request()
    for _ in range(5):
        pool.advance(0.8 * TTL)
        client.send(wire.Heartbeat([lease]))
    assert live(pool) == 1


def test_closed_link_ends_leases_at_once(pool: OwnedPool) -> None:
    first, second = pool.client("a", declaration()), pool.client("b", declaration())
    first.request()
    second.request()
    pool.owner.disconnected(first.connection, pool.now)
    pool.commit()
    assert second.of(wire.Granted)


def test_end_of_session_is_committed_before_it_is_confirmed(pool: OwnedPool) -> None:  # invariant 12
    client = pool.client("m", declaration(tokens_per_minute=1000))
    lease = client.request(tokens=10)
    client.send(wire.Settle(lease, None, 200))
    client.send(wire.Leave())
    assert client.of(wire.Expired)
    restored = pool.restored()  # the owner is killed at this instant
    assert restored.sessions == {}
    assert restored.allocator.credentials["k0"].leases == {}
    assert restored.allocator.credentials["k0"].used_tokens == 200


def test_absent_session_ends_if_its_process_has_ended(pool: OwnedPool) -> None:
    first, second, third = (pool.client(name, declaration(max_concurrent=3)) for name in "abc")
    for client in (first, second, third):
        client.request()
    pool.take_over()
    second.greet(held=second.held())
    pool.owner.end_absent(lambda session_id: session_id != "c", pool.now)
    assert list(pool.owner.sessions) == ["b", "c"]  # of "b" only its link counts, of "c" nothing is known
    assert live(pool) == 2


def test_closed_old_link_does_not_end_session(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.request()
    old = client.connection
    client.greet(held=client.held())
    pool.owner.disconnected(old, pool.now)
    assert live(pool) == 1


# --- repetitions and losses ---------------------------------------------------------------------------------------


def test_repeated_request_is_granted_once(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(max_concurrent=2))
    client.send(request_of(client, 1), number=1)
    client.send(request_of(client, 1), number=1)
    assert len(client.of(wire.Granted)) == 1
    assert live(pool) == 1


def test_repeated_verdict_counts_once(pool: OwnedPool) -> None:
    """Two refusals of different requesters in a row would quarantine the key; one message sent twice is one."""
    client = pool.client("m", declaration())
    client.request()
    more = wire.UseMore(1, 1, 10)
    client.send(more, number=2)
    client.send(more, number=2)
    (lease,) = pool.owner.allocator.credentials["k0"].leases.values()
    assert (lease.requests, lease.tokens) == (2, 10)


def test_message_repeated_after_take_over_counts_once(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.request()
    client.send(wire.UseMore(1, 1, 10), number=2)
    pool.commit(everything=True)
    assert client.granted
    pool.take_over()
    client.greet(held=client.held())
    client.send(wire.UseMore(1, 1, 10), number=2)
    (lease,) = pool.owner.allocator.credentials["k0"].leases.values()
    assert lease.requests == 2


def test_lost_grant_is_repeated_on_greeting(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    pool.clients = {}  # replies are lost from here on
    client.request()
    assert live(pool) == 1
    pool.take_over()
    client.greet(waiting=[request_of(client, 1)])
    (granted,) = client.of(wire.Granted)
    assert granted.fence in pool.owner.allocator.credentials["k0"].leases
    assert live(pool) == 1


def test_lost_grant_of_cooled_credential_waits_again(pool: OwnedPool) -> None:  # invariant 4
    client = pool.client("m", declaration())
    pool.clients = {}
    client.request()
    client.send(wire.Cool("k0", 50.0))
    client.greet(waiting=[request_of(client, 1)])
    assert not client.of(wire.Granted)
    assert live(pool) == 0
    pool.owner.sessions["m"].ttl = 1000.0
    client.send(wire.Heartbeat([]))
    pool.advance(50.1)
    assert client.of(wire.Granted)


def test_grant_is_committed_before_reply_is_taken(pool: OwnedPool) -> None:  # invariant 47
    client = pool.client("m", declaration())
    pool.owner.receive(client.connection, wire.encode([(1, request_of(client, 1))]), pool.now)
    assert pool.owner.commit_by == 0.0
    assert kinds.GRANT in {entry[0] for entry in pool.owner.take_entries()}


def test_heartbeat_that_omits_old_lease_ends_it(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    lease = client.request()
    pool.advance(0.6 * TTL)
    client.send(wire.Heartbeat([]))
    assert live(pool) == 1  # its grant may be on the way
    pool.advance(0.6 * TTL)
    client.send(wire.Heartbeat([]))
    assert live(pool) == 0
    assert client.of(wire.Lost) == [wire.Lost(lease)]


# --- confirming, ending, usage ------------------------------------------------------------------------------------


def test_confirm_after_cool_down_waits_and_is_granted_again(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(), declaration("k1"), ttl=500.0)
    lease = client.request()
    (granted,) = client.of(wire.Granted)
    client.send(wire.Cool(granted.credential, 60.0), wire.Confirm(lease))
    (other,) = client.of(wire.Granted)
    assert other.credential != granted.credential
    assert live(pool, granted.credential) == 0
    restored = pool.restored()
    assert len(restored.allocator.credentials[other.credential].leases) == 1


def test_confirm_of_ended_lease_is_lost(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.send(wire.Confirm(7))
    assert client.of(wire.Lost) == [wire.Lost(7)]


def test_confirm_of_dropped_credential_uses_another(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(), declaration("k1"))
    lease = client.request()
    (granted,) = client.of(wire.Granted)
    client.send(wire.Drop(granted.credential), wire.Confirm(lease))
    assert client.of(wire.Granted)[0].credential != granted.credential


def test_usage_of_lost_lease_is_debt(pool: OwnedPool) -> None:  # invariant 14
    client = pool.client("m", declaration(tokens_per_minute=100))
    client.send(wire.UseMore(99, 1, 150, "k0"))
    client.request(10)
    assert not client.of(wire.Granted)
    pool.commit(everything=True)
    for owner in (pool.owner, pool.restored()):
        assert owner.allocator.credentials["k0"].used_tokens == 150


def test_second_end_frees_no_other_lease(pool: OwnedPool) -> None:  # invariant 15
    client, other = pool.client("a", declaration()), pool.client("b", declaration())
    lease = client.request()
    other.request()
    client.end(lease)
    client.end(lease)
    assert live(pool) == 1
    assert other.of(wire.Granted)


def test_cool_down_is_told_to_members_with_that_credential(pool: OwnedPool) -> None:
    client, other = pool.client("a", declaration()), pool.client("b", declaration("k1"))
    client.end(client.request(), Verdict(RATE_LIMITED, retry_after=9.0))
    assert [event.name for event in client.of(wire.Event)] == ["CoolDownStarted"]
    assert not other.of(wire.Event)


def test_cool_down_of_an_unreachable_provider_has_its_address(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.send(wire.End(client.request(), None, False, 5.0, "127.0.0.1:9"))
    (event,) = client.of(wire.Event)
    assert event.fields[3:5] == [5.0, "unreachable: 127.0.0.1:9"]
    pool.take_over()
    assert pool.owner.allocator.credentials["k0"].group.cooled_by == {None: "unreachable: 127.0.0.1:9"}


@pytest.mark.parametrize(("distance", "count"), [(-1, 14), (0, len(PoolWaiting._fields))])
def test_announcement_has_the_fields_that_a_member_knows(pool: OwnedPool, distance: int, count: int) -> None:
    """A member of the protocol before accepts no more."""
    client = pool.client("m", declaration(max_concurrent=1), greets=False)
    client.greet(protocol=wire.PROTOCOL + distance)
    client.request()
    client.request()
    (event,) = client.of(wire.Event)
    assert (event.name, len(event.fields)) == ("PoolWaiting", count)


def test_invalid_verdict_is_rejected_and_changes_nothing(pool: OwnedPool) -> None:  # invariant 46
    client = pool.client("m", declaration())
    lease = client.request()
    client.send(wire.End(lease, ["rate_limited", "soon"]))
    assert client.of(wire.Rejected)
    assert live(pool) == 1


def test_garbage_is_rejected_and_others_are_served(pool: OwnedPool) -> None:  # invariant 46
    client, other = pool.client("a", declaration()), pool.client("b", declaration())
    for data in (b"", b"\xc1", b"\x91\x92\x01\xa1x", wire.encode([(5, ["request", 1])]), wire.encode({"a": 1})):
        pool.owner.receive(client.connection, data, pool.now)
        pool.commit()
    assert len(client.of(wire.Rejected)) == 5
    other.request()
    assert other.of(wire.Granted)


# --- declarations ---------------------------------------------------------------------------------------------------


def test_strictest_declaration_of_several_members_holds(pool: OwnedPool) -> None:
    first = pool.client("a", declaration(requests_per_minute=60, max_concurrent=5))
    second = pool.client("b", declaration(requests_per_minute=600, tokens_per_minute=10, max_concurrent=3))
    credential = pool.owner.allocator.credentials["k0"]
    expected = Limits(requests_per_minute=60, tokens_per_minute=10, max_concurrent=3)
    assert credential.limits == expected
    second.send(wire.Leave())
    assert pool.owner.allocator.credentials["k0"].limits == Limits(requests_per_minute=60, max_concurrent=5)
    first.send(wire.Leave())
    assert pool.owner.allocator.credentials["k0"].limits == Limits(requests_per_minute=60, max_concurrent=5)


def test_member_gets_only_its_own_credentials(pool: OwnedPool) -> None:
    pool.client("a", declaration("k1"))
    client = pool.client("b", declaration())
    client.request()
    client.request()
    assert [granted.credential for granted in client.of(wire.Granted)] == ["k0"]


def test_dropped_credential_is_granted_no_more(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(max_concurrent=2))
    client.request()
    client.send(wire.Drop("k0"))
    client.request()
    assert live(pool) == 1  # the lease that was granted before stays
    assert client.of(wire.Refused)


def test_new_secret_lifts_quarantine(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.send(wire.SetQuarantine("k0", "refused"))
    client.send(declaration())
    assert pool.owner.allocator.credentials["k0"].quarantine == "refused"
    client.send(declaration(fingerprint="another"))
    assert pool.owner.allocator.credentials["k0"].quarantine is None


def test_unknown_zone_is_an_error_of_its_sender_only(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.send(wire.Declaration("k1", "g", None, [], {"requests_per_day": 5, "day_resets": "00:00 No/Where"}, ""))
    (rejected,) = client.of(wire.Rejected)
    assert rejected.reason == (
        "the pool's owner (process 7 on host) does not know the time zone 'No/Where': install the time zones there "
        "(pip install tzdata), or give day_resets in UTC"
    )
    client.request()
    assert client.of(wire.Granted)


def test_doubled_credential_of_greeting_is_checked_each_time(pool: OwnedPool) -> None:
    other = pool.client("other", declaration())
    unknown = wire.Declaration("k1", "g", None, [], {"requests_per_day": 5, "day_resets": "00:00 No/Where"}, "")
    client = pool.client("m", unknown, declaration("k1"))
    assert client.of(wire.Dismissed)
    other.request()
    assert other.of(wire.Granted)


# --- losses of the journal ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [("journal", 5), ("another journal", 0)])
def test_member_that_has_seen_more_makes_owner_hold(pool: OwnedPool, seen: tuple[str, int]) -> None:  # invariant 48
    other = pool.client("b", declaration())
    client = pool.client("a", declaration(), greets=False)
    pool.advance(1.0)
    seen = (pool.owner.journal_id if seen[0] == "journal" else seen[0], pool.owner.position + seen[1])
    held = [wire.HeldLease(3, "k0", int(START * 1e6) + 9, 1, 0, None, "me")]
    client.greet(seen=seen, held=held)
    (welcome,) = client.of(wire.Welcome)
    assert (welcome.lost, welcome.wants_usage) == ([], True)
    other.request()
    assert not other.of(wire.Granted)
    assert live(pool) == 1
    client.end(3)
    pool.advance(TTL + 0.1)
    other.greet(waiting=[request_of(other, 1)])
    (granted,) = other.of(wire.Granted)
    assert granted.fence > int((START + 1.0) * 1e6)  # invariant 13: than any that a lost journal can have had


HISTORY = [OwnerStart("a", 0), OwnerStart("b", 5), OwnerStart("c", 9), OwnerStart("d", 7)]


@pytest.mark.parametrize(
    ("owner", "position", "kept"),
    [("a", 6, 5), ("b", 8, 7), ("c", 10, 7), ("d", 13, 12), ("forgotten", 3, 0), ("", 13, 12)],
)
def test_member_that_has_seen_another_continuation_makes_owner_hold(
    pool: OwnedPool, owner: str, position: int, kept: int
) -> None:  # invariant 48
    """The journal was longer than it is now. Owner b wrote up to 9; it was cut at 7, where d continued it up to 12."""
    pool.owner.continue_history(Loaded("journal", 7, None, [], START, owners=HISTORY))
    pool.owner.position = 12
    client = pool.client("m", declaration(), greets=False)
    client.greet(seen=("journal", position), seen_owner=owner)
    (welcome,) = client.of(wire.Welcome)
    assert (welcome.wants_usage, welcome.kept, welcome.nonce) == (True, kept, "d")
    assert pool.owner.is_recovering


@pytest.mark.parametrize(("owner", "position"), [("a", 5), ("b", 7), ("c", 7), ("d", 12), ("", 12)])
def test_member_that_has_seen_what_the_journal_holds_is_served(pool: OwnedPool, owner: str, position: int) -> None:
    pool.owner.continue_history(Loaded("journal", 7, None, [], START, owners=HISTORY))
    pool.owner.position = 12
    client = pool.client("m", declaration(), greets=False)
    client.greet(seen=("journal", position), seen_owner=owner)
    assert not client.of(wire.Welcome)[0].wants_usage
    assert not pool.owner.is_recovering


def test_usage_reported_after_loss_counts(pool: OwnedPool) -> None:
    client = pool.client("m", declaration(requests_per_minute=10), greets=False)
    client.greet(seen=("another journal", 3), used=[wire.Usage("k0", 5.0, 10, 0), wire.Usage("k0", 70.0, 10, 0)])
    assert not client.of(wire.Welcome)[0].wants_usage
    limiter = pool.owner.allocator.credentials["k0"].group.pace.limiter
    assert limiter is not None
    assert limiter.usage(pool.now)["requests per minute"] == (10, 10)


def test_lease_of_expired_session_is_not_restored_without_loss(pool: OwnedPool) -> None:  # invariant 1
    first, second = pool.client("a", declaration()), pool.client("b", declaration(), ttl=500.0)
    first.request()
    held = first.held()
    pool.advance(TTL + 0.1)
    second.request()
    first.greet(held=held)
    assert live(pool) == 1
    assert first.of(wire.Welcome)[-1].lost == [1]


def test_hold_survives_take_over(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    pool.owner.hold(20.0, pool.now)
    client.request()
    pool.take_over()
    assert pool.owner.is_recovering
    client.greet(waiting=[request_of(client, 1)])
    assert not client.of(wire.Granted)
    pool.advance(20.1)
    assert client.of(wire.Granted)


def test_unreadable_entries_are_reported_and_others_count(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.request()
    pool.batches.insert(1, (pool.now, [(99, "unknown"), (kinds.GRANT, 4)]))
    owner = new_owner(pool.now)
    assert restore(owner, None, pool.batches, pool.now) is False
    assert len(owner.allocator.credentials["k0"].leases) == 1


def test_rejected_message_is_not_repeated(pool: OwnedPool) -> None:
    client = pool.client("m", declaration())
    client.send(wire.End(1, ["rate_limited", "soon"]))
    assert client.of(wire.Rejected)[0].number == client.numbers
    assert client.heard == client.numbers


@pytest.mark.parametrize("query", [wire.Query(2, "unheard of"), wire.Query(2, "explain", [{}, 5, [], ""])])
def test_rejected_query_names_no_message(pool: OwnedPool, query: wire.Query) -> None:
    """Queries have numbers of their own: a message with the same number would not be repeated after a take-over."""
    client = pool.client("m", declaration())
    client.send(query)
    assert [rejected.number for rejected in client.of(wire.Rejected)] == [0]


@pytest.mark.parametrize("is_saved", [False, True], ids=["entries", "snapshot"])
def test_begun_window_ends_in_time_after_a_take_over(pool: OwnedPool, is_saved: bool) -> None:  # invariants 39, 47
    window = Window("requests", 2, "2h", "first-use")
    client = pool.client("m", declaration(windows=[window], max_concurrent=9), ttl=99_999.0)
    first = client.request()
    pool.advance(5.0)
    client.end(first, success=True)
    pool.commit(everything=True)
    if is_saved:
        pool.save()
    pool.advance(3_600.0)
    owner = pool.restored()
    limiter = owner.allocator.credentials["k0"].group.pace.limiter
    assert limiter is not None
    assert limiter.ready_at(1, 0, pool.now) == 0.0
    assert limiter.ready_at(2, 0, pool.now) == pytest.approx(pool.now - 3_600.0 + window.seconds, abs=1.1)


def test_states_of_a_newer_owner_can_be_read(pool: OwnedPool) -> None:  # invariant 46
    client = pool.client("m", declaration(max_concurrent="auto"))
    client.send(wire.Query(1, "states"))
    (answer,) = client.of(wire.Answer)
    state = answer.value[0]
    assert read_state({**state, "field of a later version": 1}, 0.0) == read_state(state, 0.0)
