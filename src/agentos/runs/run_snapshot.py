"""RunSnapshot: a run and its pool at one instant, for the live display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agentos.bounds import TRIAL, Bound
from agentos.items.results import ProgressStats, RunningItem
from agentos.pool.states import CredentialState


class RunSnapshot(NamedTuple):
    """A run at one instant. Its parts agree: a credential is in use if a running item uses it."""

    at: float  # epoch
    stats: ProgressStats
    running: list[RunningItem]  # the oldest ones
    bound: Bound | None  # what binds the run; None: it waits for its last items
    credentials: tuple[CredentialState, ...] = ()
    held: int = 0  # running items of which a request waits for a credential, in a run with a gateway


def matching_states(states: Sequence[CredentialState], attempts: Mapping[str, int]) -> tuple[CredentialState, ...]:
    """Return the states with at least as many leases as attempts of the run use each credential: an attempt may have
    started, and its lease be granted, after the pool was asked. `attempts`: running ones by credential id."""
    return tuple(_with_leases(state, attempts.get(state.key_id, 0)) for state in states)


def _with_leases(state: CredentialState, attempts: int) -> CredentialState:
    if attempts <= state.live_leases:
        return state
    has_room = attempts < state.max_concurrent
    return replace(state, live_leases=attempts, in_use=True, is_available=state.is_available and has_room)


def with_rests(states: Sequence[CredentialState], rests: Mapping[str, tuple[float, str]], now: float
               ) -> tuple[CredentialState, ...]:  # fmt: skip
    """Return the states with what rests in this run only: for how many seconds, and why. `now`: epoch seconds. A
    credential on trial serves an item: it does not rest."""
    ends = {id_: (now + seconds, reason) for id_, (seconds, reason) in rests.items() if reason != TRIAL}
    return tuple(_with_rest(state, *ends[state.key_id]) if state.key_id in ends else state for state in states)


def _with_rest(state: CredentialState, until: float, reason: str) -> CredentialState:
    if state.rate_limited_until is not None and state.rate_limited_until > until:
        return state
    return replace(state, rate_limited_until=until, cooled_until=until, cooled_by={**state.cooled_by, "": reason})
