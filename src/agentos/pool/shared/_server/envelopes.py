"""Envelopes: how frames travel through the channels of a server, which may lose a message with a broken connection.

Every envelope has a counter, so that the receiver ignores a doubled message and notices a lost one. A link is broken by
a lost message; its member opens the next one and greets the owner again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from ..messages import MAX_FRAME

# From a member: its id, the number of its link (together they identify a link), the counter; then frames.
_ASK = struct.Struct(">8sII")
LINK_BYTES = 12
ID_BYTES = 8
# From the owner: the number of the link, the owner's nonce, the counter; then one frame.
_TELL = struct.Struct(">I8sI")
_LENGTH = struct.Struct(">I")
# Counter of an envelope that says that the link is broken.
BROKEN = 0
# Number of no link: the envelope only wakes the member that sent it to itself.
WAKE_UP = _TELL.pack(0, bytes(ID_BYTES), 0)


class Ask(NamedTuple):
    """An envelope of a member."""

    link: bytes
    counter: int
    frames: list[bytes]


class Tell(NamedTuple):
    """An envelope of an owner."""

    number: int
    nonce: bytes
    counter: int
    frame: bytes


def pack_ask(gate_id: bytes, number: int, counter: int, frames: list[bytes]) -> bytes:
    parts = [_ASK.pack(gate_id, number, counter)]
    for frame in frames:
        parts += (_LENGTH.pack(len(frame)), frame)
    return b"".join(parts)


def unpack_ask(data: bytes) -> Ask | None:
    """Return an envelope of a member; None if it is none."""
    try:
        _, _, counter = _ASK.unpack_from(data)
        return Ask(data[:LINK_BYTES], counter, list(_split(data)))
    except (struct.error, ValueError):
        return None


def _split(data: bytes) -> Iterator[bytes]:
    start = _ASK.size
    while start < len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if length > MAX_FRAME or start + length > len(data):
            raise ValueError
        yield data[start : start + length]
        start += length


def pack_tell(link: bytes, nonce: bytes, counter: int, frame: bytes = b"") -> bytes:
    return link[ID_BYTES:] + nonce + _LENGTH.pack(counter) + frame


def unpack_tell(data: bytes) -> Tell | None:
    """Return an envelope of an owner; None if it is none."""
    if len(data) < _TELL.size:
        return None
    number, nonce, counter = _TELL.unpack_from(data)
    return Tell(number, nonce, counter, data[_TELL.size :])
