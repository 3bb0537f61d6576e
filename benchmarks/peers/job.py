"""The job that every client is given, and how it counts what it has done."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

# As many at once as all keys together allow: 8 keys, 4 requests at once each.
WORKERS = 32


@dataclass(frozen=True)
class Job:
    """So many requests, each of which has to be answered."""

    base_url: str
    # What is posted to: all but the SDKs use it as it is.
    path: str
    keys: list[str]
    requests: int
    # What is known beforehand: all of the limits, that headers will tell them, or nothing.
    knows: Literal["limits", "headers", "nothing"]
    rate: float
    burst: float
    concurrent: int
    # Seconds after which the client is stopped.
    cap: float

    @property
    def url(self) -> str:
        return self.base_url + self.path


class Tally:
    """Counts items; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.succeeded = 0
        self.failed = 0
        self.first_error: str | None = None

    def succeed(self) -> None:
        with self._lock:
            self.succeeded += 1

    def fail(self, error: object) -> None:
        with self._lock:
            self.failed += 1
            self.first_error = self.first_error or f"{type(error).__name__}: {error}"[:300]


def headers_for(key: str) -> dict[str, str]:
    """The key where every endpoint finds it."""
    return {"authorization": f"Bearer {key}", "x-api-key": key}
