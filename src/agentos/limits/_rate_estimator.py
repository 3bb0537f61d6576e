"""Estimate an undeclared limit of one quota group in one scope, and admit requests at the estimated rate.

* **Slow start** (`_slow_start`) until a limit was met, and as a shorter ramp after every cool-down.
* **Headers** that state a limit and what remains of it are applied at once.
* **Refusals.** A refusal says that nothing remains. So the requests admitted between two refusals are what the provider
  allows in that time, for every kind of limit. An *episode* is a refusal together with the refusals of requests that
  were in flight when it came: they teach nothing more.
* **Search** while requests wait for the rate: a sweep (`_rate_sweep`), or bisection (`_rate_bisection`) for providers
  without a burst allowance. If refusals come at any rate, a probe (`_rate_probe`) tests whether the rate matters.
"""

from __future__ import annotations

import math

from ._first_estimate import MIN_RATE, STORED_SECONDS, from_admissions, with_hint
from ._rate_bisection import RateBisection
from ._rate_probe import FEW_REQUESTS, MAX_PATIENCE, MAX_UNEXPLAINED, PROBE_FACTOR, RateProbe
from ._rate_sweep import RateSweep
from ._slow_start import INITIAL_RATE, RAMP_RATE, SUCCESSES_PER_SLOT, SlowStart
from ._windows import Bucket
from .backoff import delay

# Share of the provider's assumed burst allowance that is used at once after a pause.
SAFE_SHARE = 0.9
# If fewer requests were admitted after a hint raised the estimate, the hint was short by chance: half is undone.
FEW_AFTER_HINT = 6
# After this many seconds without a request, counting starts anew: the provider's burst allowance is full again.
IDLE_SECONDS = 1.0
# Requests that may start together after a pause, at any rate.
MIN_STORE = 2.0
# Seconds by which a grant may come late and still be made up for.
LATE_SECONDS = 0.05
# Shortest wait in seconds after a refusal without a hint.
MIN_WAIT = 0.05
# A rate learned from refusals lets the next request start after at most this many seconds. Limits of hours or days are
# declared or stated in headers; a clock that was set, or a machine that slept, would feign one.
MAX_GAP = 600.0
# A header that states more requests than this is no limit.
MAX_LIMIT = 1e9
# Requests of evidence from which an estimate is announced.
MIN_ANNOUNCED_EVIDENCE = 20


class RateEstimator:
    """Knowledge about one group's limit in one scope, and the rate at which that admits requests."""

    __slots__ = (
        "_admitted_before", "_bisection", "_burst", "_counted_rate", "_cut_at", "_episode_at", "_has_minute_period",
        "_has_store", "_last_at", "_max_rate", "_probe", "_snapshot_at", "_succeeded_at", "_sweep",
        "_unexplained_refusals", "_was_underused", "bucket", "estimate", "in_flight", "is_announced", "refusals",
        "refused", "sent", "slow_start", "token_bucket",
    )  # fmt: skip

    def __init__(self, now: float, known_rate: float | None, max_in_flight: int, *, stagger: float = 1.0,
                 starts_full: bool = True) -> None:  # fmt: skip
        self.in_flight = 0
        self.sent = self.refused = 0
        self.refusals = 0  # episodes in a row
        self.slow_start: SlowStart | None = None
        if max_in_flight > 1 and known_rate is None:  # one request at a time needs no slow start
            self.slow_start = SlowStart(now, max_in_flight, SUCCESSES_PER_SLOT, INITIAL_RATE, starts_full=starts_full)
        self.bucket: Bucket | None = None  # of requests: its rate comes from headers or refusals
        self.token_bucket: Bucket | None = None  # its rate comes from headers
        self.estimate: float | None = None  # requests per second, from refusals
        self.is_announced = False
        self._max_rate = known_rate  # declared, or read from a header: upper bound of the rate
        self._has_minute_period = True  # False: a header stated a limit per hour or day, which is no rate
        self._snapshot_at = -math.inf  # send time of the request whose headers were applied last
        self._cut_at = -math.inf  # of the last episode; refusals of requests sent before belong to it
        self._episode_at = now  # the last one, or the beginning
        self._admitted_before = 0  # requests admitted until then
        self._counted_rate = 0.0  # first estimate by admitted requests, if a hint raised it
        self._burst = 1.0  # requests that the provider seems to admit at once
        self._has_store = True  # False: the provider has no burst allowance
        self._sweep = RateSweep(stagger)
        self._bisection = RateBisection()
        self._last_at = now
        self._succeeded_at = now
        self._was_underused = False  # since the last episode, the rate was not always used
        self._unexplained_refusals = 0
        self._probe: RateProbe | None = None

    # --- admission ------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return True if it restricts nothing."""
        return self.slow_start is None and self.bucket is None and self.token_bucket is None

    def ready_at(self, requests: int, tokens: int, now: float) -> float:
        """Return the instant from which the amount may be used; 0 for now."""
        at = self.slow_start.ready_at(self.in_flight, now) if self.slow_start is not None else 0.0
        if self.bucket is not None:
            at = max(at, self.bucket.ready_at(requests, now))
        if self.token_bucket is not None:
            at = max(at, self.token_bucket.ready_at(max(1, tokens), now))
        return at

    def take(self, requests: int, tokens: int, now: float) -> None:
        if self.slow_start is not None:
            self.slow_start.take(self.in_flight, now)
        if self.estimate is None and now - self._last_at > IDLE_SECONDS:
            self._episode_at, self._admitted_before = now, self.sent - self.refused - self.in_flight
        self.in_flight += 1
        self.sent += requests
        if self.estimate is None:
            self._last_at = now
        if self.bucket is not None:
            if self.estimate is not None and self._probe is None:
                self._search(requests, now)
            self.bucket.take(requests, now)
        if self.token_bucket is not None:
            self.token_bucket.take(tokens, now)

    def correct(self, more_requests: int, more_tokens: int, now: float) -> None:
        """Count the difference to what was taken; negative amounts are given back."""
        self.sent += more_requests
        if self.bucket is not None:
            self.bucket.take(more_requests, now)
        if self.token_bucket is not None:
            self.token_bucket.take(more_tokens, now)

    @property
    def requests_per_minute(self) -> float | None:
        """Return the limit if it is known well enough to be announced."""
        is_sure = self._sweep.evidence >= MIN_ANNOUNCED_EVIDENCE or self._bisection.has_converged
        if self.estimate is not None and is_sure:
            return self.estimate * 60.0
        if self._snapshot_at > -math.inf and self._has_minute_period and self._max_rate is not None:
            return self._max_rate * 60.0
        return None

    # --- answers --------------------------------------------------------------------------------------------------

    def begin(self, since: float, sent: int) -> None:
        """Start counting with `sent` requests that were sent since an instant and not counted here."""
        self._episode_at = since
        self._admitted_before = self.refused = 0
        self.sent = sent + self.in_flight  # requests that were counted here may still be in flight

    def start_with(self, rate: float, now: float) -> None:
        """Adopt a rate that was learned elsewhere, to be refined."""
        self.slow_start = None
        self.estimate = rate
        self._burst = max(1.0, rate * STORED_SECONDS)
        self._sweep.start(8.0)
        self.bucket = Bucket(rate, 1.0, now)
        self._set_rate(now, level=0.0)

    def ramp_up(self, at: float, max_in_flight: int) -> None:
        """Slow down from the end of a cool-down on: waiting requests must not start all at once."""
        self.slow_start = SlowStart(at, max_in_flight, 1, RAMP_RATE)

    def record_success(self, sent_at: float, max_in_flight: int, now: float) -> None:
        """Count an answer that was no refusal."""
        self.refusals = 0
        self._succeeded_at = now
        if self.slow_start is not None:
            self.slow_start.record_success(now - sent_at, now)
            if self.slow_start.is_over(max_in_flight):
                self.slow_start = None

    def observe(self, sent_at: float, limit: float, period: float, remaining: float | None, reset: float | None,
                now: float) -> None:  # fmt: skip
        """Apply a header: requests per `period`, requests that remain, and seconds until all are available again."""
        if sent_at < self._snapshot_at or not 0 < limit < MAX_LIMIT or period <= 0:
            return  # no limit, or the answer of an earlier request that came late
        self._snapshot_at = sent_at
        self._max_rate = rate = max(limit / period, MIN_RATE)
        self._has_minute_period = period <= 60.0
        self.slow_start = None
        uncounted = max(0, self.in_flight - 1)  # in flight, and perhaps not counted by the provider yet
        capacity = limit if remaining is None else remaining + uncounted + 1
        if self.bucket is None:
            self.bucket = Bucket(rate, max(1.0, capacity), now)
        elif self.estimate is not None:
            rate = min(rate, self.bucket.rate)
        level = None if remaining is None else remaining - uncounted
        if level is not None and level < 1.0 and reset is not None:
            level = max(level, 1.0 - rate * max(0.0, reset))  # after the reset, any kind of limit admits one request
        self.bucket.change(now, rate=rate, capacity=max(self.bucket.capacity, capacity), level=level)

    def observe_tokens(self, limit: float, period: float, remaining: float | None, reserved: int, now: float) -> None:
        """Apply a header about tokens. `reserved`: tokens of requests in flight."""
        if limit <= 0 or period <= 0:
            return
        if self.token_bucket is None:
            self.token_bucket = Bucket(limit / period, limit, now)
        level = None if remaining is None else remaining - reserved
        self.token_bucket.change(now, rate=limit / period, capacity=limit, level=level)

    def refuse(self, sent_at: float, requests: int, hint: float | None, now: float) -> float:
        """Learn from a refused request, once per episode; return the seconds to wait."""
        self.refused += requests
        if sent_at <= self._cut_at:
            return hint if hint is not None else 0.0
        self._cut_at = now
        self.refusals += 1
        self._learn(hint, now)
        wait = hint
        if wait is None:
            seconds_per_request = 1.0 / self.bucket.rate if self.bucket is not None else 0.0
            wait = delay(self.refusals, 1.0, base=max(MIN_WAIT, seconds_per_request))
        self._last_at = now + wait  # the pause does not count as unused time
        if self.estimate is not None:
            # While a wait is longer than the store takes to fill, the provider accumulates nothing more.
            self._episode_at = max(self._episode_at, now) + max(0.0, wait - self._burst / self.estimate)
        return wait

    # --- learning -------------------------------------------------------------------------------------------------

    def _learn(self, hint: float | None, now: float) -> None:
        if self._probe is not None:
            self._judge_probe(self._probe, now)
        elif self.refusals == 1 or self.estimate is None:
            if self._estimate_anew(hint, now) < FEW_REQUESTS:
                self._unexplained_refusals += 1
            else:
                self._unexplained_refusals = min(0, self._unexplained_refusals)
        assert self.estimate is not None
        if self._unexplained_refusals >= MAX_UNEXPLAINED and self._probe is None:
            self._probe = RateProbe(self.estimate, self.sent - self.refused)
            self.estimate *= PROBE_FACTOR
        self.estimate = max(self.estimate, 1.0 / MAX_GAP)
        if self.bucket is None:
            self.bucket = Bucket(self.estimate, 1.0, now)
        self._sweep.progress = 0.0
        self._set_rate(now, level=0.0)

    def _judge_probe(self, probe: RateProbe, now: float) -> None:
        """Keep the higher rate if it was refused no more often than the lower one; else return to the lower one."""
        assert self.estimate is not None
        if not probe.record_refusal():
            return
        self._probe = None
        self._admitted_before, self._episode_at = self.sent - self.refused - self.in_flight, now
        self._sweep.clear_evidence()
        if probe.has_passed(self.sent - self.refused):
            self._unexplained_refusals = MAX_UNEXPLAINED - 2
            self._bisection.restart(self.estimate)
        else:
            self._unexplained_refusals = -MAX_PATIENCE
            self.estimate = probe.rate_before

    def _estimate_anew(self, hint: float | None, now: float) -> int:
        """Estimate from the requests admitted since the last episode; return their number."""
        admitted = max(0, self.sent - self.refused - self.in_flight)
        count = admitted - self._admitted_before
        seconds = max(1e-3, now - self._episode_at)
        self._admitted_before, self._episode_at = admitted, now
        was_underused, self._was_underused = self._was_underused, False
        if self.estimate is None:
            self._estimate_first(count, seconds, hint, now)
        elif self._counted_rate and count < FEW_AFTER_HINT:
            self.estimate, self._counted_rate = math.sqrt(self._counted_rate * self.estimate), 0.0
        elif not was_underused:  # else fewer requests were sent than the limit may have allowed
            if self._has_store:
                self.estimate = self._sweep.add_episode(count, seconds, self.estimate)
            elif self.bucket is not None:
                self.estimate = self._bisection.refuse(self.bucket.rate)
        return count

    def _estimate_first(self, count: int, seconds: float, hint: float | None, now: float) -> None:
        self._has_store = count > 2
        self.estimate = from_admissions(count, seconds, self._max_rate)
        if hint is not None and hint > 0:
            first = with_hint(self.estimate, hint, self._succeeded_at, now, has_store=self._has_store)
            self.estimate, self._counted_rate = first.rate, first.counted_rate
            if first.is_exact:
                self._bisection.hold_first_rate()
        self._burst = max(1.0, self.estimate * STORED_SECONDS)
        self._sweep.start(max(8.0, count / 2.0))

    def _search(self, requests: int, now: float) -> None:
        """Raise the rate if the request was admitted as soon as it allowed: only then is it what limits."""
        assert self.bucket is not None
        assert self.estimate is not None
        seconds, self._last_at = max(0.0, now - self._last_at), now
        if seconds > 2.0 * requests / self.bucket.rate + LATE_SECONDS:
            self._was_underused = self._was_underused or self.slow_start is None  # slow start delays requests itself
            return
        if self._has_store:
            self._sweep.progress += seconds * self.estimate  # not by requests: those in store are sent at once
        elif self._bisection.holds():
            return
        else:
            self.estimate = self._bisection.raise_rate(self.bucket.rate, self.estimate)
        self._set_rate(now)

    def _set_rate(self, now: float, level: float | None = None) -> None:
        assert self.bucket is not None
        assert self.estimate is not None
        rate = self.estimate
        if self._has_store:
            rate *= self._sweep.factor()
        if self._max_rate is not None:
            rate = min(rate, self._max_rate)
        capacity = max(MIN_STORE, LATE_SECONDS * rate, SAFE_SHARE * self._burst)
        self.bucket.change(now, rate=rate, capacity=capacity, level=level)
