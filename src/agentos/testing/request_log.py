"""Log of the HTTP requests of a simulated provider, for a judge in another process: over HTTP, or as a file."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Literal, NamedTuple

# Entries in memory. Older ones are only in the file.
LOG_SIZE = 100_000

Ending = Literal["complete", "client left", "cut", "dropped"]


class RequestRecord(NamedTuple):
    """One HTTP request from its arrival to its end. It contains no key."""

    at: float  # seconds since 1970
    seconds: float  # until its end
    key_id: str  # key-1, key-2, … in the order of the provider's keys; "unknown" for any other
    path: str
    status: int
    reason: str
    model: str | None
    input_tokens: int  # of a served request, like the others; without those read from the prompt cache
    output_tokens: int
    cached_tokens: int
    events: int  # of a stream: sent
    ending: Ending
    digest: str  # of the body: two requests with the same one are the same request, sent twice


class RequestLog:
    """Records in memory, and in a file of JSON lines if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        self.records: deque[RequestRecord] = deque(maxlen=LOG_SIZE)
        self._file = None if path is None else path.open("a", encoding="utf-8")

    def add(self, record: RequestRecord) -> None:
        self.records.append(record)
        if self._file is not None:
            self._file.write(json.dumps(record._asdict()) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
