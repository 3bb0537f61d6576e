"""The session of a member, by the frames that it sends and takes, on a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from agentos.clock import SYSTEM_CLOCK
from agentos.events import StoreReached, StoreUnreachable
from agentos.pool.shared import messages as wire
from agentos.pool.shared._member import member_messages
from agentos.pool.shared._member.handles import MemberHandle
from agentos.pool.shared._member.member import Member
from agentos.pool.shared._member.member_session import MemberSession
from agentos.pool.shared.transport import StoreLost, StoreRefused

from .owned_pool import declaration


class RecordingLink:
    """Keeps what is sent."""

    has_unsent = False

    def __init__(self) -> None:
        self.sent: list[tuple[int, wire.Message]] = []
        self.is_closed = False

    def send(self, frame: bytes, _is_flushed: bool = False) -> None:
        self.sent += [(number, wire.decode_message(data)) for number, data in wire.decode_frame(frame)]

    def flush(self, receives: bool = False) -> None: ...

    def wake(self) -> None: ...

    def receive(self, timeout: float) -> list[bytes]:
        return []

    def close(self) -> None:
        self.is_closed = True

    abandon = close

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for _, message in self.sent if isinstance(message, kind)]


class Desk:
    """A session with its clock, links and events."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[Any] = []
        self.session = MemberSession("the store", SYSTEM_CLOCK, self.events.append, 30.0, None, lambda: self.now)
        self.session.declare(declaration())
        self.position = 10

    def greet(self, *replies: wire.Reply, lost: list[int] | None = None) -> RecordingLink:
        link = RecordingLink()
        self.session.greet(link)
        self.take(wire.Welcome(wire.PROTOCOL, "journal", self.position, 1, "host", 0.0, lost or []), *replies)
        return link

    def take(self, *replies: wire.Reply, heard: int = 0, kept: int = 0) -> None:
        self.session.take(wire.ReplyFrame(heard, kept, self.position, list(replies)))
        for call, arguments in self.session.take_calls():
            call(*arguments)

    def request(self) -> MemberHandle:
        handle = MemberHandle("me")
        handle.deliver = lambda: None
        self.session.request(handle, False)
        return handle

    def grant(self, handle: MemberHandle, fence: int = 5) -> None:
        self.take(wire.Granted(handle.id, "k0", None, fence, 0.0, 1, 0), heard=self.session._numbers)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_request_before_welcome_is_sent(desk: Desk) -> None:
    link = RecordingLink()
    desk.session.greet(link)
    desk.request()
    assert len(link.of(wire.Request)) == 1


def test_greeting_lists_requests_and_leases(desk: Desk) -> None:
    desk.greet()
    waiting, held = desk.request(), desk.request()
    desk.grant(held)
    desk.session.on_lost(StoreLost("gone"))
    (hello,) = desk.greet().of(wire.Hello)
    assert [request.lease for request in hello.waiting] == [waiting.id]
    assert [(lease.lease, lease.fence) for lease in hello.held] == [(held.id, 5)]
    assert hello.seen == ("journal", 10)


def test_messages_are_repeated_until_journal_has_them(desk: Desk) -> None:
    link = desk.greet()
    desk.session.say(wire.Cool("k0", 1.0))
    desk.session.say(wire.Cool("k0", 2.0))
    desk.take(heard=2, kept=1)
    desk.session.on_lost(StoreLost("gone"))
    assert desk.greet().sent[1:] == link.sent[2:]
    desk.take(heard=2, kept=2)
    desk.session.on_lost(StoreLost("gone"))
    assert not desk.greet().of(wire.Cool)


def test_messages_are_repeated_in_the_frame_of_the_greeting(desk: Desk) -> None:
    """A newer message that reaches the owner first would make it ignore them."""
    desk.session.say(wire.Cool("k0", 1.0))
    link = RecordingLink()
    desk.session.greet(link)
    assert [type(message) for _, message in link.sent] == [wire.Hello, wire.Cool]


def test_lease_lost_before_delivery_is_requested_again(desk: Desk) -> None:
    desk.greet()
    handle = desk.request()
    desk.grant(handle)
    desk.session.on_lost(StoreLost("gone"))
    link = desk.greet(lost=[handle.id])
    assert handle.state == "waiting"
    assert [request.lease for request in link.of(wire.Request)] == [handle.id]


def test_lease_lost_after_delivery_ends(desk: Desk) -> None:
    desk.greet()
    handle = desk.request()
    desk.grant(handle)
    handle.is_delivered = True
    desk.take(wire.Lost(handle.id))
    assert (handle.state, handle.is_lost) == ("ended", True)


def test_repeated_grant_is_ignored(desk: Desk) -> None:
    desk.greet()
    handle = desk.request()
    desk.grant(handle, 5)
    desk.grant(handle, 6)
    assert handle.fence == 5
    assert desk.session.waiting == 0


def test_leases_are_fresh_for_a_tenth_of_their_time(desk: Desk) -> None:  # invariant 11
    desk.greet()
    assert desk.session.is_fresh()
    desk.now += 2.9
    assert desk.session.is_fresh()
    desk.now += 0.2
    assert not desk.session.is_fresh()
    desk.session.say(wire.Cool("k0", 1.0))
    desk.now += 3.1
    desk.take(heard=desk.session._numbers)  # counts from its sending
    assert not desk.session.is_fresh()


def test_leases_are_not_fresh_without_link(desk: Desk) -> None:
    desk.greet()
    desk.session.on_lost(StoreLost("gone"))
    assert not desk.session.is_fresh()


def test_heartbeats_name_live_leases(desk: Desk) -> None:
    link = desk.greet()
    handle = desk.request()
    desk.grant(handle)
    desk.request()
    desk.now += member_messages.MAX_BEAT_SECONDS + 0.1
    desk.session.beat()
    assert link.of(wire.Heartbeat) == [wire.Heartbeat([handle.id])]


def test_heartbeats_name_leases_that_are_being_confirmed(desk: Desk) -> None:
    """The owner would end them, and confirm them before that."""
    link = desk.greet()
    handle = desk.request()
    desk.grant(handle)
    desk.session.request_again(handle, wire.Confirm(handle.id))
    desk.now += 10.1
    desk.session.beat()
    assert link.of(wire.Heartbeat) == [wire.Heartbeat([handle.id])]
    desk.take(wire.Lost(handle.id))
    desk.now += 10.1
    desk.session.beat()
    assert link.of(wire.Heartbeat)[1:] == [wire.Heartbeat([])]


def test_idle_member_sends_heartbeats(desk: Desk) -> None:
    link = desk.greet()
    desk.now += 10.1
    desk.session.beat()
    assert link.of(wire.Heartbeat)


def test_owner_without_answer_is_silent_after_a_while(desk: Desk) -> None:
    desk.greet()
    desk.now += 10.1
    desk.session.beat()
    desk.now += member_messages.SILENCE_SECONDS - 0.1
    assert not desk.session.is_owner_silent()
    desk.now += 0.2
    assert desk.session.is_owner_silent()
    desk.take()
    assert not desk.session.is_owner_silent()


def test_expired_session_greets_again_once(desk: Desk) -> None:
    link = desk.greet()
    desk.take(wire.Expired())
    desk.take(wire.Expired())
    assert len(link.of(wire.Hello)) == 2


def test_loss_is_answered_by_usage_once(desk: Desk) -> None:  # invariant 48
    """Also by a member that has used nothing: its greetings do not go on for ever."""
    desk.greet()
    desk.session.on_lost(StoreLost("gone"))
    link = RecordingLink()
    desk.session.greet(link)
    desk.take(wire.Welcome(wire.PROTOCOL, "new", 1, 1, "host", 0.0, [], wants_usage=True))
    _, second = link.of(wire.Hello)
    assert second.seen is None
    desk.take(wire.Welcome(wire.PROTOCOL, "new", 1, 1, "host", 0.0, []))
    assert len(link.of(wire.Hello)) == 2


def test_loss_report_has_usage_of_grants(desk: Desk) -> None:
    desk.greet()
    desk.grant(desk.request())
    desk.session.on_lost(StoreLost("gone"))
    link = RecordingLink()
    desk.session.greet(link)
    desk.now += 7.0
    desk.take(wire.Welcome(wire.PROTOCOL, "new", 1, 1, "host", 0.0, [], wants_usage=True))
    assert link.of(wire.Hello)[-1].used == [wire.Usage("k0", 7.0, 1, 0)]


def test_loss_report_leaves_out_what_journal_holds(desk: Desk) -> None:
    """Usage that a shorter journal still holds is not counted twice. Usage beyond a reservation has no known position,
    and is reported."""
    desk.greet()
    for position in (11, 12):
        desk.position = position
        desk.grant(desk.request())
        desk.now += 10.0
    desk.session.count_used("k0", 0, 50)
    desk.session.on_lost(StoreLost("gone"))
    link = RecordingLink()
    desk.session.greet(link)
    assert link.of(wire.Hello)[-1].seen == ("journal", 12)
    desk.take(wire.Welcome(wire.PROTOCOL, "journal", 15, 1, "host", 0.0, [], wants_usage=True, kept=11))
    assert link.of(wire.Hello)[-1].used == [wire.Usage("k0", 10.0, 1, 0), wire.Usage("k0", 0.0, 0, 50)]


def test_greeting_names_owner_of_what_was_seen(desk: Desk) -> None:  # invariant 48
    desk.position = 11
    desk.greet()
    desk.take(wire.Welcome(wire.PROTOCOL, "journal", 11, 1, "host", 0.0, [], nonce="first"))
    desk.session.on_lost(StoreLost("gone"))
    link = RecordingLink()
    desk.session.greet(link)
    desk.position = 20
    with pytest.raises(StoreRefused):
        desk.take(wire.Dismissed("another owner does not serve this member"))
    desk.session.greet(link)
    assert [(hello.seen, hello.seen_owner) for hello in link.of(wire.Hello)] == 2 * [(("journal", 11), "first")]


def test_heard_request_postpones_heartbeat_of_waiting_member(desk: Desk) -> None:
    """But not for longer than the names of its leases may be late."""
    link = desk.greet()
    for _ in range(19):
        desk.request()
        desk.now += 0.5
        desk.take(heard=desk.session._numbers)
        desk.session.beat()
    assert not link.of(wire.Heartbeat)
    desk.now = 100.0 + 30.0 / member_messages.BEATS
    desk.session.beat()
    assert len(link.of(wire.Heartbeat)) == 1
    desk.now += member_messages.MAX_BEAT_SECONDS
    desk.session.beat()
    assert len(link.of(wire.Heartbeat)) == 2  # nothing was heard meanwhile


def test_short_break_is_not_announced(desk: Desk) -> None:
    desk.greet()
    desk.session.on_lost(StoreLost("gone"))
    desk.now += 0.5
    desk.greet()
    assert not desk.events
    desk.session.on_lost(StoreLost("gone"))
    desk.now += 2.0
    desk.session.on_lost(StoreLost("gone"))
    desk.greet()
    assert [type(event) for event in desk.events] == [StoreUnreachable, StoreReached]


def test_loss_before_first_greeting_is_not_announced(desk: Desk) -> None:
    """The caller of `open` is told why it takes long: an end of that is no news either."""
    desk.session.on_lost(StoreLost("its owner did not answer"))
    desk.now += 2.0
    desk.session.on_lost(StoreLost("its owner did not answer"))
    assert desk.session.lost_since is not None
    desk.greet()
    assert desk.session.lost_since is None
    assert not desk.events


def test_rejected_message_is_not_repeated(desk: Desk) -> None:
    desk.greet()
    desk.session.say(wire.Cool("k0", 1.0))
    desk.take(wire.Rejected(desk.session._numbers, "no"))
    desk.session.on_lost(StoreLost("gone"))
    assert not desk.greet().of(wire.Cool)


def test_cooled_grant_is_doubtful_until_delivered(desk: Desk) -> None:
    desk.greet()
    first, second = desk.request(), desk.request()
    desk.grant(first, 5)
    desk.grant(second, 6)
    second.is_delivered = True
    desk.take(wire.Event("CoolDownStarted", ["group", "g-k0", None, 5.0, "rate_limited", None]))
    assert (first.is_doubtful, second.is_doubtful) == (True, False)


def test_member_that_leaves_waits_for_the_answer() -> None:
    """The owner may be killed next, with all processes of a container: until it answers, its journal holds nothing."""

    class Gate:
        name = "the store"

        def close(self) -> None: ...

    class AnsweringLink(RecordingLink):
        has_answered = False

        def receive(self, timeout: float) -> list[bytes]:
            assert not self.is_closed
            self.has_answered = True
            return [wire.encode(wire.ReplyFrame(0, 0, 0, [wire.Expired()]))]

    member, link = Member(Gate(), SYSTEM_CLOCK, print, 30.0, None), AnsweringLink()  # type: ignore[arg-type]
    member._link = link
    member._end()
    assert link.has_answered
    assert link.is_closed
