"""What bound a run: of all the reasons for not going faster, the one that held the longest."""

from __future__ import annotations

from agentos.events import INPUT, KEYS, LEDGER, LIMITS, PAUSES, READER, WORKERS

# What held a run up for less than this did not bind it.
LEAST_SECONDS = 0.01


class Bound:
    """Adds up, by reason, how long each one was what the run waited for."""

    def __init__(self, now: float) -> None:
        self.seconds: dict[str, float] = {}
        self.reason: str | None = None
        self._since = now

    def note(self, reason: str | None, now: float) -> None:
        """From now on this is what the run waits for; None: for nothing but its last items."""
        if self.reason is not None:
            self.seconds[self.reason] = self.seconds.get(self.reason, 0.0) + now - self._since
        self.reason = reason
        self._since = now

    def text(self, workers: int, credentials: int | None) -> str:
        reason = max(self.seconds, key=lambda r: self.seconds[r], default=None)
        if reason is not None and self.seconds[reason] < LEAST_SECONDS:
            reason = None
        keys = f"{credentials} credentials"
        return {
            None: "nothing: there was little to do",
            WORKERS: f"{workers} workers" + ("" if credentials is None else ", not the keys"),
            KEYS: f"the {keys}, all in use, not the workers",
            LIMITS: f"the providers' limits on {keys}, not the workers",
            PAUSES: "pauses before retries",
            INPUT: "the input: items came more slowly than they were done",
            READER: "the reader of the results",
            LEDGER: "the ledger: the disk took results more slowly than they came",
        }[reason]
