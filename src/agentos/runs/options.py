"""Options of a run and their checks. A coordinator checks all of them when it is made."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentos.costs.budget import Budget
from agentos.costs.prices import Prices
from agentos.identifiers import sanitize_identifier
from agentos.items.parallelism import CORES, ParallelBound
from agentos.pool.lease_pool import LeasePool

from ._rules.run_options import UNKNOWN_BEFORE as UNKNOWN_BEFORE
from ._rules.run_options import Auto as Auto
from ._rules.run_options import Options

# Characters: a run id becomes the name of a folder.
MAX_RUN_ID_LENGTH = 100
# The id of a run with a ledger that was given none: the same call continues the same run.
MAIN_RUN = "main"


def check_options(
    *,
    max_workers: int,
    admission: str,
    retries: Any,
    retry_on: Any,
    classify: Any,
    timeout: Any,
    halt: Any,
    grace_seconds: Any,
    max_wait: Any,
    has_credentials: bool,
    reporter: Callable[[Any], None] | None,
    budget: Any = None,
    has_gateway: bool = False,
    auto: Auto | None = None,
) -> Options:
    """Return the options of a coordinator's runs; raise ValueError for the first one that is wrong."""
    retries = whole_number("retries", retries, 0)
    retry_on = exception_types(retry_on)
    if classify is not None and not callable(classify):
        raise ValueError(f"classify must be a function of an exception, not {classify!r}")
    timeout = seconds("timeout", timeout)
    if halt is not None:
        from ._rules.scheduler import parse_halt  # an import of the library needs no scheduler

        halt = parse_halt(str(halt))
    if grace_seconds is None:
        raise ValueError("grace_seconds must be a number of seconds from 0; for no grace pass 0")
    if max_wait is not None and (admission == "none" or not has_credentials):
        raise ValueError(
            "max_wait is for runs that wait for credentials: pass credential_coordinator, and not admission='none'"
        )
    return Options(
        max_workers=max_workers,
        admission=admission == "lease",
        retries=retries,
        retry_on=retry_on,
        classify=classify,
        timeout=timeout,
        halt=halt,
        grace_seconds=seconds("grace_seconds", grace_seconds, least=0.0) or 0.0,
        max_wait=seconds("max_wait", max_wait, least=0.0),
        reporter=reporter,
        budget=_check_budget(budget, has_gateway=has_gateway),
        auto=auto,
    )


def _check_budget(budget: Any, *, has_gateway: bool) -> Budget | None:
    """Return the budget; a number is one of money. Raise ValueError if nothing counts what the items spend."""
    if budget is None:
        return None
    checked = budget if isinstance(budget, Budget) else Budget(budget)
    if has_gateway and checked.is_reported:
        raise ValueError("with a gateway, the gateway counts what items spend: omit is_reported of the budget")
    if not has_gateway and not checked.is_reported:
        raise ValueError(
            "nothing counts what the items spend: pass gateway=True or, if the workers call report_usage, "
            "Budget(…, is_reported=True)"
        )
    if checked.is_hard and not has_gateway:
        raise ValueError("is_hard of a budget needs gateway=True: only a gateway can refuse requests of running items")
    return checked


def check_prices(budget: Budget | None, prices: Prices) -> None:
    """Raise ValueError if a budget is an amount of money and no model has a price."""
    if budget is not None and budget.has_money and prices.is_empty:
        raise ValueError(
            "a budget of money needs the prices of models: pip install 'agentos-parallel[prices]', or declare them "
            '(prices=…, in a keys file [price."MODEL"])'
        )


def check_workers(workers: Any, *, send_secrets: Any, admission: Any) -> None:
    """Raise ValueError if these options are wrong, or do not go together."""
    if not isinstance(workers, Executor) and workers not in ("threads", "processes"):
        raise ValueError(
            f"workers must be 'threads', 'processes' or an Executor (of Dask: client.get_executor()), not {workers!r}"
        )
    if send_secrets and not isinstance(workers, Executor):
        raise ValueError("send_secrets is only for an Executor: other workers send no secrets")
    if admission not in ("lease", "none"):
        raise ValueError(f"admission must be 'lease' or 'none', not {admission!r}")
    if admission == "none" and isinstance(workers, Executor):
        raise ValueError("admission='none' is for workers in this process: an executor has no pool to lease from")


def check_gateway(gateway: Any, workers: Any, *, admission: Any, has_credentials: bool) -> None:
    """Raise ValueError if a run with these options cannot have a gateway. `gateway`: False, True, or an object that
    implements `AttemptAccess`."""
    if gateway is False or gateway is None:
        return
    if gateway is not True and not all(hasattr(gateway, name) for name in ("url", "hold", "open", "environment")):
        raise ValueError(f"gateway must be True, False or a Gateway that was started, not {gateway!r}")
    if not has_credentials:
        raise ValueError("a gateway needs credentials: pass credential_coordinator")
    if admission == "none":
        raise ValueError("gateway and admission='none' exclude each other: with a gateway each request has a lease")
    if isinstance(workers, Executor) and (gateway is True or is_loopback(gateway.url)):
        raise ValueError(
            "the gateway listens on this machine only, and an executor may run attempts on others: pass a Gateway that "
            "listens on an address which they can reach, or use threads, tasks or workers='processes'"
        )


def is_loopback(url: str) -> bool:
    """Return whether only programs on this machine can reach a URL."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def check_on_changed(on_changed: Any) -> str:
    """Return the option; raise ValueError if it is wrong."""
    if on_changed not in ("refuse", "rerun"):
        raise ValueError(f"on_changed must be 'refuse' or 'rerun', not {on_changed!r}")
    return str(on_changed)


def check_run_id(run_id: str | None, *, has_ledger: bool) -> str:
    """Return the id of a run, a new one if None is given; raise ValueError for one that cannot name a folder."""
    if run_id is None:
        return MAIN_RUN if has_ledger else new_run_id()
    run_id = sanitize_identifier(run_id)
    if len(run_id) > MAX_RUN_ID_LENGTH:
        raise ValueError(f"a run_id has at most {MAX_RUN_ID_LENGTH} characters, not {len(run_id)}")
    return run_id


def new_run_id() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)


def exception_types(retry_on: Any) -> tuple[type[BaseException], ...]:
    types = (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
    for kind in types:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ValueError(f"retry_on takes exception types, not {kind!r}")  # noqa: TRY004 - like all wrong options
    return types


def whole_number(name: str, value: Any, least: int) -> int:
    """Return the value; raise ValueError if it is not an integer from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least}, not {value!r}")
    return value


def auto_workers(pool: LeasePool | None, max_parallelism: int | None) -> int:
    """Return the workers of "auto" before anything has run: as many as the credentials admit at once; without any, one
    per processor."""
    count = os.cpu_count() or 1 if pool is None else max(1, pool.admitted())
    return count if max_parallelism is None else min(count, max_parallelism)


def auto_option(max_parallelism: Any) -> Auto:
    """Return the option for a number of workers that the run finds by itself. Raise ValueError for a wrong cap."""
    if max_parallelism is None:
        return Auto()
    return Auto(whole_number("max_parallelism", max_parallelism, 1), f"a maximum of {max_parallelism}")


def expected_bound(pool: LeasePool | None, auto: Auto, *, is_command: bool) -> ParallelBound:
    """Return what would bound a run on this machine beside its credentials, for a plan: by what items are assumed to
    take."""
    from agentos.workers.machine import Machine

    from ._rules.auto_parallel import AutoParallel

    if not is_command and pool is None:
        return ParallelBound(auto_workers(None, auto.cap), CORES, cores=os.cpu_count() or 1)
    machine = Machine().use() if is_command else None
    return AutoParallel(machine, cap=auto.cap, cap_name=auto.cap_name).expected()


def check_max_workers(max_workers: Any) -> int:
    """Return the number; raise ValueError if it is none, with the place of an object that belongs elsewhere."""
    if isinstance(max_workers, int):
        return whole_number("max_workers", max_workers, 1)
    hint = ": pass it as credential_coordinator=" if isinstance(max_workers, LeasePool) else ""
    raise ValueError(f"max_workers must be a whole number from 1, or 'auto', not {max_workers!r}{hint}")


def seconds(name: str, value: Any, *, least: float | None = None) -> float | None:
    """Return the value as a float, or None; raise ValueError if it is not above 0, or not at least `least`."""
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least):
        raise ValueError(f"{name} must be a number of seconds {'above' if least is None else 'from'} 0, not {value!r}")
    return float(value)


def ledger_path(ledger: Any) -> Path | None:
    """Return the absolute path of a ledger, with links resolved: the program may change its working directory, and
    SQLite puts the -wal file beside the link."""
    if ledger is None:
        return None
    if not isinstance(ledger, str | os.PathLike) or not str(ledger) or "\0" in str(ledger):
        raise ValueError(f"ledger must be the path of a file, not {ledger!r}")
    # Unlike `Path.resolve`, it does not raise for a circle of links, which the ledger reports.
    return Path(os.path.realpath(Path(ledger).expanduser()))
