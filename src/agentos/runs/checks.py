"""Checks the worker of a run before it starts: errors that would otherwise fail every attempt."""

from __future__ import annotations

import inspect
from concurrent.futures import Executor
from typing import Any

from agentos.pool.lease_pool import LeasePool


def check_worker(
    worker_func: Any, workers: str | Executor, pool: LeasePool | None, *, send_secrets: bool, has_gateway: bool = False
) -> None:
    """Raise `TypeError` for a worker that cannot be called with an item and a credential, and for one that the workers
    cannot carry out. `has_gateway`: no secret is sent to the attempts."""
    if not callable(worker_func):
        raise TypeError(f"worker_func must be a function of (item, credential), not {type(worker_func).__name__}")
    check_signature(worker_func)
    if not isinstance(workers, Executor):
        return
    from agentos.workers.command.command import Command
    from agentos.workers.engines.executor import check_credentials

    if isinstance(worker_func, Command):
        raise TypeError("an executor cannot run a Command: call subprocess in a worker function instead")
    if not has_gateway:
        check_credentials(pool, send_secrets=send_secrets)


def check_signature(worker_func: Any) -> None:
    """Raise `TypeError` if the worker does not accept two arguments, or is a generator, whose code would never run."""
    try:
        signature = inspect.signature(worker_func)
    except (ValueError, TypeError):  # a function written in C may have none
        return
    name = getattr(worker_func, "__qualname__", type(worker_func).__qualname__)
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"the worker {name}{signature} cannot be called with (item, credential): {error}; define it as "
            f"def {name.rpartition('.')[2]}(item, credential), the credential is None in a run without keys"
        ) from None
    if inspect.isgeneratorfunction(worker_func) or inspect.isasyncgenfunction(worker_func):
        raise TypeError(f"the worker {name} is a generator, and its code would never run: return a value, not yield")
