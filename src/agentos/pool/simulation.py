"""Simulates a run in virtual time: how long it takes, and which limit binds it.

The allocator is the real one, with the same limits, order and choice of credential; only the clock is virtual and every
answer is a success. Tests use `Simulation` to run the rules against providers that refuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, NamedTuple

from agentos.bounds import Bound, BoundTimes, RunFacts, decide
from agentos.events import PoolWaiting
from agentos.items.parallelism import with_open_requests
from agentos.limits.amounts import Detail, amount_of, in_units
from agentos.limits.declaration import REQUESTS, ROLLING, TOKENS, WINDOW_SECONDS, Limits, Window
from agentos.verdict import Verdict

from ._rules.allocator import Allocator
from ._rules.credential_changes import without_calendar
from ._rules.lease_states import LIVE
from ._rules.records import LeaseRecord
from ._rules.wait_reasons import explain
from .states import CredentialForecast

# The limit that binds is looked up SAMPLES times per run, at least every MAX_UNSAMPLED events, and before every wait of
# more than LONG_WAIT seconds.
SAMPLES = 100
MAX_UNSAMPLED = 250
LONG_WAIT = 1.0
# Seconds: what binds a simulated run for less is not named.
MIN_SECONDS = 0.01
# A run is steady if in STEADY_PERIODS periods in a row the numbers of started items differ at most by this factor.
STEADY_PERIODS = 5
STEADY = 1.005
# A long window does not bind a run if it has room for this many times the requests that are to come.
MARGIN = 1.05


class Work(NamedTuple):
    """The items of a run. They differ only in their tokens, which are those of `tokens` in turn."""

    items: int
    workers: int
    item_seconds: float
    tokens: tuple[int, ...] = (0,)
    is_auto: bool = False  # `workers` is an upper bound: as many items run as the credentials admit
    detail: Detail | None = None  # of the tokens of each item by direction, and its cost
    scope: str | None = None  # the model that all items use
    workers_by: str | None = None  # the resource that bounds `workers`, and its figures; None: a person gave the number
    workers_detail: str | None = None


class Outcome(NamedTuple):
    """The result of a simulated run. `seconds` is infinite if it would never end."""

    seconds: float
    bound: Bound | None  # what binds the run; None: nothing
    requests: dict[str, int]  # by credential
    utilisation: dict[str, float]  # by credential, from 0 to 1
    too_large: int  # items that no limit allows
    peak: int  # items at once


class Simulation:
    """One run over one pool, from event to event."""

    def __init__(self, pool: Allocator, work: Work, *,
                 latency: Callable[[LeaseRecord, float], float] | None = None,
                 answer: Callable[[LeaseRecord, float], Verdict | None] | None = None) -> None:  # fmt: skip
        self.pool = pool
        self.work = work
        self.now = 0.0
        self.remaining = work.items
        self.running = 0
        self.waiting = 0
        self.ended_at = 0.0
        self.too_large = 0
        self.peak = 0  # items at once
        # By credential: requests, tokens, and seconds in use.
        self.requests: dict[str, float] = defaultdict(float)
        self.tokens: dict[str, float] = defaultdict(float)
        self.busy: dict[str, float] = defaultdict(float)
        self.bound_times = BoundTimes(0.0)
        self.events: list[Any] = []  # events
        self._bound: Bound | None = None
        self._was_waiting = False
        self._latency = latency
        self._answer = answer
        self._ends: list[tuple[float, int, LeaseRecord]] = []
        self._numbers = 0
        self._event_count = 0
        self._sample_each = max(1, min(MAX_UNSAMPLED, work.items // SAMPLES))

    def run(self, until: float = inf) -> bool:
        """Run until all items are done, nothing more can happen, or `until`; return whether more events follow."""
        pool = self.pool
        self._fill()
        while self._ends or pool.waiting:
            wake_at = pool.next_wake_at()
            ends_at = self._ends[0][0] if self._ends else inf
            next_at = min(ends_at, inf if wake_at is None else wake_at)
            if next_at > until or next_at == inf:
                return next_at < inf
            self._note_bound(next_at)
            self.now = next_at
            if ends_at <= self.now:
                self._end(heappop(self._ends)[2])
            else:
                pool.advance(self.now)
            self._start_served()
            self._fill()
        return False

    def _fill(self) -> None:
        work, pool = self.work, self.pool
        while self.remaining and self.running + self.waiting < self._max_items():
            tokens = work.tokens[(work.items - self.remaining) % len(work.tokens)]
            record = LeaseRecord(None, 1, tokens, work.scope, detail=work.detail)
            record.waits_for_probe = True
            self.remaining -= 1
            if pool.request(record, self.now):
                self._start(record)
            elif record.sequence:
                self.waiting += 1
            else:  # too large for any limit: it fails, and takes no time
                self.too_large += 1

    def _max_items(self) -> int:
        """Return how many items may run or request a lease. A run whose number of workers is "auto" requests a few
        leases more than it has, so that the credentials decide."""
        if not self.work.is_auto:
            return self.work.workers
        return min(self.work.workers, with_open_requests(self.running))

    def _start_served(self) -> None:
        served, self.pool.served = self.pool.served, []
        self.events.extend(self.pool.events)
        self.pool.events.clear()
        for record in served:
            self.waiting -= 1
            if record.state == LIVE:
                self._start(record)

    def _start(self, record: LeaseRecord) -> None:
        assert record.credential is not None
        seconds = self.work.item_seconds if self._latency is None else self._latency(record, self.now)
        self.running += 1
        self.peak = max(self.peak, self.running)
        self._numbers += 1
        name = record.credential.id
        self.requests[name] += record.requests
        self.tokens[name] += record.tokens
        self.busy[name] += seconds
        heappush(self._ends, (self.now + seconds, self._numbers, record))

    def _end(self, record: LeaseRecord) -> None:
        pool = self.pool
        verdict = None if self._answer is None else self._answer(record, self.now)
        self.running -= 1
        self.ended_at = self.now
        if verdict is not None:
            self.remaining += 1
        pool.lease_end.end(record, self.now, verdict, success=True)

    def _note_bound(self, next_at: float) -> None:
        """Add the time until the next event to what binds the run. The search for the binding limit is slow: it is done
        for samples and for long waits."""
        seconds, is_waiting = next_at - self.now, self.waiting > 0
        self._event_count += 1
        is_sample = self._event_count % self._sample_each == 0 or seconds > LONG_WAIT
        if is_waiting != self._was_waiting or is_sample or not self.remaining:
            self._was_waiting = is_waiting
            waiting = explain(self.pool, self.work.scope, self.now) if is_waiting else None
            self._bound = decide(self._facts(waiting), self.now)
        self.bound_times.add(self._bound, seconds, next_at)

    def _facts(self, waiting: PoolWaiting | None) -> RunFacts:
        work = self.work
        return RunFacts(
            work.workers,
            self.running,
            self.remaining > 0,
            waiting,
            workers_by=work.workers_by,
            workers_detail=work.workers_detail,
            has_keys=True,
        )


def simulate(forecasts: list[CredentialForecast], work: Work) -> Outcome:
    """Simulate a run over credentials as they are now; return its duration and what binds it."""
    pool = Allocator()
    for forecast in forecasts:
        limits = forecast.limits
        if limits.requests_per_minute is None and forecast.learned is not None:
            limits = replace(limits, requests_per_minute=forecast.learned)
        calendar = forecast.calendar or without_calendar
        pool.add(forecast.id, forecast.group, forecast.provider, forecast.scopes, limits, 0.0, calendar)
        credential = pool.credentials[forecast.id]
        pace = credential.group.pace
        if forecast.usage is None and pace.limiter is not None:
            pace.limiter.use_before(forecast.used, 0.0)
        elif forecast.usage is not None and len(credential.group.members) == 1:  # else another member has restored it
            pace.restore_usage(forecast.usage, calendar, 0.0)
        if forecast.is_proven:
            credential.is_proven = True
        if forecast.has_started:
            pace.skip_slow_start(work.scope, 0.0)
        if credential.concurrency is not None and forecast.at_once is not None:
            credential.concurrency.limit = forecast.at_once
            credential.follow_concurrency()
        if forecast.cooling:
            pool.cool(credential.cooldown_scopes[0], None, forecast.cooling, forecast.cooled_by, 0.0)
    run = Simulation(pool, work)
    skipped = _run(run)
    seconds = run.ended_at + skipped if not (run.remaining or run.waiting or run.running) else inf
    requests = {id_: int(run.requests[id_]) for id_ in pool.credentials}
    return Outcome(
        seconds,
        run.bound_times.longest(MIN_SECONDS),
        requests,
        _utilisation(pool, run, seconds),
        run.too_large,
        run.peak,
    )


def _run(run: Simulation) -> float:
    """Run to the end; return the seconds that were extrapolated.

    A long run repeats itself: once it is steady, whole periods are added by calculation. A period is the window of a
    limit, rounded up to whole items. Not if a longer window than a minute will bind the run.
    """
    work, seconds = run.work, 0.0
    if len(work.tokens) == 1 and work.item_seconds > 0:
        period = work.item_seconds * ceil(WINDOW_SECONDS / work.item_seconds)
        tallies: tuple[dict[Any, float], ...] = (run.requests, run.tokens, run.busy, run.bound_times.seconds)
        before, counts = [dict(tally) for tally in tallies], [0] * STEADY_PERIODS
        until = period - work.item_seconds / 2.0  # between the ends of items
        remaining = run.remaining
        while run.run(until) and run.remaining:
            counts = [*counts[1:], remaining - run.remaining]
            if 0 < max(counts) <= min(counts) * STEADY and _fits_long_windows(run):
                periods = run.remaining // counts[-1]
                run.remaining -= periods * counts[-1]
                seconds = periods * period
                for tally, old in zip(tallies, before, strict=True):
                    for name in tally:
                        tally[name] += periods * (tally[name] - old.get(name, 0.0))
                break
            before, remaining = [dict(tally) for tally in tallies], run.remaining
            until += period
    run.run()
    return seconds


def _fits_long_windows(run: Simulation) -> bool:
    """Return whether no window of more than a minute will bind a run, if its groups go on sharing the items as so
    far."""
    started = sum(run.requests.values())
    tokens, detail = run.work.tokens[0], run.work.detail
    for group in {credential.group for credential in run.pool.credentials.values()}:
        share = sum(run.requests[id_] for id_ in group.members) / started
        windows = () if group.pace.limiter is None else group.pace.limiter.windows.values()
        for counted in windows:
            if counted.window.seconds > WINDOW_SECONDS:
                each = amount_of(counted.kind, 1, tokens, detail)
                if counted.counter.total + MARGIN * share * run.remaining * each > counted.counter.limit:
                    return False
    return True


def _utilisation(pool: Allocator, run: Simulation, seconds: float) -> dict[str, float]:
    """Return by credential the used share of the limit that was used most, or of its leases if that is more."""
    shares = {}
    for id_, credential in pool.credentials.items():
        limits, members = credential.group.pace.limits, credential.group.members.values()
        requests = sum(run.requests[member.id] for member in members)
        tokens = sum(run.tokens[member.id] for member in members)
        used = []
        if 0 < seconds < inf:
            used.append(run.busy[id_] / (seconds * credential.max_concurrent))
            for window in limits.all_windows():
                amount = _total(window, requests, tokens, run.work.detail)
                used.append(amount / _capacity(window, limits, seconds))
        shares[id_] = min(1.0, max(used, default=0.0))
    return shares


def _total(window: Window, requests: float, tokens: float, detail: Detail | None) -> float:
    """Return what all requests use of a window."""
    if detail is None or window.of in (REQUESTS, TOKENS):
        return amount_of(window.of, requests, tokens, None)
    return requests * amount_of(window.of, 1, 0, detail)


def _capacity(window: Window, limits: Limits, seconds: float) -> float:
    """Return what a window admits in a time that begins with it unused."""
    amount = in_units(window.of, limits.usable(window))
    if window.resets != ROLLING or window.every == "month":
        return amount * (1 + seconds // window.seconds)
    if window.of == REQUESTS:  # its token bucket spreads them
        return amount / window.seconds * seconds + (limits.burst or max(1.0, amount / window.seconds))
    return amount * (1.0 + seconds / window.seconds)
