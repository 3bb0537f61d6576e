"""Durations as options: a number with a unit, or a plain number of seconds."""

from __future__ import annotations

import pytest

from agentos.home.run_folder import RunFolder

from .cli_runs import agentos


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90.0), ("1.5m", 90.0), ("90", 90.0), ("1m30s", 90.0)])
def test_duration_options_accept_units_and_seconds(text: str, seconds: float) -> None:
    durations = ["--timeout", text, "--grace", text]
    agentos("run", "--run-id", "one", "--item", "a", *durations, "--", "true")
    recorded = RunFolder("one").read_spec().options
    assert (recorded["timeout"], recorded["grace"]) == (seconds, seconds)


@pytest.mark.parametrize("text", ["soon", "-5", "5 parsecs", "nan", "inf", ""])
def test_unreadable_duration_names_the_accepted_forms(text: str) -> None:
    error = agentos("run", "--item", "a", "--timeout", text, "--", "true", status=2).stderr
    assert "is not a duration: write 30s, 5m, 12h, 7d, or a number of seconds" in error


def test_timeout_of_zero_is_refused() -> None:
    assert "must be above 0" in agentos("run", "--item", "a", "--timeout", "0s", "--", "true", status=2).stderr
