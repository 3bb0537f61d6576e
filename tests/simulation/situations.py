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
    "crash", "pause past ttl", "late release", "machine suspended", "clock stepped",
    "owner killed at step 1", "owner killed at step 2", "owner killed at step 3", "owner killed at step 4",
    "owner killed while requests wait", "take-over", "silent owner replaced", "stale owner's commit refused",
    "message lost", "message late", "doubled message ignored", "reply lost", "store lost", "flush",
    "end of the journal lost", "journal cannot be written", "end of a process found by the next owner",
)  # fmt: skip
WAITS = ("wait exhausted", "wait rate_limited", "wait store_lost")
POOL = (
    "waiter served", "greeted again", "member expired and came back", "messages repeated", "lost grant repeated",
    "repeated message counted once", "lease lost", "loss noticed by a member", "lease of a lost journal restored",
    "journal written anew", "snapshot saved", "quarantined", "restored", "limit learned",
    "slow start after cool-down", "more used than reserved", "less used than reserved", "day limit", "too large",
    "no credential can serve", "credential added while a request waits", "credential redeclared", "request timed out",
)  # fmt: skip
RUNS = (
    "resumed", "stopped", "attempt timed out", "attempt abandoned", "worker died", "interrupted", "retried",
    "rotated", "result of an older launch refused", "executed twice after a kill",
    "silent failure of a key", "printed refusal", "CredentialRested", "CredentialBenched", "CredentialRecovered",
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
