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
from agentos.limits.declaration import WINDOW_SECONDS
from agentos.verdict import RATE_LIMITED, Verdict

from ._rules.allocator import Allocator
from ._rules.lease_states import LIVE
from ._rules.records import LeaseRecord
from ._rules.wait_reasons import explain
from .states import CredentialForecast

# The limit that binds is looked up SAMPLES times per run, at least every MAX_UNSAMPLED events, and before every wait of
# more than LONG_WAIT seconds.
SAMPLES = 100
MAX_UNSAMPLED = 250
LONG_WAIT = 1.0
# A run is steady if in STEADY_PERIODS periods in a row the numbers of started items differ at most by this factor.
STEADY_PERIODS = 5
STEADY = 1.005


class Work(NamedTuple):
    """The items of a run. They differ only in their tokens, which are those of `tokens` in turn."""

    items: int
    workers: int
    item_seconds: float
    tokens: tuple[int, ...] = (0,)
    workers_by: str | None = None  # the resource that bounds the number of workers; None: a person gave it


class Outcome(NamedTuple):
    """The result of a simulated run. `seconds` is infinite if it would never end."""

    seconds: float
    bound: Bound | None  # what binds the run; None: nothing
    requests: dict[str, int]  # by credential
    utilisation: dict[str, float]  # by credential, from 0 to 1
    too_large: int  # items that no limit allows


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
        while self.remaining and self.running + self.waiting < work.workers:
            record = LeaseRecord(requests=1, tokens=work.tokens[(work.items - self.remaining) % len(work.tokens)])
            record.waits_for_probe = True
            self.remaining -= 1
            if pool.request(record, self.now):
                self._start(record)
            elif record.sequence:
                self.waiting += 1
            else:  # too large for any limit: it fails, and takes no time
                self.too_large += 1

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
            waiting = explain(self.pool, None, self.now) if is_waiting else None
            self._bound = decide(self._facts(waiting), self.now)
        self.bound_times.add(self._bound, seconds, next_at)

    def _facts(self, waiting: PoolWaiting | None) -> RunFacts:
        work = self.work
        return RunFacts(work.workers, self.running, self.remaining > 0, waiting, work.workers_by, has_keys=True)


def simulate(forecasts: list[CredentialForecast], work: Work) -> Outcome:
    """Simulate a run over credentials as they are now; return its duration and what binds it."""
    pool = Allocator()
    for forecast in forecasts:
        limits = forecast.limits
        if limits.requests_per_minute is None and forecast.learned is not None:
            limits = replace(limits, requests_per_minute=forecast.learned)
        ends = {} if forecast.calendar is None else {"calendar": forecast.calendar}
        pool.add(forecast.id, forecast.group, forecast.provider, forecast.scopes, limits, 0.0, **ends)
        limiter = pool.credentials[forecast.id].group.pace.limiter
        if limiter is not None:
            limiter.use_before(forecast.used, 0.0)
        if forecast.cooling:
            pool.cool(pool.credentials[forecast.id].cooldown_scopes[0], None, forecast.cooling, RATE_LIMITED, 0.0)
    run = Simulation(pool, work)
    skipped = _run(run)
    seconds = run.ended_at + skipped if not (run.remaining or run.waiting or run.running) else inf
    requests = {id_: int(run.requests[id_]) for id_ in pool.credentials}
    return Outcome(seconds, run.bound_times.longest(), requests, _utilisation(pool, run, seconds), run.too_large)


def _run(run: Simulation) -> float:
    """Run to the end; return the seconds that were extrapolated.

    A long run repeats itself: once it is steady, whole periods are added by calculation. A period is the window of a
    limit, rounded up to whole items. Runs with longer windows than a minute are not extrapolated.
    """
    work, seconds = run.work, 0.0
    windows = [window for c in run.pool.credentials.values() for window in c.group.pace.limits.all_windows()]
    has_long_ones = any(window.seconds > WINDOW_SECONDS for window in windows)
    if len(work.tokens) == 1 and work.item_seconds > 0 and not has_long_ones:
        period = work.item_seconds * ceil(WINDOW_SECONDS / work.item_seconds)
        tallies: tuple[dict[Any, float], ...] = (run.requests, run.tokens, run.busy, run.bound_times.seconds)
        before, counts = [dict(tally) for tally in tallies], [0] * STEADY_PERIODS
        until = period - work.item_seconds / 2.0  # between the ends of items
        remaining = run.remaining
        while run.run(until) and run.remaining:
            counts = [*counts[1:], remaining - run.remaining]
            if 0 < max(counts) <= min(counts) * STEADY:
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


def _utilisation(pool: Allocator, run: Simulation, seconds: float) -> dict[str, float]:
    """Return by credential the used share of the limit that was used most, or of its leases if that is more."""
    shares = {}
    for id_, credential in pool.credentials.items():
        limits, members = credential.group.pace.limits, credential.group.members.values()
        requests = sum(run.requests[member.id] for member in members)
        used = []
        if 0 < seconds < inf:
            used.append(run.busy[id_] / (seconds * credential.max_concurrent))
            if limits.rate is not None:
                used.append(requests / (limits.rate * seconds + (limits.burst or max(1.0, limits.rate))))
            if limits.tokens_per_minute is not None:
                tokens = sum(run.tokens[member.id] for member in members)
                used.append(tokens / (limits.tokens_per_minute * (1.0 + seconds / 60.0)))
            if limits.requests_per_day is not None:
                used.append(requests / (limits.requests_per_day * (1 + seconds // 86_400)))
        shares[id_] = min(1.0, max(used, default=0.0))
    return shares
