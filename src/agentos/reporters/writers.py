"""Writes the events of a run: plain lines (`PlainReporter`), JSON lines (`JsonReporter`), or nothing (`reporter=None`).

A reporter is a callable that takes an event of `agentos.events`. The run's own thread calls it, one event at a time.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TextIO

from agentos.events import JSON_VERSION, Heartbeat, ItemEnded, PoolWaiting
from agentos.items.parallelism import ParallelBound
from agentos.items.results import ProgressStats, WorkflowResult
from agentos.redaction.json_text import redact_json

from .sentences import event_text, failure_line, progress_text

Reporter = Callable[[Any], None]

# Characters of the `repr` that stands for a value without a form in JSON.
MAX_REPR = 1000
# Moves the cursor to the start of its line, and erases the line.
CLEAR_LINE = "\r\x1b[K"
# Seconds between two updates of the progress line.
PROGRESS_SECONDS = 0.1


class TextReporter:
    """Base of the reporters: writes lines to a stream, without the secrets of the pools that registered a redactor.

    `stream`: None for stdout."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._redactors: list[Callable[[str], str]] = []

    def redact_with(self, redact: Callable[[str], str]) -> None:
        if redact not in self._redactors:
            self._redactors.append(redact)

    def _write(self, text: str, end: str = "\n") -> None:
        for redact in self._redactors:
            text = self._redacted(text, redact)
        # Not stored in __init__: a program may redirect sys.stdout later. It is None in a process without one.
        stream = self._stream if self._stream is not None else sys.stdout
        if stream is None:
            return
        try:
            print(text, file=stream, flush=True, end=end)
        except UnicodeEncodeError:
            print(text.encode("ascii", "backslashreplace").decode(), file=stream, flush=True, end=end)

    def _redacted(self, text: str, redact: Callable[[str], str]) -> str:
        return redact(text)


class PlainReporter(TextReporter):
    """`[COORDINATOR]` lines, for people. On a terminal, the progress is one line that is written again and again, below
    the others."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._has_progress = False  # the cursor stands at the end of a progress line
        self._drawn_at = -math.inf

    def __call__(self, event: Any) -> None:
        columns = self._columns()
        if columns is None:
            text = event_text(event)
        elif isinstance(event, ItemEnded):
            text = None if event.result.success else failure_line(event.result)
        elif isinstance(event, Heartbeat):
            text = None
        else:
            text = event_text(event)
        if text is not None:
            self._write(f"{CLEAR_LINE if self._has_progress else ''}{text}")
            self._has_progress, self._drawn_at = False, -math.inf
        if columns is not None and isinstance(event, ItemEnded | Heartbeat):
            self._draw_progress(event.stats, columns)

    def _columns(self) -> int | None:
        """Return the width of the terminal; None if the stream is not one that can rewrite a line."""
        stream = self._stream if self._stream is not None else sys.stdout
        try:
            if stream is None or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
                return None
            return os.get_terminal_size(stream.fileno()).columns
        except (OSError, ValueError, AttributeError):
            return None

    def _draw_progress(self, stats: ProgressStats, columns: int) -> None:
        now = time.monotonic()
        if now - self._drawn_at < PROGRESS_SECONDS and stats.completed != stats.total:
            return
        self._drawn_at, self._has_progress = now, True
        self._write(f"{CLEAR_LINE}{progress_text(stats)[: columns - 1]}", end="")


class JsonReporter(TextReporter):
    """One JSON object per event and line. A value without a form in JSON is written as its `repr`."""

    def __call__(self, event: Any) -> None:
        self._write(json_line(event))

    def _redacted(self, text: str, redact: Callable[[str], str]) -> str:
        """Redact string by string: the line stays JSON, and a secret that contains terminal codes, escaped here, is
        recognised."""
        return redact_json(text, redact)


def check_reporter(reporter: Reporter | None, redact: Callable[[str], str] | None) -> Reporter | None:
    """Return the reporter, its texts redacted with `redact`; raise ValueError if it cannot be called with events."""
    if reporter is not None and (isinstance(reporter, type) or not callable(reporter)):
        raise ValueError(f"reporter must be None or a callable that takes an event, not {reporter!r}")
    if redact is not None and isinstance(reporter, TextReporter):
        reporter.redact_with(redact)
    return reporter


def json_line(event: Any) -> str:
    """Return an event as one line of JSON, without a line end."""
    values = {name: _json_value(value) for name, value in event._asdict().items()}
    return json.dumps({"event": type(event).__name__, "v": JSON_VERSION, **values}, allow_nan=False)


def _json_value(value: Any) -> Any:
    """Return a value in the types of JSON. Does not raise: a worker may return any object."""
    if isinstance(value, WorkflowResult | ProgressStats):
        return {field.name: _json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, PoolWaiting | ParallelBound):
        return value._asdict()
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):  # ValueError: NaN, an integer of too many digits, or a cycle
        return _short_repr(value)
    return value


def _short_repr(value: Any) -> str:
    try:
        return repr(value)[:MAX_REPR]
    except Exception as error:
        return f"<{type(value).__name__}, repr() raised {type(error).__name__}>"


def warn_capped(requested: int, cap: int, reporter: Reporter) -> None:
    """Print that fewer workers are used: on stdout with a `PlainReporter`, else on stderr, as a program may read
    stdout."""
    print(
        f"Warning: {requested} parallel workers were requested, the maximum is {cap}: using {cap} "
        "(max_parallelism= raises the maximum)",
        file=sys.stdout if isinstance(reporter, PlainReporter) else sys.stderr,
    )
