"""Estimate an undeclared limit of one quota group in one scope, and admit requests at the estimated rate.

* **Slow start** (`_slow_start`) until a limit was met, and as a ramp after cool-downs.
* **Headers** that state a limit and what remains of it are applied at once.
* **Refusals** (`_rate_search`). An *episode* is a refusal together with the refusals of requests that were in flight
  when it came. What was admitted until then, and in which time, narrows the bracket around the limit. The rate rises
  while requests wait for it and succeed.
* If refusals come at any rate, a probe (`_rate_probe`) tests whether the rate is their reason.
"""

from __future__ import annotations

import math

from ._rate_probe import PROBE_FACTOR, RateProbes
from ._rate_search import MAX_GAP, RateSearch
from ._refusals import MIN_WAIT, Episode, Refusal, read_refusal
from ._slow_start import CAUTIOUS_RATE, CAUTIOUS_SLOTS, INITIAL_RATE, RAMP_RATE, SlowStart
from ._windows import Bucket
from .amounts import NO_BINDING, Binding
from .backoff import delay
from .declaration import LEARNED_REQUESTS, LEARNED_TOKENS, SLOW_START

# Share of the last requests that must have waited for the rate before their successes count.
MIN_LIMITED_SHARE = 0.75
# Seconds of the limit that a provider is assumed to have stored before the first request.
STORED_SECONDS = 1.0
# Largest share of the requests admitted until the first refusal that was not stored, as far as anything is known: slow
# start sends them in bursts.
MAX_REFILLED = 0.75
# A provider that refuses after fewer requests stores next to nothing.
FEW_STORED = 3
# Share of the provider's burst allowance that is used at once after a pause.
SAFE_SHARE = 0.9
# Requests per second below which no provider goes: one a day.
MIN_RATE = 1.0 / 86_400.0
# A header that states more requests than this is no limit.
MAX_LIMIT = 1e9


class RateEstimator:
    """Knowledge about one group's limit in one scope, and the rate at which that admits requests."""

    __slots__ = (
        "_adopted",
        "_begin_at",
        "_cut_at",
        "_has_minute_period",
        "_has_waited",
        "_in_flight_before",
        "_is_mark_refusal",
        "_last_at",
        "_level",
        "_limited_share",
        "_mark_at",
        "_mark_count",
        "_max_rate",
        "_probes",
        "_refused_at",
        "_refused_count",
        "_search",
        "_slack",
        "_snapshot_at",
        "_stored_count",
        "_stored_seconds",
        "bucket",
        "estimate",
        "in_flight",
        "is_announced",
        "refusals",
        "refused",
        "sent",
        "slow_start",
        "token_bucket",
    )  # fmt: skip

    def __init__(self, now: float, known_rate: float | None, max_in_flight: int, *, starts_full: bool = True
                 ) -> None:  # fmt: skip
        self.in_flight = 0
        self.sent = self.refused = 0
        self.refusals = 0  # episodes in a row
        self.slow_start: SlowStart | None = None
        if max_in_flight > 1 and known_rate is None:  # one request at a time needs no slow start
            self.slow_start = SlowStart(now, 1, INITIAL_RATE, max_in_flight, starts_full=starts_full)
        self.bucket: Bucket | None = None  # of requests: its rate comes from headers or refusals
        self.token_bucket: Bucket | None = None  # its rate comes from headers
        self.estimate: float | None = None  # requests per second, from refusals
        self.is_announced = False
        self._max_rate = known_rate  # declared, or read from a header: upper bound of the rate
        self._has_minute_period = True  # False: a header stated a limit per hour or day, which is no rate
        self._snapshot_at = -math.inf  # send time of the request whose headers were applied last
        self._begin_at = now  # counting started
        self._last_at = now  # of the last request
        self._cut_at = -math.inf  # of the last episode; refusals of requests sent before belong to it
        self._in_flight_before = 0  # requests in flight that were sent before it
        self._refused_at = -math.inf  # instant of the last refusal,
        self._refused_count = 0  # after this many requests
        self._mark_at = now  # instant at which the provider had nothing left,
        self._mark_count = 0  # after this many requests
        self._is_mark_refusal = True  # False: it is a step of the search
        self._stored_count = self._stored_seconds = 0.0  # requests admitted until the first refusal, and their time
        self._level = 1.0  # requests that were allowed at once after the last refusal
        self._slack = 0.0  # seconds since the mark in which requests did not wait for the rate
        self._has_waited = False  # a request has waited for the rate since the last one was sent
        self._limited_share = 0.0  # of the last requests had waited for the rate
        self._search = RateSearch()
        self._probes = RateProbes()
        self._adopted: float | None = None  # the rate that was learned elsewhere: it is known until the search moves on

    # --- admission ------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Return True if it restricts nothing."""
        return self.slow_start is None and self.bucket is None and self.token_bucket is None

    def ready_at(self, requests: int, tokens: int, now: float) -> float:
        """Return the instant from which the amount may be used; 0 for now."""
        at = 0.0
        if self.slow_start is not None:
            at = self.slow_start.ready_at(self.in_flight - self._in_flight_before, now)
        if self.bucket is not None:
            rate_at = self.bucket.ready_at(requests, now)
            if rate_at > at:
                self._has_waited = True
                at = rate_at
        if self.token_bucket is not None:
            at = max(at, self.token_bucket.ready_at(max(1, tokens), now))
        return at

    def binding(self, requests: int, tokens: int, now: float) -> Binding:
        """Return the same instant, and what decides it. Unlike `ready_at` it changes nothing."""
        candidates = [NO_BINDING]
        if self.slow_start is not None:
            at = self.slow_start.ready_at(self.in_flight - self._in_flight_before, now)
            candidates.append(Binding(at, SLOW_START))
        if self.bucket is not None:
            candidates.append(Binding(self.bucket.ready_at(requests, now), LEARNED_REQUESTS, self.bucket.rate * 60.0))
        if self.token_bucket is not None:
            at, rate = self.token_bucket.ready_at(max(1, tokens), now), self.token_bucket.rate
            candidates.append(Binding(at, LEARNED_TOKENS, rate * 60.0))
        return max(candidates, key=lambda binding: binding.at)

    def take(self, requests: int, tokens: int, now: float) -> None:
        if self.slow_start is not None:
            self.slow_start.take(self.in_flight - self._in_flight_before, now)
        self.in_flight += 1
        self.sent += requests
        if self.bucket is not None:
            if self.estimate is not None:
                self._slack += max(0.0, now - self._last_at - requests / self.bucket.rate)
                self._limited_share += (self._has_waited - self._limited_share) / 4.0
                self._has_waited = False
                self._last_at = max(self._last_at, now)
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
        if self.estimate is not None and (self._search.is_known or self.estimate == self._adopted):
            return self.estimate * 60.0
        if self._snapshot_at > -math.inf and self._has_minute_period and self._max_rate is not None:
            return self._max_rate * 60.0
        return None

    # --- answers --------------------------------------------------------------------------------------------------

    def begin(self, since: float, sent: int) -> None:
        """Count `sent` requests that were sent since an instant, those in flight included."""
        self._begin_at, self._mark_count = since, self.sent - sent

    def start_with(self, rate: float, now: float) -> None:
        """Adopt a rate that was learned, and announced, elsewhere, to be refined."""
        self.slow_start = None
        self.estimate = self._adopted = rate
        self.is_announced = True
        self._mark(now, self.sent, is_refusal=False)
        self._search.start(rate)
        self._set_rate(now, level=0.0)

    def ramp_up(self, at: float) -> None:
        """Slow down from the end of a cool-down on: waiting requests must not start all at once."""
        self.slow_start = SlowStart(at, 1, RAMP_RATE)

    def answer(self, sent_at: float) -> None:
        """Count the end of a request."""
        self.in_flight -= 1
        if sent_at <= self._cut_at and self._in_flight_before:
            self._in_flight_before -= 1

    def record_success(self, sent_at: float, max_in_flight: int, now: float) -> bool:
        """Count an answer that was no refusal; return whether that changes the estimate."""
        if sent_at <= self._cut_at:
            return False
        self.refusals = 0
        if self.slow_start is not None:
            self.slow_start.record_success()
            if self.slow_start.is_over(max_in_flight):
                self.slow_start = None
        if sent_at < self._mark_at or self.estimate is None or self._probes.is_probing:
            return False
        if self._limited_share <= MIN_LIMITED_SHARE or not self._search.record_success(self._store, self._slack):
            return False
        self.estimate = self._search.rate
        self._mark(now, self.sent, is_refusal=False)
        self._set_rate(now)
        return True

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

    def refuse(self, sent_at: float, later: int, earlier: int, hint: float | None, now: float) -> float:
        """Learn from a refused request, once per episode; return the seconds to wait. `later`: requests sent after it;
        `earlier`: requests in flight that were sent before it."""
        self.refused += 1
        refusal = read_refusal(sent_at, self.sent - later, earlier, hint, self._search.likely_rate)
        is_evidence = sent_at > self._cut_at and self._admitted_first(refusal)
        if self.estimate is None and self._max_rate is None and not is_evidence:
            return self._wait_without_evidence(refusal, now)
        rate = math.inf if self.bucket is None else self.bucket.rate
        if sent_at > self._cut_at:
            wait = self._start_episode(refusal, now)
            self._slow_down(wait, now, was_last=not later)
        else:
            self._search.charge()
            wait = 0.0 if hint is None else hint
            if refusal.number <= self._mark_count:
                return wait
            self._mark_at = self._refused_at = refusal.empty_at
            self._mark_count = self._refused_count = refusal.number
        # After the refusal, and until its answer came, fewer requests may have been sent than the rate allowed.
        assert self.bucket is not None
        if later:
            self._slack = max(0.0, self._last_at - refusal.free_at - (later - 1) / rate)
        else:
            self._slack, self._last_at = 0.0, refusal.free_at - 1.0 / self.bucket.rate
        return wait

    def _admitted_first(self, refusal: Refusal) -> int:
        """Return the requests that were admitted before the first refusals."""
        return max(0, refusal.number - self._mark_count - self.refused)

    def _wait_without_evidence(self, refusal: Refusal, now: float) -> float:
        """Return the seconds to wait if nothing was admitted yet: the limit may have been used up by others, so that
        its rate is not known. One request goes on alone."""
        if refusal.sent_at <= self._cut_at:
            return refusal.hint or 0.0
        self._cut_at, self._in_flight_before = now, self.in_flight
        self.refusals += 1
        wait = delay(self.refusals, 1.0, base=STORED_SECONDS) if refusal.hint is None else refusal.hint
        self.slow_start = SlowStart(now + wait, 1, CAUTIOUS_RATE)
        return wait

    def _start_episode(self, refusal: Refusal, now: float) -> float:
        hint, count = refusal.hint, refusal.number
        self._cut_at = now
        self._in_flight_before = self.in_flight
        self.refusals += 1
        self._limited_share = 1.0  # requests wait now
        admitted = max(0, count - self._mark_count - 1)
        if self.estimate is None:
            admitted = self._admitted_first(refusal)
            self._estimate_first(admitted, refusal)
        elif self._probes.is_probing:
            self._judge_probe(refusal)
        else:
            self._learn(admitted, refusal)
        assert self.estimate is not None
        self._refused_at, self._refused_count = refusal.empty_at, count
        self.estimate = max(self.estimate, 1.0 / MAX_GAP)
        # If nothing was admitted in between, the time since the earlier refusal counts, too.
        is_same = self._is_mark_refusal and not admitted and self.refusals > 1
        self._mark(self._mark_at if is_same else refusal.empty_at, count, is_refusal=True)
        return hint if hint is not None else delay(self.refusals, 1.0, base=max(MIN_WAIT, 1.0 / self.estimate))

    def _learn(self, admitted: int, refusal: Refusal) -> None:
        """Correct the estimate after a refusal that was not the first."""
        count, earlier = refusal.number, refusal.earlier
        if self._is_mark_refusal and admitted <= earlier:
            self._search.retreat()
            self.estimate = self._search.rate
        elif self._is_mark_refusal and admitted < math.floor(self._level):
            self._stored_count = float(admitted)  # the provider stores less than assumed
        else:
            seconds = (refusal.empty_at if self._is_mark_refusal else refusal.sent_at) - self._mark_at
            served = count - earlier - self._refused_count - 2
            episode = Episode(
                admitted,
                max(0, admitted - earlier),
                seconds,
                min(self._slack, seconds),
                0.0 if refusal.hint is None else refusal.error,
                served / max(1e-3, refusal.empty_at + 1.0 - self._refused_at),
                is_exact=refusal.error == 0.0,
                after_refusal=self._is_mark_refusal,
            )
            self._search.refuse(episode, refusal.wait, self._store)
            self.estimate = self._search.rate
            self._explain(refusal)

    def _mark(self, at: float, count: int, *, is_refusal: bool) -> None:
        """Start counting anew, after `count` requests."""
        self._mark_at, self._mark_count, self._is_mark_refusal = at, count, is_refusal
        self._slack, self._has_waited = 0.0, False

    def _slow_down(self, wait: float, now: float, *, was_last: bool) -> None:
        """Go on at the estimated rate after a wait. `was_last`: no request was sent after the refused one."""
        assert self.estimate is not None
        self._set_rate(now)
        assert self.bucket is not None
        is_unknown = self._search.is_wide
        self._level = max(1.0, 0.0 if is_unknown else min(self.bucket.capacity, self.estimate * wait))
        if was_last:
            self.bucket.restore(self._level, now + wait)
        else:
            self.bucket.restore(0.0, self._last_at)
        self.slow_start = SlowStart(now + wait, CAUTIOUS_SLOTS, CAUTIOUS_RATE) if is_unknown else None

    # --- learning -------------------------------------------------------------------------------------------------

    def _estimate_first(self, admitted: int, refusal: Refusal) -> None:
        is_counted = self._begin_at > -math.inf  # else its pool was restored meanwhile
        self._stored_count = float(admitted)
        self._stored_seconds = max(0.0, refusal.sent_at - self._begin_at) if is_counted else 0.0
        if self._max_rate is not None:
            self.estimate = self._max_rate
        elif refusal.hint is None or admitted > FEW_STORED:
            self.estimate = max(1, admitted) / (self._stored_seconds + STORED_SECONDS)
        else:  # the provider stores next to nothing: a hint is the time of one request
            self.estimate = 1.0 / max(MIN_WAIT, refusal.hint - refusal.error / 2.0)
        self._search.start(self.estimate, min(self._store, self.estimate * refusal.wait))

    def _explain(self, refusal: Refusal) -> None:
        """Raise the rate for a probe if refusals came again and again after few requests."""
        assert self.estimate is not None
        served, admitted = refusal.number - self._refused_count, refusal.number - self.refused
        if self._probes.begins(served, self.estimate, admitted, refusal.sent_at, is_limited=self._limited_share > 0.5):
            self.estimate *= PROBE_FACTOR

    def _judge_probe(self, refusal: Refusal) -> None:
        """At the end of a probe, return to the rate before it, or search anew at the rate that was admitted."""
        end = self._probes.end(refusal.number - refusal.earlier - self.refused, refusal.sent_at)
        if end is not None:
            self.estimate, is_refuted = end
            if is_refuted:
                self._search.start(self.estimate)

    @property
    def _store(self) -> float:
        """Return the number of requests that the provider had stored before the first refusal, by the estimate."""
        assert self.estimate is not None
        refilled = min(0.5 * self.estimate * self._stored_seconds, MAX_REFILLED * self._stored_count)
        return max(1.0, self._stored_count - refilled)

    def _set_rate(self, now: float, level: float | None = None) -> None:
        assert self.estimate is not None
        rate = self.estimate if self._max_rate is None else min(self.estimate, self._max_rate)
        capacity = 1.0
        if self._search.is_narrow:
            stored = self._stored_count - self.estimate * self._stored_seconds
            capacity = max(1.0, math.floor(SAFE_SHARE * stored))
        if self.bucket is None:
            self.bucket = Bucket(rate, capacity, now, jitter=0.0)
        # Without jitter, also if headers have made the bucket: one that holds a single request is full before each of
        # them, so that the jitter would be added to every interval. The search decides what is not admitted.
        self.bucket.change(now, rate=rate, capacity=capacity, level=level, jitter=0.0)
