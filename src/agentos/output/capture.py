"""What Python workers print: told apart by item, without secrets, kept in logs, and never two lines mixed.

While a run executes, `sys.stdout` and `sys.stderr` are these. Each print is known by the item that its thread or task
works on; what is printed elsewhere is nobody's, and passes as it is, but for secrets.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

from agentos.items.context import current_item
from agentos.redaction.redactor import Redactor

from .stream import Log, Output, OutputCall

NOBODY = ""
# How long leaving waits for one who prints.
LEAVE_SECONDS = 0.5


class Printed:
    """A context manager. `item_ended` must be told of each, so that what it has printed last is shown."""

    def __init__(self, folder: Path, redactor: Redactor | None, show: OutputCall) -> None:
        self._folder = folder
        self._redactor = redactor
        self._show = show
        self._lock = threading.Lock()  # guards _outputs and what is in them
        self._outputs: dict[str, _Attempt] = {}  # by item
        self._before: tuple[Any, Any] = (None, None)

    def write(self, stream: str, data: bytes) -> None:
        try:
            item = current_item()
            item_id, attempt = item.id, item.attempt
        except RuntimeError:
            item_id, attempt = NOBODY, 1
        with self._lock:
            self._of(item_id, attempt)[stream].feed(data)

    def item_ended(self, item_id: str) -> None:
        with self._lock:
            ended = self._outputs.pop(item_id, None)
            if ended is not None:
                ended.close()

    def _of(self, item_id: str, attempt: int) -> dict[str, Output]:
        """Under the lock. What is left of an earlier attempt comes before the output of the next one."""
        known = self._outputs.get(item_id)
        if known is not None and known.number >= attempt:
            return known.outputs
        if known is not None:
            known.close()
        made = self._outputs[item_id] = self._begun(item_id, attempt)
        return made.outputs

    def _begun(self, item_id: str, attempt: int) -> _Attempt:
        log = None
        if item_id != NOBODY:
            with contextlib.suppress(OSError):  # the log will say so, if that matters
                self._folder.mkdir(parents=True, exist_ok=True)
            log = Log(self._folder, item_id, attempt, lambda _: None)
        outputs = {name: Output(item_id, name, self._redactor, log, self._show) for name in ("stdout", "stderr")}
        return _Attempt(attempt, log, outputs)

    def __enter__(self) -> Printed:
        self._before = sys.stdout, sys.stderr
        sys.stdout = _text_stream("stdout", self.write)
        sys.stderr = _text_stream("stderr", self.write)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._before
        # Whoever reads our output may hold up a worker that prints, for ever; the program's end need not wait for that.
        if self._lock.acquire(timeout=LEAVE_SECONDS):
            left, self._outputs = self._outputs, {}
            self._lock.release()
            for attempt in left.values():
                attempt.close()


class _Attempt(NamedTuple):
    """What an item's newest attempt prints."""

    number: int
    log: Log | None
    outputs: dict[str, Output]

    def close(self) -> None:
        for output in self.outputs.values():
            output.close()
        if self.log is not None:
            self.log.close()


class _Raw(io.RawIOBase):
    def __init__(self, name: str, write: Callable[[str, bytes], None]) -> None:
        self._name = name
        self._write = write

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._write(self._name, piece)
        return len(piece)


def _text_stream(name: str, write: Callable[[str, bytes], None]) -> io.TextIOWrapper:
    """Every write goes through at once: only then is it known whose it is."""
    return io.TextIOWrapper(
        cast(io.BufferedWriter, _Raw(name, write)), encoding="utf-8", errors="backslashreplace", write_through=True
    )
