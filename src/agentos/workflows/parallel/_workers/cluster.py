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
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any, NamedTuple

from ..errors import WorkerDied

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


class DaskCluster(Executor):
    def __init__(self, client: Any) -> None:
        self._client = weakref.ref(client)
        self._loop = client.loop
        self._threads: dict[str, int] = {}  # of each worker, by its address
        self._placed: dict[str, set[asyncio.Task[None]]] = {}  # on each worker; also on one that was lost a moment ago
        self._waiting: deque[Call] = deque()  # for a free thread
        self._lost: set[asyncio.Task[None]] = set()  # their worker is gone, and they are told so
        self._looking: asyncio.Task[None] | None = None

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        assert not kwargs, "keywords would be options of Dask's own submit"
        future: Future[Any] = Future()
        client = self._client()
        if client is None or client.status not in ("running", "connecting"):
            raise BrokenExecutor("the client is not connected to a cluster")
        self._loop.add_callback(self._take, Call(future, fn, args))
        return future

    # --- on the client's event loop -------------------------------------------------------------------------------

    def _take(self, call: Call) -> None:
        self._waiting.append(call)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
        self._place()

    def _place(self) -> None:
        """Gives what waits to whoever has a thread free."""
        while self._waiting:
            address = max(self._threads, key=self._free, default=None)
            if address is None or self._free(address) <= 0:
                return
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                placed = self._placed.setdefault(address, set())
                task = asyncio.get_running_loop().create_task(self._carry(call, address))
                placed.add(task)
                task.add_done_callback(lambda task, address=address: self._end(task, address))  # type: ignore[misc]

    def _free(self, address: str) -> int:
        return self._threads[address] - len(self._placed.get(address, ()))

    def _end(self, task: asyncio.Task[None], address: str) -> None:
        placed = self._placed[address]
        placed.discard(task)
        self._lost.discard(task)
        if not placed:
            del self._placed[address]
        self._place()

    async def _carry(self, call: Call, address: str) -> None:
        """One task on one worker. Its result is copied and let go at once: while anybody holds it, Dask would compute
        it again if it were lost."""
        client, task = self._client(), None
        try:
            if client is None:
                raise BrokenExecutor("the client is gone")
            task = client.submit(
                call.func,
                *call.args,
                key=f"agentos-{uuid.uuid4().hex}",
                workers=[address],
                allow_other_workers=False,
                retries=0,
                pure=False,
            )
            result = await client.gather(task, asynchronous=True)
        except asyncio.CancelledError:
            if asyncio.current_task() not in self._lost:  # the event loop is being closed
                call.future.set_exception(BrokenExecutor("the client was closed"))
                raise
            call.future.set_exception(WorkerDied(f"the worker at {address} was lost in the middle of an attempt"))
        except CancelledError as error:  # Dask's own: the scheduler has dropped it, or is gone
            call.future.set_exception(BrokenExecutor(str(error) or "the cluster has dropped a task"))
        except Exception as error:
            is_death = type(error).__name__ == "KilledWorker"
            call.future.set_exception(WorkerDied(f"the worker at {address} was lost") if is_death else error)
        else:
            call.future.set_result(result)
        finally:
            if task is not None:
                with contextlib.suppress(Exception):  # the client may be closed by now
                    task.release()

    async def _look(self) -> None:
        """Keeps the list of workers while there is anything to do."""
        problem: BaseException | None = None
        try:
            while self._has_work():
                client = self._client()
                if client is None or client.status not in ("running", "connecting"):
                    raise BrokenExecutor("the cluster is gone")
                if client.status == "running":
                    self._learn(await client.scheduler.ncores())
                del client
                await asyncio.sleep(LOOK_SECONDS)
        except OSError as error:
            problem = BrokenExecutor(f"the cluster does not answer: {error}")
        except BaseException as error:
            problem = error
        finally:
            self._looking = None
            self._threads = {}  # whoever comes next must look anew
        if problem is not None:
            self._give_up(problem)

    def _has_work(self) -> bool:
        self._waiting = deque(call for call in self._waiting if not call.future.cancelled())
        return bool(self._waiting or self._placed)

    def _learn(self, threads: dict[str, int]) -> None:
        self._threads = dict(threads)
        for address in self._placed.keys() - threads.keys():
            for task in self._placed[address] - self._lost:
                self._lost.add(task)
                task.cancel()
        self._place()

    def _give_up(self, problem: BaseException) -> None:
        """What runs hears of it by itself: the client cancels all that it holds when it loses its scheduler."""
        while self._waiting:
            call = self._waiting.popleft()
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(problem)
