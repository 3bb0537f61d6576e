"""What a command prints, on its way: without secrets, then to its log, to whoever shows it, and to the judge.

Everything here is bytes: what a command prints need not be text.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from agentos.items.file_names import log_name
from agentos.redaction.redactor import Redactor

# A longer line is shown in pieces.
LONGEST_LINE = 64 * 1024
# So much of the end of each stream is kept for the result, and to be judged.
KEPT_BYTES = 64 * 1024

# Called with an item's id, "stdout" or "stderr", and whole lines, the last of which ends with a newline as well.
OutputCall = Callable[[str, str, bytes], None]


class Lines:
    """Gives out whole lines. What has no newline yet is held, up to the longest line."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        complete, newline, rest = data.rpartition(b"\n")
        if newline:
            complete = self._held + complete + newline
            self._held = rest
        else:
            complete, self._held = b"", self._held + rest
        if _has_long_line(complete):
            complete = _in_pieces(complete)
        while len(self._held) > LONGEST_LINE:
            complete += self._held[:LONGEST_LINE] + b"\n"
            self._held = self._held[LONGEST_LINE:]
        return complete

    def flush(self) -> bytes:
        held, self._held = self._held, b""
        return held + b"\n" if held else b""


def _has_long_line(lines: bytes) -> bool:
    """Looks back from where the longest line would end, again and again: most lines are never looked at."""
    start = 0
    while len(lines) - start > LONGEST_LINE + 1:
        newline = lines.rfind(b"\n", start, start + LONGEST_LINE + 1)
        if newline < 0:
            return True
        start = newline + 1
    return False


def _in_pieces(lines: bytes) -> bytes:
    pieces = []
    for line in lines[:-1].split(b"\n"):
        starts = range(0, max(1, len(line)), LONGEST_LINE)
        pieces += [line[start : start + LONGEST_LINE] + b"\n" for start in starts]
    return b"".join(pieces)


class Log:
    """An item's log: the output of all its attempts, in the order in which it came. Made when there is any."""

    __slots__ = ("_descriptor", "_heading", "_on_error", "_path")

    def __init__(self, folder: Path, item_id: str, attempt: int, on_error: Callable[[OSError], None]) -> None:
        """Further attempts are told apart by a heading."""
        self._path = folder / log_name(item_id)
        self._heading = f"--- attempt {attempt} ---\n".encode()
        self._on_error = on_error
        self._descriptor: int | None = None

    def write(self, data: bytes) -> None:
        try:
            if self._descriptor is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, 0o600)
                if os.fstat(self._descriptor).st_size:
                    data = self._heading + data
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            self._on_error(error)

    def close(self) -> None:
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
        self.is_cut = False  # its tail is not all of it
        self.is_ended = False  # nothing more will come

    def feed(self, data: bytes) -> None:
        self._pass_on(data if self._redaction is None else self._redaction.feed(data))

    def mute(self) -> None:
        """From now on it is shown to nobody."""
        self._show = None

    def close(self) -> None:
        if self._redaction is not None:
            self._pass_on(self._redaction.flush())
        show = self._show
        if show is not None and (rest := self._lines.flush()):
            show(self._item_id, self._name, rest)

    @property
    def tail(self) -> bytes:
        return self._tail

    def _pass_on(self, data: bytes) -> None:
        if not data:
            return
        if self._log is not None:
            self._log.write(data)
        self._tail = data if len(data) >= KEPT_BYTES else self._tail + data
        if len(self._tail) > KEPT_BYTES:
            self._tail = self._tail[-KEPT_BYTES:]
            self.is_cut = True
        show = self._show
        if show is not None and (lines := self._lines.feed(data)):
            show(self._item_id, self._name, lines)
