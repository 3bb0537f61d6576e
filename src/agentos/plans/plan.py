"""Plan a run: simulate how long it would take, what binds it, and what would change that. For
`ParallelCoordinator.plan` and the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from agentos import bounds
from agentos.bounds import Bound, RunFacts, decide
from agentos.costs.amounts import money_text
from agentos.durations import format_duration
from agentos.limits.amounts import Detail
from agentos.plurals import plural
from agentos.pool.simulation import Work, simulate
from agentos.pool.states import CredentialForecast
from agentos.reporters.bound_text import bound_text
from agentos.reporters.format import clock_time

from ._changes import changes_of, learned_name, twice_the_workers


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The forecast of a run in which every attempt succeeds and takes `item_seconds`. `str()` of it is for people."""

    items: int
    workers: int  # items at once; with "auto" as many as the credentials admit
    item_seconds: float
    seconds: float  # from the first start to the last end; infinite if it would never end
    bound_by: str  # what the run would wait for most of the time: a sentence
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
    budget_total: float | None = None  # with what it has spent before; None: it has spent nothing
    starts_at: float | None = None  # epoch seconds; None: not known
    is_auto: bool = False  # the credentials, and not a given number, decide how many items run at once

    @property
    def cost(self) -> float | None:
        """Return the money that the run would cost if it had no budget; None if that is not known."""
        return None if self.item_cost is None else self.items * self.item_cost

    @property
    def ends_at(self) -> float | None:
        """Return the epoch second at which the run would be done; None if it would never be, or that is not known."""
        return None if self.starts_at is None or self.seconds == math.inf else self.starts_at + self.seconds

    def __str__(self) -> str:
        each = "" if self.requests_per_item == 1 else f", {self.requests_per_item:.4g} requests each,"
        at_once = f"up to {plural(self.workers, 'item')} at once" if self.is_auto else plural(self.workers, "worker")
        done_by = ""
        if self.items and self.starts_at is not None and self.ends_at is not None:
            done_by = f", done by {clock_time(self.ends_at, self.starts_at)}"
        assumed = f"at {self.item_seconds:.3g} s per item{each} and {at_once}"
        if not self.items:
            return "0 items: nothing to do"
        lines = [
            f"{plural(self.items, 'item')}: about {format_duration(self.seconds)}{done_by} ({assumed})",
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
        if self.budget is not None and self.budget_total is not None:
            budget = f"; {money_text(self.budget)} is left of the budget of {money_text(self.budget_total)}"
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
    requests = work._replace(
        items=math.ceil(work.items * requests_per_item),
        item_seconds=work.item_seconds / requests_per_item,
        tokens=tuple(math.ceil(tokens / requests_per_item) for tokens in work.tokens),
        detail=None if work.detail is None else _share_of(work.detail, requests_per_item),
    )
    plan = _plan(credentials, requests)
    return replace(
        plan,
        items=work.items,
        item_seconds=work.item_seconds,
        too_large=math.ceil(plan.too_large / requests_per_item),
        requests_per_item=requests_per_item,
    )


def _share_of(detail: Detail, requests: float) -> Detail:
    """Return what one of several requests of an item uses."""
    return Detail(
        math.ceil(detail.input_tokens / requests), math.ceil(detail.output_tokens / requests), detail.cost / requests
    )


def _plan(credentials: list[CredentialForecast] | None, work: Work) -> RunPlan:
    if credentials is None:
        return _plan_without_credentials(work)
    if not credentials and work.items:
        bound_by = bound_text(Bound(bounds.NO_CREDENTIAL))
        return RunPlan(work.items, work.workers, work.item_seconds, math.inf, bound_by)
    outcome = simulate(credentials, work)
    bound = learned_name(outcome.bound, credentials)
    return RunPlan(
        work.items,
        outcome.peak if work.is_auto else work.workers,
        work.item_seconds,
        outcome.seconds,
        bound_text(bound),
        outcome.requests,
        outcome.utilisation,
        outcome.too_large,
        tuple(c.id for c in credentials if not c.limits.is_paced and c.learned is None),
        changes_of(credentials, work, outcome.seconds, bound),
        learned_at_once={
            c.id: c.at_once or c.limits.first_concurrent
            for c in credentials
            if c.is_concurrency_learned and c.is_proven
        },
        is_auto=work.is_auto,
    )


def _plan_without_credentials(work: Work) -> RunPlan:
    running = min(work.items, work.workers)
    facts = RunFacts(
        work.workers,
        running,
        work.items > work.workers,
        workers_by=work.workers_by,
        workers_detail=work.workers_detail,
    )
    bound = decide(facts, 0.0)
    changes = {}
    if work.items > work.workers:
        changes[twice_the_workers(work)] = _without_credentials(work._replace(workers=2 * work.workers))
    seconds = _without_credentials(work)
    return RunPlan(work.items, work.workers, work.item_seconds, seconds, bound_text(bound), changes=changes)


def _without_credentials(work: Work) -> float:
    return math.ceil(work.items / work.workers) * work.item_seconds
