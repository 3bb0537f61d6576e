"""Public fakes: a clock that is moved by hand, and a provider that can be called.

They are what this package tests itself with, and are meant for the tests of programs that use it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from ._clock import Timer


class FakeClock:
    """Time that passes only when told to: `CredentialCoordinator(keys, clock=clock)`, then `clock.advance(60)`."""

    def __init__(self, epoch: float = 1_800_000_000.0) -> None:
        self._lock = threading.Lock()  # guards all below
        self._elapsed = 0.0
        self._epoch = epoch
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return 1000.0 + self._elapsed

    def epoch(self) -> float:
        return self._epoch + self._elapsed

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        timer = Timer(at, call)
        with self._lock:
            heapq.heappush(self._timers, (at, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Lets time pass, stopping at each timer on the way. Timers are called on this thread, at their instants."""
        end = self.now() + seconds
        while (call := self._next_call(end)) is not None:
            call()
        with self._lock:
            self._elapsed = end - 1000.0

    def _next_call(self, end: float) -> Callable[[], None] | None:
        with self._lock:
            while self._timers and self._timers[0][0] <= end:
                at, _, timer = heapq.heappop(self._timers)
                if timer.call is not None:
                    self._elapsed = max(self._elapsed, at - 1000.0)
                    return timer.call
        return None


class SimulatedProvider:
    """A provider on localhost: answers `POST /v1/work` with a Bearer key, and 429 with Retry-After past the limit.

    Each key has a bucket of `burst` requests that fills at `requests_per_second`. Retry-After is in whole seconds,
    rounded up, as real providers send it. Keys that are not among `keys` are answered with 401.
    """

    def __init__(
        self, keys: Iterable[str], *, requests_per_second: float = 2.0, burst: int = 5, latency: float = 0.02
    ) -> None:
        self.requests_per_second = requests_per_second
        self.burst = burst
        self.latency = latency
        self.answered = 0  # requests that were served
        self.limited = 0  # answers with 429
        self._lock = threading.Lock()  # guards the counts and the buckets
        self._buckets = {key: (float(burst), time.monotonic()) for key in keys}  # tokens, at an instant
        self._server = _Server(("127.0.0.1", 0), _handler_for(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="provider", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1/work"

    def legal_minimum(self, requests: int) -> float:
        """The shortest time, in seconds, in which so many requests can be served within all keys' limits."""
        per_key = math.ceil(requests / len(self._buckets))
        return max(0.0, (per_key - self.burst) / self.requests_per_second)

    def ask(self, key: str) -> tuple[int, dict[str, str]]:
        """What a request with this key is answered: status and headers."""
        now = time.monotonic()
        with self._lock:
            if key not in self._buckets:
                return 401, {}
            tokens, since = self._buckets[key]
            tokens = min(self.burst, tokens + (now - since) * self.requests_per_second)
            if tokens >= 1:
                self._buckets[key] = (tokens - 1, now)
                self.answered += 1
                return 200, {}
            self._buckets[key] = (tokens, now)
            self.limited += 1
            return 429, {"Retry-After": str(math.ceil((1 - tokens) / self.requests_per_second))}

    def __enter__(self) -> SimulatedProvider:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


def _handler_for(provider: SimulatedProvider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers = provider.ask(self.headers.get("Authorization", "").removeprefix("Bearer "))
            if status == 200:
                time.sleep(provider.latency)  # the work itself
            self._answer(status, headers, {"status": status, "echo": body.decode("utf-8", "replace")})

        def _answer(self, status: int, headers: dict[str, str], content: dict[str, object]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            headers = {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
            """Silent: the run tells what happens."""

    return Handler
