"""Fixtures for the tests of runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from agentos.limits import backoff


@pytest.fixture
def _quick_collection() -> Iterator[None]:
    """Exclude all objects that exist now from garbage collections: modules of other tests make them slow."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses before retries to a millisecond."""
    monkeypatch.setattr(backoff, "delay", lambda *_args, **_options: 0.001)
