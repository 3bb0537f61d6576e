"""A simulated provider in a process of its own, whose keys have troubles; its log judges the gateway.

Keys and troubles arrive on stdin as one line of JSON, because other processes can read arguments and environments. The
first line of output is the address. The provider serves until stdin is closed; `GET /_stats` returns its log.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentos.testing import SimulatedProvider, SlidingWindow
from agentos.testing.provider import Answer


class TroubledProvider(SimulatedProvider):
    """Answers with some keys as overloaded until some seconds after the first request of all."""

    def __init__(self, *, overloaded: Sequence[str], overloaded_seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._overloaded = overloaded
        self._overloaded_seconds = overloaded_seconds
        self._first_at: float | None = None

    def ask(self, key: str, **options: Any) -> Answer:
        now = time.monotonic()
        self._first_at = self._first_at or now
        if key in self._overloaded and now < self._first_at + self._overloaded_seconds:
            self.script(["overloaded"], key=key)
        return super().ask(key, **options)


@dataclass(frozen=True, slots=True)
class RunningProvider:
    base_url: str

    def log(self) -> list[dict[str, Any]]:
        """Return the requests that the provider has seen: instant, key, status, reason."""
        with urllib.request.urlopen(f"{self.base_url}/_stats", timeout=30) as answer:
            rows = json.load(answer)["log"]
        return [
            dict(zip(("at", "key", "group", "status", "reason", "model", "tokens"), row, strict=True)) for row in rows
        ]

    def statuses(self, key: str) -> Counter[int]:
        return Counter(row["status"] for row in self.log() if row["key"] == key)


@contextmanager
def running_provider(**settings: Any) -> Iterator[RunningProvider]:
    """Start a provider in another process. `settings` are those of `main`."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.clients.provider"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
        yield RunningProvider(process.stdout.readline().strip())
        process.stdin.close()


def _keys_of(settings: dict[str, Any], name: str) -> list[str]:
    value = settings.get(name) or []
    return value if isinstance(value, list) else [value]


def main() -> None:
    """Serve: `keys`; of them `limited` (with `per_minute`), `dead`, `out_of_credit`, `overloaded` (for
    `overloaded_seconds`), each one key or several; `refused_seconds` names the wait of a first answer with status 429;
    `latency` is in seconds."""
    settings = json.loads(sys.stdin.readline())
    keys = settings["keys"]
    limited = _keys_of(settings, "limited")
    provider = TroubledProvider(
        keys=keys,
        limits={key: [SlidingWindow(settings["per_minute"], 60)] if key in limited else [] for key in keys},
        dead=_keys_of(settings, "dead"),
        overloaded=_keys_of(settings, "overloaded"),
        overloaded_seconds=settings.get("overloaded_seconds", 0),
        latency=settings.get("latency", 0.2),
    )
    for key in _keys_of(settings, "out_of_credit"):
        provider.exhaust(key, status=402)
    if settings.get("refused_seconds"):
        provider.script(["limit"], retry_after=settings["refused_seconds"])
    with provider:
        print(provider.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
