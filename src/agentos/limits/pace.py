"""Pace: how fast one quota group may be used, by its declared limits and by the limits learned in each scope."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ._limiter import RateLimiter
from ._rate_estimator import RateEstimator
from ._usage_rows import usage_state
from ._window_table import Taken
from .amounts import NO_BINDING, Binding, Detail
from .declaration import Calendar, Limits, strictest
from .usage_state import LeaseShare, UsageState

if TYPE_CHECKING:
    from agentos.verdict import Verdict, WindowReport

# Seconds until a group that cannot serve a large request is looked at again, if what it admits grows all the time: a
# smaller request may come.
LOOK_AGAIN_SECONDS = 0.1
# After this many seconds without a request, counting starts anew: the provider's burst allowance is full again.
IDLE_SECONDS = 10.0
# Number of scopes of a group that have an estimator each; beyond it, estimators that restrict nothing are dropped.
MAX_ESTIMATORS = 64

_NOTHING_TAKEN = Taken((), ())


def _never(_resets: str, now: float) -> float:
    """Return no end of a calendar period: no window of the calendar is declared."""
    return now + 1e9


class PacedLease(Protocol):
    """The attributes of a lease that `Pace` reads. The pool's lease records have them; this package knows no leases."""

    scope: str | None
    requests: int
    tokens: int
    detail: Detail | None
    granted_at: float
    is_answered: bool  # a verdict was reported: the request is no longer in flight, although the lease is live
    is_unused: bool  # returned before any request was sent
    waits_for_probe: bool  # can wait until a new credential has served one request


class Charge(NamedTuple):
    """What one lease took from one pace, and where: corrections must reach the same objects after any change."""

    limiter: RateLimiter | None
    entries: Taken | None
    estimator: RateEstimator | None
    number: int = 0  # of the request, as the estimator counts them


# The charge of a lease that was granted while nothing restricted its group.
NO_CHARGE = Charge(None, None, None)


class Pace:
    """Of one quota group: asks and charges its declared limits and its learned ones together."""

    __slots__ = (
        "_busy_sent",
        "_busy_since",
        "_has_started",
        "calendar",
        "estimators",
        "is_free",
        "last_at",
        "limiter",
        "limits",
        "max_concurrent",
        "sent",
        "wake_at",
    )

    def __init__(self) -> None:
        self.limits = Limits()
        self.limiter: RateLimiter | None = None  # None: no limit is declared
        self.calendar: Calendar | None = None
        self.estimators: dict[str | None, RateEstimator] = {}  # by scope
        self.max_concurrent = 0  # live leases at once, over all its credentials
        self.wake_at = math.inf  # when the pool looks at it again
        # While nothing restricts the group, requests since it was last idle are only counted: the fast path for groups
        # without limits, and for those that never meet one.
        self.is_free = False
        self._has_started = False  # slow start is over
        self.sent = self._busy_sent = 0
        self._busy_since = self.last_at = -math.inf  # of the last request

    def declare(self, limits: Limits, calendar: Calendar, now: float) -> None:
        """Add the declaration of one more credential. The strictest figures of all declarations hold."""
        self.max_concurrent += limits.first_concurrent
        self._apply(replace(strictest(self.limits, limits), max_concurrent=1), calendar, now)

    def restate(self, declarations: list[Limits], calendar: Calendar, now: float) -> None:
        """Replace the declarations of all credentials; usage remains counted."""
        combined = Limits()
        for limits in declarations:
            combined = replace(strictest(combined, limits), max_concurrent=1)
        self.max_concurrent = sum(limits.first_concurrent for limits in declarations)
        self._apply(combined, calendar, now)

    def _apply(self, limits: Limits, calendar: Calendar, now: float) -> None:
        """Enforce new limits. Their `max_concurrent` is 1, because leases are counted per credential."""
        if limits != self.limits and (limits.is_paced or self.limiter is not None):
            self.calendar = calendar
            if self.limiter is None:
                self.limiter = RateLimiter(limits, calendar, now)
            else:
                self.limiter.change(limits, calendar, now)
        self.limits = limits
        self._update_is_free()

    # --- asking ---------------------------------------------------------------------------------------------------

    def ready_at(
        self, scope: str | None, requests: int, tokens: int, now: float, detail: Detail | None = None
    ) -> float:
        """Return the instant from which the amount may be used; 0 for now."""
        limiter = self.limiter
        if limiter is None:
            at = 0.0
        else:
            windows = limiter.set_of(scope) if limiter.is_scoped else limiter.base
            at = limiter.ready_in(windows, requests, tokens, detail, now)
        estimator = self.estimators.get(scope)
        if estimator is not None and not estimator.is_idle:
            at = max(at, estimator.ready_at(requests, tokens, now))
        return at

    def binding(
        self, scope: str | None, requests: int, tokens: int, now: float, detail: Detail | None = None
    ) -> Binding:
        """Return the instant from which the amount may be used, and the limit that decides it."""
        limiter, estimator = self.limiter, self.estimators.get(scope)
        declared = NO_BINDING if limiter is None else limiter.binding(requests, tokens, now, scope, detail)
        learned = NO_BINDING if estimator is None else estimator.binding(requests, tokens, now)
        return learned if learned.at > declared.at else declared

    def changes_at(self, scope: str | None, tokens: int, now: float, detail: Detail | None = None) -> float:
        """Return the instant from which it may admit more tokens, money or requests at once than now."""
        if self.limiter is not None and (tokens or detail is not None):
            at = self.limiter.next_room_at(scope, tokens, detail, now, scope)
            if at > now:
                return at
        return now + LOOK_AGAIN_SECONDS

    def token_room(self, scope: str | None, now: float) -> float:
        """Return the number of tokens that may be used now; negative in debt, infinite without a limit."""
        room = math.inf if self.limiter is None else self.limiter.token_room(scope, now)
        estimator = self.estimators.get(scope)
        if estimator is None or estimator.token_bucket is None:
            return room
        return min(room, estimator.token_bucket.level(now))

    def too_large(
        self, requests: int, tokens: int, scope: str | None = None, detail: Detail | None = None
    ) -> str | None:
        """Return a sentence about the limit that the amount alone exceeds; None if it can be admitted."""
        return None if self.limiter is None else self.limiter.too_large(requests, tokens, scope, detail)

    # --- using ----------------------------------------------------------------------------------------------------

    def count(self, requests: int, now: float) -> None:
        """Count requests that were sent while nothing restricts the group."""
        if now - self.last_at > IDLE_SECONDS:
            self._busy_since, self._busy_sent = now, self.sent
        self.last_at = now
        self.sent += requests

    def take(self, lease: PacedLease, now: float) -> Charge:
        self.count(lease.requests, now)
        limiter, estimator = self.limiter, self.estimators.get(lease.scope)
        entries = (
            None if limiter is None else limiter.take(lease.requests, lease.tokens, now, lease.scope, lease.detail)
        )
        if estimator is None:
            estimator = self._estimator(lease.scope, now, starts_full=not lease.waits_for_probe)
        estimator.take(lease.requests, lease.tokens, now)
        return Charge(limiter, entries, estimator, estimator.sent)

    def correct(
        self, charge: Charge, lease: PacedLease, requests: int, tokens: int, detail: Detail | None, now: float
    ) -> None:
        """Replace what the lease reserved by what it used."""
        before, after = (lease.requests, lease.tokens, lease.detail), (requests, tokens, detail)
        if charge.limiter is not None and charge.entries is not None:
            charge.limiter.correct(charge.entries, before, after, now, lease.scope)
        elif self.limiter is not None:  # declared after the grant
            self.limiter.correct(_NOTHING_TAKEN, before, after, now, lease.scope)
        more_requests, more_tokens = requests - lease.requests, tokens - lease.tokens
        if charge.estimator is not None:
            charge.estimator.correct(more_requests, more_tokens, now)

    def end(self, charge: Charge, lease: PacedLease, now: float, *, has_verdict: bool = False) -> bool:
        """Count the end of a lease; return whether that changes the learned rate. Without a verdict it counts as a
        success: its request has arrived."""
        estimator = charge.estimator
        if charge.limiter is not None and charge.limiter.looks_at_ends and charge.entries is not None:
            has_arrived = not (has_verdict or lease.is_answered or lease.is_unused) and lease.requests > 0
            charge.limiter.end(charge.entries, has_arrived, now)
        if estimator is None or lease.is_answered:
            return False
        estimator.answer(lease.granted_at)
        if lease.is_unused or estimator.is_idle:
            return False
        has_learned = estimator.record_success(lease.granted_at, self.max_concurrent, now)
        if estimator.is_idle:
            self._has_started = True
            self._update_is_free()
        return has_learned

    def resets_at(self, now: float) -> float:
        """Return when the first long window with quota left resets; infinite if there is none."""
        return math.inf if self.limiter is None else self.limiter.resets_at(now)

    def confirm(self, charge: Charge, lease: PacedLease, now: float) -> None:
        """Note that the request of a lease has arrived: windows that begin with their first use have begun. No-op if it
        was never sent."""
        if charge.limiter is not None and charge.entries is not None and lease.requests:
            charge.limiter.confirm(charge.entries, now)

    # --- storing and restoring ------------------------------------------------------------------------------------

    def usage_state(self, live: Iterable[Charge], now: float) -> UsageState | None:
        """Return the usage of the declared limits for storage, without that of live leases with these charges; None if
        no limit is declared."""
        if self.limiter is None:
            return None
        entries = [charge.entries for charge in live if charge.limiter is self.limiter and charge.entries is not None]
        return self.limiter.state(entries, now)

    def forecast(self, now: float) -> tuple[Limits, UsageState | None]:
        """Return all limits that are known, declared or stated by answers, and their usage with instants from `now` on:
        for a simulation that starts at 0."""
        if self.limiter is None:
            return self.limits, None
        reported = [counted.window for counted in self.limiter.windows.values() if counted.is_reported]
        limits = replace(self.limits, windows=(*self.limits.windows, *reported)) if reported else self.limits
        state = usage_state(self.limiter, (), now, with_reported=True)
        rows = [row._replace(start=row.start - now) for row in state.rows]
        bucket = None if state.bucket is None else (state.bucket[0], state.bucket[1] - now)
        return limits, UsageState(rows, bucket)

    def restore_usage(self, state: UsageState, calendar: Calendar, now: float) -> None:
        """Set the usage that `usage_state` returned."""
        if self.limiter is None:  # no limit is declared any more
            self.calendar = calendar
            self.limiter = RateLimiter(self.limits, calendar, now)
            self._update_is_free()
        self.limiter.restore(state, now)

    def lease_usage(self, charge: Charge) -> list[LeaseShare] | None:
        """Return what a live lease occupies of the declared limits, for storage."""
        if self.limiter is None or charge.limiter is not self.limiter or charge.entries is None:
            return None
        return self.limiter.occupied_by(charge.entries)

    def restore_lease(self, lease: PacedLease, usage: Sequence[LeaseShare] | None, now: float) -> Charge:
        """Charge a lease that was live when the usage was stored: what it occupies is restored, its rate is not."""
        charge = Charge(self.limiter, None, None)
        if self.limiter is not None and usage is not None:
            entries = self.limiter.restore_lease(usage, lease.granted_at)
            charge = Charge(self.limiter, entries, None)
        if self.is_free:
            self.count(lease.requests, now)
        return charge

    # --- learning -------------------------------------------------------------------------------------------------

    def refuse(self, lease: PacedLease, charge: Charge, later: int, earlier: int, hint: float | None, now: float
               ) -> float:  # fmt: skip
        """Learn from a refusal; return the seconds to wait. `earlier` and `later`: requests in flight that were sent
        before and after it."""
        estimator = self._estimator(lease.scope, now)
        if charge.estimator is estimator:  # counts also those sent after it that have been answered
            later = estimator.sent - charge.number
        self.is_free = False
        if estimator.estimate is None:
            estimator.begin(self._busy_since, self.sent - self._busy_sent)
        return estimator.refuse(lease.granted_at, later, earlier, hint, now)

    def ramp_up(self, scope: str | None, at: float, now: float) -> None:
        """Start slowly again after a cool-down that ends at `at`."""
        if self.max_concurrent > 1:  # one request at a time needs no ramp
            self._estimator(scope, now).ramp_up(at)

    def observe(self, lease: PacedLease, verdict: Verdict, reserved: int, now: float) -> None:
        """Apply the headers of an answer. `reserved`: tokens of other requests in flight."""
        estimator = self._estimator(lease.scope, now)
        self.is_free = False
        if verdict.limit_requests is not None:
            estimator.observe(
                lease.granted_at,
                verdict.limit_requests,
                verdict.requests_period or 60.0,
                verdict.remaining_requests,
                verdict.reset_requests,
                now,
            )
        if verdict.limit_tokens is not None:
            period = verdict.tokens_period or 60.0
            estimator.observe_tokens(verdict.limit_tokens, period, verdict.remaining_tokens, reserved, now)

    def report(self, lease: PacedLease, charge: Charge | None, reports: Sequence[WindowReport], now: float) -> None:
        """Apply what an answer states about windows."""
        if self.limiter is None:
            self.limiter = RateLimiter(self.limits, self.calendar or _never, now)
            self._update_is_free()
        taken = None if charge is None else charge.entries
        self.limiter.report(reports, lease.scope, lease.granted_at, taken, now)

    def rate(self) -> float | None:
        """Return requests per second, declared or learned; the smaller if both are known."""
        rates = [limit / 60.0 for limit in self.learned_limits().values()]
        if self.limits.rate is not None:
            rates.append(self.limits.rate)
        return min(rates, default=None)

    def start_with(self, scope: str | None, rate: float, now: float) -> None:
        """Adopt a rate, in requests per second, that was learned elsewhere."""
        self._estimator(scope, now).start_with(rate, now)

    @property
    def has_started(self) -> bool:
        """Return whether the slow start is over in all scopes that were used."""
        if not self.estimators:
            return self._has_started
        return all(estimator.slow_start is None for estimator in self.estimators.values())

    def skip_slow_start(self, scope: str | None, now: float) -> None:
        """Begin as a group does that was used before."""
        self._has_started = True
        self._estimator(scope, now).slow_start = None
        self._update_is_free()

    def forget_rate(self, scope: str | None, now: float) -> None:
        """Learn the rate of a scope anew, without a slow start: another limit explains the refusals."""
        if self.estimators.pop(scope, None) is not None:
            self.skip_slow_start(scope, now)

    def newly_learned(self, scope: str | None) -> float | None:
        """Return requests per minute once, when an undeclared limit has become known."""
        estimator = self.estimators.get(scope)
        if estimator is None or estimator.is_announced or self.limits.requests_per_minute is not None:
            return None
        requests_per_minute = estimator.requests_per_minute
        estimator.is_announced = requests_per_minute is not None
        return requests_per_minute

    def learned_limits(self) -> dict[str | None, float]:
        """Return requests per minute by scope, for limits that are known and were not declared."""
        if self.limits.requests_per_minute is not None:
            return {}
        limits = {scope: estimator.requests_per_minute for scope, estimator in self.estimators.items()}
        return {scope: limit for scope, limit in limits.items() if limit is not None}

    @property
    def main_scope(self) -> str | None:
        """The scope of a request that names none, for a plan: the one with most requests so far. If these named none,
        a scope with a learned limit comes first: items behind a gateway lease without one, and their requests do."""
        if not self.estimators:
            return None
        main = max(self.estimators, key=lambda scope: (self.estimators[scope].sent, scope is None))
        learned = {} if main is not None else self.learned_limits()
        return max(learned, key=lambda scope: self.estimators[scope].sent, default=main)

    def _estimator(self, scope: str | None, now: float, *, starts_full: bool = True) -> RateEstimator:
        """Return the estimator of a scope; create it if there is none."""
        estimator = self.estimators.get(scope)
        if estimator is None:
            if len(self.estimators) >= MAX_ESTIMATORS:
                busy = [(key, value) for key, value in self.estimators.items() if value.in_flight or not value.is_idle]
                self.estimators = dict(busy[-MAX_ESTIMATORS // 2 :])
            self.is_free = False
            estimator = self.estimators[scope] = RateEstimator(
                now, self.limits.rate, self.max_concurrent, starts_full=starts_full
            )
        return estimator

    def _update_is_free(self) -> None:
        self.is_free = (
            self.limiter is None
            and (self.max_concurrent <= 1 or self._has_started)
            and all(estimator.is_idle for estimator in self.estimators.values())
        )
