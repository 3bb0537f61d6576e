"""Sweep: estimate a rate from the requests admitted between refusals, and raise the rate through that estimate.

For providers that let unused requests accumulate: everything that they allow is admitted sooner or later, so the amount
between two refusals, divided by the time, is the limit. An estimate from n requests is off by about one in n. So the
rate starts that far below the estimate and grows with the square of the progress, for about as long as the evidence
took to collect. Each further refusal comes after some three times as many requests as the one before.
"""

from __future__ import annotations

# Evidence is capped at this many requests, and earlier evidence is halved with each episode: limits change.
MAX_EVIDENCE = 500.0
# Largest share of the estimate by which a sweep starts below it.
MAX_BELOW = 0.1
# Relative error that is assumed of an estimate without evidence.
INITIAL_UNCERTAINTY = 0.3
# Length of a sweep, in multiples of the evidence.
LENGTH_PER_EVIDENCE = 1.5


class RateSweep:
    """The evidence for an estimate, and the progress of the sweep around it."""

    __slots__ = ("_length", "_seconds", "_stagger", "_uncertainty", "evidence", "progress")

    def __init__(self, stagger: float) -> None:
        self.evidence = 0.0  # requests admitted between refusals,
        self._seconds = 0.0  # within this time
        self.progress = 0.0  # requests, of about `_length`
        self._length = 1.0
        self._uncertainty = 0.0
        self._stagger = stagger  # factor of the length: groups that start together must not be refused together

    def start(self, length: float) -> None:
        """Sweep around an estimate for which there is no evidence yet."""
        self._uncertainty, self._length = INITIAL_UNCERTAINTY, length

    def add_episode(self, admitted: int, seconds: float, estimate: float) -> float:
        """Add what was admitted between two refusals as evidence; return the new estimate in requests per second."""
        share = min(1.0, MAX_EVIDENCE / max(1.0, admitted))
        self.evidence = min(MAX_EVIDENCE, self.evidence / 2.0) + max(0.5, admitted) * share
        self._seconds = min(MAX_EVIDENCE / estimate, self._seconds / 2.0) + seconds * share
        self._uncertainty = 1.0 / max(1.0, self.evidence)
        self._length = LENGTH_PER_EVIDENCE * max(1.0, self.evidence)
        return self.evidence / self._seconds

    def clear_evidence(self) -> None:
        self.evidence = self._seconds = 0.0

    def factor(self) -> float:
        """Return the present rate of the sweep in multiples of the estimate."""
        progress = self.progress / (self._length * self._stagger)
        return 1.0 + self._uncertainty * progress * progress - min(self._uncertainty, MAX_BELOW)
