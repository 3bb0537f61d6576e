"""Transition table of an item: its states, the events of a run, and which event leads from which state to which.

The scheduler keeps the state of an item in its data structures (see the comments below) and does not look at this
table; a test compares the two with random histories.
"""

from __future__ import annotations

# --- states -------------------------------------------------------------------------------------------------------

UNREAD = "unread"  # in the input; if the run stops, its id is a checkpoint, too
READY = "ready"  # in the lane of its scope, until a worker is free
REQUESTING = "requesting"  # taken from its lane; it requests a lease, or starts at once
RUNNING = "running"  # an attempt runs
PAUSING = "pausing"  # until the instant of its next attempt
ENDED = "ended"  # it has a result: no longer in `unfinished`
UNFINISHED = "unfinished"  # the run stopped first: its id is a checkpoint

STATES = (UNREAD, READY, REQUESTING, RUNNING, PAUSING, ENDED, UNFINISHED)
FINAL = (ENDED, UNFINISHED)

# --- events -------------------------------------------------------------------------------------------------------

ADD = "add"  # read from the input
REJECT = "reject"  # it cannot be started as it is
TAKE = "take"  # a worker is free
PUT_BACK = "put back"  # it got no lease, or the run stops
START = "start"
SUCCEED = "succeed"
FAIL = "fail"  # for good
RETRY_NOW = "retry now"  # on another credential
RETRY_LATER = "retry later"
WAKE = "wake"  # its pause is over
INTERRUPT = "interrupt"  # its attempt failed while the run stops, or was asked to stop
GIVE_UP = "give up"  # the run does not wait for its attempt
END_RUN = "end of the run"

TRANSITIONS: dict[tuple[str, str], str] = {
    (UNREAD, ADD): READY,
    (UNREAD, REJECT): ENDED,
    (READY, TAKE): REQUESTING,
    (READY, END_RUN): UNFINISHED,
    (REQUESTING, START): RUNNING,
    (REQUESTING, PUT_BACK): READY,
    (REQUESTING, REJECT): ENDED,
    (RUNNING, SUCCEED): ENDED,
    (RUNNING, FAIL): ENDED,
    (RUNNING, RETRY_NOW): READY,
    (RUNNING, RETRY_LATER): PAUSING,
    (RUNNING, INTERRUPT): UNFINISHED,
    (RUNNING, GIVE_UP): UNFINISHED,
    (PAUSING, WAKE): READY,
    (PAUSING, END_RUN): UNFINISHED,
}
