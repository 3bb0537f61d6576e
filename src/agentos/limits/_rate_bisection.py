"""Bisection: close in on a limit between the highest rate that was sustained and the lowest that was refused.

For providers that store nothing: they refuse the second request at once if it comes too early, and requests that they
allow and that are not sent are lost. The amount admitted between refusals says little there; but a rate is too high
exactly if it is refused.
"""

from __future__ import annotations

import math

# Requests without a refusal that prove a rate.
PROOF_REQUESTS = 5
# Factor to the next rate while none was refused (squared with each step, up to MAX_STEP), and after a long hold.
STEP_UP = 1.15
MAX_STEP = 2.0
SMALL_STEP = 1.05
# The bracket is narrow enough if its ends differ by less than this factor.
NARROW = 1.16
# Requests for which the rate is then held; doubled each time.
MIN_HOLD = 128
MAX_HOLD = 1024


class RateBisection:
    """A bracket around a limit, in requests per second, and the number of requests until the next step."""

    __slots__ = ("_hold", "_next_hold", "_refused_rate", "_step", "_sustained_rate")

    def __init__(self) -> None:
        self._sustained_rate = 0.0
        self._refused_rate = math.inf
        self._hold = PROOF_REQUESTS
        self._next_hold = MIN_HOLD
        self._step = STEP_UP

    @property
    def has_converged(self) -> bool:
        return self._refused_rate < math.inf and self._next_hold > MIN_HOLD

    def hold_first_rate(self) -> None:
        """Expect the first rate to be nearly right: it was computed from an exact hint."""
        self._hold = MIN_HOLD // 2

    def restart(self, sustained_rate: float) -> None:
        """Forget which rate was refused."""
        self._sustained_rate, self._refused_rate = sustained_rate, math.inf

    def holds(self) -> bool:
        """Count one request; return False if the present rate has been held long enough."""
        self._hold -= 1
        return self._hold >= 0

    def raise_rate(self, rate: float, estimate: float) -> float:
        """Return the next estimate after `rate` was sustained."""
        self._sustained_rate = rate
        if self._refused_rate == math.inf:
            estimate *= self._step
            self._step = min(MAX_STEP, self._step * self._step)
            self._hold = PROOF_REQUESTS
            return estimate
        if self._refused_rate < NARROW * rate:  # held for long: the limit may have changed
            self._refused_rate = math.inf
            self._step = STEP_UP
            self._hold = PROOF_REQUESTS
            return estimate * SMALL_STEP
        return self._close_in()

    def refuse(self, rate: float) -> float:
        """Return the next estimate after `rate` was refused."""
        self._refused_rate = rate
        self._step = STEP_UP
        if self._sustained_rate >= rate:  # the limit is lower than it was
            self._sustained_rate = rate / 2.0
        return self._close_in()

    def _close_in(self) -> float:
        if self._refused_rate < NARROW * self._sustained_rate:
            self._hold, self._next_hold = self._next_hold, min(MAX_HOLD, 2 * self._next_hold)
            return self._sustained_rate
        lower = self._sustained_rate or 0.6 * self._refused_rate
        self._hold = PROOF_REQUESTS
        return float(lower ** (2 / 3) * self._refused_rate ** (1 / 3))
