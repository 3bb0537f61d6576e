"""Passes the output of an attempt through redaction to its log, to the display, and to the result.

All data are bytes: the output of a command need not be text.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from agentos.items.file_names import log_name
from agentos.redaction.redactor import Redactor

# Bytes. A longer line is shown in pieces.
MAX_LINE_BYTES = 64 * 1024
# Bytes at the end of each stream that are stored in the result, and searched for messages of providers.
TAIL_BYTES = 64 * 1024

# Called with an item's id, "stdout" or "stderr", and whole lines, each with its newline.
OutputCall = Callable[[str, str, bytes], None]


class Lines:
    """Splits a stream into whole lines. Holds an incomplete line, up to MAX_LINE_BYTES."""

    __slots__ = ("_partial_line",)

    def __init__(self) -> None:
        self._partial_line = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are complete with this data."""
        complete, newline, rest = data.rpartition(b"\n")
        if newline:
            complete = self._partial_line + complete + newline
            self._partial_line = rest
        else:
            complete, self._partial_line = b"", self._partial_line + rest
        if _has_long_line(complete):
            complete = _split_long_lines(complete)
        while len(self._partial_line) > MAX_LINE_BYTES:
            complete += self._partial_line[:MAX_LINE_BYTES] + b"\n"
            self._partial_line = self._partial_line[MAX_LINE_BYTES:]
        return complete

    def flush(self) -> bytes:
        """Return the incomplete line, with a newline."""
        line, self._partial_line = self._partial_line, b""
        return line + b"\n" if line else b""


def _has_long_line(lines: bytes) -> bool:
    """Return whether a line exceeds MAX_LINE_BYTES. Searches backwards from where such a line would end, so most lines
    are skipped."""
    start = 0
    while len(lines) - start > MAX_LINE_BYTES + 1:
        newline = lines.rfind(b"\n", start, start + MAX_LINE_BYTES + 1)
        if newline < 0:
            return True
        start = newline + 1
    return False


def _split_long_lines(lines: bytes) -> bytes:
    pieces = []
    for line in lines[:-1].split(b"\n"):
        starts = range(0, max(1, len(line)), MAX_LINE_BYTES)
        pieces += [line[start : start + MAX_LINE_BYTES] + b"\n" for start in starts]
    return b"".join(pieces)


def log_lost(error: OSError) -> bytes:
    """Return the line that tells a user that output is shown, but not logged."""
    return f"agentos: logs cannot be written any more: {error}\n".encode("utf-8", "backslashreplace")


class Log:
    """An item's log: the output of all its attempts, in order. The file is created at the first output."""

    __slots__ = ("_attempt", "_descriptor", "_folder", "_has_heading", "_item_id", "_make_room", "_on_error")

    def __init__(self, folder: Path, item_id: str, attempt: int, on_error: Callable[[OSError], None],
                 make_room: Callable[[], None] = lambda: None) -> None:  # fmt: skip
        """A heading separates the output of a further attempt. `on_error` is called instead of raising `OSError`.
        `make_room` is called if no descriptor is free: it may close other logs."""
        self._folder = folder
        self._item_id = item_id
        self._attempt = attempt
        self._on_error = on_error
        self._make_room = make_room
        self._descriptor: int | None = None
        self._has_heading = False  # or needs none

    def write(self, data: bytes) -> None:
        """Append to the log; open it if it is closed."""
        try:
            if self._descriptor is None:
                self._descriptor = self._open()
                if os.fstat(self._descriptor).st_size and not self._has_heading:
                    data = f"--- attempt {self._attempt} ---\n".encode() + data
                self._has_heading = True
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._on_error(error)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        path = self._folder / log_name(self._item_id)
        try:
            return os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        self._make_room()
        return os.open(path, flags, 0o600)

    def close(self) -> None:
        """Close the file. A later write opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class Output:
    """One stream of one attempt."""

    __slots__ = ("_item_id", "_lines", "_log", "_name", "_redaction", "_show", "_tail", "is_cut", "is_ended")

    def __init__(self, item_id: str, name: str, redactor: Redactor | None, log: Log | None,
                 show: OutputCall | None) -> None:  # fmt: skip
        self._item_id = item_id
        self._name = name
        self._redaction = None if redactor is None else redactor.stream()
        self._log = log
        self._show = show
        self._lines = Lines()
        self._tail = b""
        self.is_cut = False  # the tail is not the whole output
        self.is_ended = False  # the stream has reached its end

    def feed(self, data: bytes) -> None:
        """Process a chunk of output."""
        self._pass_on(data if self._redaction is None else self._redaction.feed(data))

    def use(self, redactor: Redactor) -> None:
        """Redact the secrets of this redactor from now on. No-op for an output that is not redacted."""
        if self._redaction is not None:
            self._redaction.use(redactor)

    def mute(self) -> None:
        """Stop showing lines. The log and the tail go on."""
        self._show = None

    def close(self) -> None:
        """Process what the redaction holds back, and show an incomplete last line."""
        if self._redaction is not None:
            self._pass_on(self._redaction.flush())
        show = self._show
        if show is not None and (rest := self._lines.flush()):
            show(self._item_id, self._name, rest)

    @property
    def tail(self) -> bytes:
        """Return the last TAIL_BYTES of the redacted output."""
        return self._tail

    def _pass_on(self, data: bytes) -> None:
        if not data:
            return
        if self._log is not None:
            self._log.write(data)
        self._tail = data if len(data) >= TAIL_BYTES else self._tail + data
        if len(self._tail) > TAIL_BYTES:
            self._tail = self._tail[-TAIL_BYTES:]
            self.is_cut = True
        show = self._show
        if show is not None and (lines := self._lines.feed(data)):
            show(self._item_id, self._name, lines)
