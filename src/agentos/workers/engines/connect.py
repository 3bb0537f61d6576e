"""Where the attempts of a run are carried out, if not here: `--on dask://HOST:PORT`."""

from __future__ import annotations

import contextlib
import logging
import re
from concurrent.futures import Executor
from types import TracebackType
from typing import Any

import click

from agentos.home.run_folder import Failure
from agentos.pool.lease_pool import LeasePool

HERE = "threads"
_URL = re.compile(r"dask://(?P<host>[^/\s:]+|\[[^/\s]+\]):(?P<port>\d+)/?")
# How long a cluster may take to answer, and how long leaving one that is gone may take (seconds).
CONNECT_SECONDS = 10.0
LEAVE_SECONDS = 0.5


class Engine:
    """A cluster that is connected to. A context manager, which leaves the cluster as it is."""

    def __init__(self, url: str) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise click.UsageError(f"--on is {HERE} or dask://HOST:PORT, where a Dask scheduler listens, not {url!r}")
        try:
            import distributed
        except ImportError:
            raise click.UsageError("--on dask:// needs Dask: pip install 'agentos-parallel[dask]'") from None
        self._url = url
        address = f"tcp://{found['host']}:{found['port']}"
        try:
            connect: Any = distributed.Client
            self._client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise Failure(f"the cluster at {url} cannot be reached: {error}") from None

    @property
    def executor(self) -> Executor:
        executor: Executor = self._client.get_executor()
        return executor

    def slots(self) -> int:
        """How many attempts it can carry out at once, now."""
        slots: int = sum(self._client.nthreads().values())
        if not slots:
            raise Failure(f"the cluster at {self._url} has no workers yet: start some, or say --parallel N")
        return slots

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        # If it is gone, that was told; leaving it is worth no traceback.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        with contextlib.suppress(OSError):  # also TimeoutError
            self._client.close(timeout=LEAVE_SECONDS)


def refuse_what_cannot_be_sent(command: list[str] | None, pool: LeasePool | None) -> None:
    """Before anything is connected to."""
    from .executor import plain_credentials

    if command is not None:
        raise click.UsageError(
            "a command is run on this machine, and not by a cluster: leave --on out, or name a function, "
            "MODULE:FUNCTION, that runs it there"
        )
    plain = plain_credentials(pool)
    if plain:
        raise click.UsageError(
            f"these keys are written in plain and are not sent to a cluster, which may keep them: {', '.join(plain)}\n"
            "Write env:NAME, file:PATH or cmd:COMMAND, which its workers read by themselves"
        )
