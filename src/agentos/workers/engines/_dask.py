"""A Dask cluster as an executor for attempts: each is carried out by one node, once.

Dask itself runs a task again on another node when the first one is lost, and so does it with a finished task whose
result was lost before it was fetched. For an attempt that would be a second try under the number of the first, perhaps
beside it. So each task is bound to one worker, chosen here by the threads that it has free, and the list of workers is
looked at all the time: a task whose worker has left it ends in `WorkerDied`. What comes of it is for the run to decide.

Everything here happens on the client's event loop, which needs no lock; `submit` may be called from anywhere.
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

# How often the list of workers is looked at while tasks run or wait. A node that is lost and comes back under the same
# address between two looks is not noticed; starting Python takes longer than that.
LOOK_SECONDS = 0.5

_clusters: weakref.WeakKeyDictionary[Any, DaskCluster] = weakref.WeakKeyDictionary()


def cluster_of(executor: Any) -> DaskCluster:
    """From what `distributed.Client.get_executor()` returns. One for each client, so that runs share its threads."""
    options = sorted(getattr(executor, "_kwargs", ()))
    if options:
        raise ValueError(
            f"take the executor as it is, client.get_executor(), without {', '.join(options)}: each attempt is given "
            "to one worker of the cluster, and tried again by the run"
        )
    client = executor._client
    cluster = _clusters.get(client)
    if cluster is None:
        cluster = _clusters[client] = DaskCluster(client)
    return cluster


class Call(NamedTuple):
    future: Future[Any]
    func: Callable[..., Any]
    args: tuple[Any, ...]


class Placed:
    """A call that was given to a worker."""

    __slots__ = ("address", "future", "is_lost", "task")

    def __init__(self, future: Future[Any], address: str, task: Any) -> None:
        self.future = future
        self.address = address
        self.task = task  # Dask's future
        self.is_lost = False  # its worker is gone


class DaskCluster(Executor):
    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._loop = client.loop
        self._threads: dict[str, int] = {}  # of each worker, by its address
        self._placed: dict[str, set[Placed]] = {}  # on each worker; also on one that was lost a moment ago
        self._waiting: deque[Call] = deque()  # for a free thread
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop itself does not hold them
        self._is_looking = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs, "keywords would be options of Dask's own submit"
        self._connected()
        future: Future[Any] = Future()
        self._loop.add_callback(self._take, Call(future, fn, args))
        return future

    def _connected(self) -> Any:
        client = self._client()
        if client is None or client.status not in ("running", "connecting"):
            raise BrokenExecutor("the client is not connected to a cluster")
        return client

    # --- on the client's event loop -------------------------------------------------------------------------------

    def _take(self, call: Call) -> None:
        self._waiting.append(call)
        if not self._is_looking:
            self._is_looking = True
            self._go_on(self._look())
        self._place()

    def _go_on(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _place(self) -> None:
        """Gives what waits to whoever has a thread free."""
        while self._waiting:
            address = max(self._threads, key=self._free, default=None)
            if address is None or self._free(address) <= 0:
                return
            call = self._waiting.popleft()
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                placed = Placed(call.future, address, self._sent(call, address))
            except Exception as error:
                call.future.set_exception(error)
                continue
            self._placed.setdefault(address, set()).add(placed)
            self._go_on(self._await(placed))

    def _free(self, address: str) -> int:
        return self._threads[address] - len(self._placed.get(address, ()))

    def _sent(self, call: Call, address: str) -> Any:
        return self._connected().submit(
            call.func,
            *call.args,
            key=f"agentos-{uuid.uuid4().hex}",
            workers=[address],
            allow_other_workers=False,
            retries=0,
            pure=False,
        )

    async def _await(self, placed: Placed) -> None:
        """Passes on how a task has ended. Its result is copied and let go at once: while anybody holds it, Dask would
        compute it again if it were lost."""
        result: Any = None
        problem: Exception | None = None
        try:
            result = await self._connected().gather(placed.task, asynchronous=True)
        except CancelledError as error:  # Dask's own: we have dropped it, or the scheduler has, or it is gone
            why = getattr(error, "reason", None) or "nobody has said why"
            problem = BrokenExecutor(f"the cluster has dropped an attempt ({why})")
        except asyncio.CancelledError:
            problem = BrokenExecutor("the client was closed")
        except Exception as error:
            problem = error
        if problem is not None and (placed.is_lost or type(problem).__name__ == "KilledWorker"):
            problem = WorkerDied(f"the worker at {placed.address} was lost in the middle of an attempt")
        with contextlib.suppress(Exception):  # the client may be closed by now
            placed.task.release()
        self._end(placed)
        if problem is None:
            placed.future.set_result(result)
        else:
            placed.future.set_exception(problem)

    def _end(self, placed: Placed) -> None:
        together = self._placed[placed.address]
        together.discard(placed)
        if not together:
            del self._placed[placed.address]
        self._place()

    async def _look(self) -> None:
        """Keeps the list of workers while there is anything to do."""
        problem: BaseException | None = None
        try:
            while self._has_work():
                client = self._connected()
                if client.status == "running":
                    await self._learn(client, await client.scheduler.ncores())
                del client
                await asyncio.sleep(LOOK_SECONDS)
        except OSError as error:
            problem = BrokenExecutor(f"the cluster does not answer: {error}")
        except BaseException as error:
            problem = error
        finally:
            self._is_looking = False
            self._threads = {}  # whoever comes next must look anew
        if problem is not None:
            self._give_up(problem)

    def _has_work(self) -> bool:
        self._waiting = deque(call for call in self._waiting if not call.future.cancelled())
        return bool(self._waiting or self._placed)

    async def _learn(self, client: Any, threads: dict[str, int]) -> None:
        self._threads = dict(threads)
        lost = [placed for at in self._placed.keys() - threads.keys() for placed in self._placed[at]]
        for placed in lost:
            placed.is_lost = True
        if lost:
            await client.cancel([placed.task for placed in lost], asynchronous=True)
        self._place()

    def _give_up(self, problem: BaseException) -> None:
        """What runs hears of it by itself: the client cancels all that it holds when it loses its scheduler."""
        while self._waiting:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(problem)
