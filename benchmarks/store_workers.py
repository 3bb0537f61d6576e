"""Worker processes for the benchmark of stores: leases of a shared pool, and the operations of their peers.

`python -m benchmarks.store_workers KIND ARGUMENT…` executes a command per line of stdin and answers with a line.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agentos.workflows.parallel import Credential, CredentialCoordinator, LeaseTimeout, Limits

ROOT = Path(__file__).parent.parent
TTL = 30.0
MESSAGE = b"x" * 40  # of an empty round trip: as long as a request for a lease
POLL_SECONDS = 0.001  # between two looks whether a request waits, and before an echo
AT_ONCE = 64  # leases of one credential: enough that no request waits


class Workers:
    """`count` processes of one kind."""

    def __init__(self, count: int, kind: str, *arguments: str) -> None:
        self._processes = [_start(kind, arguments) for _ in range(count)]
        self.request_all("ready")

    def request_all(self, *lines: str) -> list[str]:
        """Send each process its line, or all the same one. Return their answers."""
        commands = lines if len(lines) > 1 else lines * len(self._processes)
        for process, line in zip(self._processes, commands, strict=True):
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return [self.answer(number) for number in range(len(self._processes))]

    def send(self, number: int, line: str) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def answer(self, number: int) -> str:
        stdout = self._processes[number].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise RuntimeError("a worker of the benchmark has ended")
        return line.strip()

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        self.close()

    def close(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            process.wait(10)


def _start(kind: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.store_workers", kind, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def pool_of(url: str, keys: int, limits: Limits) -> CredentialCoordinator:
    credentials = [Credential(f"sk-benchmark-{n:05d}", id=f"key-{n}", limits=limits) for n in range(keys)]
    pool = CredentialCoordinator(credentials, store=url, lease_ttl=TTL)
    pool.listen(lambda _event: None)  # keeps events off stdout, which carries the answers
    return pool


def owner_of(url: str) -> int:
    """Return the process id of a pool's owner."""
    from agentos.pool.shared_state import look

    owner = look(url).owner
    assert owner is not None
    return owner.pid


def leases(url: str, keys: str) -> Callable[[int], object]:
    pool = pool_of(url, int(keys), Limits(max_concurrent=AT_ONCE))

    def work(times: int) -> None:
        for _ in range(times):
            with pool.lease():
                pass
        pool.get_available_count()  # waits until all releases have reached the store

    return work


def no_ops(url: str) -> Callable[[int], None]:
    import redis

    client = redis.Redis.from_url(url)
    script = client.script_load("return 1")

    def work(times: int) -> None:
        for _ in range(times):
            client.evalsha(script, 0)
            client.evalsha(script, 0)

    return work


def socket_echoes(path: str) -> Callable[[int], None]:
    """Return a function that makes pairs of empty round trips over a unix socket."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(path)

    def work(times: int) -> None:
        for _ in range(2 * times):
            client.send(MESSAGE)
            client.recv(4096)

    return work


def socket_echo(path: str) -> Callable[[int], float]:
    """Return a function that sends a message over a unix socket, and returns the seconds until its echo."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(path)

    def round_trip() -> None:
        client.send(MESSAGE)
        client.recv(4096)

    return lambda _times: _seconds_of(round_trip)


def published_echo(url: str, says: str, hears: str) -> Callable[[int], float]:
    """Return a function that publishes a message on one channel, and returns the seconds until its echo on another."""
    import redis

    client = redis.Redis.from_url(url)
    subscription = client.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(hears)
    subscription.get_message(timeout=1)
    messages = subscription.listen()

    def round_trip() -> None:
        client.publish(says, MESSAGE)
        next(messages)

    return lambda _times: _seconds_of(round_trip)


def _seconds_of(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def echo_server(path: str) -> None:
    """Send back what arrives on any connection to a unix socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(256)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                selector.register(listener.accept()[0], selectors.EVENT_READ)
                continue
            assert isinstance(key.fileobj, socket.socket)
            data = key.fileobj.recv(65536)
            if data:
                key.fileobj.send(data)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def lease_p99(url: str, keys: str) -> Callable[[int], float]:
    """Return a function that takes leases one after another, and returns the 99th percentile of their seconds."""
    pool = pool_of(url, int(keys), Limits(max_concurrent=AT_ONCE))

    def lease() -> None:
        with pool.lease():
            pass

    return lambda times: _p99(lease, times)


def next_lease(url: str, keys: str) -> Callable[[int], float]:
    """Return a function that returns the seconds until the next lease."""
    pool = pool_of(url, int(keys), Limits(max_concurrent=AT_ONCE))

    def lease() -> None:
        with pool.lease():
            pass

    return lambda _times: _seconds_of(lease)


def _p99(call: Callable[[], None], times: int) -> float:
    return statistics.quantiles([_seconds_of(call) for _ in range(times)], n=100)[98]


def busy_threads(url: str, keys: str, threads: str) -> Callable[[int], None]:
    """Return a function that starts (1) or stops (0) threads which compute in Python, in a member of the pool."""
    pool = pool_of(url, int(keys), Limits(max_concurrent=AT_ONCE))
    with pool.lease():
        pass
    is_busy = threading.Event()

    def compute() -> None:
        while True:
            is_busy.wait()
            sum(range(10_000))

    for _ in range(int(threads)):
        threading.Thread(target=compute, daemon=True).start()
    return lambda state: is_busy.set() if state else is_busy.clear()


def cpu(url: str, keys: str, rate: str) -> None:
    """Answer `owner` with the process id of the pool's owner, and a number of seconds, in which leases are taken as
    fast as the limits allow, with the CPU seconds of this process per lease and the number of leases. The first lease
    and the request that runs out of time are not in the CPU seconds: they stop and start threads, which costs as much
    as several leases."""
    pool = pool_of(url, int(keys), Limits(requests_per_minute=60 * float(rate), max_concurrent=4))
    for line in sys.stdin:
        if line == "ready\n":
            print("ready", flush=True)
        elif line == "owner\n":
            print(owner_of(url), flush=True)
        else:
            instants, until = [], time.monotonic() + float(line)
            with contextlib.suppress(LeaseTimeout):
                while (remaining := until - time.monotonic()) > 0:
                    with pool.lease(timeout=remaining):
                        instants.append(time.process_time())
            print((instants[-1] - instants[0]) / (len(instants) - 1), len(instants), flush=True)
    pool.close()


def shares(url: str, keys: str, rate: str, threads: str) -> Callable[[int], str]:
    """Return a function that takes leases in `threads` threads for a number of seconds and returns the instants of the
    grants, by the monotonic clock that all processes share."""
    limits = Limits(requests_per_minute=60 * float(rate), max_concurrent=4)
    pool = pool_of(url, int(keys), limits)

    def work(seconds: int) -> str:
        granted: list[float] = []
        until = time.monotonic() + seconds

        def run() -> None:
            with contextlib.suppress(LeaseTimeout):
                while (remaining := until - time.monotonic()) > 0:
                    with pool.lease(timeout=remaining):
                        granted.append(time.monotonic())
                        time.sleep(0.005)

        workers = [threading.Thread(target=run) for _ in range(int(threads))]
        for thread in workers:
            thread.start()
        for thread in workers:
            thread.join()
        return " ".join(f"{at:.4f}" for at in granted)

    return work


def hand_overs(url: str) -> None:
    """Execute `hold`, `wait`, `release` and `kept`: one key goes from process to process. Instants are those of the
    monotonic clock that all processes share."""
    pool = pool_of(url, 1, Limits(max_concurrent=1))
    key = None
    for line in sys.stdin:
        if line == "wait\n":
            threading.Thread(target=_report_reserve, args=(pool.reserve,), daemon=True).start()
            while not pool.get_stats()["waiting"]:
                time.sleep(POLL_SECONDS)
            print("waiting", flush=True)
        elif line == "release\n":
            assert key is not None
            released_at = time.monotonic()
            pool.release(key)
            print(released_at, flush=True)  # not before: it wakes the process that reads it, on a CPU that others need
        elif line == "hold\n":
            key = pool.reserve()
            print("held", flush=True)
        elif line == "kept\n":
            key = _RESERVED.pop()
            print("kept", flush=True)
        else:
            print("ready", flush=True)
    pool.close()


_RESERVED: list[object] = []


def _report_reserve(reserve: Callable[[], object]) -> None:
    key = reserve()
    at = time.monotonic()
    _RESERVED.append(key)
    print(at, flush=True)


def echoes(url: str, hears: str, says: str) -> None:
    """Publish every message that arrives on the channel `hears` on the channel `says`."""
    import redis

    client = redis.Redis.from_url(url)
    subscription = client.pubsub(ignore_subscribe_messages=True)
    subscription.subscribe(hears)
    subscription.get_message(timeout=1)
    print("ready", flush=True)
    for message in subscription.listen():
        client.publish(says, message["data"])


def main(kind: str, *arguments: str) -> None:
    if kind == "hand_overs":
        return hand_overs(*arguments)
    if kind in ("echoes", "echo_server", "cpu"):
        return {"echoes": echoes, "echo_server": echo_server, "cpu": cpu}[kind](*arguments)
    kinds: dict[str, Callable[..., Callable[[int], object]]] = {
        "leases": leases,
        "no_ops": no_ops,
        "socket_echoes": socket_echoes,
        "socket_echo": socket_echo,
        "published_echo": published_echo,
        "lease_p99": lease_p99,
        "next_lease": next_lease,
        "busy_threads": busy_threads,
        "shares": shares,
    }
    work = kinds[kind](*arguments)
    for line in sys.stdin:
        print("ready" if line == "ready\n" else work(int(line)), flush=True)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
