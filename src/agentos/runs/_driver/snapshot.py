"""Takes the snapshot of a run from which the live display draws a frame."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

from agentos.bounds import decide
from agentos.items.results import RunningItem

from .._parts.run_parts import RunParts
from ..run_snapshot import RunSnapshot, matching_states, with_rests
from .bound_probe import BoundProbe


def take_snapshot(parts: RunParts, probe: BoundProbe, max_running: int) -> RunSnapshot:
    """Return the state of a run and its pool. Called from any thread; blocks for a round trip to the owner of a shared
    pool, and asks the pool only once, so that its states and the reason for waiting belong together."""
    request = probe.waiting_request()
    states, waiting = ((), None) if parts.pool is None else parts.pool.snapshot(None, request, probe.rests())
    epoch, now = parts.clock.epoch(), parts.clock.now()
    # In one step, which no other thread interrupts; the dict may change during an iteration.
    attempts = list(parts.running)
    stats = replace(parts.progress.refreshed_stats(), running=len(attempts))
    used = Counter(attempt.credential_id for attempt in attempts if attempt.credential_id is not None)
    return RunSnapshot(
        epoch,
        stats,
        [RunningItem(a.id, a.attempt, a.credential_id, now - a.started_at) for a in islice(attempts, max_running)],
        decide(probe.facts(None if waiting is None else probe.accepted(request, waiting)), epoch),
        matching_states(with_rests(states, parts.breaker.rests(now), epoch), used),
        min(probe.held_requests(), len(attempts)),
    )
