"""`OutputPrefixer`: says whose output a line is, and never mixes two lines."""

from __future__ import annotations

import sys
import threading
import weakref
from types import TracebackType
from typing import Any

# One lock per stream, not per prefixer: lines of different prefixers on one stream must stay whole too.
_locks_lock = threading.Lock()  # guards the two below
_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_lock_of_the_rest = threading.RLock()  # for streams that cannot be remembered


def prefix_lines(prefix: bytes, lines: bytes) -> bytes:
    """Whole lines, each with the prefix before it; empty ones stay bare."""
    if b"\n\n" in lines or lines.startswith(b"\n"):
        return b"\n".join([prefix + line if line else line for line in lines[:-1].split(b"\n")]) + b"\n"
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


class OutputPrefixer:
    """Writes each complete line as `prefix + " " + line`, empty lines bare; holds a partial line until its newline or
    `flush`. Any number of threads may write. As a context manager it flushes at the end."""

    def __init__(self, prefix: str, stream: Any = None) -> None:
        self.prefix = prefix
        self._stream = stream
        self._lock = threading.Lock()  # guards _held
        self._held: dict[int, str] = {}  # partial lines, by thread: `print` writes a line and its end separately

    @property
    def stream(self) -> Any:
        """Where the lines go; without one, sys.stdout as it is at the moment of writing."""
        if self._stream is not None:
            return self._stream
        return sys.stdout if sys.stdout is not self else sys.__stdout__  # it may have been put in its place

    def write(self, text: str) -> int:
        """Takes any piece of text; returns its length, as streams do."""
        thread = threading.get_ident()
        with self._lock:
            complete, newline, rest = (self._held.pop(thread, "") + text).rpartition("\n")
            if rest:
                self._held[thread] = rest
            if newline:
                self._write_lines(complete.split("\n"))
        return len(text)

    def flush(self) -> None:
        """Writes partial lines as lines of their own, and flushes the stream."""
        with self._lock:
            held, self._held = self._held, {}
            if held:
                self._write_lines(list(held.values()))
        stream_flush = getattr(self.stream, "flush", None)
        if stream_flush is not None:
            stream_flush()

    def _write_lines(self, lines: list[str]) -> None:
        text = "".join(f"{self.prefix} {line}\n" if line else "\n" for line in lines)
        stream = self.stream
        with _lock_of(stream):
            stream.write(text)

    def __enter__(self) -> OutputPrefixer:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.flush()


def _lock_of(stream: Any) -> Any:
    try:
        with _locks_lock:
            lock = _locks.get(stream)
            if lock is None:
                lock = _locks[stream] = threading.RLock()
            return lock
    except TypeError:  # not hashable, or no weak references to it
        return _lock_of_the_rest
