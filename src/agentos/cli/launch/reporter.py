"""Reports a run to people or programs: to the live display, as lines on stderr, or as JSON lines on stdout.

Also shows what items print, and remembers the events that the exit status depends on.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from agentos.events import (
    AttemptAbandoned,
    CredentialBenched,
    CredentialQuarantined,
    ItemEnded,
    KeysReloaded,
    RunEnded,
    RunResumed,
    RunStopping,
    StoreReached,
    StoreUnreachable,
)
from agentos.home.run_folder import RunFolder, is_demo
from agentos.output.capture import OutputCapture
from agentos.output.descriptors import DescriptorCapture
from agentos.output.prefix import prefix_lines
from agentos.plurals import plural
from agentos.pool.lease_pool import LeasePool
from agentos.redaction.redactor import Redactor
from agentos.reporters.format import escape_controls
from agentos.reporters.sentences import event_text
from agentos.reporters.writers import JsonReporter
from agentos.runs.streams import ResultStream
from agentos.terminal.lines import LinesReporter, json_output
from agentos.terminal.screen import PATIENCE_SECONDS, Screen, Stream

from ..console import SOME_FAILED, SUCCEEDED

# Events that are printed above a live display, beside failures. The display itself shows the others.
_ABOVE_DISPLAY = (
    RunResumed, RunStopping, CredentialQuarantined, CredentialBenched, StoreUnreachable, StoreReached,
    AttemptAbandoned, KeysReloaded,
)  # fmt: skip

# Beginnings of the names of threads in which workers run.
_WORKERS = ("agentos-worker", "agentos-loop")
# Seconds after which a person is told that items are being read.
READING_SECONDS = 1.0


class OutputMode(NamedTuple):
    """How a run is reported: `--json`, `--quiet`, `--no-progress` and `--stop-on-closed-output`."""

    as_json: bool = False
    quiet: bool = False
    no_progress: bool = False
    stops_on_closed_output: bool = False


class RunReporter:
    """The reporter of one run. A context manager, which ends the display and the capture of printed output.

    The pool and the run send events before it is known where to: `start` sends those on."""

    def __init__(self, screen: Screen, mode: OutputMode, folder: RunFolder) -> None:
        self.screen = screen
        self.pool: LeasePool | None = None
        self.signal: int | None = None  # the signal that stopped the run
        self.run_ended: RunEnded | None = None
        self.stop_run: Callable[[], None] = lambda: None  # stops the run as Ctrl-C does
        self.is_stopped_by_reader = False  # the reader of stdout has closed it, and --stop-on-closed-output is set
        screen.on_lost = self._on_stdout_lost
        self._capture: OutputCapture | None = None
        self._descriptors: DescriptorCapture | None = None
        self._earlier_threads: set[threading.Thread] = set()  # those that ran before workers could start any
        self._is_over = False  # the run, or its preparation, has ended
        self._mode = mode
        self._folder = folder
        self._lock = threading.Lock()  # guards _report until `start` has chosen it
        self._early_events: list[Any] = []
        self._report: Callable[[Any], None] = self._early_events.append
        self._lines: LinesReporter | None = None
        self._is_live = False
        self.listener: Callable[[Any], None] | None = None  # called with each event, too

    def __call__(self, event: Any) -> None:
        if isinstance(event, RunStopping):
            self.signal = event.signal or self.signal
        elif isinstance(event, RunEnded):
            self.run_ended = event
            if self._is_live:
                self.screen.stop()
        elif isinstance(event, ItemEnded) and (capture := self._capture) is not None:
            capture.item_ended(event.result.item_id)
        with self._lock:
            self._report(event)
        if self.listener is not None:
            self.listener(event)

    def capture_output(self, logs: Path, redactor: Callable[[], Redactor] | None) -> None:
        """Show and log what Python code prints, and show what its children print, until `stop`. Raise `OSError` if the
        system has no more descriptors."""
        self._earlier_threads = set(threading.enumerate())
        capture = OutputCapture(logs, redactor, self.show_output)
        self._descriptors = DescriptorCapture(redactor, self.show_output).__enter__()
        self._capture = capture.__enter__()

    def start(self, run: ResultStream[Any] | None) -> None:
        """Choose the outputs, and send them the events so far. None: a dry run, which has no progress to display."""
        with self._lock:
            self._choose_outputs(run)
            for event in self._early_events:
                self._report(event)

    def _choose_outputs(self, run: ResultStream[Any] | None) -> None:
        redact = None if self.pool is None else self.pool.redact
        if self._mode.as_json:
            events = JsonReporter(self.screen.text_stream("stdout"))
            if redact is not None:
                events.redact_with(redact)
            self._report = events
            return
        is_live = self.screen.can_be_live and not self._mode.quiet and not self._mode.no_progress
        lines = self._lines = LinesReporter(
            self.screen.text_stream("stderr"),
            run,
            quiet=self._mode.quiet or (is_live and run is not None),
            go_on=f"agentos resume {self._folder.run_id}",
        )
        if redact is not None:
            lines.redact_with(redact)
        if run is None or not is_live:
            self._report = lines
            lines.start()
        else:
            self._start_display(run, lines, redact)

    def _start_display(self, run: ResultStream[Any], lines: LinesReporter, redact: Callable[[str], str] | None) -> None:
        from agentos.terminal.display import Display

        display = Display(run, color=self.screen.has_color, unicode=self.screen.has_unicode)
        if redact is not None:
            display.redact_with(redact)

        def report(event: Any) -> None:
            display.note(event)
            lines(event)
            if isinstance(event, _ABOVE_DISPLAY) and (text := event_text(event)) is not None:
                self.screen.message(text if redact is None else redact(text))

        self._report = report
        self._is_live = self.screen.start(display.frame)

    def stop(self) -> None:
        """End display, ticker and capture. Idempotent.

        While a thread of a worker goes on (its attempt was abandoned, or has started it), the capture stays until the
        program ends: the thread may print its key."""
        self.screen.stop()
        if self._lines is not None:
            self._lines.stop()
        if self._capture is not None and self._descriptors is not None:
            if self._has_threads_of_workers():
                self._capture.flush()
                self._descriptors.flush()
            else:
                self._capture.__exit__(None, None, None)
                self._descriptors.__exit__(None, None, None)
            self._capture = self._descriptors = None
        self._is_over = True

    def _has_threads_of_workers(self) -> bool:
        threads = set(threading.enumerate()) - self._earlier_threads
        names = [thread.name for thread in threads]
        return any(name.startswith(_WORKERS) or not name.startswith("agentos-") for name in names)

    def __enter__(self) -> RunReporter:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        """Stop, and wait until the readers of both streams have taken everything; after a signal, for a second only."""
        self.stop()
        for stream, (lines, size) in self.screen.left_out.items():
            self.screen.message(
                f"agentos: {plural(lines, 'line')} ({size / 1e6:.1f} MB) of output were left out, because the reader "
                f"of {stream} was too slow: the logs in {self._folder.logs} have them"
            )
        self.screen.flush(PATIENCE_SECONDS if exc is not None or self.signal is not None else None)

    def is_output_incomplete(self) -> bool:
        """Return whether stdout lacks something that its reader has not refused: a full disk, a reader too slow."""
        error = self.screen.lost.get("stdout")
        is_left_out = "stdout" in self.screen.left_out and not self.screen.is_stdout_a_terminal
        return is_left_out or (isinstance(error, OSError) and error.errno not in (None, errno.EPIPE))

    def _on_stdout_lost(self, error: Exception) -> None:
        """Report, once, that nothing can be printed any more. Called from any thread."""
        if not isinstance(error, BrokenPipeError):
            self.screen.message(f"agentos: stdout cannot be written any more; the run continues without it: {error}")
        elif self._mode.stops_on_closed_output:
            self.is_stopped_by_reader = True
            self.screen.message("agentos: stdout was closed by its reader: the run stops (--stop-on-closed-output)")
            self.stop_run()
        elif self.run_ended is None:
            self.screen.message(
                "agentos: stdout was closed by its reader: the run continues, and its output goes to the logs only. "
                "With --stop-on-closed-output it would stop."
            )

    def show_output(self, item_id: str, stream: str, data: bytes) -> None:
        """Print whole lines of an item's output, each with the item's id before it. "" is no item: printed as it is.
        After the end of the run what is left of it, and errors of this program, go to stderr in place of JSON lines."""
        if self._mode.as_json and self._is_over:
            stream = "stderr"
        elif self._mode.as_json:
            self.screen.write_output(json_output(item_id, stream, data), "stdout")
            return
        name: Stream = "stderr" if stream == "stderr" else "stdout"
        self.screen.write_output(prefix_lines(_prefix(item_id), data) if item_id else data, name)

    @contextlib.contextmanager
    def note_reading(self) -> Iterator[None]:
        """Print "reading items…" if files of items take long to read, or stdin has to be read before the start."""
        timer = threading.Timer(READING_SECONDS, self.screen.message, ["Reading items…"])
        timer.daemon = True
        if not self._mode.as_json and not self._mode.quiet:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def suggest_next_command(self, folder: RunFolder, status: int, pilot: str | None = None) -> None:
        """Print what to do next. `pilot`: how to run the items that `--limit` left."""
        if pilot is not None and not self._mode.as_json:
            self.screen.message(pilot)
        if self._mode.as_json or status == SUCCEEDED:
            return
        if status == SOME_FAILED:
            # A command has a line of its own: a narrow terminal would break it, and it could not be copied.
            self.screen.message(f"Details:    agentos show {folder.run_id}")
            if not is_demo(folder.read_spec()):
                self.screen.message(f"Try again:  agentos retry {folder.run_id}")
        elif self.run_ended is None:  # else the last line of the run has the command
            self.screen.message(f"Continue with: agentos resume {folder.run_id}")


@functools.lru_cache(maxsize=4096)
def _prefix(item_id: str) -> bytes:
    return f"[{escape_controls(item_id)}] ".encode("utf-8", "backslashreplace")
