"""A hostile member: whatever it sends, the owner answers or disconnects, and serves the others meanwhile."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentos.pool.shared import messages as wire
from agentos.pool.shared._machine import owner_lock
from agentos.pool.shared._owner.queries import ANSWERS
from agentos.workflows.parallel import Credential, CredentialCoordinator, Limits
from tests.conftest import BUSY

KEYS = [Credential(f"sk-hostile-{n:06}", id=f"key-{n}", limits=Limits(max_concurrent=50)) for n in range(2)]


class Target:
    """A pool, its honest member, and the address of its owner."""

    def __init__(self, path: Path) -> None:
        self.pool = CredentialCoordinator(KEYS, store=f"sqlite:///{path}", lease_ttl=30)
        note = owner_lock.read_note(path)
        assert note is not None
        self.path, self.address = path, note.socket
        self._greeted_at = self._member._greeted_at

    @property
    def _member(self) -> Any:
        return self.pool._store._member  # type: ignore[attr-defined]

    def connect(self) -> socket.socket:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(10 + BUSY)
        try:
            link.connect(self.address)
        except OSError:
            link.close()
            raise
        return link

    def check(self) -> None:
        """The honest member is served, by the same owner, on the same link."""
        with self.pool.lease(timeout=10 + BUSY):
            pass
        greeted_at, self._greeted_at = self._greeted_at, self._member._greeted_at
        assert self._greeted_at == greeted_at
        note = owner_lock.read_note(self.path)
        assert note is not None
        assert note.socket == self.address


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    target = Target(tmp_path_factory.mktemp("hostile") / "pool.db")
    yield target
    target.pool.close()


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def hello(session: str = "hostile", **changes: Any) -> wire.Hello:
    declared = [wire.Declaration("key-0", "g", None, [], {}, "f")]
    fields = {"ttl": 30.0, "declarations": declared, "held": [], "waiting": [], **changes}
    return wire.Hello(wire.PROTOCOL, session, "host", 1, None, **fields)


def answer_of(link: socket.socket) -> wire.ReplyFrame | None:
    """Return the next frame of the owner; None if it has closed the link."""
    with contextlib.suppress(ConnectionError):
        header = link.recv(4, socket.MSG_WAITALL)
        if len(header) == 4:
            return wire.decode_replies(link.recv(struct.unpack(">I", header)[0], socket.MSG_WAITALL))
    return None


def talk(target: Target, data: list[Any]) -> None:
    """Greet the owner, send messages, and wait for the answer to a query that follows them."""
    with target.connect() as link, contextlib.suppress(ConnectionError):
        link.sendall(frame(wire.encode([(1, hello())])))
        answer_of(link)
        for number, message in enumerate(data, 2):
            link.sendall(frame(wire.encode([(number, message)])))
        link.sendall(frame(wire.encode([(10**6, wire.Query(7, "nothing"))])))
        while (replies := answer_of(link)) is not None:
            if any(isinstance(reply, wire.Answer) and reply.number == 7 for reply in replies.replies):
                break


def test_random_bytes_disturb_nobody(target: Target) -> None:  # invariant 46
    chance = random.Random(11)
    for n in range(60):
        with target.connect() as link, contextlib.suppress(ConnectionError):
            data = chance.randbytes(chance.randint(1, 5000))
            link.sendall(data if n % 2 else frame(data))
    target.check()


def test_huge_and_half_frames_disturb_nobody(target: Target) -> None:
    with target.connect() as huge, target.connect() as half, target.connect() as silent:
        huge.sendall(struct.pack(">I", 2**32 - 1) + b"x" * 1000)
        half.sendall(frame(wire.encode([(1, hello())]))[:-3])
        target.check()
        assert answer_of(huge) is None
        silent.sendall(b"\0")
    target.check()


def test_many_connections_disturb_nobody(target: Target) -> None:
    links = []
    try:
        for _ in range(1500):
            try:
                links.append(target.connect())
            except OSError:
                break  # the queue of the owner or the descriptors of this process are full
        target.check()
        newcomer = CredentialCoordinator(KEYS, store=f"sqlite:///{target.path}")
        newcomer.close()
    finally:
        for link in links:
            link.close()
    target.check()


def test_member_that_never_reads_is_disconnected(target: Target) -> None:
    query = frame(wire.encode([(n + 2, wire.Query(n, "states")) for n in range(2000)]))
    with target.connect() as link:
        link.settimeout(0.2)
        with contextlib.suppress(OSError):  # it takes no more, or has closed the link
            for _ in range(100):
                link.sendall(query)
                target.check()
        target.check()


def test_expired_and_strange_sessions_are_answered(target: Target) -> None:
    with target.connect() as link:
        link.sendall(frame(wire.encode([(1, wire.Heartbeat([]))])))
        replies = answer_of(link)
        assert replies is not None
        assert isinstance(replies.replies[0], wire.Expired)
        link.sendall(frame(wire.encode([(1, wire.Query(3, "unheard of"))])))
        replies = answer_of(link)
        assert replies is not None
        assert isinstance(replies.replies[0], wire.Rejected)
    for strange in ({"ttl": 1e-300}, {"seen": None, "held": [wire.HeldLease(1, "key-0", 2**60, 1, 1, None, None)]}):
        with target.connect() as link:
            link.sendall(frame(wire.encode([(1, hello("strange", **strange))])))
            answer_of(link)
    target.check()


def test_member_with_unknown_zone_is_dismissed(target: Target) -> None:
    declared = wire.Declaration("z", "z", None, [], {"requests_per_day": 5, "day_resets": "00:00 No/Where"}, "f")
    with target.connect() as link:
        link.sendall(frame(wire.encode([(1, hello("zone", declarations=[declared]))])))
        replies = answer_of(link)
        assert replies is not None
        assert isinstance(replies.replies[0], wire.Dismissed)
        assert "No/Where" in replies.replies[0].reason
    target.check()


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
counts = st.sampled_from([0, 1, 2, 2**53, 2**62, 2**64 - 1, -1]) | anything
ids = st.sampled_from(["key-0", "key-1", "g", "", "x" * 2000]) | anything
TAGS = ["declare", "drop", "request", "confirm", "withdraw", "end", "observed", "settle", "more", "debt", "quarantine",
        "beat", "query", "hello"]  # fmt: skip
LIMITS = st.dictionaries(st.sampled_from(["requests_per_minute", "tokens_per_minute", "requests_per_day", "burst",
                                          "max_concurrent", "day_resets", "unknown"]), counts, max_size=4)  # fmt: skip
shaped = st.one_of(
    st.tuples(st.just("request"), counts, ids, counts, counts, ids, ids),
    st.tuples(st.sampled_from(["confirm", "withdraw"]), counts),
    st.tuples(st.just("end"), counts, st.none() | st.lists(anything, max_size=16), st.booleans(), counts),
    st.tuples(st.just("observed"), counts, st.lists(counts, max_size=16)),
    st.tuples(st.sampled_from(["settle", "more"]), counts, counts, counts),
    st.tuples(st.just("debt"), ids, counts, counts),
    st.tuples(st.just("declare"), st.sampled_from(["mine", "too"]), ids, ids, st.lists(ids, max_size=2), LIMITS, ids),
    st.tuples(st.just("query"), counts, st.sampled_from([*ANSWERS, "x"]), st.lists(anything, max_size=3)),
    st.tuples(st.sampled_from(TAGS), anything, anything),
)  # fmt: skip


@settings(max_examples=150)
@given(st.lists(shaped, min_size=1, max_size=12))
def test_valid_frames_with_any_values_disturb_nobody(target: Target, messages: list[Any]) -> None:  # invariant 46
    harmless = [m for m in messages if m[0] not in ("quarantine", "hello")]  # these are any member's right
    talk(target, harmless)
    target.check()
