"""Reports a run where there is no live display: lines on stderr for people, JSON lines on stdout for programs."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from agentos.durations import format_duration
from agentos.events import CoolDownStarted, DryRun, Heartbeat, ItemEnded, Output, RunEnded
from agentos.items.results import ProgressStats
from agentos.reporters.bound_text import bound_text
from agentos.reporters.sentences import (
    event_text,
    failure_line,
    has_spent,
    larger_budget,
    stats_cost_text,
    summary_text,
)
from agentos.reporters.writers import TextReporter, json_line

if TYPE_CHECKING:
    from agentos.runs.streams import ResultStream

# Seconds between two lines about progress.
PROGRESS_SECONDS = 5.0


class LinesReporter(TextReporter):
    """Writes events as lines; between `start` and `stop` (or inside `with`), also the progress of the run, every
    `PROGRESS_SECONDS` if it has changed. `quiet`: only failures and the summary.

    `run` is None in a dry run, which has no progress. `go_on`: the command that continues unfinished items."""

    def __init__(
        self, stream: TextIO, run: ResultStream[Any] | None, *, quiet: bool = False, go_on: str = "agentos resume"
    ) -> None:
        super().__init__(stream)
        self._results = run
        self._quiet = quiet
        self._go_on = go_on
        self._lock = threading.Lock()  # guards the stream and `_progress`, used by the run's thread and the ticker
        self._progress: tuple[int, int] | None = None  # completed and running items in the last line
        self._is_over = threading.Event()
        self._ticker: threading.Thread | None = None

    def __call__(self, event: Any) -> None:
        text = self._event_text(event)
        with self._lock:
            if isinstance(event, RunEnded):
                self._is_over.set()  # no progress after the summary
            if text is not None:
                self._write(text)

    def _event_text(self, event: Any) -> str | None:
        if isinstance(event, ItemEnded):
            return None if event.result.success else failure_line(event.result)
        if isinstance(event, RunEnded):
            hint = "; pass the unread input again" if event.unfinished is None else " them"
            return summary_text(event, f"{self._go_on}{larger_budget(event.stats)} continues{hint}")
        if self._quiet or isinstance(event, DryRun):  # a dry run has no progress; its commands are printed by itself
            return None
        if isinstance(event, Heartbeat):
            return progress_line(event.stats, event.bound_by)
        if isinstance(event, CoolDownStarted) and event.seconds < PROGRESS_SECONDS:
            return None  # over before the next line about progress
        return event_text(event)

    def tick(self) -> None:
        """Write the progress of the run if it has changed."""
        if self._results is None:
            return
        stats = self._results.stats
        progress = stats.completed, stats.running
        with self._lock:
            if progress != self._progress and not self._is_over.is_set():
                self._progress = progress
                bound = self._results.bound()
                bound_by = None if bound is None else bound_text(bound, time.time())
                self._write(progress_line(stats, bound_by))

    def start(self) -> None:
        if not self._quiet and self._results is not None and self._ticker is None:
            ticker = threading.Thread(target=self._run, name="agentos-lines", daemon=True)
            ticker.start()  # raises if the system has no room for a thread
            self._ticker = ticker

    def stop(self) -> None:
        self._is_over.set()
        if self._ticker is not None:
            self._ticker.join(1.0)

    def _run(self) -> None:
        while not self._is_over.wait(PROGRESS_SECONDS):
            self.tick()

    def __enter__(self) -> LinesReporter:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def progress_line(stats: ProgressStats, bound_by: str | None = None) -> str:
    """Return the progress of a run in one line, with what binds it."""
    count_text = f"{stats.completed} done" if stats.total is None else f"{stats.completed}/{stats.total} done"
    failed = f", {stats.failed} failed" if stats.failed else ""
    eta = stats.eta
    to_go = f", about {format_duration(eta)} to go" if eta else ""
    bound = "" if bound_by is None else f"; bound by {bound_by}"
    cost = f"; cost {stats_cost_text(stats)}" if has_spent(stats) else ""
    return f"[COORDINATOR] {count_text}{failed}, {stats.running} running{to_go}{cost}{bound}"


def json_output(item_id: str, stream: str, data: bytes) -> bytes:
    """Return whole lines of an item's output as JSON events. Bytes that are not UTF-8 become escapes."""
    if not data:
        return b""
    lines = data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    return "".join(f"{json_line(Output(item_id, stream, line))}\n" for line in lines).encode()
