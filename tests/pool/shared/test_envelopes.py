"""Envelopes: frames that travel through the channels of a server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentos.pool.shared._server import envelopes
from agentos.pool.shared.messages import MAX_FRAME

IDS = st.binary(min_size=envelopes.ID_BYTES, max_size=envelopes.ID_BYTES)
NUMBERS = st.integers(0, 2**32 - 1)


@given(IDS, NUMBERS, NUMBERS, st.lists(st.binary(max_size=50), max_size=5))
def test_frames_of_a_member_arrive_as_sent(gate_id: bytes, number: int, counter: int, frames: list[bytes]) -> None:
    data = envelopes.pack_ask(gate_id, number, counter, frames)
    link = gate_id + number.to_bytes(4, "big")
    assert envelopes.unpack_ask(data) == envelopes.Ask(link, counter, frames)


@given(IDS, NUMBERS, IDS, NUMBERS, st.binary(max_size=50))
def test_frame_of_an_owner_arrives_as_sent(
    gate_id: bytes, number: int, nonce: bytes, counter: int, frame: bytes
) -> None:
    data = envelopes.pack_tell(gate_id + number.to_bytes(4, "big"), nonce, counter, frame)
    assert envelopes.unpack_tell(data) == envelopes.Tell(number, nonce, counter, frame)


@given(st.binary(max_size=200))
def test_garbage_is_no_envelope_or_a_small_one(data: bytes) -> None:  # invariant 46
    ask = envelopes.unpack_ask(data)
    assert ask is None or sum(map(len, ask.frames)) <= len(data)
    tell = envelopes.unpack_tell(data)
    assert tell is None or len(tell.frame) < len(data)


def test_frame_that_claims_to_be_huge_is_no_envelope() -> None:  # invariant 46
    data = envelopes.pack_ask(bytes(8), 1, 1, []) + (MAX_FRAME + 1).to_bytes(4, "big")
    assert envelopes.unpack_ask(data) is None
