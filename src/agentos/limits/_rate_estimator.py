"""Learning a limit that nobody declared, for one quota group and scope.

* **Slow start.** Until a limit has been met, one request at a time is always allowed: it waits for its own answer and
  cannot stampede. Beyond that more at once are allowed as more have succeeded, and so many a second, doubled as they
  are used, for requests that take long. A shorter ramp of the same kind follows every cool-down.
* **Headers** tell a limit and what is left of it: that is believed at once.
* **Refusals.** A refusal says that the provider has nothing left. So what was admitted between two refusals is what it
  allows in that time, whatever kind of limit it is. The first refusal has no predecessor: the provider is taken to have
  had a second's worth in store. Refusals of requests that were on their way when the first one came belong to the same
  episode and teach nothing new.
* **Search.** An estimate from n requests is off by about one in n. So the rate begins that much below it and grows
  through it, ever faster, for about as long as the evidence took; only while the pool is what limits. Each further
  refusal comes after some three times as many requests as the one before.
* **A provider that stores nothing** refuses the second request already. What it allows and we leave unused is lost, so
  the amount between refusals says little; but a rate is too high exactly if it is refused. There the highest rate that
  was kept up and the lowest that was refused close in on the limit.
* **Not everything is a rate.** If refusals keep coming however slow we go, a leap to a much higher rate tells whether
  our rate is the reason.
"""

from __future__ import annotations

import math

from ._windows import Bucket

# Slow start: one more at once for so many successes; or this many a second more, doubled after so many seconds of use.
SUCCESSES_PER_PLACE = 32
FIRST_RATE = 4.0
RAMP_RATE = 8.0  # after a cool-down
DOUBLES_AFTER = 0.5
# A provider does not answer faster than this.
LEAST_ANSWER = 0.005
# After so many answers, or at this rate, the slow start is over: what is left to learn will be learned from refusals.
MOST_SLOW = 1000
LAST_RATE = 1000.0
# What a provider is taken to have in store at the beginning: so many seconds' worth.
STORED_SECONDS = 1.0
# Of what is taken to be in store, so much is used at once after a pause.
SAFE_SHARE = 0.9
# Evidence counts up to so many requests, and half with each further episode: limits change.
MOST_EVIDENCE = 500.0
# The search: how far below the estimate it begins at most; how sure the assumption of the beginning is; and how long it
# takes, by the evidence.
MOST_BELOW = 0.1
UNCERTAINTY_AT_FIRST = 0.3
SEARCH_LENGTH = 1.5
# Where nothing is stored: so many requests keep a rate up; the steps up while no rate was refused; how close is enough;
# and for how many requests the rate is then left alone, doubled each time.
KEPT_UP = 5
STEP_UP = 1.15
SMALL_STEP = 1.05
CLOSE = 1.16
LEAST_HOLD = 128
MOST_HOLD = 1024
# So many episodes in a row that came after few requests each raise a doubt; then the rate leaps so far; and if it was
# the reason after all, so many more episodes pass before the next doubt.
MOST_FUTILE = 6
FEW_REQUESTS = 20
LEAP = 10.0
LEAP_REFUSALS = 3
MOST_PATIENCE = 64
# Hints are spread evenly over the time of one request; a first one this much shorter says that the estimate is too low.
HINT_SHARE = 0.2
MOST_BY_HINT = 2.5  # times as much
FEW_AFTER_HINT = 6  # requests: if so few were admitted then, the hint was short by chance
EXACT_SHARE = 0.95
# After so many seconds without a request, counting begins anew: a provider has filled its store by then.
IDLE_SECONDS = 1.0
# After a pause so many may go at once, whatever was learned; and a paced grant comes a little late: so many seconds of
# that may be made up for.
LEAST_STORE = 2.0
LATE_SECONDS = 0.05
# Without a hint, a refusal is waited out for the time of one request, at least this long, doubled with every refusal in
# a row up to a minute, the window of most limits.
LEAST_WAIT = 0.05
MOST_WAIT = 60.0
# What was learned from refusals makes nobody wait longer than this (seconds) for the next try: a limit of hours or days
# is told or declared, and a clock that was set, or a machine that slept, would teach one.
LONGEST_GAP = 600.0
# A header that tells more is no limit.
MOST_LIMIT = 1e9
# Nobody allows less than one request a day.
LEAST_RATE = 1.0 / 86_400.0
# An estimate from so many requests is worth telling.
WORTH_TELLING = 20


class SlowStart:
    """Lets requests through one at a time, and beyond that as time and successes allow.

    After a cool-down the first goes alone, and so it does at the beginning of a run, which does not mind waiting for a
    moment; where somebody asks for several leases at once, as many go as can (`is_bold`).
    """

    __slots__ = ("_bucket", "_ended", "_left", "_per_place", "_successes")

    def __init__(self, at: float, most: int, successes_per_place: int, rate: float, *, is_bold: bool = False) -> None:
        self._bucket = Bucket(rate, max(1.0, most), at)
        if not is_bold:
            self._bucket.change(at, level=0.0)
        self._left = DOUBLES_AFTER * rate  # until the rate doubles
        self._per_place = successes_per_place
        self._successes = 0
        self._ended = 0

    def ready_at(self, in_flight: int, now: float) -> float:
        return 0.0 if self._has_place(in_flight) else self._bucket.ready_at(1.0, now)

    def sent(self, in_flight: int, now: float) -> None:
        """One more, with so many on their way before it."""
        if self._has_place(in_flight):
            return
        self._bucket.take(1.0, now)
        self._left -= 1.0
        if self._left <= 0.0:
            self._bucket.change(now, rate=self._bucket.rate * 2.0)
            self._left = DOUBLES_AFTER * self._bucket.rate

    def succeeded(self, seconds: float, now: float) -> None:
        """An answer came after so many seconds. What took no time at all was no request, and is not counted."""
        self._ended += 1
        if seconds < LEAST_ANSWER:
            self._bucket.take(-1.0, now)
        else:
            if not self._successes:  # the first may have waited for more than its answer: connections, programs
                self._bucket.change(now, level=0.0)
            self._successes += 1

    def is_over(self, most: int) -> bool:
        """`most`: how many can be on their way at once."""
        is_proven = self._successes >= (most - 1) * self._per_place or self._ended >= MOST_SLOW
        return is_proven or self._bucket.rate > LAST_RATE

    def _has_place(self, in_flight: int) -> bool:
        return in_flight * self._per_place < self._per_place + self._successes


class Leap:
    """A much higher rate, tried for a few refusals."""

    __slots__ = ("admitted", "rate_before", "refusals", "since")

    def __init__(self, rate_before: float, now: float, admitted: int) -> None:
        self.rate_before = rate_before
        self.since = now
        self.admitted = admitted
        self.refusals = 0


class Learner:
    """What is known about one group's limit in one scope, and how fast that lets us go."""

    __slots__ = (
        "_admitted",
        "_burst",
        "_counted",
        "_cut_at",
        "_episode_at",
        "_evidence",
        "_futile",
        "_hold",
        "_is_minute",
        "_is_tainted",
        "_kept_up",
        "_known_rate",
        "_last_at",
        "_leap",
        "_length",
        "_next_hold",
        "_refused_at",
        "_searched",
        "_seconds",
        "_snapshot_at",
        "_stagger",
        "_step",
        "_stores",
        "_succeeded_at",
        "_uncertainty",
        "estimate",
        "in_flight",
        "is_told",
        "paced",
        "refusals",
        "refused",
        "sent",
        "slow",
        "tokens",
    )

    def __init__(self, now: float, known_rate: float | None, most: int, *, stagger: float = 1.0,
                 is_bold: bool = True) -> None:  # fmt: skip
        self.in_flight = 0
        self.sent = 0
        self.refused = 0
        self.refusals = 0  # in a row
        self.slow: SlowStart | None = None
        if most > 1 and known_rate is None:  # one at a time needs no slow start
            self.slow = SlowStart(now, most, SUCCESSES_PER_PLACE, FIRST_RATE, is_bold=is_bold)
        self.paced: Bucket | None = None  # requests, as read from headers or learned from refusals
        self.tokens: Bucket | None = None  # tokens, as read from headers
        self.estimate: float | None = None  # requests per second, from refusals
        self.is_told = False
        self._known_rate = known_rate  # declared, or read from a header: no search goes beyond it
        self._is_minute = True  # False: a header told a limit of an hour or a day, which is no rate to go by
        self._snapshot_at = -math.inf  # when the request was sent whose headers were believed last
        self._cut_at = -math.inf  # of the last episode; what was sent before belongs to it
        self._episode_at = now  # the last one, or the beginning
        self._admitted = 0  # until then
        self._counted = 0.0  # the first estimate by what was admitted, where the hint said more
        self._evidence = self._seconds = 0.0  # so many requests were admitted in so many seconds between refusals
        self._burst = 1.0  # what the provider seems to store
        self._stores = True
        self._uncertainty = 0.0
        self._searched = 0.0  # so many requests, of about so many
        self._length = 1.0
        self._stagger = stagger  # of the search
        self._kept_up = 0.0  # the highest rate that was kept up, and the lowest that was refused
        self._refused_at = math.inf
        self._hold = KEPT_UP
        self._step = STEP_UP
        self._next_hold = LEAST_HOLD
        self._last_at = now
        self._succeeded_at = now  # the last time, as far as that is told
        self._is_tainted = False  # since the last episode there was at times too little to do
        self._futile = 0
        self._leap: Leap | None = None

    # --- asking ---------------------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether it restricts nothing."""
        return self.slow is None and self.paced is None and self.tokens is None

    def ready_at(self, requests: int, tokens: int, now: float) -> float:
        at = self.slow.ready_at(self.in_flight, now) if self.slow is not None else 0.0
        if self.paced is not None:
            at = max(at, self.paced.ready_at(requests, now))
        if self.tokens is not None:
            at = max(at, self.tokens.ready_at(max(1, tokens), now))
        return at

    def take(self, requests: int, tokens: int, now: float) -> None:
        if self.slow is not None:
            self.slow.sent(self.in_flight, now)
        if self.estimate is None and now - self._last_at > IDLE_SECONDS:
            self._episode_at, self._admitted = now, self.sent - self.refused - self.in_flight
        self.in_flight += 1
        self.sent += requests
        if self.estimate is None:
            self._last_at = now
        if self.paced is not None:
            if self.estimate is not None and self._leap is None:
                self._search(requests, now)
            self.paced.take(requests, now)
        if self.tokens is not None:
            self.tokens.take(tokens, now)

    def correct(self, more_requests: int, more_tokens: int, now: float) -> None:
        """It was really so much more."""
        self.sent += more_requests
        if self.paced is not None:
            self.paced.take(more_requests, now)
        if self.tokens is not None:
            self.tokens.take(more_tokens, now)

    # --- learning -------------------------------------------------------------------------------------------------

    def begin(self, since: float, sent: int) -> None:
        """What was sent before anybody counted here."""
        self._episode_at = since
        self._admitted = self.refused = 0
        self.sent = sent + self.in_flight  # some that were counted here may still be on their way

    def succeeded(self, sent_at: float, most: int, now: float) -> None:
        """An answer came that was no refusal; `most`: how many can be on their way at once."""
        self.refusals = 0
        self._succeeded_at = now
        if self.slow is not None:
            self.slow.succeeded(now - sent_at, now)
            if self.slow.is_over(most):
                self.slow = None

    def start_with(self, rate: float, now: float) -> None:
        """What others have learned, to be refined."""
        self.slow = None
        self.estimate = rate
        self._burst = max(1.0, rate * STORED_SECONDS)
        self._uncertainty, self._length = UNCERTAINTY_AT_FIRST, 8.0
        self.paced = Bucket(rate, 1.0, now)
        self._set_rate(now, level=0.0)

    def ramp_up(self, at: float, most: int) -> None:
        """From an instant on, after a cool-down: a ramp instead of a stampede."""
        self.slow = SlowStart(at, most, 1, RAMP_RATE)

    def observe(self, sent_at: float, limit: float, period: float, remaining: float | None, reset: float | None,
                now: float) -> None:  # fmt: skip
        """A header told the limit of requests per period, what is left of it, and when it will be whole again."""
        if sent_at < self._snapshot_at or not 0 < limit < MOST_LIMIT or period <= 0:
            return  # an older answer, overtaken on its way
        self._snapshot_at = sent_at
        self._known_rate = rate = max(limit / period, LEAST_RATE)
        self._is_minute = period <= 60.0
        self.slow = None
        others = max(0, self.in_flight - 1)  # sent, and perhaps not counted yet
        capacity = limit if remaining is None else remaining + others + 1
        if self.paced is None:
            self.paced = Bucket(rate, max(1.0, capacity), now)
        elif self.estimate is not None:
            rate = min(rate, self.paced.rate)
        level = None if remaining is None else remaining - others
        if level is not None and level < 1.0 and reset is not None:
            level = max(level, 1.0 - rate * max(0.0, reset))  # by then something fits, whatever the kind of limit
        self.paced.change(now, rate=rate, capacity=max(self.paced.capacity, capacity), level=level)

    def observe_tokens(self, limit: float, period: float, remaining: float | None, reserved: int, now: float) -> None:
        """The same for tokens; `reserved`: by requests that are on their way."""
        if limit <= 0 or period <= 0:
            return
        if self.tokens is None:
            self.tokens = Bucket(limit / period, limit, now)
        self.tokens.change(
            now, rate=limit / period, capacity=limit, level=None if remaining is None else remaining - reserved
        )

    def refuse(self, sent_at: float, requests: int, hint: float | None, now: float) -> float:
        """A request was refused: returns how long to wait. One cut per episode."""
        self.refused += requests
        if sent_at <= self._cut_at:
            return hint if hint is not None else 0.0
        self._cut_at = now
        self.refusals += 1
        self._learn(hint, now)
        wait = hint
        if wait is None:
            seconds = 1.0 / self.paced.rate if self.paced is not None else 0.0
            wait = min(MOST_WAIT, max(LEAST_WAIT, seconds) * 2.0 ** min(self.refusals - 1, 32))
        self._last_at = now + wait  # until then nobody can be in a hurry
        if self.estimate is not None:
            # What a wait is longer than the store takes to fill, the provider did not count for us either.
            self._episode_at = max(self._episode_at, now) + max(0.0, wait - self._burst / self.estimate)
        return wait

    def _learn(self, hint: float | None, now: float) -> None:
        if self._leap is not None:
            self._judge_leap(self._leap, now)
        elif self.refusals == 1 or self.estimate is None:
            count = self._estimate_anew(hint, now)
            self._futile = self._futile + 1 if count < FEW_REQUESTS else min(0, self._futile)
            if self._futile >= MOST_FUTILE:
                self._try_leap(now)
        assert self.estimate is not None
        self.estimate = max(self.estimate, 1.0 / LONGEST_GAP)
        if self.paced is None:
            self.paced = Bucket(self.estimate, 1.0, now)
        self._searched = 0.0
        self._set_rate(now, level=0.0)

    def _try_leap(self, now: float) -> None:
        """Refusals keep coming after few requests each, however slow we go: perhaps our rate is not their reason."""
        assert self.estimate is not None
        self._leap = Leap(self.estimate, now, self.sent - self.refused)
        self.estimate *= LEAP

    def _judge_leap(self, leap: Leap, now: float) -> None:
        """At the higher rate as many were refused as before: we may go on so. Or nearly all were: then it is the rate,
        and we do not try again for long."""
        assert self.estimate is not None
        leap.refusals += 1
        if leap.refusals < LEAP_REFUSALS:
            return
        self._leap = None
        self._admitted, self._episode_at = self.sent - self.refused - self.in_flight, now
        self._evidence = self._seconds = 0.0
        if self.sent - self.refused - leap.admitted >= 2 * LEAP_REFUSALS:
            self._futile = MOST_FUTILE - 2
            self._kept_up, self._refused_at = self.estimate, math.inf
        else:
            self._futile = -MOST_PATIENCE
            self.estimate = leap.rate_before

    @property
    def requests_per_minute(self) -> float | None:
        """What is known by now, if it is worth telling."""
        is_sure = self._evidence >= WORTH_TELLING or (self._refused_at < math.inf and self._next_hold > LEAST_HOLD)
        if self.estimate is not None and is_sure:
            return self.estimate * 60.0
        if self._snapshot_at > -math.inf and self._is_minute and self._known_rate is not None:
            return self._known_rate * 60.0
        return None

    # --- inside ---------------------------------------------------------------------------------------------------

    def _estimate_anew(self, hint: float | None, now: float) -> int:
        """Returns the number of requests that were admitted since the episode before."""
        admitted = max(0, self.sent - self.refused - self.in_flight)
        count = admitted - self._admitted
        seconds = max(1e-3, now - self._episode_at)
        self._admitted, self._episode_at = admitted, now
        is_tainted, self._is_tainted = self._is_tainted, False
        if self.estimate is None:
            self._stores = count > 2
            self.estimate = self._known_rate or max(1, count) / (seconds + STORED_SECONDS)
            if hint is not None and hint > 0:
                by_hint = HINT_SHARE / hint
                if by_hint > self.estimate > LEAST_RATE:  # else nothing was counted
                    self._counted, by_hint = self.estimate, min(by_hint, MOST_BY_HINT * self.estimate)
                self.estimate = max(self.estimate, by_hint)
                if not self._stores and hint % 1.0:
                    # Nothing was left after one admission: an exact hint ends the time of one request.
                    self.estimate = max(self.estimate, EXACT_SHARE / (hint + now - self._succeeded_at))
                    self._hold = LEAST_HOLD // 2
            self._burst = max(1.0, self.estimate * STORED_SECONDS)
            self._uncertainty, self._length = UNCERTAINTY_AT_FIRST, max(8.0, count / 2.0)
        elif self._counted and count < FEW_AFTER_HINT:
            self.estimate, self._counted = math.sqrt(self._counted * self.estimate), 0.0
        elif is_tainted:
            pass  # we were slower than we might have been: what was admitted says nothing about the limit
        elif self._stores:
            share = min(1.0, MOST_EVIDENCE / max(1.0, count))
            self._evidence = min(MOST_EVIDENCE, self._evidence / 2.0) + max(0.5, count) * share
            self._seconds = min(MOST_EVIDENCE / self.estimate, self._seconds / 2.0) + seconds * share
            self.estimate = self._evidence / self._seconds
            self._uncertainty = 1.0 / max(1.0, self._evidence)
            self._length = SEARCH_LENGTH * max(1.0, self._evidence)
        elif self.paced is not None:
            self._refused_at = self.paced.rate
            self._step = STEP_UP
            if self._kept_up >= self._refused_at:  # the limit is lower than it was
                self._kept_up = self._refused_at / 2.0
            self._close_in()
        return count

    def _search(self, requests: int, now: float) -> None:
        """The rate grows only while the pool is what limits: while each grant follows the last as soon as it may."""
        assert self.paced is not None
        assert self.estimate is not None
        since, self._last_at = max(0.0, now - self._last_at), now
        if since > 2.0 * requests / self.paced.rate + LATE_SECONDS:
            self._is_tainted = self._is_tainted or self.slow is None  # else it is our own ramp that holds us up
            return
        if self._stores:
            self._searched += since * self.estimate  # not by requests: what was in store is soon sent
        else:
            self._hold -= 1
            if self._hold >= 0:
                return
            self._keep_up(self.paced.rate)
        self._set_rate(now)

    def _keep_up(self, rate: float) -> None:
        assert self.estimate is not None
        self._kept_up = rate
        if self._refused_at == math.inf:
            self.estimate *= self._step
            self._step = min(2.0, self._step * self._step)
            self._hold = KEPT_UP
        elif self._refused_at < CLOSE * rate:  # it was left alone long enough: limits change
            self._refused_at = math.inf
            self.estimate *= SMALL_STEP
            self._step = STEP_UP
            self._hold = KEPT_UP
        else:
            self._close_in()

    def _close_in(self) -> None:
        if self._refused_at < CLOSE * self._kept_up:
            self.estimate = self._kept_up
            self._hold, self._next_hold = self._next_hold, min(MOST_HOLD, 2 * self._next_hold)
        else:
            lower = self._kept_up or 0.6 * self._refused_at
            self.estimate = lower ** (2 / 3) * self._refused_at ** (1 / 3)
            self._hold = KEPT_UP

    def _set_rate(self, now: float, level: float | None = None) -> None:
        assert self.paced is not None
        assert self.estimate is not None
        rate = self.estimate
        if self._stores:
            progress = self._searched / (self._length * self._stagger)
            rate *= 1.0 + self._uncertainty * progress * progress - min(self._uncertainty, MOST_BELOW)
        if self._known_rate is not None:
            rate = min(rate, self._known_rate)
        capacity = max(LEAST_STORE, LATE_SECONDS * rate, SAFE_SHARE * self._burst)
        self.paced.change(now, rate=rate, capacity=capacity, level=level)
