"""Probe: test with a much higher rate whether our rate is what a provider refuses.

If refusals keep coming at any rate, however low, the rate may not be their reason: the provider may limit concurrency,
or other clients may use up the same limit. Then slowing down gains nothing.
"""

from __future__ import annotations

# An episode that ended after fewer admitted requests is unexplained: the rate was already low.
FEW_REQUESTS = 20
# Unexplained episodes in a row that start a probe.
MAX_UNEXPLAINED = 10
# If the rate was the reason, this many further unexplained episodes pass before the next probe.
MAX_PATIENCE = 64
# Factor of the rate during a probe.
PROBE_FACTOR = 10.0
# A probe ends with this many refusals,
PROBE_REFUSALS = 4
# and the rate was not the reason if at least this many requests were admitted.
PROBE_ADMISSIONS = 7


class RateProbe:
    """A period at a much higher rate, until a few requests were refused."""

    __slots__ = ("_admitted_before", "_refusals", "rate_before")

    def __init__(self, rate_before: float, admitted: int) -> None:
        self.rate_before = rate_before
        self._admitted_before = admitted
        self._refusals = 0

    def record_refusal(self) -> bool:
        """Return True if the probe is over."""
        self._refusals += 1
        return self._refusals >= PROBE_REFUSALS

    def has_passed(self, admitted: int) -> bool:
        """Return True if enough requests were admitted at the higher rate: the rate is not the reason of refusals."""
        return admitted - self._admitted_before >= PROBE_ADMISSIONS
