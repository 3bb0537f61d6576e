"""How a run is told where there is no live display: lines on stderr for people, JSON lines on stdout for programs."""

from __future__ import annotations

import json
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from agentos.durations import format_duration
from agentos.events import CoolDownStarted, DryRun, ItemEnded, PoolWaiting, RunEnded, StillRunning
from agentos.items.results import ProgressStats
from agentos.reporters.sentences import event_text, failure_line, summary_text, waiting_text
from agentos.reporters.writers import TextReporter

if TYPE_CHECKING:
    from agentos.runs.streams import ResultStream

# How often (seconds) progress is told, while there is any.
PROGRESS_SECONDS = 5.0


class LinesReporter(TextReporter):
    """Failures at once, whatever else a person should know, and between `start` and `stop` (or inside `with`) where the
    run stands, every few seconds while that changes. `quiet`: nothing but failures and the end.

    `run` is None in a dry run, which has no progress. `go_on`: the command that continues the run, if something is left
    of it."""

    def __init__(
        self, stream: TextIO, run: ResultStream | None, *, quiet: bool = False, go_on: str = "agentos resume"
    ) -> None:
        super().__init__(stream)
        self._results = run
        self._quiet = quiet
        self._go_on = go_on
        self._lock = threading.Lock()  # guards the stream and _told: the run and the ticker both tell
        self._told: tuple[int, int] | None = None  # completed and running, as they were told last
        self._is_over = threading.Event()
        self._ticker: threading.Thread | None = None

    def __call__(self, event: Any) -> None:
        text = self._text_of(event)
        with self._lock:
            if isinstance(event, RunEnded):
                self._is_over.set()  # whatever the ticker would say comes too late
            if text is not None:
                self._write(text)

    def _text_of(self, event: Any) -> str | None:
        if isinstance(event, ItemEnded):
            return None if event.result.success else failure_line(event.result)
        if isinstance(event, RunEnded):
            again = "; the unread rest must come again" if event.unfinished is None else ""
            return summary_text(event, f"{self._go_on} continues them{again}")
        if self._quiet and not isinstance(event, DryRun):
            return None
        if isinstance(event, StillRunning):
            return progress_line(event.stats, event.waiting)
        if isinstance(event, CoolDownStarted) and event.seconds < PROGRESS_SECONDS:
            return None  # over before the next line
        return event_text(event)

    def tick(self) -> None:
        """Tells where the run stands, if that has changed."""
        if self._results is None:
            return
        stats = self._results.stats
        stands = stats.completed, stats.running
        with self._lock:
            if stands != self._told and not self._is_over.is_set():
                self._told = stands
                self._write(progress_line(stats, self._results.waiting()))

    def start(self) -> None:
        if not self._quiet and self._results is not None and self._ticker is None:
            self._ticker = threading.Thread(target=self._run, name="agentos-lines", daemon=True)
            self._ticker.start()

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


def progress_line(stats: ProgressStats, waiting: PoolWaiting | None = None) -> str:
    done = f"{stats.completed} done" if stats.total is None else f"{stats.completed}/{stats.total} done"
    failed = f", {stats.failed} failed" if stats.failed else ""
    eta = stats.eta
    to_go = f", about {format_duration(eta)} to go" if eta else ""
    why = "" if waiting is None else f"; {_why(waiting)}"
    return f"[COORDINATOR] {done}{failed}, {stats.running} running{to_go}{why}"


def _why(waiting: PoolWaiting) -> str:
    if waiting.limit is not None and (waiting.usable_in or 0.0) < PROGRESS_SECONDS:
        return f"as fast as the limits allow ({waiting.limit})"
    return f"nothing more starts: {waiting_text(waiting)}"


def json_output(item_id: str, stream: str, data: bytes) -> bytes:
    """Whole lines of an item's output as events. What is not UTF-8 is told by its escapes."""
    if not data:
        return b""
    lines = data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
    events = [{"event": "Output", "item_id": item_id, "stream": stream, "line": line} for line in lines]
    return "".join(json.dumps(event) + "\n" for event in events).encode()
