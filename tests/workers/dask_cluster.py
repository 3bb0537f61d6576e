"""A Dask cluster on loopback: a scheduler and workers, each a process of its own.

`python -m tests.workers.dask_cluster FOLDER N` imports Dask once and forks, which takes a second instead of one for
each of them. It prints the scheduler's address and all process ids, and serves until its stdin closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

THREADS = 2


class Cluster:
    """The cluster as a test controls it."""

    def __init__(self, status: dict[str, Any]) -> None:
        self.address: str = status["address"]
        self.scheduler: int = status["scheduler"]
        self.workers: dict[str, int] = status["workers"]  # by address

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def cluster(folder: Path, workers: int, **environment: str) -> Iterator[Cluster]:
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.workers.dask_cluster", str(folder), str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "DASK_LOGGING__DISTRIBUTED": "critical", **environment},
        cwd=Path(__file__).parents[2],
        text=True,
    )
    with program:
        assert program.stdout is not None
        line = program.stdout.readline()
        try:
            yield Cluster(json.loads(line))
        finally:
            assert program.stdin is not None
            program.stdin.close()
            program.wait(30)


# --- calls that run on the scheduler ------------------------------------------------------------------------------


def pickled_tasks(dask_scheduler: Any) -> bytes:
    """Return all that the scheduler holds of its tasks, pickled."""
    return b"".join(pickle.dumps(task.run_spec) for task in dask_scheduler.tasks.values())


async def drop_worker(dask_scheduler: Any, address: str) -> None:
    """Remove a worker, as the scheduler does after a time without a heartbeat. The worker does not learn of it."""
    await dask_scheduler.remove_worker(address, stimulus_id="test", close=False)


# --- the program --------------------------------------------------------------------------------------------------


def _forked(serve: Any, *args: Any) -> tuple[int, str]:
    """Fork a child that serves until it is killed. Return its process id and its address."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            asyncio.run(serve(writer, *args))
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as status:
        return pid, status.readline().strip()


async def _scheduler(status: int, folder: str) -> None:
    from distributed import Scheduler

    async with Scheduler(host="127.0.0.1", port=0, dashboard=False, dashboard_address="127.0.0.1:0") as scheduler:
        os.write(status, f"{scheduler.address}\n".encode())
        await scheduler.finished()


async def _worker(status: int, folder: str, address: str) -> None:
    from distributed import Worker

    async with Worker(
        address, host="127.0.0.1", nthreads=THREADS, dashboard=False, local_directory=folder, memory_limit=0
    ) as worker:
        os.write(status, f"{worker.address}\n".encode())
        await worker.finished()


def _main(folder: str, count: int) -> None:
    import distributed  # noqa: F401 - once, before the fork

    children: list[int] = []
    try:
        scheduler, address = _forked(_scheduler, folder)
        children.append(scheduler)
        workers = {}
        for _ in range(count):
            pid, at = _forked(_worker, folder, address)
            children.append(pid)
            workers[at] = pid
        print(json.dumps({"address": address, "scheduler": scheduler, "workers": workers}), flush=True)
        sys.stdin.read()
    finally:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
