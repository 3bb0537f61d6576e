"""Settings of the whole suite: a deterministic Hypothesis profile, default signals, and a clean environment."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.patience import BUSY, eventually

__all__ = ["BUSY", "eventually"]

settings.register_profile(
    "suite",
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.load_profile("suite")

# Child processes inherit ignored signals: a shell starts a background job without SIGINT and SIGQUIT, nohup without
# SIGHUP. Restore the defaults, because tests send these signals to the programs that they start.
for _signum in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(_signum) is signal.SIG_IGN:
        signal.signal(_signum, signal.default_int_handler if _signum == signal.SIGINT else signal.SIG_DFL)

# Collected only by their own targets, which set the variable: `make soak`, `make clients`.
collect_ignore = [
    folder
    for folder, variable in (("soak", "AGENTOS_SOAK_MINUTES"), ("clients", "AGENTOS_CLIENTS"))
    if not os.environ.get(variable)
]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AGENTOS_SIMULATE_429", "AGENTOS_CREDENTIAL_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    yield
    os.environ.pop("AGENTOS_SIMULATE_429", None)
