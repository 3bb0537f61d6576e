"""Where the pool's state lives: `memory` for one process, `sqlite` for a machine, `redis` for several.

A shared store is a log (`log.Log`), which `shared.SharedStore` turns into a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .._clock import Clock
from .memory import MemoryStore

if TYPE_CHECKING:
    from .log import Log
    from .shared import SharedStore

    Store: TypeAlias = MemoryStore | SharedStore

_KINDS = "'memory:', 'sqlite:///PATH', 'redis://HOST:PORT/DB', 'rediss://…' or 'unix://…'"


def make_store(url: str | None, clock: Clock, on_event: Callable[[Any], None], ttl: float) -> Store:
    """Raises `ValueError` for what is no store's name, and `StoreError` where what it needs is not installed."""
    if url is None or url == "memory:":
        return MemoryStore(clock, on_event)
    from .shared import SharedStore  # only where it is used

    log, name = _log(url)
    return SharedStore(log, name, clock, on_event, ttl)


def _log(url: str) -> tuple[Log, str]:
    """And what it is called, without its password."""
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        from .sqlite import SqliteLog

        path = Path(url.removeprefix("sqlite:///")).expanduser()
        return SqliteLog(path), f"sqlite:///{path}"
    if url.startswith(("redis://", "rediss://", "unix://")):
        from .redis import RedisLog, without_password

        return RedisLog(url), without_password(url)
    scheme = url.partition(":")[0]  # whatever follows may be a secret
    raise ValueError(f"store must be one of {_KINDS}, not one that begins with {scheme[:16]!r}")
