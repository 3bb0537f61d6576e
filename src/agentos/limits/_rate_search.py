"""Search: close in on a rate between the highest that was sustained and the lowest that was refused.

The rate is constant between two steps, so that each step has one meaning:

* **Refused.** A refusal says that nothing remains. If the rate was constant since the last refusal, the requests
  admitted in between, divided by the time, are the limit, whatever the provider stores: n requests give it with an
  error of one in n, two exact hints with that of their instants.
* **Sustained.** If more requests succeeded than the provider can have stored, the limit is not lower.

Then the next rate lies between both. When they are close, the lower one is held: a refusal costs waiting time, and
searching on is worth it only for limits that change.

Time in which requests did not wait for the rate is *slack*: what the provider allowed then may be stored, or lost.
"""

from __future__ import annotations

import math

from ._refusals import Episode

# The bracket is narrow enough if its ends differ by less than this factor: the more a refusal costs (in requests, by
# COST_UNIT), the larger.
NARROW = 1.06
MAX_NARROW = 1.12
COST_UNIT = 1000.0
# The limit is known well enough to be announced if they differ by less than this factor, and hardly known if by more.
KNOWN = 1.2
WIDE = 3.0
# Factor to the next rate while no rate was refused; and after a long hold, squared with each step up to FAST_STEP.
FAST_STEP = 2.0
SMALL_STEP = 1.03
# Successes until the next step: PROOF times those that would use up what the provider may have stored.
MIN_PROOF = 6.0
MAX_PROOF = 100.0
PROOF = 1.2
# Successes until the next step at most, while stored requests explain all of them.
UNUSED_PROOF = 40.0
# Successes for which a rate is held in a narrow bracket; doubled each time.
MIN_HOLD = 50.0
MAX_HOLD = 1600.0
# The next rate may be refused. It is tried after a refusal's cost, the seconds of waiting and the requests, was earned
# this many times by the share that it can gain.
WAITS_EARNED = 2.0
REFUSALS_EARNED = 4.0
# and sooner if it can gain more than this share.
LARGE_GAIN = 0.15
# Successes of a step up from a limit that is known well, for each request that the last refusal cost.
STEP_EARNED = 3.0
# Factor by which the limit falls at most after one refusal; that of a proven rate falls by MIN_FALL first, squared with
# each further refusal.
MAX_FALL = 8.0
MIN_FALL = 1.25
# Refusals in a row that came too early to be explained, after which the sustained rate falls, too.
MAX_RETREATS = 5
# A rate learned from refusals lets the next request start after at most this many seconds. Limits of hours or days are
# declared or stated in headers; a clock that was set, or a machine that slept, would feign one.
MAX_GAP = 600.0
# Seconds by which the instant in an exact hint is off.
HINT_ERROR = 0.05
# Largest share of slack with which exact hints are believed.
MAX_SLACK = 0.1


class RateSearch:
    """The bracket around a limit, in requests per second, and the progress of the present step."""

    __slots__ = (
        "_cost",
        "_credit",
        "_fall",
        "_hold",
        "_is_known_well",
        "_length",
        "_next_hold",
        "_proven",
        "_retreats",
        "_step",
        "high",
        "low",
        "rate",
    )

    def __init__(self) -> None:
        self.rate = 0.0
        self.low = 0.0  # sustained
        self.high = math.inf  # refused
        self._proven = 0.0  # part of `low` that stored requests do not explain
        self._credit = 0.0  # requests that the provider may have stored when the present step began
        self._cost = 0.0  # of the last refusal, in requests
        self._step = FAST_STEP
        self._fall = MIN_FALL
        self._hold = self._length = 0.0  # successes until the next step, and from step to step
        self._next_hold = MIN_HOLD
        self._is_known_well = False  # the bracket was narrow, and was not refuted since
        self._retreats = 0  # in a row

    @property
    def is_narrow(self) -> bool:
        """Return True if the ends are so close that nothing is gained by another refusal."""
        factor = MAX_NARROW if self._is_known_well else max(NARROW, 1.0 + self._cost / COST_UNIT)
        return self.high < self.low * min(MAX_NARROW, factor)

    @property
    def is_known(self) -> bool:
        return self.high < KNOWN * self.low

    @property
    def is_wide(self) -> bool:
        return self.high > WIDE * self.low

    @property
    def likely_rate(self) -> float:
        """Return a rate that the limit probably exceeds."""
        return max(self.low, self.rate / 4.0)

    def start(self, rate: float, credit: float = 0.0) -> None:
        """Start with a rate about which nothing is known. `credit`: requests that the provider may have stored."""
        self.rate, self.low, self.high, self._proven = rate, 0.0, math.inf, 0.0
        self._step, self._fall, self._credit, self._cost = FAST_STEP, MIN_FALL, credit, 0.0
        self._hold_until_proven()

    def record_success(self, store: float, slack: float) -> bool:
        """Count a success of a request that was sent in this step, and had waited for the rate; return True if that
        raises the rate. `store`: requests that the provider can store; `slack`: seconds of this step that were not
        used."""
        self._hold -= 1.0
        self._retreats = 0
        if self._hold > 0.0:
            return False
        credit = min(store, self._credit + slack * self.rate)
        if self._length < min(UNUSED_PROOF, credit):  # stored requests explain all successes
            self._hold = min(UNUSED_PROOF, credit) - self._length
            self._length += self._hold
            return False
        was_narrow, self.low = self.is_narrow, self.rate
        self._proven = max(self._proven, self.rate * (1.0 - (credit + 1.0) / self._length))
        self._fall = MIN_FALL
        self._credit = min(store, credit + self._length * max(0.0, self.high / self.rate - 1.0))
        if was_narrow or self.high <= self.low:  # held for long: the limit may have changed
            self.high, self._step, self._credit = math.inf, SMALL_STEP, store
        if self.high == math.inf:
            self.rate *= self._step
            self._step = min(FAST_STEP, self._step * self._step)
            self._hold_until_proven()
        else:
            self._close_in()
        return True

    def refuse(self, episode: Episode, wait: float, store: float) -> None:
        """Narrow the bracket after the rate was refused; requests go on after `wait` seconds."""
        if episode.seconds <= 0.0 and not episode.after_refusal:
            lower, self.high = 0.0, self.low or self.rate
        else:
            lower, upper = self._explain(episode)
            self.high = min(self.rate, upper)
        self.high = max(self.high, 1.0 / MAX_GAP)
        most = self.high / 1.001
        if self._proven >= self.high:
            self._proven, self._fall = self.high / self._fall, min(MAX_FALL, self._fall * self._fall)
        self._proven = min(most, max(lower, self._proven))
        self.low = max(self._proven, self.high / MAX_FALL)
        self._step, self._credit = SMALL_STEP, min(store, self.high * wait)
        self._cost = WAITS_EARNED * wait * self.high + REFUSALS_EARNED
        self._close_in()

    def retreat(self) -> None:
        """Go down towards the sustained rate, after refusals that came too early to be explained. If they come at that
        rate, too, stored requests had sustained it: go down in small steps."""
        self._retreats += 1
        if self.low and self._retreats < MAX_RETREATS:
            self.rate = self.low if self.is_known else math.sqrt(self.low * self.rate)
        else:
            self.rate /= MIN_FALL
            self.low = min(self.low, self.rate)
            self._proven = min(self._proven, self.low)

    def charge(self) -> None:
        """Count another refusal of the same episode."""
        self._cost += REFUSALS_EARNED
        self._earn()

    def _earn(self) -> None:
        """Hold the rate until the cost of the last refusal is earned."""
        if self.high < math.inf:
            gain = max(SMALL_STEP - 1.0, self.high / self.rate - 1.0)
            self._hold = self._length = max(self._hold, self._cost / gain * min(1.0, LARGE_GAIN / gain))

    def _explain(self, episode: Episode) -> tuple[float, float]:
        """Return the lowest and the highest limit that explain a refusal."""
        admitted, confirmed, seconds = episode.admitted, episode.confirmed, max(1e-3, episode.seconds)
        if not episode.after_refusal:
            return max(episode.floor, (confirmed - self._credit) / seconds), math.inf
        if episode.is_exact and confirmed and 0.2 * seconds > HINT_ERROR and episode.slack < MAX_SLACK * seconds:
            error = min(HINT_ERROR / seconds, 1.0 / admitted)
            return confirmed / seconds * (1.0 - error), admitted / seconds * (1.0 + error)
        used = max(1e-3, seconds - episode.slack - episode.error)
        lower = max(confirmed - 1.0, 0.4 * confirmed) / (seconds + episode.error)
        return min(0.9 * self.rate, lower), (admitted + 1.0) / used

    def _close_in(self) -> None:
        if self.is_narrow:
            self.rate = self.low
            self._hold, self._next_hold = self._next_hold, min(MAX_HOLD, 2.0 * self._next_hold)
            self._length = self._hold
            self._is_known_well = True
            self._earn()
            return
        self._next_hold, self._is_known_well = MIN_HOLD, False
        self.rate = float(self.low ** (2 / 3) * self.high ** (1 / 3))
        self._hold_until_proven()

    def _hold_until_proven(self) -> None:
        step = 1.0 - max(self.low, self.rate / FAST_STEP) / self.rate
        needed = PROOF * (self._credit + 1.0) / max(0.02, step)
        # A step up from a limit that is known well must prove the more, the more the next refusal costs.
        self._hold = max(MIN_PROOF, min(MAX_PROOF, needed), STEP_EARNED * self._cost if self._is_known_well else 0.0)
        self._length = self._hold
        self._earn()
