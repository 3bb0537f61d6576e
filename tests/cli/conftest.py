"""Every test of the command line has a home directory of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.workers.command import reports


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTOS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(reports.VARIABLE, raising=False)
