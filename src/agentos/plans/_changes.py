"""What-ifs of a plan: how long the run would take with one more credential, and with twice of what binds it.

Each is a simulation of its own, so that everything that follows from a change does: with "auto" workers, more
credentials run more items at once.
"""

from __future__ import annotations

import math
from dataclasses import replace

from agentos import bounds
from agentos.bounds import Bound
from agentos.limits.declaration import AUTO, LEARNED_REQUESTS, REQUESTS_PER_MINUTE, WINDOW_SECONDS
from agentos.pool.simulation import Work, simulate
from agentos.pool.states import CredentialForecast

# A change is offered if the run takes at most this share of its time with it.
MAX_SHARE_OF_USEFUL = 0.99
# Items of a simulation that compares changes, at most; its durations are scaled to all items.
MAX_COMPARED_ITEMS = 10_000


def learned_name(bound: Bound | None, credentials: list[CredentialForecast]) -> Bound | None:
    """Return what binds a simulated run; its rates that were learned are simulated as declared ones."""
    if bound is None or bound.name != REQUESTS_PER_MINUTE or any(map(_declares_rate, credentials)):
        return bound
    return bound._replace(name=LEARNED_REQUESTS)


def _declares_rate(credential: CredentialForecast) -> bool:
    return any(window.name == REQUESTS_PER_MINUTE for window in credential.limits.all_windows())


def changes_of(
    credentials: list[CredentialForecast], work: Work, seconds: float, bound: Bound | None
) -> dict[str, float]:
    """Return the seconds that a run of `seconds` would take with each change."""
    if not credentials or not work.items:
        return {}
    few, sample = _reduced(credentials, work)
    before = seconds if sample == work else simulate(few, sample).seconds
    one_more = simulate(*_with_one_more(credentials, few, sample)).seconds
    changes = {"one more credential": _scaled(seconds, before, one_more)}
    if bound is not None and (twice := _twice_of(bound, few, sample)) is not None:
        after = _scaled(seconds, before, simulate(*twice[1:]).seconds)
        if after <= MAX_SHARE_OF_USEFUL * seconds:
            changes[twice[0]] = after
    return changes


def _reduced(credentials: list[CredentialForecast], work: Work) -> tuple[list[CredentialForecast], Work]:
    """Return a smaller run whose duration changes in the same proportion.

    Of equal credentials a part serves its part of the items in the same time. Else the first items stand for all, but
    not where windows of more than a minute count: then the duration has steps.
    """
    parts = [
        part
        for part in range(2, len(credentials) + 1)
        if len(credentials) % part == 0 and work.workers % part == 0 and part <= work.items // MAX_COMPARED_ITEMS
    ]
    if parts and len(work.tokens) == 1 and _are_equal(credentials):
        part = parts[-1]
        credentials = credentials[: len(credentials) // part]
        work = work._replace(items=work.items // part, workers=work.workers // part)
    if work.items <= MAX_COMPARED_ITEMS or _has_long_windows(credentials):
        return credentials, work
    return credentials, work._replace(items=MAX_COMPARED_ITEMS)


def _are_equal(credentials: list[CredentialForecast]) -> bool:
    """Return whether all credentials have the same limits, a quota group each, and were not used lately."""
    groups = {credential.group for credential in credentials}
    same = {credential._replace(id="", group="", usage=None, calendar=None) for credential in credentials}
    is_unused = all(c.usage is None or not any(row.amount for row in c.usage.rows) for c in credentials)
    return len(groups) == len(credentials) and len(same) == 1 and is_unused


def _with_one_more(credentials: list[CredentialForecast], few: list[CredentialForecast], work: Work
                   ) -> tuple[list[CredentialForecast], Work]:  # fmt: skip
    """Return a reduced run as it is with one more credential than all."""
    if len(few) < len(credentials):
        count = len(credentials)
        return few, work._replace(items=round(work.items * count / (count + 1)))
    one_more = few[0]._replace(id="one more", group="one more", cooling=0.0, used=(), usage=None)
    return [*few, one_more], work


def _has_long_windows(credentials: list[CredentialForecast]) -> bool:
    return any(window.seconds > WINDOW_SECONDS for c in credentials for window in c.limits.all_windows())


def _scaled(seconds: float, before: float, after: float) -> float:
    """Return the duration of all items after a change, from durations of a sample before and after it."""
    return seconds * after / before if 0 < before < math.inf and after < math.inf else after


def _twice_of(
    bound: Bound, credentials: list[CredentialForecast], work: Work
) -> tuple[str, list[CredentialForecast], Work] | None:
    """Return the change of what binds the run: its name, the credentials and the work; None if it cannot be doubled."""
    if bound.kind == bounds.WORKERS:
        return twice_the_workers(work), credentials, work._replace(workers=2 * work.workers)
    if bound.kind == bounds.AT_ONCE:
        return "twice max_concurrent", [_twice_at_once(c) for c in credentials], work
    if bound.kind == bounds.LIMIT and bound.name == LEARNED_REQUESTS:
        doubled = [c._replace(learned=None if c.learned is None else 2 * c.learned) for c in credentials]
        return "twice the learned requests per minute", doubled, work
    if bound.kind == bounds.LIMIT and bound.name is not None:
        doubled = [c._replace(limits=c.limits.doubled(bound.name)) for c in credentials]
        return (f"twice the {bound.name}", doubled, work) if doubled != credentials else None
    return None


def twice_the_workers(work: Work) -> str:
    """Return the name of the change that doubles the items at once."""
    return "twice the workers" if work.workers_by is None else "room for twice as many items at once"


def _twice_at_once(credential: CredentialForecast) -> CredentialForecast:
    if credential.limits.max_concurrent == AUTO:
        return credential._replace(at_once=2 * (credential.at_once or credential.limits.first_concurrent))
    return credential._replace(limits=replace(credential.limits, max_concurrent=2 * credential.limits.first_concurrent))
