"""The options of a run, and how they are checked: all when a coordinator is made, each with a clear error."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ._rules.scheduler import Halt

# A run id becomes the name of a folder.
LONGEST_RUN_ID = 100


class Options(NamedTuple):
    """How a run is to be carried out; see ParallelCoordinator."""

    run_id: str
    max_workers: int
    admission: bool  # an item starts only with a lease in hand; else its worker leases by itself
    retries: int
    retry_on: tuple[type[BaseException], ...]
    classify: Callable[[BaseException], Any] | None
    timeout: float | None
    halt: Halt | None
    grace_seconds: float
    max_wait: float | None
    reporter: Callable[[Any], None] | None
    retry_failed: bool = False


def new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def exception_types(retry_on: Any) -> tuple[type[BaseException], ...]:
    types = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
    for kind in types:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ValueError(f"retry_on takes exception types, not {kind!r}")  # noqa: TRY004 - like all wrong options
    return types


def whole_number(name: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
    return value


def seconds(name: str, value: Any, *, least: float | None = None) -> float | None:
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least):
        raise ValueError(f"{name} must be a number of seconds {'above' if least is None else 'from'} 0, not {value!r}")
    return float(value)


def ledger_path(ledger: Any) -> Path | None:
    if ledger is None:
        return None
    if not isinstance(ledger, str | os.PathLike) or not str(ledger) or "\0" in str(ledger):
        raise ValueError(f"ledger must be the path of a file, not {ledger!r}")
    return Path(ledger).expanduser().resolve()  # now: the program may change its folder, and links have no -wal files
