"""`decide`: what happens to an item whose id is on record. Invariants 21 and 22."""

from __future__ import annotations

import pytest

from agentos.ledger.resume_filter import REFUSE, REPLACE, RUN, USE_RECORD, decide


@pytest.mark.parametrize("outcome", ["succeeded", "failed", None])
@pytest.mark.parametrize("retry_failed", [True, False])
def test_changed_input_is_refused_or_replaces_the_record(outcome: str | None, retry_failed: bool) -> None:
    assert decide(outcome, True, retry_failed=retry_failed, rerun_changed=False) == REFUSE
    assert decide(outcome, True, retry_failed=retry_failed, rerun_changed=True) == REPLACE


@pytest.mark.parametrize("rerun_changed", [True, False])
@pytest.mark.parametrize(
    ("outcome", "retry_failed", "decision"),
    [
        ("succeeded", False, USE_RECORD),
        ("succeeded", True, USE_RECORD),
        ("failed", False, USE_RECORD),
        ("failed", True, RUN),
        (None, False, RUN),
        (None, True, RUN),
    ],
)
def test_unchanged_input_runs_if_unfinished_or_retried(
    outcome: str | None, retry_failed: bool, decision: str, rerun_changed: bool
) -> None:
    assert decide(outcome, False, retry_failed=retry_failed, rerun_changed=rerun_changed) == decision
