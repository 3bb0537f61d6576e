"""Probe: test with a much higher rate whether our rate is what a provider refuses.

If refusals keep coming at any rate, however low, the rate may not be their reason: the provider may limit concurrency,
or other clients may use up the same limit. Then slowing down gains nothing.

A limit admits no more in the time from one refusal to another than it allows in that time, whatever the provider
stores, however long the waits are and whatever the rate is. So the rate was the reason unless a probe admits clearly
more than the rate before allowed in the time of the probe. Counting the requests between two refusals is not enough:
each wait of a whole second lets the provider store as many as a second allows.
"""

from __future__ import annotations

from typing import NamedTuple

# An episode that ended after fewer admitted requests is unexplained: the rate was already low.
FEW_REQUESTS = 20
# Unexplained episodes in a row that start a probe.
MAX_UNEXPLAINED = 10
# If the rate was the reason, this many further unexplained episodes pass before the next probe, unless the rate falls
# by this factor; if not, so few.
MAX_PATIENCE = 64
MAX_FALL = 2.0
MIN_PATIENCE = 2
# Factor of the rate during a probe.
PROBE_FACTOR = 10.0
# A probe ends with this many episodes of refusals,
PROBE_REFUSALS = 4
# and refutes the rate if at least this many requests were admitted,
PROBE_ADMISSIONS = 7
# and this many times as many as the rate allowed.
PROBE_GAIN = 2.0


class Probe(NamedTuple):
    """A period at a much higher rate."""

    rate_before: float
    number: int  # of admitted requests when it began
    begin_at: float  # a request was refused then: the provider had nothing stored


class RateProbes:
    """Decides when to probe, and what a probe has shown."""

    __slots__ = ("_confirmed_rate", "_probe", "_refusals", "_unexplained")

    def __init__(self) -> None:
        self._probe: Probe | None = None
        self._unexplained = 0  # episodes in a row
        self._confirmed_rate = 0.0  # a probe did not refute it
        self._refusals = 0  # episodes of the present probe

    @property
    def is_probing(self) -> bool:
        return self._probe is not None

    def begins(self, served: int, rate: float, admitted: int, at: float, *, is_limited: bool) -> bool:
        """Count an episode that ended `served` requests after the one before; return True if a probe begins with it.
        `admitted`: all requests until now; `is_limited`: requests wait for the rate."""
        if served >= FEW_REQUESTS:
            self._unexplained = min(0, self._unexplained)
            return False
        self._unexplained += 1
        is_due = self._unexplained >= MAX_UNEXPLAINED or MAX_FALL * rate < self._confirmed_rate
        if not is_due or not is_limited:
            return False
        self._probe, self._refusals = Probe(rate, admitted, at), 0
        return True

    def end(self, admitted: int, at: float) -> tuple[float, bool] | None:
        """Count an episode within a probe. Return None while it goes on; then the rate to go on at, and whether the
        rate before is refuted."""
        probe = self._probe
        assert probe is not None
        self._refusals += 1
        if self._refusals < PROBE_REFUSALS:
            return None
        self._probe = None
        count, allowed = admitted - probe.number, probe.rate_before * (at - probe.begin_at)
        if count < max(PROBE_ADMISSIONS, PROBE_GAIN * allowed):
            self._unexplained, self._confirmed_rate = -MAX_PATIENCE, probe.rate_before
            return probe.rate_before, False
        self._unexplained, self._confirmed_rate = MAX_UNEXPLAINED - MIN_PATIENCE, 0.0
        return count / max(1e-3, at - probe.begin_at), True
