"""Where the pool's state lives: `memory` for one process, `sqlite` for a machine, `redis` for several.

A shared store is a log (`log.Log`), which `shared.SharedStore` turns into a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from agentos.clock import Clock

from ._memory import MemoryStore
from .store_url import FILE, SERVERS, StoreAt, check_server, without_password

if TYPE_CHECKING:
    from ._replicas.log import Log
    from ._replicas.shared import SharedStore

    Store: TypeAlias = MemoryStore | SharedStore

MEMORY = "memory:"
_KINDS = "'memory:', 'sqlite:///PATH', 'redis://HOST:PORT/DB', 'rediss://…' or 'unix://…'"


def make_store(at: str | StoreAt | None, clock: Clock, on_event: Callable[[Any], None], ttl: float,
               redact: Callable[[str], str]) -> Store:  # fmt: skip
    """`redact`: takes secrets out of what others will see. Raises `ValueError` for what is no store's name, and
    `StoreError` where what it needs is not installed."""
    place = at if isinstance(at, StoreAt) else StoreAt(MEMORY if at is None else str(at))
    if place.url == MEMORY:
        return MemoryStore(clock, on_event)
    from ._replicas.copies import CopiedLog
    from ._replicas.shared import SharedStore  # only where they are used

    log, name = make_log(place.url)
    return SharedStore(CopiedLog(log) if place.is_copy else log, name, clock, on_event, ttl, redact, place.run)


def make_log(url: str) -> tuple[Log, str]:
    """And what it is called, without its password. Nothing is opened yet. Raises as `make_store`."""
    if url.startswith(FILE) and url != FILE:
        from ._replicas.sqlite import SqliteLog

        path = Path(url.removeprefix(FILE)).expanduser()
        return SqliteLog(path), f"{FILE}{path}"
    if url.startswith(SERVERS):
        check_server(url)
        from ._replicas.redis import RedisLog

        return RedisLog(url), without_password(url)
    scheme, colon, _ = url.partition("://")  # whatever follows may be a secret, and without a scheme all of it
    what = f", not {scheme[:16]!r}" if colon and scheme.isalnum() else ""
    if scheme == "sqlite":
        raise ValueError("a file as a store has three slashes and a path: sqlite:///PATH, or sqlite:////ABSOLUTE/PATH")
    raise ValueError(f"store must be one of {_KINDS}{what}")
