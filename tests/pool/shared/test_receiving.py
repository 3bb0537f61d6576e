"""Which thread of a member receives, on a link of the test that answers at once."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from agentos.clock import SYSTEM_CLOCK
from agentos.pool.shared import messages as wire
from agentos.pool.shared._member import receiving
from agentos.pool.shared._member.handles import MemberHandle
from agentos.pool.shared._member.member import Member
from agentos.pool.shared.transport import Loaded
from tests.conftest import eventually

from .owned_pool import declaration

WELCOME = wire.Welcome(wire.PROTOCOL, "journal", 1, 1, "host", 0.0, [])


class AnsweringLink:
    """Answers requests and queries when they are sent, and greetings unless `is_slow_to_greet`: then with the next
    query."""

    has_unsent = False

    def __init__(self) -> None:
        self.is_slow_to_greet = False
        self.is_greeting_open = False
        self.receivers: list[threading.Thread] = []  # of frames
        self._frames: SimpleQueue[bytes] = SimpleQueue()

    def send(self, frame: bytes, is_flushed: bool = False) -> None:
        for number, data in wire.decode_frame(frame):
            message = wire.decode_message(data)
            if isinstance(message, wire.Hello):
                self.is_greeting_open = self.is_slow_to_greet
                if not self.is_slow_to_greet:
                    self.reply(WELCOME)
            elif isinstance(message, wire.Request):
                self.reply(wire.Granted(message.lease, "k0", None, number, 0.0, 1, 0), heard=number)
            elif isinstance(message, wire.Query):
                welcome = [WELCOME] if self.is_greeting_open else []
                self.reply(*welcome, wire.Answer(message.number, message.what))

    def reply(self, *replies: wire.Reply, heard: int = 0) -> None:
        self._frames.put(wire.encode(wire.ReplyFrame(heard, heard, 1, list(replies))))

    def receive(self, timeout: float) -> list[bytes]:
        try:
            frame = self._frames.get(timeout=timeout)
        except Empty:
            return []
        self.receivers += [threading.current_thread()] if frame else []
        return [frame] if frame else []

    def wake(self) -> None:
        self._frames.put(b"")

    def flush(self, receives: bool = False) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


class OneLink:
    """A gate with one link."""

    name = "the store"

    def __init__(self) -> None:
        self.link = AnsweringLink()

    def connect(self, seconds: float) -> AnsweringLink:
        return self.link

    def new_session(self) -> str:
        return "session"

    def visit(self) -> None: ...

    def depose(self) -> None: ...

    def look(self) -> Loaded | None: ...

    def close(self) -> None: ...

    def abandon(self) -> None: ...


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Iterator[Member]:
    """A member that has joined, and whose thread stays parked after a caller has received."""
    monkeypatch.setattr(receiving, "PARK_SECONDS", 600.0)
    events: list[Any] = []
    joined = Member(OneLink(), SYSTEM_CLOCK, events.append, 30.0, None)
    with joined.lock:
        joined.declare(declaration())
    joined.open(10)
    yield joined
    joined.close()


def link_of(member: Member) -> AnsweringLink:
    assert isinstance(member.gate, OneLink)
    return member.gate.link


def test_caller_receives_answer_to_its_query(member: Member) -> None:
    assert member.ask("first", seconds=10) == "first"  # perhaps received by the thread
    assert [member.ask("next", seconds=10) for _ in range(3)] == 3 * ["next"]
    assert link_of(member).receivers[-3:] == 3 * [threading.current_thread()]


def test_caller_receives_its_lease_without_a_call_back(member: Member) -> None:
    member.ask("first", seconds=10)
    calls: list[str] = []
    handle = MemberHandle("me")
    handle.deliver = lambda: calls.append("called")
    assert member.request_and_receive(handle, False, math.inf)
    assert (handle.state, handle.is_delivered, calls) == ("live", True, [])
    assert link_of(member).receivers[-1] is threading.current_thread()


def test_query_follows_greeting_that_was_not_answered_yet(member: Member) -> None:
    link = link_of(member)
    link.is_slow_to_greet = True
    link.reply(wire.Expired())
    member.ask("first", seconds=10)  # after `Expired` was taken, which leads to a greeting
    eventually(lambda: link.is_greeting_open)
    assert member.ask("next", seconds=10) == "next"


def test_fast_leases_let_releases_wait_before_the_next_look(member: Member) -> None:
    """The next look of the parked thread is far away after slow leases; a release tells it that they come fast."""
    member.ask("first", seconds=10)
    eventually(lambda: member._is_parked)
    member._may_linger = False

    def lease_and_release() -> bool:
        handle = MemberHandle("me")
        assert member.request_and_receive(handle, False, math.inf)
        with member.lock:
            member.end(handle)
            member.release(handle, wire.End(handle.id, None, True))
        return member._may_linger

    eventually(lease_and_release)
