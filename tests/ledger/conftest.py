"""Fixtures of runs with a ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentos.limits import backoff


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.db"


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)
