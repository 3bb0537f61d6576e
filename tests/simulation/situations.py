"""Coverage of the simulation: named situations and how often each has occurred.

A history that never meets a situation proves nothing about it, so tests fail for situations that are missing.
"""

from __future__ import annotations

from collections import Counter

VERDICTS = (
    "verdict rate_limited", "verdict quota_exhausted", "verdict auth_failed", "verdict overloaded",
    "verdict transient", "verdict permanent", "success",
)  # fmt: skip
FAULTS = (
    "crash", "pause past ttl", "lost reply", "late batch", "late batch of a lost session", "store lost",
    "store reconnected", "flush", "restart with losses", "clock step back", "clock step forward",
    "late release", "log entries missed",
)  # fmt: skip
WAITS = ("wait exhausted", "wait rate_limited", "wait store_lost")
POOL = (
    "waiter served", "offer claimed", "offer lapsed", "offer worthless when claimed", "session expired",
    "dead session reported", "quarantined", "restored", "limit learned", "shared limit detected",
    "slow start after cool-down", "more used than reserved", "less used than reserved", "day limit", "too large",
    "no credential can serve", "credential dropped in use", "credential added while a request waits",
    "credential redeclared", "snapshot loaded", "request timed out",
)  # fmt: skip
RUNS = (
    "resumed", "stopped", "attempt timed out", "attempt abandoned", "worker died", "interrupted", "retried",
    "rotated", "result of an older launch refused", "executed twice after a kill",
)  # fmt: skip
ALL = (*VERDICTS, *FAULTS, *WAITS, *POOL, *RUNS)


class Situations(Counter[str]):
    """Count of occurrences by situation."""

    def note(self, name: str) -> None:
        assert name in _KNOWN, f"{name!r} is not a known situation"
        self[name] += 1

    def missing(self) -> list[str]:
        """Return the situations that have not occurred."""
        return [name for name in ALL if not self[name]]

    def table(self) -> str:
        """Return a line with count and name for each situation."""
        return "\n".join(f"{self[name]:>10,}  {name}" for name in ALL)


_KNOWN = frozenset(ALL)
