"""Starts a run together with a gateway of its own. The one place that knows both: runs import no gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentos.costs.prices import Prices
from agentos.items.results import WorkflowResult
from agentos.runs.start import RunHandle, RunRequest, start_run


def start_with_gateway(
    request: RunRequest,
    prices: Prices,
    *,
    on_start: Callable[[RunHandle], None],
    on_finished: Callable[[RunHandle], None],
    collected: list[WorkflowResult[Any]] | None = None,
) -> RunHandle:
    """Start a run as `start_run` does, with a gateway of its own, which is stopped when the run has finished."""
    from agentos.gateway.gateway import Gateway  # few runs need it

    assert request.pool is not None
    gateway = Gateway(request.pool, prices=prices)
    gateway.start()

    def stop_gateway(run: RunHandle) -> None:
        on_finished(run)
        gateway.stop()

    try:
        request = request._replace(access=gateway)
        return start_run(request, on_start=on_start, on_finished=stop_gateway, collected=collected)
    except BaseException:
        gateway.stop()
        raise
