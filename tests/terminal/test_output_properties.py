"""Output of items on a terminal: no control but colours and line controls takes effect."""

from __future__ import annotations

import re

import pytest
from hypothesis import strategies as st

from agentos.terminal.safe_output import safe_output
from tests.support.properties import holds_for

PASSED = re.compile("\x1b\\[[0-9;:]*m|\x1b\\[[0-2]?K|[\t\n\r]")
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
PIECES = [
    "\x1b", "\x1b[", "\x1b]", "[", "]", "\x07", "\x1b\\", "\x9b", "\x9d", "52;c;aGk=", "0;title", "31m", "K", "2J", "m",
    ";", "1", "\r", "\n", "\u202e", "\u2066", "é", "\U0001f600",
]  # fmt: skip
RAW = [piece.encode() for piece in PIECES] + [b"\x9b", b"\x9d", b"\xff", b"\xe2\x80", b"\xae"]


@holds_for(examples=300, pieces=st.lists(st.sampled_from(RAW) | st.binary(max_size=3), max_size=12))
def test_no_other_control_reaches_the_terminal(pieces: list[bytes]) -> None:
    shown = PASSED.sub("", safe_output(b"".join(pieces)).decode("utf-8", "surrogateescape"))
    assert not [char for char in shown if ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F or char in BIDI]
    assert not re.search("[\udc80-\udc9f]", shown)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain\ttext\r\n", b"plain\ttext\r\n"),
        (b"\x1b[1;31mred\x1b[0m \x1b[38:2:1:2:3mrgb\x1b[m\x1b[K\n", None),
        ("caf\u00e9 \u4f60 \U0001f600\n".encode(), None),
        (b"\x1b]0;title\x07\n", b"\\x1b]0;title\\x07\n"),
        (b"\x1b]52;c;aGk=\x1b\\\n", b"\\x1b]52;c;aGk=\\x1b\\\n"),
        (b"\x1b[2J\x1b[5A\n", b"\\x1b[2J\\x1b[5A\n"),
        ("\u202egnp.exe\n".encode(), b"\\u202egnp.exe\n"),
        (b"\x9d0;t\x9c\n", b"\\x9d0;t\\x9c\n"),
        (b"\xff\xfe\n", b"\xff\xfe\n"),
    ],
)
def test_colours_pass_and_controls_are_escaped(data: bytes, shown: bytes | None) -> None:
    assert safe_output(data) == (data if shown is None else shown)
