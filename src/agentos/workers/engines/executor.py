"""Attempts behind a `concurrent.futures.Executor`: a pool of processes, a cluster, whatever has `submit`.

The executor belongs to the caller and is never shut down here. It is given bytes and returns bytes (see `_remote`), by
position only: an engine that takes keywords of `submit` for options of its own finds none. An attempt that has not
begun there can be cancelled; one that has begun cannot be told to stop, nor be killed: after the grace it is given up,
and what it returns then ends its lease and changes nothing else.
"""

from __future__ import annotations

import importlib
import pickle
import secrets
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from agentos.errors import CredentialError, ExecutorBroken, Interrupted, WorkerDied, WorkerStartError
from agentos.items.attempt import Attempt
from agentos.pool.lease_pool import LeasePool

from ..base import EndedCall, Workers
from ..wire import message_of, outcome, packed
from . import _remote


class ExecutorWorkers(Workers):
    def __init__(
        self,
        executor: Executor,
        worker_func: Callable[[Any, Any], Any],
        ended: EndedCall,
        pool: LeasePool | None = None,
        *,
        send_secrets: bool = False,
    ) -> None:
        self._executor = executor_for_attempts(executor)
        self._ended = ended
        self._pool = pool
        self._send_secrets = send_secrets
        self._start = secrets.token_hex(8)  # tells this start of the run from others with its id
        self._futures: set[Future[bytes]] = set()
        self._dumps = _by_value() or pickle.dumps
        self._pickled_func = self._pickled(worker_func)

    def start(self, attempt: Attempt, _running: int, /) -> None:
        try:
            message = packed(message_of(attempt, start=self._start, **self._credential(attempt)), self._dumps)
        except Exception as error:  # the item cannot travel
            self._ended(attempt, None, error)
            return
        try:
            future = self._executor.submit(_remote.carry_out, self._pickled_func, message)
        except Exception as error:
            self._ended(attempt, None, _broken(error))
            return
        attempt.task = future
        self._futures.add(future)
        future.add_done_callback(lambda done: self._on_done(attempt, done))

    def interrupt(self, attempt: Attempt, /) -> None:
        if attempt.task is not None:
            attempt.task.cancel()  # no more than a question, once it has begun

    def close(self) -> None:
        for future in tuple(self._futures):
            future.cancel()

    def _credential(self, attempt: Attempt) -> dict[str, str | None]:
        """How the worker comes by the attempt's credential."""
        id_, pool = attempt.credential_id, self._pool
        if id_ is None or pool is None:
            return {"credential": None, "reference": None, "fingerprint": None}
        known_as = pool.fingerprint_of(id_)
        reference = sendable_reference(pool, id_)
        if reference is not None:
            return {"credential": None, "reference": reference, "fingerprint": known_as}
        if not self._send_secrets:  # it joined the pool after the run had begun
            raise WorkerStartError(_plain([id_]))
        return {"credential": str(attempt.credential), "reference": None, "fingerprint": known_as}

    def _on_done(self, attempt: Attempt, future: Future[bytes]) -> None:
        """On any thread of the executor, or where it was cancelled."""
        self._futures.discard(future)
        attempt.task = None  # and so the result is kept nowhere
        try:
            value = self._outcome(attempt, future)
        except BaseException as exc:
            self._ended(attempt, None, exc)
        else:
            self._ended(attempt, value, None)

    def _outcome(self, attempt: Attempt, future: Future[bytes]) -> Any:
        if future.cancelled():
            if attempt.should_stop:
                raise Interrupted("it had not begun")
            raise ExecutorBroken("the executor has cancelled an attempt")
        problem = future.exception()
        if isinstance(problem, WorkerDied):
            raise problem
        if problem is not None:  # nothing else raises there
            raise _broken(problem) from problem
        try:
            kind, content = pickle.loads(future.result())  # noqa: S301 - from our own worker
        except Exception as error:
            raise TypeError(f"the worker's result cannot be read here: return plain data ({error!r})") from error
        if kind == "unready":
            raise WorkerStartError(content if self._pool is None else self._pool.redact(content))
        return outcome(attempt, content)

    def _pickled(self, worker_func: Callable[[Any, Any], Any]) -> bytes:
        try:
            return self._dumps(worker_func)
        except Exception as error:
            raise WorkerStartError(
                f"the worker cannot be sent to an executor ({error}): it must be a function at the top level of a "
                "module" + ("" if self._dumps is not pickle.dumps else ", or cloudpickle installed on both sides")
            ) from error


def check_credentials(pool: LeasePool | None, *, send_secrets: bool) -> None:
    """Raises a `CredentialError` if a credential of the pool cannot go where an executor carries out attempts."""
    plain = plain_credentials(pool)
    if plain and not send_secrets:
        raise CredentialError(_plain(plain))


def plain_credentials(pool: LeasePool | None) -> list[str]:
    """The ids of those that cannot be read anywhere but here."""
    ids = () if pool is None else (state.key_id for state in pool.states())
    return [id_ for id_ in ids if pool is not None and sendable_reference(pool, id_) is None]


def sendable_reference(pool: LeasePool, credential_id: str) -> str | None:
    """Also a command may have the secret in its arguments, by mistake."""
    return pool.reference_of(credential_id)


def executor_for_attempts(executor: Executor) -> Executor:
    """The executor itself, unless there is more to be known about its engine."""
    if type(executor).__module__.partition(".")[0] == "distributed":
        from ._dask import cluster_of

        return cluster_of(executor)
    return executor


def _plain(ids: list[str]) -> str:
    names = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return (
        f"a plain secret is not handed to an executor, which may keep it and write it to disk: {names}. Give a "
        "reference that can be read where the attempts run (env:NAME, file:PATH, cmd:COMMAND), or say send_secrets=True"
    )


def _by_value() -> Callable[[Any], bytes] | None:
    """cloudpickle, where it is installed, as it is with loky and Dask: it takes along what stands in the program's main
    module, which other processes do not have."""
    try:
        dumps: Callable[[Any], bytes] = importlib.import_module("cloudpickle").dumps
    except ImportError:
        return None
    return dumps


def _broken(error: BaseException) -> ExecutorBroken:
    name = "" if type(error) is BrokenExecutor else f"{type(error).__name__}: "
    return ExecutorBroken(f"the executor is broken: {name}{error}")
