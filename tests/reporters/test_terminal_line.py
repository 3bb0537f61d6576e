"""PlainReporter on a terminal: one progress line that is rewritten, and lines of their own for everything else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading
from collections.abc import Callable
from typing import Any, TextIO

import pytest

from agentos.workflows.parallel import ParallelCoordinator, PlainReporter


def terminal_text(coordinate: Callable[[TextIO], None], columns: int = 60) -> str:
    """Return what a reporter writes to a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    written: list[bytes] = []

    def read() -> None:
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end was closed
                return
            written.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(theirs, "w") as stream:
        coordinate(stream)
    reader.join(30)
    os.close(ours)
    return b"".join(written).decode().replace("\r\n", "\n")


def nothing(_item: Any, _credential: Any) -> None:
    pass


def test_progress_on_a_terminal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures and the summary are lines of their own; the progress line is erased before each."""
    monkeypatch.setenv("TERM", "xterm-256color")

    def work(item: int, _: Any) -> None:
        if item == 30:
            raise ValueError("no such item")

    text = terminal_text(
        lambda stream: ParallelCoordinator(2, reporter=PlainReporter(stream)).execute_parallel(range(50), work)
    )
    lines = text.split("\n")
    drawn = [piece for line in lines for piece in line.split("\r\x1b[K")[1:]]
    assert "[COORDINATOR] Progress: 50/50 (100.0%), 1 failed" in drawn
    assert all(len(piece) < 60 for piece in drawn if piece.startswith("[COORDINATOR] Progress"))
    assert sum(line.count("Progress") for line in lines) == sum(piece.count("Progress") for piece in drawn)
    assert any(piece.startswith("[COORDINATOR] Failed: 30: ValueError: no such item") for piece in (*drawn, *lines))
    assert any(line.endswith("\r\x1b[K[COORDINATOR] Execution complete:") for line in lines)


@pytest.mark.parametrize("terminal", ["dumb", ""])
def test_progress_on_a_dumb_terminal_is_lines(monkeypatch: pytest.MonkeyPatch, terminal: str) -> None:
    monkeypatch.setenv("TERM", terminal or "dumb")
    text = terminal_text(
        lambda stream: ParallelCoordinator(2, reporter=PlainReporter(stream)).execute_parallel(
            range(3), lambda *_: None
        )
    )
    assert "\x1b" not in text
    assert "[COORDINATOR] Progress: 3/3 (100.0%)\n" in text


def test_progress_line_is_cut_to_narrow_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    reporter = PlainReporter()
    text = terminal_text(
        lambda stream: ParallelCoordinator(1, reporter=PlainReporter(stream)).execute_parallel(
            range(2), lambda *_: None
        ),
        columns=20,
    )
    assert "\r\x1b[K[COORDINATOR] Progr" in text
    assert "Progre" not in text
    assert reporter._columns() is None  # pytest captures stdout
