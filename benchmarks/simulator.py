"""Run the simulated provider in a process of its own, and evaluate its log.

`python -m agentos.testing` has no options for dead keys or for groups of unequal size; here all settings come as JSON.
The first line of output is the address; the process serves until its input is closed.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from agentos.testing import Concurrency, SimulatedProvider, SlidingWindow, TokenBucket

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Settings:
    """Limits and answers of the provider. Each key has a limit of its own unless `groups` puts it into a group."""

    keys: list[str]
    rate: float  # requests per second
    burst: float
    concurrent: int | None  # requests at once per group; None: any number
    latency: float
    headers: str = "off"
    retry_after: str | None = "seconds"
    groups: dict[str, str] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)
    out_of_quota: list[str] = field(default_factory=list)
    tokens: dict[str, tuple[float, float]] = field(default_factory=dict)  # by key: amount, seconds of the window

    def provider(self) -> SimulatedProvider:
        return SimulatedProvider(
            self.keys,
            limits={self.groups.get(key, key): self._rules(key) for key in self.keys},
            groups=self.groups,
            latency=self.latency,
            headers=self.headers,  # type: ignore[arg-type]
            retry_after=self.retry_after,  # type: ignore[arg-type]
            dead=self.dead,
            out_of_quota=self.out_of_quota,
        )

    def _rules(self, key: str) -> list[Any]:
        rules: list[Any] = [TokenBucket(self.rate, self.burst)]
        rules += [] if self.concurrent is None else [Concurrency(self.concurrent)]
        return rules + ([SlidingWindow(*self.tokens[key], counts="tokens")] if key in self.tokens else [])

    def legal_minimum(self, requests: int) -> float:
        """Return the seconds from the first to the last request if every limit is used from the first instant on."""
        groups = {key: self.groups.get(key, key) for key in self.keys}
        useless = {groups[key] for key in self.out_of_quota}
        usable = [key for key, group in groups.items() if group not in useless and key not in self.dead]
        one_of_each = list({groups[key]: key for key in usable}.values())
        fresh = SimulatedProvider(one_of_each, requests_per_second=self.rate, burst=self.burst, clock=lambda: 0.0)
        by_rate = fresh.legal_minimum(requests)
        if self.concurrent is None:
            return by_rate
        # The last request starts after all rounds but its own.
        rounds = math.ceil(requests / (self.concurrent * len(one_of_each)))
        return max(by_rate, (rounds - 1) * self.latency)


@dataclass(frozen=True)
class Judged:
    """The figures in the provider's log."""

    answered: int
    limited: int  # with 429
    refused: int  # with any status but 200, 429 included
    seconds: float  # from the first request to the last that was answered
    answered_at: list[float]  # seconds since the first request
    limited_at: list[float]
    peak: int  # concurrent requests of the busiest group


class Simulator:
    """A `with` block with a provider in another process, at `base_url`."""

    def __init__(self, settings: Settings) -> None:
        command = [sys.executable, "-m", "benchmarks.simulator", json.dumps(asdict(settings))]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.base_url = self._process.stdout.readline().strip()

    def judge(self) -> Judged:
        with urllib.request.urlopen(f"{self.base_url}/_stats") as answer:
            stats: dict[str, Any] = json.load(answer)
        first = stats["log"][0][0] if stats["log"] else 0.0
        log = [(at - first, status) for at, _key, _group, status, *_ in stats["log"]]
        answered = [at for at, status in log if status == 200]
        limited = [at for at, status in log if status == 429]
        return Judged(
            answered=len(answered),
            limited=len(limited),
            refused=len(log) - len(answered),
            seconds=max(answered, default=0.0),
            answered_at=answered,
            limited_at=limited,
            peak=max(stats["peak_concurrency"].values(), default=0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


if __name__ == "__main__":
    with Settings(**json.loads(sys.argv[1])).provider() as provider:
        print(provider.base_url, flush=True)
        sys.stdin.read()
