"""What becomes of an item whose id is on record. Invariants 21 and 22."""

from __future__ import annotations

import pytest

from agentos.ledger.resume_filter import AGAIN, CHANGED, FORGET, RECORDED, decide


@pytest.mark.parametrize("outcome", ["succeeded", "failed", None])
@pytest.mark.parametrize("retry_failed", [True, False])
def test_a_changed_input_is_never_silently_reused(outcome: str | None, retry_failed: bool) -> None:
    assert decide(outcome, True, retry_failed=retry_failed, rerun_changed=False) == CHANGED
    assert decide(outcome, True, retry_failed=retry_failed, rerun_changed=True) == FORGET


@pytest.mark.parametrize("rerun_changed", [True, False])
@pytest.mark.parametrize(
    ("outcome", "retry_failed", "decision"),
    [
        ("succeeded", False, RECORDED),
        ("succeeded", True, RECORDED),
        ("failed", False, RECORDED),
        ("failed", True, AGAIN),
        (None, False, AGAIN),
        (None, True, AGAIN),
    ],
)
def test_only_what_has_no_outcome_runs_and_what_failed_if_asked(
    outcome: str | None, retry_failed: bool, decision: str, rerun_changed: bool
) -> None:
    assert decide(outcome, False, retry_failed=retry_failed, rerun_changed=rerun_changed) == decision
