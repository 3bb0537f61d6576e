"""The job of every client, and a counter of its results."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

# Concurrent requests, as many as all keys allow: 8 keys of 4 requests each.
WORKERS = 32


@dataclass(frozen=True)
class Job:
    """A number of requests, each of which has to be answered, and the facts that the client may use."""

    base_url: str
    # Path of the endpoint; SDKs use their own.
    path: str
    keys: list[str]
    requests: int
    # Knowledge before the first request: all limits, that headers contain them, or nothing.
    knows: Literal["limits", "headers", "nothing"]
    rate: float
    burst: float
    # None: nothing is declared, and the number of requests at once is learned.
    concurrent: int | None
    # Seconds after which the client is stopped.
    cap: float

    @property
    def url(self) -> str:
        return self.base_url + self.path


class Tally:
    """Counts results; thread-safe."""

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
    """Return the key in the headers of all endpoints."""
    return {"authorization": f"Bearer {key}", "x-api-key": key}
