"""start_run: the order of its calls, the handle that it returns, and the ledger after a failed start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentos.clock import SYSTEM_CLOCK
from agentos.runs import start
from agentos.runs.options import check_options
from agentos.runs.start import RunHandle, RunRequest, start_run
from agentos.runs.streams import ResultStream


def make_request(items: Any, worker: Any, run_id: str = "run", **changes: Any) -> RunRequest:
    options = check_options(
        max_workers=2,
        admission="lease",
        retries=0,
        retry_on=(),
        classify=None,
        timeout=None,
        halt=None,
        grace_seconds=1,
        max_wait=None,
        has_credentials=False,
        reporter=None,
    )
    request = RunRequest(
        options=options._replace(run_id=run_id),
        items=items,
        worker_func=worker,
        item_id_func=str,
        tokens_func=None,
        scope_func=None,
        workers="threads",
        send_secrets=False,
        pool=None,
        ledger=None,
        rerun_changed=False,
        clock=SYSTEM_CLOCK,
    )
    return request._replace(**changes)


def ignore(_: RunHandle) -> None:
    """No-op: for calls that a test does not check."""


def test_start_run_calls_on_start_first_and_on_finished_last() -> None:
    calls: list[str] = []
    run = start_run(
        make_request(["item"], lambda item, _: calls.append(item)),
        on_start=lambda run: calls.append(f"start {run.run_id}"),
        on_finished=lambda run: calls.append(f"finished {run.run_id}"),
    )
    assert [result.item_id for result in ResultStream(run, ignore)] == ["item"]
    assert calls == ["start run", "item", "finished run"]


def test_handle_has_counts_error_and_unfinished_items() -> None:
    def worker(item: int, _: Any) -> None:
        if item == 1:
            run.stop("stopped by a test")

    def keep(handle: RunHandle) -> None:
        nonlocal run
        run = handle

    run: Any = None
    start_run(make_request(range(1, 100), worker), on_start=keep, on_finished=ignore)
    results = list(ResultStream(run, ignore))
    assert run.stats.stopped == "stopped by a test"
    assert run.error is None
    assert run.running() == []
    assert run.waiting() is None
    assert len(results) + len(run.unfinished_ids) + len(list(run.unread_ids)) == 99


def test_collected_results_are_not_queued() -> None:
    results: list[Any] = []
    run = start_run(
        make_request(range(5), lambda item, _: item), on_start=ignore, on_finished=ignore, collected=results
    )
    assert list(ResultStream(run, ignore)) == []
    assert sorted(result.value for result in results) == list(range(5))


def test_failed_start_leaves_the_ledger_usable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_workers(*_: Any) -> None:
        raise OSError("no threads")

    request = make_request(["item"], lambda item, _: item, ledger=tmp_path / "ledger.db")
    with monkeypatch.context() as patch:
        patch.setattr(start, "ThreadWorkers", no_workers)
        with pytest.raises(OSError, match="no threads"):
            start_run(request, on_start=ignore, on_finished=ignore)
    run = start_run(request, on_start=ignore, on_finished=ignore)
    assert [result.success for result in ResultStream(run, ignore)] == [True]
