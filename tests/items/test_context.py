"""What a worker reports about its attempt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentos.items.context import MAX_AMOUNT, CurrentItem, LeaseBlock
from agentos.workers.command.reports import read_reports


class Attempt(CurrentItem):
    """An attempt without a run: only its usage is used."""

    run_id = "run"
    workflow_db = Path()

    def __init__(self) -> None:
        self.usage = None

    def observe(self, response: Any) -> None: ...

    def lease(self, **options: Any) -> LeaseBlock:
        raise NotImplementedError

    def _load(self) -> Any: ...

    def _save(self, obj: Any) -> None: ...


@pytest.mark.parametrize("cost", [-0.1, MAX_AMOUNT, float("inf"), float("nan")])
def test_report_usage_refuses_impossible_cost(cost: float) -> None:
    attempt = Attempt()
    with pytest.raises(ValueError, match="usage must be at least 0, a cost below 1e\\+15"):
        attempt.report_usage(cost=cost)
    assert attempt.usage is None


@pytest.mark.parametrize("cost", [0.0, MAX_AMOUNT / 2, MAX_AMOUNT - 1, MAX_AMOUNT, 2 * MAX_AMOUNT])
def test_command_reports_and_report_usage_have_the_same_bound(cost: float, tmp_path: Path) -> None:
    """What is read from a command's report goes to `report_usage`, which must not raise for it."""
    report = tmp_path / "report"
    report.write_text(json.dumps({"usage": {"cost": cost}}))
    is_read = read_reports(report) == [{"usage": {"cost": cost}}]
    assert is_read == (cost < MAX_AMOUNT)
