"""Plan a run: simulate how long it would take, which limit binds it, and what would change that. For
`ParallelCoordinator.plan` and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from agentos import bounds
from agentos.bounds import Bound, RunFacts, decide
from agentos.costs.amounts import money_text
from agentos.durations import format_duration
from agentos.limits.declaration import REQUESTS_PER_DAY, REQUESTS_PER_MINUTE, TOKENS_PER_MINUTE, Limits
from agentos.plurals import plural
from agentos.pool.simulation import Outcome, Work, simulate
from agentos.pool.states import CredentialForecast
from agentos.reporters.bound_text import bound_text

# Items of a simulation that compares changes, at most; its durations are scaled to all items.
MAX_COMPARED_ITEMS = 10_000
_FIELDS = {
    REQUESTS_PER_MINUTE: "requests_per_minute",
    TOKENS_PER_MINUTE: "tokens_per_minute",
    REQUESTS_PER_DAY: "requests_per_day",
}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The forecast of a run in which every attempt succeeds and takes `item_seconds`. `str()` of it is for people."""

    items: int
    workers: int
    item_seconds: float
    seconds: float  # from the first start to the last end; infinite if it would never end
    bound_by: str  # the limit or the resource that the run would wait for most of the time
    requests: dict[str, int] = field(default_factory=dict)  # by credential id
    utilisation: dict[str, float] = field(
        default_factory=dict
    )  # by credential id: the used share of its capacity, from 0 to 1
    too_large: int = 0  # items that need more than any limit allows, and would fail
    unknown: tuple[str, ...] = ()  # credentials without a declared or learned limit: planned without one
    changes: dict[str, float] = field(
        default_factory=dict
    )  # a possible change -> seconds that the run would take with it
    requests_per_item: float = 1.0
    learned_at_once: dict[str, int] = field(default_factory=dict)  # by credential id: requests at once learned so far
    item_cost: float | None = None  # money; None: not known
    budget: float | None = None  # money that the run may spend

    @property
    def cost(self) -> float | None:
        """Return the money that the run would cost if it had no budget; None if that is not known."""
        return None if self.item_cost is None else self.items * self.item_cost

    def __str__(self) -> str:
        each = "" if self.requests_per_item == 1 else f", {self.requests_per_item:.4g} requests each,"
        assumed = f"at {self.item_seconds:g} s per item{each} and {plural(self.workers, 'worker')}"
        lines = [
            f"{plural(self.items, 'item')}: about {format_duration(self.seconds)} ({assumed})",
            f"  Bound by: {self.bound_by}",
        ]
        if self.item_cost is not None or self.budget is not None:
            lines.append(f"  Cost: {self._cost_text()}")
        if self.too_large:
            lines.append(f"  Would fail, as no limit is large enough: {plural(self.too_large, 'item')}")
        if self.unknown:
            lines.append(f"  Planned without limits, as none are known: {', '.join(self.unknown)}")
        for id_, share in self.utilisation.items():
            learned = f", {self.learned_at_once[id_]} at once (learned so far)" if id_ in self.learned_at_once else ""
            lines.append(f"  {id_}: {plural(self.requests[id_], 'request')}, {share:.0%} used{learned}")
        lines += [f"  With {change}: about {format_duration(seconds)}" for change, seconds in self.changes.items()]
        return "\n".join(lines)

    def _cost_text(self) -> str:
        budget = "" if self.budget is None else f"; the budget is {money_text(self.budget)}"
        if self.item_cost is None or self.cost is None:
            return f"not known{budget}"
        text = f"about {money_text(self.cost)} ({money_text(self.item_cost)} per item){budget}"
        if self.budget is None or self.cost <= self.budget:
            return text
        return f"{text}, enough for about {plural(int(self.budget / self.item_cost), 'item')}"


def with_cost(plan: RunPlan, item_cost: float | None, budget: float | None) -> RunPlan:
    """Return the plan with the cost of an item and the budget of the run; raise ValueError for a negative one."""
    for name, amount in (("item_cost", item_cost), ("budget", budget)):
        if amount is not None and not 0 <= amount < math.inf:
            raise ValueError(f"{name} must be a number from 0, not {amount!r}")
    return replace(plan, item_cost=item_cost, budget=budget)


def make_plan(credentials: list[CredentialForecast] | None, work: Work, requests_per_item: float = 1.0) -> RunPlan:
    """Simulate a run and return its plan. `credentials`: None for a run without a pool. `requests_per_item`: requests
    that an item makes one after the other, each with a lease of its own, in a run with a gateway."""
    if credentials is None or requests_per_item == 1:
        return _plan(credentials, work)
    requests = Work(
        math.ceil(work.items * requests_per_item),
        work.workers,
        work.item_seconds / requests_per_item,
        tuple(math.ceil(tokens / requests_per_item) for tokens in work.tokens),
    )
    plan = _plan(credentials, requests)
    return replace(
        plan,
        items=work.items,
        item_seconds=work.item_seconds,
        too_large=math.ceil(plan.too_large / requests_per_item),
        requests_per_item=requests_per_item,
    )


def _plan(credentials: list[CredentialForecast] | None, work: Work) -> RunPlan:
    if credentials is None:
        seconds = _without_credentials(work)
        bound = decide(RunFacts(work.workers, min(work.items, work.workers), work.items > work.workers), 0.0)
        changes = {}
        if work.items > work.workers:
            changes["twice the workers"] = _without_credentials(work._replace(workers=2 * work.workers))
        return RunPlan(work.items, work.workers, work.item_seconds, seconds, bound_text(bound), changes=changes)
    if not credentials and work.items:
        bound_by = bound_text(Bound(bounds.NO_CREDENTIAL))
        return RunPlan(work.items, work.workers, work.item_seconds, math.inf, bound_by)
    outcome = simulate(credentials, work)
    return RunPlan(
        work.items,
        work.workers,
        work.item_seconds,
        outcome.seconds,
        bound_text(outcome.bound),
        outcome.requests,
        outcome.utilisation,
        outcome.too_large,
        tuple(c.id for c in credentials if not c.limits.is_paced and c.learned is None),
        _changes(credentials, work, outcome),
        learned_at_once={c.id: c.limits.first_concurrent for c in credentials if c.is_concurrency_learned},
    )


def _without_credentials(work: Work) -> float:
    return math.ceil(work.items / work.workers) * work.item_seconds


def _changes(credentials: list[CredentialForecast], work: Work, outcome: Outcome) -> dict[str, float]:
    """Return the seconds that the run would take with one more credential, and with twice of what binds it."""
    if not credentials or not work.items:
        return {}
    # A duration in days has steps, and cannot be scaled.
    bound = outcome.bound
    max_items = work.items if bound is not None and bound.name == REQUESTS_PER_DAY else MAX_COMPARED_ITEMS
    sample = work._replace(items=min(work.items, max_items))
    seconds = outcome.seconds if sample == work else simulate(credentials, sample).seconds
    first = credentials[0]
    one_more = first._replace(id="one more", group="one more", cooling=0.0, used=())
    changes = {"one more credential": ([*credentials, one_more], sample)}
    if bound is None:
        pass
    elif bound.kind == bounds.WORKERS:
        changes["twice the workers"] = (credentials, sample._replace(workers=2 * sample.workers))
    elif bound.kind == bounds.AT_ONCE:
        changes["twice max_concurrent"] = (
            [_with(c, max_concurrent=2 * c.limits.first_concurrent) for c in credentials],
            sample,
        )
    elif bound.kind == bounds.LIMIT and bound.name is not None:
        changes[f"twice the {bound.name}"] = ([_twice(c, bound.name) for c in credentials], sample)
    return {name: _scaled(outcome.seconds, seconds, simulate(*change).seconds) for name, change in changes.items()}


def _scaled(seconds: float, before: float, after: float) -> float:
    """Return the duration of all items after a change, from durations of a sample before and after it."""
    return seconds * after / before if 0 < before < math.inf and after < math.inf else after


def _twice(credential: CredentialForecast, limit: str) -> CredentialForecast:
    """Return the credential with twice the limit, declared or learned."""
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
