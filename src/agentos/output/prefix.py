"""`OutputPrefixer`: writes whole lines with a prefix; lines of several threads are never mixed."""

from __future__ import annotations

import sys
import threading
import weakref
from types import TracebackType
from typing import Any

# One lock per stream, not per prefixer: several prefixers may write to one stream.
_locks_lock = threading.Lock()  # guards _locks
_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_fallback_lock = threading.RLock()  # for streams that cannot be a key of _locks


def prefix_lines(prefix: bytes, lines: bytes) -> bytes:
    """Return the lines with a prefix before each; empty lines stay without. The last line must end with a newline."""
    if b"\n\n" in lines or lines.startswith(b"\n"):
        return b"\n".join([prefix + line if line else line for line in lines[:-1].split(b"\n")]) + b"\n"
    return prefix + lines[:-1].replace(b"\n", b"\n" + prefix) + b"\n"


class OutputPrefixer:
    """A stream that writes each complete line as `prefix + " " + line`, and empty lines without a prefix.

    Holds a partial line until its newline or `flush`. Safe for any number of threads. As a context manager it flushes
    at the end.
    """

    def __init__(self, prefix: str, stream: Any = None) -> None:
        self.prefix = prefix
        self._stream = stream
        self._lock = threading.Lock()  # guards _partial_lines
        self._partial_lines: dict[int, str] = {}  # by thread: `print` writes a line and its newline separately

    @property
    def stream(self) -> Any:
        """Return the underlying stream: the given one, else the current sys.stdout."""
        if self._stream is not None:
            return self._stream
        return sys.stdout if sys.stdout is not self else sys.__stdout__  # the prefixer itself may be sys.stdout

    def write(self, text: str) -> int:
        """Write any part of a text; return its length, as streams do."""
        thread = threading.get_ident()
        with self._lock:
            complete, newline, rest = (self._partial_lines.pop(thread, "") + text).rpartition("\n")
            if rest:
                self._partial_lines[thread] = rest
            if newline:
                self._write_lines(complete.split("\n"))
        return len(text)

    def flush(self) -> None:
        """Write partial lines as lines of their own, and flush the stream."""
        with self._lock:
            partial_lines, self._partial_lines = self._partial_lines, {}
            if partial_lines:
                self._write_lines(list(partial_lines.values()))
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
        return _fallback_lock
