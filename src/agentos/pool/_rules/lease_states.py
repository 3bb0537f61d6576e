"""The state machine of a lease: its states, its events, and every transition that the rules make.

The rules assign states directly, because the path of a lease is measured; a test drives them through random histories
and compares what they do with TRANSITIONS.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

WAITING = "waiting"  # requested; the initial state
LIVE = "live"  # a credential is granted
ENDED = "ended"  # final: released, withdrawn, timed out or lost
REFUSED = "refused"  # final: no credential can serve it unless a person changes the pool

INITIAL = WAITING
FINAL = (ENDED, REFUSED)  # events in these states have no effect


class LeaseEvent(StrEnum):
    """What can happen to a lease."""

    QUEUE = "queue"
    GRANT = "grant"
    REFUSE = "refuse"
    CONFIRM = "confirm"
    SET_ASIDE = "set aside"
    RELEASE = "release"
    WITHDRAW = "withdraw"
    LOSE = "lose"


class Transition(NamedTuple):
    """One row of the table."""

    state: str
    event: LeaseEvent
    next_state: str
    cause: str


TRANSITIONS = (
    Transition(WAITING, LeaseEvent.QUEUE, WAITING, "no credential is usable now"),
    Transition(WAITING, LeaseEvent.GRANT, LIVE, "a credential is usable"),
    Transition(WAITING, LeaseEvent.REFUSE, REFUSED, "no credential can ever serve the request"),
    Transition(WAITING, LeaseEvent.SET_ASIDE, WAITING, "its process is silent: out of the queue until put back"),
    Transition(WAITING, LeaseEvent.WITHDRAW, ENDED, "its caller gives up or its time is up"),
    Transition(WAITING, LeaseEvent.LOSE, ENDED, "its process is gone"),
    Transition(LIVE, LeaseEvent.CONFIRM, LIVE, "its caller picks it up"),
    Transition(LIVE, LeaseEvent.SET_ASIDE, WAITING, "its credential became unusable, or was not picked up"),
    Transition(LIVE, LeaseEvent.RELEASE, ENDED, "its caller ends it, with or without an answer of the provider"),
    Transition(LIVE, LeaseEvent.WITHDRAW, ENDED, "its caller gave up before it picked the lease up"),
    Transition(LIVE, LeaseEvent.LOSE, ENDED, "its process is gone"),
)
