"""The option `--on`: which engine carries out the attempts of a run, and what cannot be sent to it."""

from __future__ import annotations

import click

from agentos.errors import EngineNotInstalled, EngineUrlError
from agentos.pool.lease_pool import LeasePool
from agentos.workers.engines.connect import Engine

from ..console import Failure

# The value of `--on` for attempts on this machine.
LOCAL = "threads"


def connect_engine(url: str, command: list[str] | None, pool: LeasePool | None) -> Engine:
    """Return a connection to the engine at `url`; blocks until it answers.

    Raise `click.UsageError` for what `--on` cannot be, or what cannot be sent there (checked before connecting), and
    `EngineUnavailable` if the engine does not answer.
    """
    _check_sendable(command, pool)
    try:
        return Engine(url)
    except EngineUrlError:
        raise click.UsageError(f"--on is {LOCAL} or dask://HOST:PORT (a Dask scheduler), not {url!r}") from None
    except EngineNotInstalled as error:
        raise click.UsageError(f"--on {error}") from None


def engine_slots(engine: Engine) -> int:
    """Return how many attempts the engine can carry out at once. Raise `Failure` if it has no workers."""
    slots = engine.slots()
    if not slots:
        raise Failure(f"the cluster at {engine.url} has no workers yet: start some, or give --parallel N")
    return slots


def _check_sendable(command: list[str] | None, pool: LeasePool | None) -> None:
    from agentos.workers.engines.executor import plain_credentials

    if command is not None:
        raise click.UsageError(
            "a cluster cannot run a command: omit --on, or name a function, MODULE:FUNCTION, that runs it there"
        )
    plain = plain_credentials(pool)
    if plain:
        raise click.UsageError(
            f"plain-text keys are not sent to a cluster, which may store them: {', '.join(plain)}\n"
            "Write env:NAME, file:PATH or cmd:COMMAND, which the workers of the cluster can read"
        )
