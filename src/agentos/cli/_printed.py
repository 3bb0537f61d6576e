"""What Python workers print: told apart by item, without secrets, kept in logs, and never two lines mixed.

While a run executes, `sys.stdout` and `sys.stderr` are these. Each print is known by the item that its thread or task
works on; what is printed elsewhere is nobody's, and passes as it is, but for secrets.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from agentos.workflows.parallel._logs import log_name
from agentos.workflows.parallel._output import Log, Output, OutputCall
from agentos.workflows.parallel.context import current_item
from agentos.workflows.parallel.redaction import Redactor

NOBODY = ""


class Printed:
    """A context manager. `item_ended` must be told of each, so that what it has printed last is shown."""

    def __init__(self, folder: Path, redactor: Redactor | None, show: OutputCall) -> None:
        self._folder = folder
        self._redactor = redactor
        self._show = show
        self._lock = threading.Lock()  # guards _outputs and what is in them
        self._outputs: dict[str, tuple[Log | None, dict[str, Output]]] = {}
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
            log, outputs = self._outputs.pop(item_id, (None, {}))
            for output in outputs.values():
                output.close()
            if log is not None:
                log.close()

    def _of(self, item_id: str, attempt: int) -> dict[str, Output]:
        if item_id not in self._outputs:
            log = None
            if item_id != NOBODY:
                self._folder.mkdir(parents=True, exist_ok=True)
                log = Log(self._folder / log_name(item_id), f"--- attempt {attempt} ---\n".encode(), lambda _: None)
            self._outputs[item_id] = (
                log,
                {
                    name: Output(
                        item_id, name, None if self._redactor is None else self._redactor.stream(), log, self._show
                    )
                    for name in ("stdout", "stderr")
                },
            )
        return self._outputs[item_id][1]

    def __enter__(self) -> Printed:
        self._before = sys.stdout, sys.stderr
        sys.stdout = _text_stream("stdout", self.write)
        sys.stderr = _text_stream("stderr", self.write)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        sys.stdout, sys.stderr = self._before
        for item_id in tuple(self._outputs):
            self.item_ended(item_id)


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
