"""The program's stdout and stderr: items' output, messages for people, and a live region at the foot of the terminal.

Everything goes through one `Screen`, so that lines stay whole. The region is drawn on stderr below all lines. After
drawing, the (hidden) cursor is put back to the region's first row. So the region is erased by erasing everything from
the cursor on, whatever has become of its rows: a terminal that was resized may have wrapped them anew, cut them off or
scrolled them, and only it knows. Wrapping is switched off while the region is drawn: a character that the terminal
finds wider than we do costs the end of a line, not the count of rows. What no program can reach are rows that a
terminal has wrapped anew into so many that the first of them have left the screen: so a region has no more than half of
the rows, and a terminal may become half as wide at once.

While a region is shown, lines for the same terminal are written together with the region, at once if nothing was drawn
for a tenth of a second, else with the next tick. Written by itself, each line would erase the region, and with a few
lines a second people would see it flicker.
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

Stream = Literal["stdout", "stderr"]
Frame = Callable[[int, int], list[str]]

# How often (seconds) the region is drawn at most, and how long a line waits for that at most.
TICK_SECONDS = 0.1
# So many bytes are not held until the next tick.
MOST_HELD = 1 << 20
# How long a message, or the end, waits for somebody who writes.
PATIENCE_SECONDS = 1.0
# Where the terminal does not tell its size, as most programs assume.
USUAL_SIZE = os.terminal_size((80, 24))
# So many rows of a terminal may be the region's in any case; past that, half of them are the items' output's.
LEAST_ROWS = 8

_HIDE_CURSOR = "\x1b[?25l"
_SHOW_CURSOR = "\x1b[?25h"
# From the beginning of the cursor's row to the end of the screen. In two steps: a terminal may keep what is erased from
# its top left corner on in its history, as tmux does.
_ERASE = "\r\x1b[K\x1b[C\x1b[J\r"
_ERASE_ROW = "\x1b[K"
_WRAP_OFF = "\x1b[?7l"
_WRAP_ON = "\x1b[?7h"
_PLAIN = "\x1b[m"  # an item may have left its colour behind


class Screen:
    """Safe to use from any thread. As a context manager it stops the live region at the end."""

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
        self._before: dict[int, Any] = {}  # handlers of signals; only the main thread touches it
        # The lock of stderr guards all below.
        self._lines: list[str] = []  # the newest frame
        self._size = USUAL_SIZE  # for which it was made
        self._is_drawn = False  # the region is on the terminal, the cursor at its beginning
        self._is_cursor_hidden = False
        self._drawn_at = 0.0
        self._held: list[bytes] = []  # whole lines, to be written with the region
        self._held_size = 0

    # --- writing --------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> dict[Stream, Exception]:
        """The streams that nobody reads any more, or that cannot be written, and why. What is for them is dropped."""
        outs: list[tuple[Stream, _Out]] = [("stdout", self._stdout), ("stderr", self._stderr)]
        return {name: out.lost for name, out in outs if out.lost is not None}

    def write_output(self, data: bytes, stream: Stream = "stdout") -> None:
        """Whole lines of items' output."""
        out = self._stdout if stream == "stdout" and not self._is_shared else self._stderr
        # Each stream has a lock of its own: a pipe that nobody empties must not hold up messages on stderr.
        if out.lost is None:
            with out.lock:
                self._write(out, data)
        self._tell_if_lost(out, stream)

    def _write(self, out: _Out, data: bytes) -> None:
        """Under its lock."""
        if self._frame is not None and out is self._stderr:
            self._hold(data)
        else:
            out.write(data)

    def message(self, text: str) -> None:
        """A line (or several) for people, on stderr."""
        with self._stderr.patiently() as is_free:
            if is_free:
                self._write(self._stderr, self._stderr.encode(text + "\n"))

    def text_stream(self, stream: Stream) -> TextIO:
        """For those who print: whole lines of what they print are written here. For one thread at a time."""
        out = self._stdout if stream == "stdout" else self._stderr
        return cast(TextIO, _Printed(lambda text: self.write_output(out.encode(text), stream)))

    def _tell_if_lost(self, out: _Out, stream: Stream) -> None:
        """A reader who has seen enough (`| head`) is no news; a full disk is."""
        if out.lost is None or out.is_told:
            return
        out.is_told = True
        if stream == "stdout" and not isinstance(out.lost, BrokenPipeError):
            self.message(f"agentos: stdout cannot be written any more, the run goes on without it: {out.lost}")

    # --- the live region ------------------------------------------------------------------------------------------

    def start(self, frame: Frame) -> bool:
        """Shows the lines that `frame(width, height)` returns, and again whenever they have changed, until `stop`.
        False: this is no terminal for that, and nothing is shown."""
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
        """Erases the region and shows the cursor again. Harmless when there is none."""
        with self._stderr.patiently() as is_free:
            # An interrupted call is made up for by the next one, at the latest when the program ends.
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
        """Draws the region if its lines, or the terminal, have changed; writes the lines that are held."""
        frame = self._frame
        if frame is None or self._stderr.lost is not None:
            return
        try:
            size = self._stderr.size()
            lines = frame(max(1, size.columns - 1), self._most_rows(size))[: self._most_rows(size)]
        except Exception as error:  # a run must not end because it cannot be shown
            self.stop()
            self.message(f"agentos: the live display failed and is not used any more: {error!r}")
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

    def _most_rows(self, size: os.terminal_size) -> int:
        """Of the region. One row is left in any case: a terminal scrolls when its last one is full."""
        rows = size.lines - 1
        return max(min(rows, LEAST_ROWS), size.lines // 2) if self._is_shared else rows

    def _hold(self, data: bytes) -> None:
        """Under the lock."""
        self._held.append(data if data.endswith(b"\n") else data + b"\n")
        self._held_size += len(data)
        is_due = time.monotonic() - self._drawn_at >= self._tick_seconds
        if self._held_size > MOST_HELD or (is_due and self._stderr.size() == self._size):
            self._draw()

    def _draw(self) -> None:
        """Under the lock: the lines that are held, and the region below them, in one write."""
        data = b""
        if self._held:
            data = (_ERASE.encode() if self._is_drawn else b"") + b"".join(self._held)
            self._held, self._held_size, self._is_drawn = [], 0, False
        # In the background somebody else has the terminal. A frame for another size is not drawn: its rows may not fit.
        if self._stderr.is_in_foreground() and self._stderr.size() == self._size:
            data += self._stderr.encode(self._region())
        self._drawn_at = time.monotonic()
        self._stderr.write(data)

    def _region(self) -> str:
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
        """Under the lock: the last lines, no region, a cursor."""
        held, self._held, self._held_size = self._held, [], 0
        erase = _ERASE if self._is_drawn else ""
        show = _SHOW_CURSOR if self._is_cursor_hidden else ""
        self._stderr.write(erase.encode() + b"".join(held) + show.encode())
        self._is_drawn = self._is_cursor_hidden = False

    # --- signals --------------------------------------------------------------------------------------------------

    def _guard_cursor(self) -> None:
        """Signals that would end or suspend the program at once show the cursor first. Where somebody else handles
        them, that somebody calls `stop`."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in (signal.SIGTERM, signal.SIGQUIT, signal.SIGTSTP):
            if signal.getsignal(signum) == signal.SIG_DFL:
                handler = self._on_suspend if signum == signal.SIGTSTP else self._on_end
                self._before[signum] = handler
                signal.signal(signum, handler)

    def _unguard_cursor(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for signum, handler in self._before.items():
            if signal.getsignal(signum) == handler:  # else it was replaced since
                signal.signal(signum, signal.SIG_DFL)
        self._before.clear()

    def _on_end(self, signum: int, _frame: FrameType | None) -> None:
        self._leave_terminal()
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)

    def _on_suspend(self, _signum: int, _frame: FrameType | None) -> None:
        self._leave_terminal()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _leave_terminal(self) -> None:
        """Without the lock, which the interrupted thread itself may hold. The next tick draws everything anew."""
        if self._is_cursor_hidden:
            self._is_cursor_hidden = self._is_drawn = False
            with contextlib.suppress(OSError):
                os.write(self._stderr.descriptor, (_ERASE + _SHOW_CURSOR).encode())


class _Out:
    """One of the two streams, as bytes. Past the buffers of Python's own: what cannot be written must not stay there
    and fail once more when the program ends."""

    def __init__(self, text: TextIO | None) -> None:
        self.lock = threading.Lock()
        self.lost: Exception | None = None
        self.is_told = False
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
            if not isinstance(error, io.UnsupportedOperation):  # which is: has no descriptor
                self.lost = error
        # The terminal behind it, if it is one.
        self.terminal = os.fstat(self.descriptor).st_rdev if self._is_terminal() else None
        if text is None:
            self.lost = OSError("it was closed when the program started")
            self.is_told = True

    @contextlib.contextmanager
    def patiently(self) -> Iterator[bool]:
        """The lock, if whoever holds it lets go of it soon; else nobody reads what it writes, and nothing more is
        written: the end of a program must not wait for that."""
        has_lock = self.lost is None and self.lock.acquire(timeout=PATIENCE_SECONDS)
        is_free = has_lock and self._has_room()
        if not is_free and self.lost is None:
            self.lost = TimeoutError("nobody reads it")
        try:
            yield is_free
        finally:
            if has_lock:
                self.lock.release()

    def _has_room(self) -> bool:
        """For a few lines, now or soon."""
        if self.descriptor < 0:
            return True
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        return bool(poll.poll(PATIENCE_SECONDS * 1000))

    def _is_terminal(self) -> bool:
        return self.descriptor >= 0 and os.isatty(self.descriptor)

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
            return USUAL_SIZE
        return size if size.columns > 0 and size.lines > 0 else USUAL_SIZE

    def is_in_foreground(self) -> bool:
        """Whether this program, and not another job of the same shell, has the terminal."""
        try:
            return os.tcgetpgrp(self.descriptor) == os.getpgrp()
        except OSError:  # a terminal, but not the one that controls this program
            return True

    def write(self, data: bytes) -> None:
        """Under the lock. After an error everything is dropped."""
        if self.lost is not None or not data:
            return
        try:
            if self._text is not None:
                self._text.write(data.decode("utf-8", "backslashreplace"))
                self._text.flush()
            else:
                self._write_all(data)
        except (OSError, ValueError) as error:  # ValueError: it was closed in the meantime
            self.lost = error
            self._divert()

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = self._raw.write(left)
            if written is None:  # another program has made it non-blocking, and it is full
                select.select([], [self.descriptor], [])
            else:
                left = left[written:]

    def _divert(self) -> None:
        """What others still print there goes nowhere, instead of failing."""
        if self.descriptor < 0:
            return
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.descriptor)
            os.close(nowhere)


class _Printed(io.TextIOBase):
    """Takes the pieces that `print` writes, and passes whole lines on."""

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
