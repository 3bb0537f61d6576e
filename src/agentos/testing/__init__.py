"""Public fakes for tests: a clock that is advanced by hand, and a simulated provider.

This package tests itself with them. The provider's rules work in virtual time (`provider.ask(key, now=…)`) and over
HTTP (`with provider:`), for the clients of OpenAI, Anthropic and Gemini. `python -m agentos.testing` serves a provider
in a process of its own.
"""

from .answers import Answer, LogEntry
from .clock import FakeClock
from .latency import Latency
from .provider import SimulatedProvider
from .request_log import RequestRecord
from .rules import (
    Concurrency,
    DailyQuota,
    FixedWindow,
    PerSecondSlices,
    Rule,
    SlidingWindow,
    TokenBucket,
    TokensPerMinute,
)
from .scripts import Scripted

__all__ = [
    "FakeClock",
    # The provider and its answers.
    "SimulatedProvider",
    "Answer",
    "LogEntry",
    "RequestRecord",
    "Latency",
    "Scripted",
    # Rules that enforce a limit.
    "Rule",
    "TokenBucket",
    "TokensPerMinute",
    "FixedWindow",
    "PerSecondSlices",
    "DailyQuota",
    "SlidingWindow",
    "Concurrency",
]
