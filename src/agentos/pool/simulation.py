"""A run in virtual time: how long it would take, what would bind it, and what would change that.

The pool is the real one, with the same limits, the same order and the same choice of credential; only time passes by
itself and every answer is a good one. `Simulation` is also how the rules are tested against providers that refuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, NamedTuple

from agentos.events import KEYS, WORKERS
from agentos.limits.declaration import WINDOW_SECONDS
from agentos.verdict import RATE_LIMITED, Verdict

from ._rules.allocator import Allocator
from ._rules.records import LeaseRecord
from ._rules.wait_reasons import explain
from .lease_states import LIVE
from .states import CredentialForecast

# Which limit binds is asked so often in the course of a plan, at least after so many events, and whenever nothing
# happens for so many seconds.
SAMPLES = 100
MOST_EVENTS = 250
LONG_WAIT = 1.0
# A run has become steady when so many periods in a row began as many items, or at most so many times as many.
STEADY_PERIODS = 5
STEADY = 1.005


class Work(NamedTuple):
    """What there is to do. Items differ only in their tokens, which are those of `tokens` in turn."""

    items: int
    workers: int
    item_seconds: float
    tokens: tuple[int, ...] = (0,)


class Outcome(NamedTuple):
    """Of a simulated run. Seconds are infinite where it would never end."""

    seconds: float
    bound_by: str | None  # a limit's name, WORKERS, KEYS, or None: nothing
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
        self.left = work.items
        self.running = 0
        self.asking = 0
        self.ended_at = 0.0
        self.too_large = 0
        # By credential: requests and tokens used, seconds in use. And by reason, for how many seconds it held.
        self.requests: dict[str, float] = defaultdict(float)
        self.tokens: dict[str, float] = defaultdict(float)
        self.busy: dict[str, float] = defaultdict(float)
        self.held: dict[str, float] = defaultdict(float)
        self.told: list[Any] = []  # events
        self._reason: str | None = None
        self._latency = latency
        self._answer = answer
        self._ends: list[tuple[float, int, LeaseRecord]] = []
        self._numbers = 0
        self._events = 0
        self._sample_each = max(1, min(MOST_EVENTS, work.items // SAMPLES))

    def run(self, until: float = inf) -> bool:
        """Until all is done, nothing more can happen, or `until`. Returns whether it goes on after that."""
        pool = self.pool
        self._fill()
        while self._ends or pool.waiting:
            wake_at = pool.next_wake_at()
            ends_at = self._ends[0][0] if self._ends else inf
            then = min(ends_at, inf if wake_at is None else wake_at)
            if then > until or then == inf:
                return then < inf
            self._note_what_binds(then)
            self.now = then
            if ends_at <= self.now:
                self._end(heappop(self._ends)[2])
            else:
                pool.advance(self.now)
            self._start_served()
            self._fill()
        return False

    def _fill(self) -> None:
        work, pool = self.work, self.pool
        while self.left and self.running + self.asking < work.workers:
            record = LeaseRecord(requests=1, tokens=work.tokens[(work.items - self.left) % len(work.tokens)])
            record.waits_for_probe = True
            self.left -= 1
            if pool.request(record, self.now):
                self._start(record)
            elif record.sequence:
                self.asking += 1
            else:  # too large for any limit: it fails, and takes no time
                self.too_large += 1

    def _start_served(self) -> None:
        served, self.pool.served = self.pool.served, []
        self.told.extend(self.pool.events)
        self.pool.events.clear()
        for record in served:
            self.asking -= 1
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
            self.left += 1
        pool.lease_end.end(record, self.now, verdict, success=True)

    def _note_what_binds(self, then: float) -> None:
        """What the run waits for until then. To find out which limit takes long, so it is asked now and then, and
        whenever the wait is long."""
        seconds = then - self.now
        self._events += 1
        if not self.asking:
            self._reason = WORKERS if self.left else None
        elif self._reason in (WORKERS, None) or self._events % self._sample_each == 0 or seconds > LONG_WAIT:
            waiting = explain(self.pool, None, self.now)
            self._reason = waiting.limit or KEYS
        if self._reason is not None:
            self.held[self._reason] += seconds


def simulate(forecasts: list[CredentialForecast], work: Work) -> Outcome:
    pool = Allocator()
    for forecast in forecasts:
        limits = forecast.limits
        if limits.requests_per_minute is None and forecast.learned is not None:
            limits = replace(limits, requests_per_minute=forecast.learned)
        ends = {} if forecast.day_ends_after is None else {"day_ends_after": forecast.day_ends_after}
        pool.add(forecast.id, forecast.group, forecast.provider, forecast.scopes, limits, 0.0, **ends)
        limiter = pool.credentials[forecast.id].group.pace.limiter
        if limiter is not None:
            limiter.use_day(forecast.used_today, 0.0)
        if forecast.cooling:
            pool.cool(pool.credentials[forecast.id].cooldown_scopes[0], None, forecast.cooling, RATE_LIMITED, 0.0)
    run = Simulation(pool, work)
    skipped = _run(run)
    seconds = run.ended_at + skipped if not (run.left or run.asking or run.running) else inf
    requests = {id_: int(run.requests[id_]) for id_ in pool.credentials}
    bound_by = max(run.held, key=lambda reason: run.held[reason], default=None)
    return Outcome(seconds, bound_by, requests, _utilisation(pool, run, seconds), run.too_large)


def _run(run: Simulation) -> float:
    """To its end. A long run repeats itself, so what a number of whole periods would add is only reckoned; returns how
    many seconds that is. A period is as long as the window of a limit, in whole items; days are too long to repeat."""
    work, seconds = run.work, 0.0
    has_days = any(c.group.pace.limits.requests_per_day for c in run.pool.credentials.values())
    if len(work.tokens) == 1 and work.item_seconds > 0 and not has_days:
        period = work.item_seconds * ceil(WINDOW_SECONDS / work.item_seconds)
        tallies = (run.requests, run.tokens, run.busy, run.held)
        before, counts = [dict(tally) for tally in tallies], [0] * STEADY_PERIODS
        until = period - work.item_seconds / 2.0  # not at the instant at which items end
        left = run.left
        while run.run(until) and run.left:
            counts = [*counts[1:], left - run.left]
            if 0 < max(counts) <= min(counts) * STEADY:
                periods = run.left // counts[-1]
                run.left -= periods * counts[-1]
                seconds = periods * period
                for tally, old in zip(tallies, before, strict=True):
                    for name in tally:
                        tally[name] += periods * (tally[name] - old.get(name, 0.0))
                break
            before, left = [dict(tally) for tally in tallies], run.left
            until += period
    run.run()
    return seconds


def _utilisation(pool: Allocator, run: Simulation, seconds: float) -> dict[str, float]:
    """How much of what could have been used of it was used: of the limit that it came closest to, or of its leases."""
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
