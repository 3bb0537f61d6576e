"""What can happen in a history, by name. A simulator that never meets a situation proves nothing about it."""

from __future__ import annotations

from collections import Counter

VERDICTS = (
    "verdict rate_limited", "verdict quota_exhausted", "verdict auth_failed", "verdict overloaded",
    "verdict transient", "verdict permanent", "success",
)  # fmt: skip
FAULTS = (
    "crash", "pause past ttl", "lost reply", "late batch", "late batch of a lost session", "store lost", "store found",
    "flush", "restart with losses", "clock step back", "clock step forward", "late release", "news missed",
)  # fmt: skip
WAITS = ("wait exhausted", "wait rate_limited", "wait store_lost")
POOL = (
    "waiter served", "offer claimed", "offer lapsed", "offer worthless when claimed", "session expired",
    "neighbour buried", "quarantined", "restored", "limit learned", "shared limit found", "ramp after cool-down",
    "debt", "less used than reserved", "day limit", "too large", "nobody can serve", "credential dropped in use",
    "credential added while somebody waits", "credential redeclared", "kept state thawed", "asker timed out",
)  # fmt: skip
RUNS = (
    "resumed", "stopped", "attempt timed out", "attempt abandoned", "worker died", "interrupted", "retried",
    "rotated", "result of an older launch refused", "ended twice over a kill",
)  # fmt: skip
ALL = (*VERDICTS, *FAULTS, *WAITS, *POOL, *RUNS)


class Situations(Counter[str]):
    """How often each has occurred."""

    def note(self, name: str) -> None:
        assert name in _KNOWN, f"{name!r} is no situation"
        self[name] += 1

    def missing(self) -> list[str]:
        return [name for name in ALL if not self[name]]

    def table(self) -> str:
        return "\n".join(f"{self[name]:>10,}  {name}" for name in ALL)


_KNOWN = frozenset(ALL)
