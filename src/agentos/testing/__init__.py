"""Public fakes: a clock that is moved by hand, and a provider that can be called.

They are what this package tests itself with, and are meant for the tests of programs that use it. The provider's rules
work in virtual time (`provider.ask(key, now=…)`) and over HTTP (`with provider:`), for the clients of OpenAI, Anthropic
and Gemini. `python -m agentos.testing` serves one in a process of its own.
"""

from .clock import FakeClock
from .latency import Latency
from .provider import Answer, LogEntry, SimulatedProvider
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
    # The provider, and what it says.
    "SimulatedProvider",
    "Answer",
    "LogEntry",
    "Latency",
    "Scripted",
    # Ways to enforce a limit.
    "Rule",
    "TokenBucket",
    "TokensPerMinute",
    "FixedWindow",
    "PerSecondSlices",
    "DailyQuota",
    "SlidingWindow",
    "Concurrency",
]
