"""Answers of a simulated provider, and their log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .rules import Rule
from .scripts import Scripted

OK = "ok"


class LogEntry(NamedTuple):
    """One request, as seen by the provider."""

    # Instant of the request, on the provider's clock.
    at: float
    key: str
    group: str
    status: int
    # "ok", the name of the rule that refused, "quota", "dead", "overloaded", …; "scripted …" for scripted answers.
    reason: str
    model: str | None
    tokens: float


@dataclass(slots=True)
class Answer:
    """The answer to a request. Pass it to `finish` when the request has ended."""

    status: int
    headers: dict[str, str]
    # Of an error; empty for a served request, whose body depends on the endpoint.
    body: dict[str, Any]
    # Seconds until the answer comes.
    latency: float
    reason: str
    # A stream breaks with this error after `breaks_after` events of its content.
    breaks_with: dict[str, Any] | None = None
    # What else a script says about the stream and the connection.
    script: Scripted = field(default_factory=Scripted)
    # For `finish`: rules and the amount taken from each, at the date `taken_at`.
    charges: list[tuple[Rule, float]] = field(default_factory=list, repr=False)
    taken_at: float = field(default=0.0, repr=False)
    group: str = field(default="", repr=False)

    @property
    def drops(self) -> bool:
        """Return whether the connection is closed without an answer."""
        return self.script.drops
