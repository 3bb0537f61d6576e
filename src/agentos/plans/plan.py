"""`ParallelCoordinator.plan`: how long a run would take, which limit binds it, and what would change that."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from agentos.durations import format_duration
from agentos.events import KEYS, WORKERS
from agentos.limits.declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, Limits
from agentos.pool.simulation import Outcome, Work, simulate
from agentos.pool.states import CredentialForecast

# What would change is worked out on so many items at most, and scaled.
MOST_COMPARED = 10_000
_FIELDS = {
    REQUESTS_PER_MINUTE: "requests_per_minute",
    TOKENS_PER_MINUTE: "tokens_per_minute",
    REQUESTS_PER_DAY: "requests_per_day",
}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run, as the rules say it would go if every answer were a good one and took `item_seconds`.

    `str` of it is a text for people.
    """

    items: int
    workers: int
    item_seconds: float
    seconds: float  # from the first start to the last end; infinite if it would never end
    bound_by: str  # the limit, or whatever else the run would wait for most of the time
    requests: dict[str, int] = field(default_factory=dict)  # by credential id
    utilisation: dict[str, float] = field(default_factory=dict)  # by credential id, from 0 to 1: of what it may be used
    too_large: int = 0  # items that need more than any limit allows: they would fail
    unknown: tuple[str, ...] = ()  # credentials of whose limits nothing is known: as if they had none
    changes: dict[str, float] = field(default_factory=dict)  # what might be changed -> seconds that it would take then

    def __str__(self) -> str:
        assumed = f"at {self.item_seconds:g} s per item and {self.workers} workers"
        lines = [
            f"{self.items} items take about {format_duration(self.seconds)} ({assumed})",
            f"  Bound by: {self.bound_by}",
        ]
        if self.too_large:
            lines.append(f"  {self.too_large} items need more than any limit allows, and would fail")
        if self.unknown:
            lines.append(f"  Taken to have no limit, as none is known: {', '.join(self.unknown)}")
        for id_, share in self.utilisation.items():
            lines.append(f"  {id_}: {self.requests[id_]} requests, {share:.0%} used")
        lines += [f"  With {change}: about {format_duration(seconds)}" for change, seconds in self.changes.items()]
        return "\n".join(lines)


def make_plan(credentials: list[CredentialForecast] | None, work: Work) -> RunPlan:
    """`credentials`: None for a run that needs none."""
    if credentials is None:
        seconds = _without_credentials(work)
        bound_by = _told(WORKERS, work) if work.items > work.workers else _told(None, work)
        changes = {}
        if work.items > work.workers:
            changes["twice the workers"] = _without_credentials(work._replace(workers=2 * work.workers))
        return RunPlan(work.items, work.workers, work.item_seconds, seconds, bound_by, changes=changes)
    if not credentials and work.items:
        return RunPlan(work.items, work.workers, work.item_seconds, math.inf, "no usable credential")
    outcome = simulate(credentials, work)
    return RunPlan(
        work.items,
        work.workers,
        work.item_seconds,
        outcome.seconds,
        _told(outcome.bound_by, work),
        outcome.requests,
        outcome.utilisation,
        outcome.too_large,
        tuple(c.id for c in credentials if not c.limits.is_paced and c.learned is None),
        _changes(credentials, work, outcome),
    )


def _without_credentials(work: Work) -> float:
    return math.ceil(work.items / work.workers) * work.item_seconds


def _changes(credentials: list[CredentialForecast], work: Work, outcome: Outcome) -> dict[str, float]:
    """What one more key, and more of what binds, would change."""
    if not credentials or not work.items:
        return {}
    # Days are steps, and cannot be scaled.
    most = work.items if outcome.bound_by == REQUESTS_PER_DAY else MOST_COMPARED
    few = work._replace(items=min(work.items, most))
    before = outcome.seconds if few == work else simulate(credentials, few).seconds
    first = credentials[0]
    one_more = first._replace(id="one more", group="one more", cooling=0.0, used_today=0)
    ways = {"one more credential": ([*credentials, one_more], few)}
    if outcome.bound_by == WORKERS:
        ways["twice the workers"] = (credentials, few._replace(workers=2 * few.workers))
    elif outcome.bound_by == KEYS:
        ways["twice max_concurrent"] = (
            [_with(c, max_concurrent=2 * c.limits.max_concurrent) for c in credentials],
            few,
        )
    elif outcome.bound_by is not None:
        ways[f"twice the {outcome.bound_by}"] = ([_twice(c, outcome.bound_by) for c in credentials], few)
    return {name: _scaled(outcome.seconds, before, simulate(*way).seconds) for name, way in ways.items()}


def _scaled(seconds: float, before: float, after: float) -> float:
    return seconds * after / before if 0 < before < math.inf and after < math.inf else after


def _twice(credential: CredentialForecast, limit: str) -> CredentialForecast:
    name = _FIELDS.get(limit)
    if name is None:  # learned
        return credential._replace(learned=None if credential.learned is None else 2 * credential.learned)
    value = getattr(credential.limits, name)
    if value is None and credential.learned is not None:
        return credential._replace(learned=2 * credential.learned)
    return credential if value is None else _with(credential, **{name: 2 * value})


def _with(credential: CredentialForecast, **changed: float) -> CredentialForecast:
    limits: Limits = replace(credential.limits, **changed)  # type: ignore[arg-type]
    return credential._replace(limits=limits)


def _told(bound_by: str | None, work: Work) -> str:
    if bound_by is None:
        return "nothing: there is little to do"
    if bound_by == WORKERS:
        return f"{work.workers} workers"
    return "the credentials, all in use (max_concurrent)" if bound_by == KEYS else bound_by
