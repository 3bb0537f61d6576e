"""A Dask cluster as an executor for attempts: each attempt runs on one node, once.

Dask runs a task again on another node when the first one is lost, and also a finished task whose result was lost before
it was fetched. For an attempt that would be a second try under the number of the first, perhaps at the same time. So
each task is bound to one worker of the cluster, chosen here by its free threads, and the list of workers is polled: a
task whose worker is lost ends in `WorkerDied`, and the run decides about another attempt.

All methods but `submit` run on the client's event loop, so there is no lock. `submit` may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any, NamedTuple

from agentos.errors import WorkerDied

# Seconds between two polls of the list of workers while calls are placed or wait. A node that is lost and comes back
# under the same address between two polls is not noticed, but starting Python takes longer than that.
POLL_SECONDS = 0.5

_clusters: weakref.WeakKeyDictionary[Any, DaskCluster] = weakref.WeakKeyDictionary()


def cluster_of(executor: Any) -> DaskCluster:
    """Return the `DaskCluster` for what `distributed.Client.get_executor()` returned. There is one per client, so that
    runs share its threads. Raise `ValueError` if the executor has options of its own."""
    # distributed has no public way from an executor to its client and its options.
    options = sorted(getattr(executor, "_kwargs", ()))
    if options:
        raise ValueError(
            f"call client.get_executor() without {', '.join(options)}: the run assigns each attempt to one worker of "
            "the cluster and retries it itself"
        )
    client = executor._client
    cluster = _clusters.get(client)
    if cluster is None:
        cluster = _clusters[client] = DaskCluster(client)
    return cluster


class Call(NamedTuple):
    """A call that waits for a free thread."""

    future: Future[Any]
    func: Callable[..., Any]
    args: tuple[Any, ...]


class PlacedCall:
    """A call that was sent to a worker."""

    __slots__ = ("address", "future", "is_lost", "task")

    def __init__(self, future: Future[Any], address: str, task: Any) -> None:
        self.future = future
        self.address = address
        self.task = task  # Dask's future
        self.is_lost = False  # its worker has left the cluster


class DaskCluster(Executor):
    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._loop = client.loop
        self._threads: dict[str, int] = {}  # number per worker, by its address
        self._placed: dict[str, set[PlacedCall]] = {}  # by the address of the worker, which may be lost meanwhile
        self._waiting: deque[Call] = deque()
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop has only weak references to them
        self._is_polling = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs, "keyword arguments would be options of Dask's submit"
        self._require_client()
        future: Future[Any] = Future()
        self._loop.add_callback(self._accept, Call(future, fn, args))
        return future

    def _require_client(self) -> Any:
        """Return the client. Raise `BrokenExecutor` if it is not connected to a cluster."""
        client = self._client()
        if client is None or client.status not in ("running", "connecting"):
            raise BrokenExecutor("the client is not connected to a cluster")
        return client

    # --- on the client's event loop -------------------------------------------------------------------------------

    def _accept(self, call: Call) -> None:
        self._waiting.append(call)
        if not self._is_polling:
            self._is_polling = True
            self._spawn(self._poll_workers())
        self._place_calls()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _place_calls(self) -> None:
        """Send waiting calls to the workers with the most free threads."""
        while self._waiting:
            address = max(self._threads, key=self._free_threads, default=None)
            if address is None or self._free_threads(address) <= 0:
                return
            call = self._waiting.popleft()
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                placed = PlacedCall(call.future, address, self._send(call, address))
            except Exception as error:
                call.future.set_exception(error)
                continue
            self._placed.setdefault(address, set()).add(placed)
            self._spawn(self._wait_for(placed))

    def _free_threads(self, address: str) -> int:
        return self._threads[address] - len(self._placed.get(address, ()))

    def _send(self, call: Call, address: str) -> Any:
        return self._require_client().submit(
            call.func,
            *call.args,
            key=f"agentos-{uuid.uuid4().hex}",
            workers=[address],
            allow_other_workers=False,
            retries=0,
            pure=False,
        )

    async def _wait_for(self, placed: PlacedCall) -> None:
        """Pass on how a task has ended. Its result is fetched and released at once: while a client holds a reference,
        Dask computes a lost result again."""
        result: Any = None
        problem: Exception | None = None
        try:
            result = await self._require_client().gather(placed.task, asynchronous=True)
        except CancelledError as error:  # Dask's own: cancelled here, or the scheduler has dropped it, or is lost
            reason = getattr(error, "reason", None) or "no reason given"
            problem = BrokenExecutor(f"the cluster has dropped an attempt ({reason})")
        except asyncio.CancelledError:
            problem = BrokenExecutor("the client was closed")
        except Exception as error:
            problem = error
        if problem is not None and (placed.is_lost or type(problem).__name__ == "KilledWorker"):
            problem = WorkerDied(f"the worker at {placed.address} was lost during an attempt")
        with contextlib.suppress(Exception):  # the client may be closed meanwhile
            placed.task.release()
        self._remove(placed)
        if problem is None:
            placed.future.set_result(result)
        else:
            placed.future.set_exception(problem)

    def _remove(self, placed: PlacedCall) -> None:
        neighbours = self._placed[placed.address]
        neighbours.discard(placed)
        if not neighbours:
            del self._placed[placed.address]
        self._place_calls()

    async def _poll_workers(self) -> None:
        """Update the list of workers while calls are placed or wait."""
        problem: BaseException | None = None
        try:
            while self._has_work():
                client = self._require_client()
                if client.status == "running":
                    await self._update_workers(client, await client.scheduler.ncores())
                del client
                await asyncio.sleep(POLL_SECONDS)
        except OSError as error:
            problem = BrokenExecutor(f"the cluster does not answer: {error}")
        except BaseException as error:
            problem = error
        finally:
            self._is_polling = False
            self._threads = {}  # the next call starts a new poll
        if problem is not None:
            self._fail_waiting(problem)

    def _has_work(self) -> bool:
        self._waiting = deque(call for call in self._waiting if not call.future.cancelled())
        return bool(self._waiting or self._placed)

    async def _update_workers(self, client: Any, threads: dict[str, int]) -> None:
        self._threads = dict(threads)
        lost = [placed for address in self._placed.keys() - threads.keys() for placed in self._placed[address]]
        for placed in lost:
            placed.is_lost = True
        if lost:
            await client.cancel([placed.task for placed in lost], asynchronous=True)
        self._place_calls()

    def _fail_waiting(self, problem: BaseException) -> None:
        """Fail the waiting calls. Placed calls end by themselves: a client that loses its scheduler cancels them."""
        while self._waiting:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(problem)
