"""Bottleneck: finds out which of all reasons for not going faster held a run for the longest time."""

from __future__ import annotations

from agentos.events import BUDGET, INPUT, KEYS, LEDGER, LIMITS, PAUSES, READER, WORKERS
from agentos.items.parallelism import ParallelBound
from agentos.plurals import plural

# Seconds: a reason that held a run for less is not reported.
MIN_SECONDS = 0.01


class Bottleneck:
    """Adds up, per reason, how many seconds the run waited for it."""

    def __init__(self, now: float) -> None:
        self.seconds: dict[str, float] = {}
        self.reason: str | None = None
        self._since = now
        self._at_once: ParallelBound | None = None

    def note(self, reason: str | None, now: float, at_once: ParallelBound | None = None) -> None:
        """Set the reason that holds from `now` on; None if the run waits for nothing but its last items. `at_once`:
        what bounds the number of items at once, if it is not fixed."""
        if reason == WORKERS:
            self._at_once = at_once
        if self.reason is not None:
            self.seconds[self.reason] = self.seconds.get(self.reason, 0.0) + now - self._since
        self.reason = reason
        self._since = now

    def text(self, workers: int, credentials: int | None) -> str:
        """Return the reason with the largest sum, as text. `credentials`: None for a run without a pool."""
        reason = max(self.seconds, key=lambda r: self.seconds[r], default=None)
        if reason is not None and self.seconds[reason] < MIN_SECONDS:
            reason = None
        keys = "only credential" if credentials == 1 else f"{credentials} credentials"
        return {
            None: "nothing: there was little to do",
            WORKERS: (
                str(self._at_once)
                if self._at_once is not None
                else plural(workers, "worker") + ("" if credentials is None else ", not the keys")
            ),
            KEYS: f"the {keys}, {'' if credentials == 1 else 'all '}in use, not the workers",
            LIMITS: f"the providers' limits on the {keys}, not the workers",
            PAUSES: "pauses before retries",
            BUDGET: "the budget: items waited until it was known what the others cost",
            INPUT: "the input: items arrived more slowly than they ran",
            READER: "the code that reads the results",
            LEDGER: "the ledger: the disk wrote results more slowly than they arrived",
        }[reason]
