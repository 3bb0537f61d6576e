"""What tests share: waiting for a condition, and Hypothesis settings that do not depend on the machine's mood."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("suite")

# Bounds of time are promised for an idle machine; a test machine may be busy. What a bound keeps out is far longer.
BUSY = 15.0

collect_ignore = [] if os.environ.get("AGENTOS_SOAK_MINUTES") else ["soak"]


def eventually(condition: Callable[[], object], timeout: float = 60.0) -> None:
    """Waits for a condition that others bring about, however busy the machine is; fails if they do not."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        pause.wait(0.001)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AGENTOS_SIMULATE_429", "AGENTOS_CREDENTIAL_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    yield
    os.environ.pop("AGENTOS_SIMULATE_429", None)
