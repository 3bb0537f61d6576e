"""Properties of the backlog: the order of bytes stays, memory is bounded, and what is left out is counted."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from agentos.terminal import _backlog
from agentos.terminal._backlog import Backlog

# Whole lines to put in, or None to take something out.
STEPS = st.lists(st.none() | st.lists(st.binary(max_size=8).map(lambda b: b.replace(b"\n", b"") + b"\n"), min_size=1))


@given(STEPS, st.integers(0, 40), st.integers(0, 80))
def test_bytes_come_out_in_order_or_are_counted(
    steps: list[list[bytes] | None], max_memory: int, max_file: int
) -> None:
    backlog = Backlog()
    put: list[bytes] = []
    taken = b""
    with mock.patch.multiple(_backlog, MAX_MEMORY_BYTES=max_memory, MAX_FILE_BYTES=max_file, CHUNK_BYTES=16):
        for lines in steps:
            if lines is None:
                taken += backlog.take()
                continue
            left_out = backlog.left_out_lines
            backlog.put(b"".join(lines))
            if backlog.left_out_lines == left_out:
                put += lines
            assert backlog._memory_bytes <= max_memory
            assert len(backlog) <= max_memory + max_file
        while data := backlog.take():
            taken += data
    assert taken == b"".join(put)
    assert len(backlog) == 0
    assert backlog.left_out_lines == sum(len(lines) for lines in steps if lines) - len(put)
