"""`OutputCapture`: separates the output of Python workers by item, with redaction, logs and whole lines.

During a run it replaces `sys.stdout` and `sys.stderr`. A write belongs to the item of its thread or task; a write
outside of items is only redacted.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

from agentos.items.context import current_item
from agentos.redaction.redactor import Redactor

from .stream import Log, Output, OutputCall, log_lost

NO_ITEM = ""  # id for output outside of items
# Seconds that the end of the capture waits for a thread that is writing.
EXIT_SECONDS = 0.5
_DESCRIPTORS = {"stdout": 1, "stderr": 2}


class OutputCapture:
    """A context manager that captures standard output and error. Call `item_ended` for each item, to show its last
    lines. `redactor` returns the redactor of all secrets that are known by now."""

    def __init__(self, folder: Path, redactor: Callable[[], Redactor] | None, show: OutputCall) -> None:
        self._folder = folder
        self._redactor = redactor
        self._show = show
        self._lock = threading.Lock()  # guards _attempts and its values
        self._attempts: dict[str, _AttemptOutput] = {}  # by item id
        self._original_streams: tuple[Any, Any] = (None, None)
        self._is_log_lost = False
        self._pid = os.getpid()

    def write(self, stream: str, data: bytes) -> None:
        """Process data that the current item has written to "stdout" or "stderr".

        A process that a worker has forked has neither the threads nor the free locks of this one: it writes to the
        descriptor, which `DescriptorCapture` reads here."""
        if os.getpid() != self._pid:
            _write_all(_DESCRIPTORS[stream], data)
            return
        try:
            item = current_item()
            item_id, attempt, token = item.id, item.attempt, item.client_token
        except RuntimeError:
            item_id, attempt, token = NO_ITEM, 1, None
        with self._lock:
            output = self._outputs_of(item_id, attempt, token)[stream]
            if item_id == NO_ITEM and self._redactor is not None:
                output.use(self._redactor())  # it lives as long as the run: keys may have been added
            output.feed(data)

    def _close_logs(self) -> None:
        """Close all logs, which the next writes open again: items of which the end is not on record yet keep theirs
        open, and the limit of open files may be low. Call it with the lock held."""
        for attempt_output in self._attempts.values():
            if attempt_output.log is not None:
                attempt_output.log.close()

    def item_ended(self, item_id: str) -> None:
        """Show the last lines of an item and close its log."""
        with self._lock:
            attempt_output = self._attempts.pop(item_id, None)
            if attempt_output is not None:
                attempt_output.close()

    def _outputs_of(self, item_id: str, attempt: int, token: str | None) -> dict[str, Output]:
        """Return the outputs of an attempt; close those of an earlier one first. Call it with the lock held."""
        current = self._attempts.get(item_id)
        if current is not None and current.number >= attempt:
            return current.outputs
        if current is not None:
            current.close()
        current = self._attempts[item_id] = self._start_attempt(item_id, attempt, token)
        return current.outputs

    def _start_attempt(self, item_id: str, attempt: int, token: str | None) -> _AttemptOutput:
        log, redactor = None, None if self._redactor is None else self._redactor()
        if redactor is not None and token is not None:
            redactor = redactor.with_secret(token)
        if item_id != NO_ITEM:
            with contextlib.suppress(OSError):  # without the folder the log cannot be opened, which is reported
                self._folder.mkdir(0o700, parents=True, exist_ok=True)
            log = Log(self._folder, item_id, attempt, self._on_log_error, self._close_logs)
        outputs = {name: Output(item_id, name, redactor, log, self._show) for name in ("stdout", "stderr")}
        return _AttemptOutput(attempt, log, outputs)

    def _on_log_error(self, error: OSError) -> None:
        """Show the first error of a log."""
        if not self._is_log_lost:
            self._is_log_lost = True
            self._show(NO_ITEM, "stderr", log_lost(error))

    def __enter__(self) -> OutputCapture:
        self._original_streams = sys.stdout, sys.stderr
        sys.stdout = _text_stream("stdout", self.write)
        sys.stderr = _text_stream("stderr", self.write)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._original_streams
        self.flush()

    def flush(self) -> None:
        """Show the last lines of all items, and close their logs."""
        # A worker that writes to a pipe without a reader holds the lock for ever: the program must end anyway.
        if self._lock.acquire(timeout=EXIT_SECONDS):
            attempts, self._attempts = self._attempts, {}
            self._lock.release()
            for attempt in attempts.values():
                attempt.close()


class _AttemptOutput(NamedTuple):
    """The streams and the log of an item's newest attempt."""

    number: int
    log: Log | None
    outputs: dict[str, Output]

    def close(self) -> None:
        """Show the last lines and close the log."""
        for output in self.outputs.values():
            output.close()
        if self.log is not None:
            self.log.close()


class _RawStream(io.RawIOBase):
    """The lowest layer of a text stream: passes bytes to a function."""

    def __init__(self, name: str, write: Callable[[str, bytes], None]) -> None:
        self._name = name
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._write(self._name, piece)
        return len(piece)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _text_stream(name: str, write: Callable[[str, bytes], None]) -> io.TextIOWrapper:
    """Return a text stream without a buffer: each write must be processed by the thread or task that made it."""
    return io.TextIOWrapper(
        cast(io.BufferedWriter, _RawStream(name, write)),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )
