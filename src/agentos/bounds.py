"""Decide what binds a run: why it does not go faster, at one instant and over its whole time.

`decide` is the only place of this decision. Runs call it with their facts, plans with those of a simulated run;
display, summary, `show` and plan print its result with `reporters.bound_text`.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from agentos.events import EXHAUSTED, STORE_LOST, PoolWaiting
from agentos.limits.declaration import DECLARED_AS

# Kinds of bounds.
LIMIT = "limit"  # a window, or a rate that was learned
COOL_DOWN = "cool-down"
AT_ONCE = "at once"  # the credentials have as many leases as they may have at once
PROBE = "probe"  # new credentials serve one request before they get more
NO_CREDENTIAL = "no credential"
STORE = "store"
WORKERS = "workers"
RAMP = "ramp"  # a run with a gateway, which adds items while no request waits for a credential
BUDGET = "budget"
COST = "cost"  # a run with a budget, in which a cost is not known
INPUT = "input"
READER = "reader"
LEDGER = "ledger"
REFUSALS = "refusals"  # a provider refused items through a gateway, which wait until it accepts requests again
PAUSES = "pauses"
# Bounds that end by themselves at an instant, or never: while they hold, nothing starts.
POOL_KINDS = frozenset({LIMIT, COOL_DOWN, AT_ONCE, PROBE, NO_CREDENTIAL, STORE})

# Seconds: a bound that held a run for less is not reported.
MIN_SECONDS = 1.0
# In place of the kind of a verdict: a credential with which attempts failed is tried by one item.
TRIAL = "tried by one item"
# Share of the time that counts in which both a limit and the number of leases hold up the next request.
SHARE_OF_UNSURE = 0.01


class Bound(NamedTuple):
    """What binds a run."""

    kind: str
    name: str | None = None  # of the limit, of the verdict of a cool-down, or of the resource that bounds the workers
    on: str | None = None  # the quota group or credential, if it is only one
    groups: int = 0  # quota groups that wait for the same
    credentials: int = 0  # that may serve the requests
    amount: float | None = None  # what the limits of these groups allow together; leases at once; workers
    at_once: int | None = None  # of LIMIT and COOL_DOWN, if the credentials also have all leases that they may have
    is_learned: bool = False  # the number of leases at once
    has_keys: bool = False  # of WORKERS: the run has credentials, which have room
    paced: int = 0  # of AT_ONCE: further credentials that wait for their next request
    paused: int = 0  # of AT_ONCE: further credentials that are paused
    quarantined: int = 0  # of NO_CREDENTIAL
    disabled: int = 0  # of NO_CREDENTIAL: taken out of use by a person
    detail: str | None = None  # of WORKERS: the resource with its figures
    held: int = 0  # of LIMIT and COOL_DOWN: of the credentials, those that wait for the same
    learned: int = 0  # of LIMIT: groups whose limit was learned, if others declare it
    until: float | None = None  # when the next request fits, in seconds of the clock of the facts


class RunFacts(NamedTuple):
    """A run at one instant."""

    workers: int
    running: int
    has_more: bool  # items that could start are there, or may come
    waiting: PoolWaiting | None = None  # why requests wait for a credential; None: none waits
    workers_by: str | None = None  # the resource that bounds the number of workers; None: a person gave it
    workers_detail: str | None = None  # the same with figures, for people
    has_keys: bool = False
    has_gateway: bool = False  # items hold no lease: each of their requests has one
    is_reader_slow: bool = False  # the results wait for the code that reads them
    is_ledger_slow: bool = False  # the results wait for the disk
    is_over_budget: bool = False  # the next item does not fit into the budget, or that is not known
    is_cost_unknown: bool = False  # the reason: the cost of a request or an item is not known
    is_input_slow: bool = False  # items were requested from the input and have not come
    is_refused: bool = False  # items wait whose last attempt a provider refused
    is_pausing: bool = False  # items pause before their next attempt


# `RunFacts.workers_by` where the number of workers is that of the leases which the credentials may have at once.
POOL = "keys"


def decide(facts: RunFacts, now: float) -> Bound | None:
    """Return what binds a run; None if it only waits for its last items. `now`: on the clock of `Bound.until`."""
    if facts.is_reader_slow:
        return Bound(READER)
    if facts.is_ledger_slow:
        return Bound(LEDGER)
    if facts.waiting is not None:
        return bound_of_pool(facts.waiting, now)
    if facts.running >= facts.workers:
        if not facts.has_more:
            return None
        if facts.workers_by == POOL and facts.has_gateway:
            return Bound(RAMP, amount=facts.workers)
        if facts.workers_by == POOL:
            return Bound(AT_ONCE, amount=facts.workers)
        detail = facts.workers_detail
        return Bound(WORKERS, facts.workers_by, amount=facts.workers, has_keys=facts.has_keys, detail=detail)
    if facts.is_over_budget:
        return Bound(COST if facts.is_cost_unknown else BUDGET)
    if facts.is_input_slow:
        return Bound(INPUT)
    if facts.is_refused:
        return Bound(REFUSALS)
    return Bound(PAUSES) if facts.is_pausing else None


def bound_of_pool(waiting: PoolWaiting, now: float) -> Bound:
    """Return what holds up a request that waits for a credential."""
    until = None if waiting.usable_in is None else now + waiting.usable_in
    if waiting.reason == STORE_LOST:
        return Bound(STORE, until=until)
    if not waiting.credentials:
        quarantined = waiting.quarantined - waiting.disabled
        return Bound(NO_CREDENTIAL, quarantined=quarantined, disabled=waiting.disabled)
    if waiting.reason == EXHAUSTED:
        kind = PROBE if waiting.at_once is not None and waiting.leases < waiting.at_once else AT_ONCE
        is_one = waiting.credentials == 1
        return Bound(kind, on=waiting.on if is_one else None, credentials=waiting.credentials - waiting.cooling,
                     amount=waiting.at_once, is_learned=waiting.is_learned,
                     paced=waiting.cooling - waiting.paused, paused=waiting.paused)  # fmt: skip
    if waiting.verdict == TRIAL:
        return Bound(PROBE, TRIAL, waiting.on, waiting.groups, waiting.credentials, held=waiting.held)
    kind, name = (COOL_DOWN, waiting.verdict) if waiting.limit is None else (LIMIT, waiting.limit)
    at_once = waiting.at_once if waiting.at_once is not None and waiting.leases >= waiting.at_once else None
    learned = waiting.learned if waiting.learned < waiting.groups else 0
    return Bound(kind, name, waiting.on, waiting.groups, waiting.credentials, waiting.amount, at_once,
                 waiting.is_learned, held=waiting.held, learned=learned, until=until)  # fmt: skip


_Cause: TypeAlias = tuple[str, str | None, str | None, int]  # kind, name, on and groups of a bound


def _after(bound: Bound) -> Bound:
    """Return what binds the run after the instant of a limit has passed, if nothing has started: leases."""
    on = None if bound.on is None else bound.on.removeprefix("credential ")
    return Bound(AT_ONCE, on=on if bound.credentials == 1 else None, credentials=bound.credentials,
                 amount=bound.at_once, is_learned=bound.is_learned)  # fmt: skip


class BoundTimes:
    """Adds up for how long each bound held a run. A limit of credentials whose leases are all in use counts little: if
    it is what binds the run, the leases end before it does, and then it holds alone."""

    def __init__(self, now: float) -> None:
        self.present: Bound | None = None
        self.seconds: dict[_Cause, float] = {}
        self._last: dict[_Cause, Bound] = {}
        self._at_once: dict[Bound, float] = {}  # seconds for which declared numbers of leases held with their figures
        self._since = now
        self._final: Bound | None = None

    def note(self, bound: Bound | None, now: float, until: float | None = None) -> None:
        """Set the bound that holds from `now` on; None if the run waits for nothing but its last items. `until`: `now`
        on the clock of `Bound.until`."""
        self.add(self.present, now - self._since, until)
        self.present, self._since = bound, now

    def add(self, bound: Bound | None, seconds: float, until: float | None = None) -> None:
        """Add seconds for which a bound held. `until`: the last instant of them, on the clock of `Bound.until`."""
        if bound is None:
            return
        if bound.at_once is not None:
            late = 0.0 if until is None or bound.until is None else min(seconds, max(0.0, until - bound.until))
            if late:
                self._count(_after(bound), late)
            self._count(bound, (seconds - late) * SHARE_OF_UNSURE)
        else:
            self._count(bound, seconds)

    def _count(self, bound: Bound, seconds: float) -> None:
        cause = bound[:4]
        self.seconds[cause] = self.seconds.get(cause, 0.0) + seconds
        self._last[cause] = bound
        if bound.kind == AT_ONCE and not bound.is_learned:
            self._at_once[bound] = self._at_once.get(bound, 0.0) + seconds

    def stop(self, bound: Bound | None) -> None:
        """Note the bound that ended the run: it counts, for however short a time it held. The first one stays."""
        self._final = self._final or bound

    def longest(self, min_seconds: float = MIN_SECONDS) -> Bound | None:
        """Return what bound the run: what ended it, else the cause that held it longest; None if none held it for
        `min_seconds`."""
        if self._final is not None:
            return self._final
        sums: dict[tuple[str, str | None], float] = {}
        for cause, seconds in self.seconds.items():
            sums[_subject(cause)] = sums.get(_subject(cause), 0.0) + seconds
        longest = max(sums, key=sums.__getitem__, default=None)
        if longest is None or sums[longest] < min_seconds:
            return None
        cause = max((c for c in self.seconds if _subject(c) == longest), key=self.seconds.__getitem__)
        # Not the last figures of leases: how many keys are paced changes within each second.
        figures = [bound for bound in self._at_once if bound[:4] == cause]
        if self._last[cause].is_learned or not figures:
            return self._last[cause]
        return max(figures, key=self._at_once.__getitem__)


def _subject(cause: _Cause) -> tuple[str, str | None]:
    """Return what a cause is counted as over all credentials: a learned limit as the declared one."""
    kind, name = cause[:2]
    return kind, None if name is None else DECLARED_AS.get(name, name)
