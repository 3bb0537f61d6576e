"""Periodic: what a run does at fixed intervals: report a heartbeat, record attempts that run and what they use."""

from __future__ import annotations

from .._parts.messages import HeartbeatDue, StartsDue, UsageDue
from .._parts.run_parts import RunParts
from .bound_probe import BoundProbe

# Seconds without a result after which a run reports that it goes on.
HEARTBEAT_SECONDS = 15.0
# Seconds between two looks for attempts that are to be recorded as started.
STARTS_SECONDS = 0.25
# Seconds between two records of what running attempts have used: a kill of this process loses no more than that.
USAGE_SECONDS = 2.0


class Periodic:
    """Called by the thread that processes the run's messages."""

    def __init__(self, parts: RunParts, probe: BoundProbe, *, has_gateway: bool) -> None:
        self._parts = parts
        self._probe = probe
        self._has_gateway = has_gateway

    def start(self) -> None:
        self._set("heartbeat", HEARTBEAT_SECONDS, HeartbeatDue())
        if self._parts.recorder.is_durable:
            self._set("starts", STARTS_SECONDS, StartsDue())
            if self._has_gateway:
                self._set("usage", USAGE_SECONDS, UsageDue())

    def on_heartbeat(self, message: HeartbeatDue) -> None:
        self._parts.progress.heartbeat(self._probe.open_waiting(), self._probe.now_bound())
        self._set("heartbeat", HEARTBEAT_SECONDS, message)

    def on_starts_due(self, message: StartsDue) -> None:
        self._parts.recorder.note_running(self._parts.running)
        self._set("starts", STARTS_SECONDS, message)

    def on_usage_due(self, message: UsageDue) -> None:
        self._parts.recorder.note_usage(self._parts.running)
        self._set("usage", USAGE_SECONDS, message)

    def _set(self, timer: str, seconds: float, message: HeartbeatDue | StartsDue | UsageDue) -> None:
        self._parts.timers.set(timer, self._parts.clock.now() + seconds, message)
