"""Writes one stream of the program without ever blocking its caller.

A reader may pause: a pager, a terminal after Ctrl-S, a full pipe. The threads that start commands, read their output
and decide about items must go on meanwhile. So a caller writes what the stream takes at once; a thread writes the rest
when the reader continues. The thread ends when nothing is left.

A write that cannot block needs a non-blocking descriptor. That flag belongs to the open file, which other processes
share: where the system can open a pipe or terminal once more, the writer has an open file of its own.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import stat
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TextIO

from ._backlog import Backlog

# For a terminal that does not report its size.
DEFAULT_SIZE = os.terminal_size((80, 24))


class StreamWriter:
    """One of the two streams, as bytes. Bypasses Python's buffers: bytes that cannot be written would stay there and
    fail again when the program ends. `write`, `flush` and the properties are thread-safe; `lock` is for the owner."""

    def __init__(self, text: TextIO | None, on_lost: Callable[[StreamWriter], None]) -> None:
        """`on_lost`, a method, is called once, on the thread that found that the stream cannot be written any more. It
        is referenced weakly: without a cycle, the descriptor is closed as soon as the screen is unused."""
        self.lock = threading.Lock()
        self.lost: Exception | None = None
        self._on_lost = weakref.WeakMethod(on_lost)
        self._encoding = getattr(text, "encoding", None) or "utf-8"
        buffer: Any = getattr(text, "buffer", None)
        self._text = text if buffer is None else None  # a stream that takes text only
        self._raw: Any = getattr(buffer, "raw", buffer)
        self._state = threading.Condition()  # guards everything below, and `lost`
        self._backlog = Backlog()
        self._is_writing = False  # a thread writes the backlog
        self._is_stuck = False  # the last `flush` gave up
        self.descriptor = self._descriptor_of(text)
        is_terminal = self.descriptor >= 0 and os.isatty(self.descriptor)
        self.terminal = os.fstat(self.descriptor).st_rdev if is_terminal else None  # the device
        self._own_descriptor, self._can_block = -1, False
        if self.descriptor >= 0:
            self._own_descriptor, self._can_block = _open_again(self.descriptor)
            weakref.finalize(self, os.close, self._own_descriptor).atexit = False
        if text is None:
            self.lost = OSError("it was closed when the program started")

    def _descriptor_of(self, text: TextIO | None) -> int:
        try:
            if text is not None:
                text.flush()
                return text.fileno()
        except (OSError, ValueError) as error:
            if not isinstance(error, io.UnsupportedOperation):  # raised by a stream without a descriptor
                self.lost = error
        return -1

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, data: bytes, *, is_kept: bool = False) -> None:
        """Write all bytes, now or as soon as the reader takes them; drop them if the stream is lost, or if more waits
        than the backlog holds. `is_kept`: not to be left out of a full backlog."""
        with self._state:
            if self.lost is not None or not data:
                return
            if not self._is_writing:
                data = self._write_now(data)
            if data and self.lost is None:
                self._backlog.put(data, is_kept=is_kept)
                self._start_thread()
            is_lost = self.lost is not None
        if is_lost:
            self._announce_loss()

    @property
    def is_behind(self) -> bool:
        """Whether output waits for the reader."""
        return self._is_writing

    @property
    def left_out(self) -> tuple[int, int]:
        """The lines and bytes that were left out because the reader was too slow."""
        return self._backlog.left_out_lines, self._backlog.left_out_bytes

    def flush(self, timeout: float | None) -> bool:
        """Block until the reader has taken everything, or the stream is lost; return False after `timeout` seconds, and
        at once if an earlier call gave up and nothing was read since."""
        with self._state:
            if timeout is not None and self._is_stuck:
                return not self._is_writing
            is_done = self._state.wait_for(lambda: not self._is_writing, timeout)
            self._is_stuck = not is_done
            return is_done

    def _write_now(self, data: bytes) -> bytes:
        """Write as much as possible without blocking. Return the rest. The caller holds `_state`."""
        try:
            if self._own_descriptor < 0:
                self._write_object(data)
            elif self._can_block:
                return data
            else:
                return _write_available(self._own_descriptor, data)
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self._lose(error)
        return b""

    def _write_object(self, data: bytes) -> None:
        """Write to a stream without a descriptor, an object in memory."""
        if self._text is not None:
            self._text.write(data.decode("utf-8", "backslashreplace"))
            self._text.flush()
        else:
            self._raw.write(data)

    def _start_thread(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            threading.Thread(target=self._write_backlog, name="agentos-output", daemon=True).start()

    def _write_backlog(self) -> None:
        """Write until nothing is left. Blocks while the reader does not read."""
        is_lost = False
        while not is_lost:
            with self._state:
                data = self._backlog.take()
                if not data:
                    self._is_writing = False
                    self._state.notify_all()
                    return
            try:
                while data:
                    data = self._write_some(data)
                    self._is_stuck = False
            except OSError as error:
                is_lost = True
                with self._state:
                    self._lose(error)
        self._announce_loss()

    def _announce_loss(self) -> None:
        on_lost = self._on_lost()
        if on_lost is not None:
            on_lost(self)

    def _write_some(self, data: bytes) -> bytes:
        """Block until the reader takes something. Return the rest."""
        if not self._can_block:
            poll = select.poll()
            poll.register(self._own_descriptor, select.POLLOUT)
            poll.poll()
            return _write_available(self._own_descriptor, data)
        try:
            return data[os.write(self._own_descriptor, data) :]
        except BlockingIOError:  # another process made the shared file non-blocking
            select.select([], [self._own_descriptor], [])
            return data

    def _lose(self, error: Exception) -> None:
        """Drop everything, and redirect the descriptor to the null device, so that other code can still print to it
        without an error. The caller holds `_state`."""
        self.lost = error
        self._backlog.clear()
        self._is_writing = False
        self._state.notify_all()
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                null_device = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(null_device, self.descriptor)
                os.close(null_device)

    # --- what it is connected to ----------------------------------------------------------------------------------

    def encode(self, text: str) -> bytes:
        return text.encode(self._encoding, "backslashreplace")

    def can_encode(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            return False
        return True

    def size(self) -> os.terminal_size:
        try:
            size = os.get_terminal_size(self._own_descriptor)
        except OSError:
            return DEFAULT_SIZE
        return size if size.columns > 0 and size.lines > 0 else DEFAULT_SIZE

    def is_in_foreground(self) -> bool:
        """Return whether this process, and not another job of the shell, has the terminal."""
        try:
            return os.tcgetpgrp(self._own_descriptor) == os.getpgrp()
        except OSError:  # not the controlling terminal of this process
            return True

    def write_directly(self, data: bytes) -> None:
        """Write what can be written at once, without a lock: for a signal handler, whose thread may hold it."""
        with contextlib.suppress(OSError):
            os.write(self._own_descriptor, data)


def flush_all(writers: list[StreamWriter], timeout: float | None) -> bool:
    """Flush several streams within one time-out. Return whether all have been written."""
    deadline = None if timeout is None else time.monotonic() + timeout
    are_written = [
        writer.flush(None if deadline is None else max(0.0, deadline - time.monotonic())) for writer in writers
    ]
    return all(are_written)


def _open_again(descriptor: int) -> tuple[int, bool]:
    """Return a second descriptor for a file, and whether writing to it can block for long."""
    mode = os.fstat(descriptor).st_mode
    is_terminal = os.isatty(descriptor)
    if stat.S_ISFIFO(mode) or is_terminal:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        with contextlib.suppress(OSError):  # no /proc, another user's terminal, or a pipe without a reader
            own = os.open(f"/proc/self/fd/{descriptor}", flags)
            if os.path.samestat(os.fstat(own), os.fstat(descriptor)):
                return own, False
            os.close(own)
    return os.dup(descriptor), stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or is_terminal


def _write_available(descriptor: int, data: bytes) -> bytes:
    """Write until the descriptor takes no more. Return the rest."""
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BlockingIOError:
        return bytes(rest)
    return b""
