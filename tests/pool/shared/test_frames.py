"""Frames on a stream socket."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.shared._machine import frames
from agentos.pool.shared._machine.frames import FrameStream
from agentos.pool.shared.transport import StoreLost


@pytest.fixture
def pair() -> Iterator[tuple[FrameStream, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield FrameStream(left), right


@given(st.lists(st.binary(max_size=300), max_size=6), st.data())
def test_frames_arrive_whole_in_any_pieces(contents: list[bytes], data: st.DataObject) -> None:
    left, right = socket.socketpair()
    with left, right:
        stream = FrameStream(left)
        sent = b"".join(struct.pack(">I", len(content)) + content for content in contents)
        received = []
        while sent:
            size = data.draw(st.integers(1, len(sent)))
            right.sendall(sent[:size])
            sent = sent[size:]
            received += stream.receive()
        assert received == contents
        assert stream.receive() == []


def test_frame_that_is_too_large_breaks_the_link(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, other = pair
    other.sendall(struct.pack(">I", 2**31) + b"x")
    with pytest.raises(StoreLost, match="too large"):
        stream.receive()


def test_unread_frames_are_kept_and_sent_later(pair: tuple[FrameStream, socket.socket]) -> None:
    stream, other = pair
    content = bytes(1_000_000)
    stream.send(content)
    stream.send(b"second")
    assert stream.unsent
    expected = struct.pack(">I", len(content)) + content + struct.pack(">I", 6) + b"second"
    received = b""
    while len(received) < len(expected):
        received += other.recv(100_000)
        stream.flush()
    assert received == expected
    assert not stream.unsent


def test_peer_that_does_not_read_is_given_up(
    pair: tuple[FrameStream, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_UNSENT", 1_000_000)
    stream, _ = pair
    with pytest.raises(StoreLost, match="does not read"):
        for _ in range(100):
            stream.send(bytes(100_000))
    stream.break_off()
    assert not stream.unsent
    with pytest.raises(StoreLost, match="closed"):
        stream.receive()
