"""Owns stdout and stderr of the program: output of items, messages for people, and a live region below both.

Everything goes through one `Screen`, so that lines stay whole. The region is drawn on stderr. After drawing, the hidden
cursor returns to the first row of the region. Therefore erasing from the cursor to the end of the screen removes the
region, also after a resize, when the terminal may have wrapped, cut or scrolled its rows. Wrapping is off while the
region is drawn: a character that is wider than computed costs the end of a line, not the number of rows. A terminal
that becomes much narrower can wrap the region into so many rows that the first ones leave the screen, where no program
can erase them: so a region has at most half of the rows, and survives a terminal that becomes half as wide.

While a region is shown, lines for the same terminal are written together with it: at once if nothing was drawn for
`TICK_SECONDS`, else with the next tick. Each line alone would erase the region, which flickers at a few lines a second.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any, Literal, TextIO, cast

from .safe_output import safe_output

Stream = Literal["stdout", "stderr"]
Frame = Callable[[int, int], list[str]]

# Seconds between two drawings of the region, and the longest that a line waits for one.
TICK_SECONDS = 0.1
# Bytes of lines from which on they are written without waiting for the tick.
MAX_HELD = 1 << 20
# Seconds that a message, and the end of the program, wait for a thread that writes or a reader that is slow.
PATIENCE_SECONDS = 1.0
# For a terminal that does not report its size.
DEFAULT_SIZE = os.terminal_size((80, 24))
# Rows that the region may have in a terminal of any height; beyond them, half of the rows are for output.
MIN_ROWS = 8

_HIDE_CURSOR = "\x1b[?25l"
_SHOW_CURSOR = "\x1b[?25h"
# From the beginning of the cursor's row to the end of the screen. In two steps: tmux copies the screen to its history
# if all of it is erased at once from the top left corner.
_ERASE = "\r\x1b[K\x1b[C\x1b[J\r"
_ERASE_ROW = "\x1b[K"
_WRAP_OFF = "\x1b[?7l"
_WRAP_ON = "\x1b[?7h"
_PLAIN = "\x1b[m"  # resets a colour that the output of an item left on


class Screen:
    """Writer of both streams. Thread-safe. As a context manager, it stops the live region at the end."""

    def __init__(
        self,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        *,
        tick_seconds: float = TICK_SECONDS,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._stdout = _Out(stdout if stdout is not None else sys.stdout)
        self._stderr = _Out(stderr if stderr is not None else sys.stderr)
        self._tick_seconds = tick_seconds
        terminal = self._stderr.terminal
        self._is_shared = terminal is not None and terminal == self._stdout.terminal
        # Whether a live region can be shown at all, in colour, and with characters beyond ASCII.
        self.can_be_live = terminal is not None and environ.get("TERM", "dumb") != "dumb"
        self.has_color = self.can_be_live and not environ.get("NO_COLOR")
        self.has_unicode = self._stderr.can_encode("━─…")
        self._frame: Frame | None = None  # while the region is live
        self._ticker: threading.Thread | None = None
        self._is_over = threading.Event()
        self._handlers: dict[int, Any] = {}  # of signals, installed here; used by the main thread only
        # Guarded by the lock of stderr:
        self._lines: list[str] = []  # the newest frame
        self._size = DEFAULT_SIZE  # for which it was made
        self._is_drawn = False  # the region is on the terminal, the cursor at its beginning
        self._is_cursor_hidden = False
        self._drawn_at = 0.0
        self._held: list[bytes] = []  # whole lines that wait for the next drawing
        self._held_size = 0

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> dict[Stream, Exception]:
        """Streams that cannot be written any more, each with the error. Output for them is dropped."""
        outs: list[tuple[Stream, _Out]] = [("stdout", self._stdout), ("stderr", self._stderr)]
        return {name: out.lost for name, out in outs if out.lost is not None}

    def write_output(self, data: bytes, stream: Stream = "stdout") -> None:
        """Write whole lines of an item's output. Blocks while the reader of a pipe is slow."""
        out = self._stdout if stream == "stdout" and not self._is_shared else self._stderr
        # One lock per stream: a full pipe on stdout must not block messages on stderr.
        if out.lost is None:
            with out.lock:
                self._write(out, data if out.terminal is None else safe_output(data))
        self._report_loss(out, stream)

    def _write(self, out: _Out, data: bytes) -> None:
        """Write, or hold until the next drawing. The caller holds the lock of `out`."""
        if self._frame is not None and out is self._stderr:
            self._hold(data)
        else:
            out.write(data)

    def message(self, text: str) -> None:
        """Write a line (or several) for people to stderr. Blocks for up to `PATIENCE_SECONDS`, then drops it."""
        with self._stderr.patiently() as is_free:
            if is_free:
                self._write(self._stderr, self._stderr.encode(text + "\n"))

    def text_stream(self, stream: Stream) -> TextIO:
        """Return a file for `print`, whose whole lines are written here. For one thread at a time."""
        out = self._stdout if stream == "stdout" else self._stderr
        return cast(TextIO, _LineBuffer(lambda text: self.write_output(out.encode(text), stream)))

    def _report_loss(self, out: _Out, stream: Stream) -> None:
        """Report a lost stream once, but not a closed pipe: `| head` has read enough."""
        if out.lost is None or out.is_loss_reported:
            return
        out.is_loss_reported = True
        if stream == "stdout" and not isinstance(out.lost, BrokenPipeError):
            self.message(f"agentos: stdout cannot be written any more; the run continues without it: {out.lost}")

    # --- the live region ------------------------------------------------------------------------------------------

    def start(self, frame: Frame) -> bool:
        """Show the lines that `frame(width, height)` returns, and redraw them when they change, until `stop`. Return
        False if stderr is no suitable terminal: nothing is shown then."""
        if not self.can_be_live or self._stderr.lost is not None:
            return False
        self.stop()
        self._is_over = threading.Event()
        with self._stderr.lock:
            self._frame = frame
        atexit.register(self.stop)
        self._guard_cursor()
        self.tick()
        self._ticker = threading.Thread(target=self._run, args=(self._is_over,), name="agentos-screen", daemon=True)
        self._ticker.start()
        return self._frame is not None

    def stop(self) -> None:
        """Erase the region and show the cursor again. Idempotent: if a signal interrupts a call, the next one, at the
        latest that of `atexit`, completes it."""
        with self._stderr.patiently() as is_free:
            if self._frame is None and not self._is_cursor_hidden:
                return
            self._frame = None
            if is_free:
                self._leave()
        self._is_over.set()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join(1.0)
        self._unguard_cursor()
        atexit.unregister(self.stop)

    def tick(self) -> None:
        """Draw the region if its lines or the terminal have changed; write the lines that are held."""
        frame = self._frame
        if frame is None or self._stderr.lost is not None:
            return
        try:
            size = self._stderr.size()
            lines = frame(max(1, size.columns - 1), self._max_rows(size))[: self._max_rows(size)]
        except Exception as error:  # the run must continue without a display
            self.stop()
            self.message(f"agentos: the live display failed and is switched off: {error!r}")
            return
        with self._stderr.lock:
            if self._frame is None:
                return
            if lines != self._lines or size != self._size or not self._is_drawn or self._held:
                self._lines, self._size = lines, size
                self._draw()

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _run(self, is_over: threading.Event) -> None:
        while not is_over.wait(self._tick_seconds):
            self.tick()

    def _max_rows(self, size: os.terminal_size) -> int:
        """Return the rows for the region. One row stays free: a terminal scrolls when its last one is full."""
        rows = size.lines - 1
        return max(min(rows, MIN_ROWS), size.lines // 2) if self._is_shared else rows

    def _hold(self, data: bytes) -> None:
        """Hold lines until the next drawing, or draw now if that is due. The caller holds the lock."""
        self._held.append(data if data.endswith(b"\n") else data + b"\n")
        self._held_size += len(data)
        is_due = time.monotonic() - self._drawn_at >= self._tick_seconds
        if self._held_size > MAX_HELD or (is_due and self._stderr.size() == self._size):
            self._draw()

    def _draw(self) -> None:
        """Write the held lines and the region below them, in one write. The caller holds the lock."""
        data = b""
        if self._held:
            data = (_ERASE.encode() if self._is_drawn else b"") + b"".join(self._held)
            self._held, self._held_size, self._is_drawn = [], 0, False
        # Not in the background, where another job has the terminal, nor a frame for another size, which may not fit.
        if self._stderr.is_in_foreground() and self._stderr.size() == self._size:
            data += self._stderr.encode(self._region())
        self._drawn_at = time.monotonic()
        self._stderr.write(data)

    def _region(self) -> str:
        """Return the codes that draw the region."""
        hide = "" if self._is_cursor_hidden else _HIDE_CURSOR
        self._is_cursor_hidden = True
        if not self._lines:
            erase = _ERASE if self._is_drawn else ""
            self._is_drawn = False
            return hide + erase
        self._is_drawn = True
        rows = "\r\n".join(_ERASE_ROW + line for line in self._lines)
        up = f"\x1b[{len(self._lines) - 1}A" if len(self._lines) > 1 else ""
        return f"{hide}\r{_PLAIN}{_WRAP_OFF}{rows}{_PLAIN}\x1b[J{_WRAP_ON}\r{up}"

    def _leave(self) -> None:
        """Write the held lines, erase the region and show the cursor. The caller holds the lock."""
        held, self._held, self._held_size = self._held, [], 0
        erase = _ERASE if self._is_drawn else ""
        show = _SHOW_CURSOR if self._is_cursor_hidden else ""
        self._stderr.write(erase.encode() + b"".join(held) + show.encode())
        self._is_drawn = self._is_cursor_hidden = False

    # --- signals --------------------------------------------------------------------------------------------------

    def _guard_cursor(self) -> None:
        """Handle signals that would end or suspend the program with a hidden cursor. A signal that has a handler
        already is left to it: that handler calls `stop`."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                handler = self._on_suspend if signum == signal.SIGTSTP else self._on_end
                self._handlers[signum] = handler
                signal.signal(signum, handler)

    def _unguard_cursor(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum, handler in self._handlers.items():
            if signal.getsignal(signum) == handler:  # not replaced in the meantime
                signal.signal(signum, signal.SIG_DFL)
        self._handlers.clear()

    def _on_end(self, signum: int, _frame: FrameType | None) -> None:
        self._leave_terminal()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    def _on_suspend(self, _signum: int, _frame: FrameType | None) -> None:
        self._leave_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _leave_terminal(self) -> None:
        """Erase the region and show the cursor without the lock, which the interrupted thread may hold. The next tick
        draws everything again."""
        if self._is_cursor_hidden:
            self._is_cursor_hidden = self._is_drawn = False
            with contextlib.suppress(OSError):
                os.write(self._stderr.descriptor, (_ERASE + _SHOW_CURSOR).encode())


class _Out:
    """One of the two streams, as bytes. Bypasses Python's buffers: bytes that cannot be written would stay there and
    fail again when the program ends."""

    def __init__(self, text: TextIO | None) -> None:
        self.lock = threading.Lock()
        self.lost: Exception | None = None
        self.is_loss_reported = False
        self._encoding = getattr(text, "encoding", None) or "utf-8"
        buffer: Any = getattr(text, "buffer", None)
        self._text = text if buffer is None else None  # a stream that takes text only
        self._raw: Any = getattr(buffer, "raw", buffer)
        self.descriptor = -1
        try:
            if text is not None:
                text.flush()
                self.descriptor = text.fileno()
        except (OSError, ValueError) as error:
            if not isinstance(error, io.UnsupportedOperation):  # raised by a stream without a descriptor
                self.lost = error
        is_terminal = self.descriptor >= 0 and os.isatty(self.descriptor)
        self.terminal = os.fstat(self.descriptor).st_rdev if is_terminal else None  # the device
        if text is None:
            self.lost = OSError("it was closed when the program started")
            self.is_loss_reported = True

    @contextlib.contextmanager
    def patiently(self) -> Iterator[bool]:
        """Wait up to `PATIENCE_SECONDS` for the lock and for room in the pipe. Yields False if the reader is stuck: the
        stream counts as lost then, as the end of the program must not wait for it."""
        has_lock = self.lost is None and self.lock.acquire(timeout=PATIENCE_SECONDS)
        is_free = has_lock and self._has_room()
        if not is_free and self.lost is None:
            self.lost = TimeoutError("its reader does not read")
        try:
            yield is_free
        finally:
            if has_lock:
                self.lock.release()

    def _has_room(self) -> bool:
        if self.descriptor < 0:
            return True
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        return bool(poll.poll(PATIENCE_SECONDS * 1000))

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
            size = os.get_terminal_size(self.descriptor)
        except OSError:
            return DEFAULT_SIZE
        return size if size.columns > 0 and size.lines > 0 else DEFAULT_SIZE

    def is_in_foreground(self) -> bool:
        """Return whether this process, and not another job of the shell, has the terminal."""
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:  # not the controlling terminal of this process
            return True

    def write(self, data: bytes) -> None:
        """Write all bytes, or drop them after an earlier error. The caller holds the lock."""
        if self.lost is not None or not data:
            return
        try:
            if self._text is not None:
                self._text.write(data.decode("utf-8", "backslashreplace"))
                self._text.flush()
            else:
                self._write_all(data)
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            self.lost = error
            self._divert()

    def _write_all(self, data: bytes) -> None:
        unwritten = memoryview(data)
        while unwritten:
            count = self._raw.write(unwritten)
            if count is None:  # another process made the file non-blocking, and it is full
                select.select([], [self.descriptor], [])
            else:
                unwritten = unwritten[count:]

    def _divert(self) -> None:
        """Redirect the descriptor to the null device, so that other code can still print to it without an error."""
        if self.descriptor < 0:
            return
        with contextlib.suppress(OSError):
            null_device = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null_device, self.descriptor)
            os.close(null_device)


class _LineBuffer(io.TextIOBase):
    """Collects the pieces that `print` writes and passes on whole lines."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._held = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, self._held = (self._held + text).rpartition("\n")
        if newline:
            self._write(lines + newline)
        return len(text)
