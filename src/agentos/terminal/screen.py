"""Owns stdout and stderr of the program: output of items, messages for people, and a live region below both.

Everything goes through one `Screen`, so that lines stay whole. The region is drawn on stderr. After drawing, the hidden
cursor returns to the first row of the region. Therefore erasing from the cursor to the end of the screen removes the
region, also after a resize, when the terminal may have wrapped, cut or scrolled its rows. Wrapping is off while the
region is drawn: a character that is wider than computed costs the end of a line, not the number of rows. A terminal
that becomes much narrower can wrap the region into more rows than the screen has: the first ones leave it, and no
program can erase them. So a region has at most half of the rows, and survives a terminal that becomes half as wide.

While a region is shown, lines for the same terminal are written together with it: at once if nothing was drawn for
`TICK_SECONDS`, else with the next tick. Each line alone would erase the region, which flickers at a few lines a second.

No call blocks while a reader is slow (`_stream_writer`), except `flush` and `stop`.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any, Literal, TextIO, cast

from ._stream_writer import DEFAULT_SIZE, StreamWriter, flush_all
from .safe_output import safe_output

Stream = Literal["stdout", "stderr"]
Frame = Callable[[int, int], list[str]]

# Seconds between two drawings of the region, and the longest that a line waits for one.
TICK_SECONDS = 0.1
# Bytes of lines from which on they are written without waiting for the tick.
MAX_HELD = 1 << 20
# Seconds that `stop`, and the end of a run that was interrupted, wait for a reader that is slow.
PATIENCE_SECONDS = 1.0
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
        # Called once with the error, instead of a message, when stdout cannot be written any more. From any thread.
        self.on_lost: Callable[[Exception], None] | None = None
        self._stdout = StreamWriter(stdout if stdout is not None else sys.stdout, self._on_lost)
        self._stderr = StreamWriter(stderr if stderr is not None else sys.stderr, self._on_lost)
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
        outs: list[tuple[Stream, StreamWriter]] = [("stdout", self._stdout), ("stderr", self._stderr)]
        return {name: out.lost for name, out in outs if out.lost is not None}

    def write_output(self, data: bytes, stream: Stream = "stdout") -> None:
        """Write whole lines of an item's output. What the reader does not take now is written later."""
        out = self._stdout if stream == "stdout" and not self._is_shared else self._stderr
        if out.lost is None:
            with out.lock:
                self._write(out, data if out.terminal is None else safe_output(data))

    def _write(self, out: StreamWriter, data: bytes) -> None:
        """Write, or hold until the next drawing. The caller holds the lock of `out`."""
        if self._frame is not None and out is self._stderr:
            self._hold(data)
        else:
            out.write(data)

    def message(self, text: str) -> None:
        """Write a line (or several) for people to stderr."""
        with self._stderr.lock:
            self._write(self._stderr, self._stderr.encode(text + "\n"))

    def text_stream(self, stream: Stream) -> TextIO:
        """Return a file for `print`, whose whole lines are written here. For one thread at a time."""
        out = self._stdout if stream == "stdout" else self._stderr
        return cast(TextIO, _LineBuffer(lambda text: self.write_output(out.encode(text), stream)))

    def flush(self, timeout: float | None) -> bool:
        """Block until the readers of both streams have taken everything; return False after `timeout` seconds."""
        return flush_all([self._stdout, self._stderr], timeout)

    @property
    def is_stdout_a_terminal(self) -> bool:
        return self._stdout.terminal is not None

    @property
    def left_out(self) -> dict[Stream, tuple[int, int]]:
        """Streams whose reader was too slow, each with the lines and bytes that were left out."""
        outs: list[tuple[Stream, StreamWriter]] = [("stdout", self._stdout), ("stderr", self._stderr)]
        return {name: out.left_out for name, out in outs if out.left_out[0]}

    def _on_lost(self, out: StreamWriter) -> None:
        if out is not self._stdout or out.lost is None:
            return
        if self.on_lost is not None:
            self.on_lost(out.lost)
        else:
            self.message(f"agentos: stdout cannot be written any more: {out.lost}")

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
        ticker = threading.Thread(target=self._run, args=(self._is_over,), name="agentos-screen", daemon=True)
        ticker.start()  # raises if the system has no room for a thread
        self._ticker = ticker
        return self._frame is not None

    def stop(self) -> None:
        """Erase the region and show the cursor again. Idempotent: if a signal interrupts a call, the next one, at the
        latest that of `atexit`, completes it."""
        with self._stderr.lock:
            if self._frame is None and not self._is_cursor_hidden:
                return
            self._frame = None
            self._leave()
        self._stderr.flush(PATIENCE_SECONDS)
        self._is_over.set()
        if self._ticker is not None and self._ticker is not threading.current_thread():
            self._ticker.join(1.0)
        self._unguard_cursor()
        atexit.unregister(self.stop)

    def tick(self) -> None:
        """Draw the region if its lines or the terminal have changed; write the lines that are held. No-op while the
        terminal is stopped (Ctrl-S)."""
        frame = self._frame
        if frame is None or self._stderr.lost is not None or self._stderr.is_behind:
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
        self._drawn_at = time.monotonic()
        held, self._held, self._held_size = b"".join(self._held), [], 0
        erase = _ERASE.encode() if held and self._is_drawn else b""
        if held:
            self._is_drawn = False
        if self._stderr.is_behind:  # lines may be left out then, which must not happen to the codes of the region
            self._stderr.write(erase, is_kept=True)
            self._stderr.write(held)
            return
        data = erase + held
        # Not in the background, where another job has the terminal, nor a frame for another size, which may not fit.
        if self._stderr.is_in_foreground() and self._stderr.size() == self._size:
            data += self._stderr.encode(self._region())
        self._stderr.write(data, is_kept=True)

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
        self._stderr.write(erase.encode() + b"".join(held) + show.encode(), is_kept=True)
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
            self._stderr.write_directly((_ERASE + _SHOW_CURSOR).encode())


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
