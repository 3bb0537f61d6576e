"""`DescriptorCapture`: what Python workers print past `sys.stdout`, through redaction.

Programs that a worker starts, and C code, write to descriptors 1 and 2. Those are pipes during a run; a thread reads
them and passes on redacted, whole lines. Which item has written them is not known.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import threading
from collections.abc import Callable
from types import TracebackType

from agentos.redaction.redactor import Redactor

from .capture import NO_ITEM
from .stream import Output, OutputCall

READ_BYTES = 64 * 1024
# Seconds that the end of the capture waits for the end of the pipes, which programs that still run hold open.
EXIT_SECONDS = 0.5
_NAMES = {1: "stdout", 2: "stderr"}


class DescriptorCapture:
    """A context manager that redirects descriptors 1 and 2. `show` must write elsewhere, and not block.

    A program that outlives the capture keeps its pipe: its output is passed on as long as this process lives.
    `redactor` returns the redactor of all secrets that are known by now."""

    def __init__(self, redactor: Callable[[], Redactor] | None, show: OutputCall) -> None:
        self._redactor = redactor
        self._show = show
        self._saved_descriptors: dict[int, int | None] = {}  # None: it was closed
        self._reader: threading.Thread | None = None

    def __enter__(self) -> DescriptorCapture:
        """Raise `OSError` if the system has no more descriptors; nothing is redirected then."""
        try:
            for descriptor in _NAMES:
                self._saved_descriptors[descriptor] = _copy_of(descriptor)
            self._redirect()
        except OSError:
            for copy in self._saved_descriptors.values():
                if copy is not None:
                    os.close(copy)
            self._saved_descriptors.clear()
            raise
        return self

    def flush(self) -> None:
        """Block until all that was written is shown, for at most EXIT_SECONDS. Raise `OSError` as `__enter__` does."""
        reader = self._reader
        self._redirect()  # to other pipes: the reader of the former ones comes to their end
        if reader is not None:
            reader.join(EXIT_SECONDS)

    def _redirect(self) -> None:
        pipes: dict[int, tuple[int, int]] = {}
        try:
            for descriptor in _NAMES:
                pipes[descriptor] = os.pipe()
        except OSError:
            for end in (end for pipe in pipes.values() for end in pipe):
                os.close(end)
            raise
        outputs = {
            pipes[descriptor][0]: Output(
                NO_ITEM, name, None if self._redactor is None else self._redactor(), None, self._show
            )
            for descriptor, name in _NAMES.items()
        }
        reader = threading.Thread(target=_read, args=(outputs, self._redactor), name="agentos-descriptors", daemon=True)
        reader.start()  # before the descriptors change: the system may have no room for it
        self._reader = reader
        _flush_buffers()
        for descriptor, (_, writing) in pipes.items():
            os.dup2(writing, descriptor)
            os.close(writing)

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        """Restore the descriptors. Block until all that was written is shown, for at most EXIT_SECONDS."""
        _flush_buffers()
        saved_descriptors, self._saved_descriptors = self._saved_descriptors, {}
        for descriptor, copy in saved_descriptors.items():
            if copy is None:
                os.close(descriptor)
            else:
                os.dup2(copy, descriptor)
                os.close(copy)
        if self._reader is not None:
            self._reader.join(EXIT_SECONDS)


def _read(outputs: dict[int, Output], redactor: Callable[[], Redactor] | None) -> None:
    """Pass on what the pipes hold, until all their writers have ended."""
    with selectors.DefaultSelector() as selector:
        for pipe in outputs:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, READ_BYTES)
                if data:
                    if redactor is not None:
                        outputs[key.fd].use(redactor())
                    outputs[key.fd].feed(data)
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    outputs[key.fd].close()


def _copy_of(descriptor: int) -> int | None:
    """Return a copy that programs do not inherit; None if the descriptor is closed."""
    try:
        os.fstat(descriptor)
    except OSError:
        return None
    return os.dup(descriptor)


def _flush_buffers() -> None:
    """Write the buffers of Python's original streams and of the C library, before their descriptors change: what a
    worker has printed must not come out, unredacted, when the program ends."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.flush()
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # loaded for Python workers only

        ctypes.CDLL(None).fflush(None)
