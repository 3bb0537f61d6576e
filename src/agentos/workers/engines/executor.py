"""Carry out attempts on a `concurrent.futures.Executor`: a pool of processes, or a cluster.

The executor belongs to the caller and is never shut down here. It receives bytes and returns bytes (see `_remote`), as
positional arguments only: some engines take keyword arguments of `submit` as options of their own. An attempt that has
not started there can be cancelled. One that has started can neither be interrupted nor killed: after the grace period
the run abandons it, and its late outcome only ends its lease.
"""

from __future__ import annotations

import importlib
import pickle
import secrets
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from agentos.errors import CredentialError, ExecutorBroken, Interrupted, UnknownCredential, WorkerDied, WorkerStartError
from agentos.items.attempt import Attempt
from agentos.pool.credential import fingerprint
from agentos.pool.lease_pool import LeasePool

from ..base import EndedCall, Workers
from ..wire import attempt_message, decode_outcome, encode
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
        """Raise `WorkerStartError` if the worker function cannot be pickled."""
        self._executor = _adapt(executor)
        self._ended = ended
        self._pool = pool
        self._send_secrets = send_secrets
        self._launch = secrets.token_hex(8)  # identifies this launch of the run: a resumed run resolves secrets anew
        self._futures: set[Future[bytes]] = set()
        self._dumps = _cloudpickle_dumps() or pickle.dumps
        self._pickled_func = self._pickle_worker(worker_func)

    def start(self, attempt: Attempt, _running: int, /) -> None:
        try:
            message = encode(attempt_message(attempt, launch=self._launch, **self._credential(attempt)), self._dumps)
        except Exception as error:  # the item cannot be pickled
            self._ended(attempt, None, error)
            return
        try:
            future = self._executor.submit(_remote.run_attempt, self._pickled_func, message)
        except Exception as error:
            self._ended(attempt, None, _executor_broken(error))
            return
        attempt.task = future
        self._futures.add(future)
        future.add_done_callback(lambda done: self._on_done(attempt, done))

    def interrupt(self, attempt: Attempt, /) -> None:
        if attempt.task is not None:
            attempt.task.cancel()  # has no effect on an attempt that has started

    def close(self) -> None:
        for future in tuple(self._futures):
            future.cancel()

    def _credential(self, attempt: Attempt) -> dict[str, Any]:
        """Return the fields that give the worker its credential: as references, or in plain with `send_secrets`; in a
        run with a gateway, the client token. Raise `WorkerStartError` for a plain secret without `send_secrets`."""
        if attempt.client_token is not None:
            token = str(attempt.client_token)
            return {"credential": token, "reference": None, "fingerprint": fingerprint(token)}
        credential_id, pool, key = attempt.credential_id, self._pool, attempt.credential
        if credential_id is None or pool is None:
            return {"reference": None, "fingerprint": None}
        reference, sources = pool.reference_of(credential_id), pool.sources_of(credential_id)
        is_plain = sources is None or (reference is None and key != "")
        if is_plain and not self._send_secrets:  # the credential joined the pool after the run had started
            raise WorkerStartError(_plain_secret_text([credential_id]))
        return {
            "credential": None if reference is not None else str(key),
            "reference": reference,
            "base_url": key.base_url if sources is None else sources.base_url,
            "headers": dict(key.headers if sources is None else sources.headers),
            "fingerprint": pool.fingerprint_of(credential_id),
        }

    def _on_done(self, attempt: Attempt, future: Future[bytes]) -> None:
        """Report the end of an attempt. Called on any thread of the executor, or on the thread that cancels it."""
        self._futures.discard(future)
        attempt.task = None  # frees the future, and with it the result
        try:
            value = self._value_of(attempt, future)
        except BaseException as exc:
            self._ended(attempt, None, exc)
        else:
            self._ended(attempt, value, None)

    def _value_of(self, attempt: Attempt, future: Future[bytes]) -> Any:
        """Return the worker's value, or raise its error or that of the executor."""
        if future.cancelled():
            if attempt.should_stop:
                raise Interrupted("it had not started")
            raise ExecutorBroken("the executor has cancelled an attempt")
        problem = future.exception()
        if isinstance(problem, WorkerDied):
            raise problem
        if problem is not None:  # of the executor: `run_attempt` never raises
            raise _executor_broken(problem) from problem
        try:
            kind, content = pickle.loads(future.result())  # noqa: S301 - from a worker of this run
        except Exception as error:
            raise TypeError(f"the worker's result cannot be read here: return plain data ({error!r})") from error
        if kind == "unready":
            raise WorkerStartError(content if self._pool is None else self._pool.redact(content))
        return decode_outcome(attempt, content)

    def _pickle_worker(self, worker_func: Callable[[Any, Any], Any]) -> bytes:
        try:
            return self._dumps(worker_func)
        except Exception as error:
            raise WorkerStartError(
                f"the worker cannot be sent to an executor ({error}): it must be a function at the top level of a "
                "module" + ("" if self._dumps is not pickle.dumps else ", or cloudpickle installed on both sides")
            ) from error


def check_credentials(pool: LeasePool | None, *, send_secrets: bool) -> None:
    """Raise `CredentialError` if a credential of the pool must not be sent to an executor."""
    plain = plain_credentials(pool)
    if plain and not send_secrets:
        raise CredentialError(_plain_secret_text(plain))


def plain_credentials(pool: LeasePool | None) -> list[str]:
    """Return the ids of credentials without a reference that other processes can resolve."""
    if pool is None:
        return []
    return [state.key_id for state in pool.states() if _is_plain(pool, state.key_id)]


def _is_plain(pool: LeasePool, credential_id: str) -> bool:
    """Return whether a secret would have to be sent. A credential of another process is not used by this one."""
    try:
        has_secret = pool.credential_of(credential_id).has_secret
    except UnknownCredential:
        has_secret = True
    has_reference = pool.reference_of(credential_id) is not None
    return (has_secret and not has_reference) or pool.sources_of(credential_id) is None


def _adapt(executor: Executor) -> Executor:
    """Return the executor itself, or for one of Dask an executor that runs each attempt only once."""
    if type(executor).__module__.partition(".")[0] == "distributed":
        from ._dask import cluster_of

        return cluster_of(executor)
    return executor


def _plain_secret_text(ids: list[str]) -> str:
    names = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
    return (
        f"plain secrets are not sent to an executor, which may write them to disk: {names}. Give a reference that can "
        "be read where the attempts run (env:NAME, file:PATH, cmd:COMMAND), or pass send_secrets=True"
    )


def _cloudpickle_dumps() -> Callable[[Any], bytes] | None:
    """Return `cloudpickle.dumps`, or None if cloudpickle is not installed. It pickles functions of the main module by
    value: other processes cannot import them."""
    try:
        dumps: Callable[[Any], bytes] = importlib.import_module("cloudpickle").dumps
    except ImportError:
        return None
    return dumps


def _executor_broken(error: BaseException) -> ExecutorBroken:
    name = "" if type(error) is BrokenExecutor else f"{type(error).__name__}: "
    return ExecutorBroken(f"the executor is broken: {name}{error}")
