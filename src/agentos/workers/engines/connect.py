"""Connect to the engine that carries out the attempts of a run: today a Dask cluster, named by `dask://HOST:PORT`."""

from __future__ import annotations

import contextlib
import logging
import re
from concurrent.futures import Executor
from types import TracebackType
from typing import Any

from agentos.errors import EngineNotInstalled, EngineUnavailable, EngineUrlError

_URL = re.compile(r"dask://(?P<host>[^/\s:]+|\[[^/\s]+\]):(?P<port>\d+)/?")
# Seconds until a scheduler that does not answer counts as unreachable.
CONNECT_SECONDS = 10.0
# Seconds until the client is dropped although the scheduler has not confirmed the end of the connection.
DISCONNECT_SECONDS = 0.5


class Engine:
    """A connection to a cluster. As a context manager it disconnects at the end and leaves the cluster running."""

    def __init__(self, url: str) -> None:
        """Block until the cluster answers, at most CONNECT_SECONDS.

        Raise `EngineUrlError` for a URL of another form, `EngineNotInstalled` without the package `distributed`, and
        `EngineUnavailable` if the scheduler cannot be reached.
        """
        match = _URL.fullmatch(url)
        if match is None:
            raise EngineUrlError(f"the URL of an engine is dask://HOST:PORT, not {url!r}")
        try:
            import distributed
        except ImportError:
            raise EngineNotInstalled("dask:// needs Dask: pip install 'agentos-parallel[dask]'") from None
        address = f"tcp://{match['host']}:{match['port']}"
        try:
            connect: Any = distributed.Client
            self._client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError) as error:
            raise EngineUnavailable(f"the cluster at {url} cannot be reached: {error}") from None
        self.url = url

    @property
    def executor(self) -> Executor:
        executor: Executor = self._client.get_executor()
        return executor

    def slots(self) -> int:
        """Return how many attempts the cluster can carry out at once with the workers that it has now."""
        slots: int = sum(self._client.nthreads().values())
        return slots

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        # A lost scheduler was reported by the run: the client's own traceback about it would only repeat that.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        with contextlib.suppress(OSError):  # also TimeoutError
            self._client.close(timeout=DISCONNECT_SECONDS)
