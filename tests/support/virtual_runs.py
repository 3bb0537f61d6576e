"""Real runs (driver, scheduler, circuit breaker, pool) in virtual time: their attempts are functions of the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

from agentos.errors import CommandFailed
from agentos.items.attempt import Attempt
from agentos.items.results import WorkflowResult
from agentos.items.sources import ItemMaker, source_of
from agentos.pool.lease_pool import LeasePool
from agentos.runs._driver import driver as driver_module
from agentos.runs._driver.driver import Driver
from agentos.runs._driver.mailbox import Mailbox
from agentos.runs._rules.run_options import Options
from agentos.testing import FakeClock
from agentos.verdict import NO_VERDICT, Verdict
from agentos.workers.base import EndedCall, Workers

# Seconds of virtual time after which a run counts as stuck.
MAX_SECONDS = 400_000.0


class Outcome(NamedTuple):
    """How an attempt ends."""

    seconds: float
    error: BaseException | None = None


Behaviour = Callable[[Attempt], Outcome]


def command_failed(verdict: Verdict = NO_VERDICT, exit_status: int = 1) -> CommandFailed:
    return CommandFailed("exit status 1", exit_status=exit_status, verdict=verdict, details={})


class Start(NamedTuple):
    """The start of an attempt."""

    at: float
    item_id: str
    credential_id: str


class _Workers(Workers):
    lends_thread = True

    def __init__(self, ended: EndedCall, clock: FakeClock, behave: Behaviour, starts: list[Start]) -> None:
        self._ended, self._clock, self._behave, self._starts = ended, clock, behave, starts

    def start(self, attempt: Attempt, _running: int) -> None:
        now = self._clock.now()
        self._starts.append(Start(now, attempt.id, attempt.credential_id or ""))
        outcome = self._behave(attempt)
        self._clock.call_at(now + outcome.seconds, lambda: self._ended(attempt, None, outcome.error))

    def close(self) -> None:
        """No-op: attempts are timers."""


class _NoThread(Mailbox):
    def start(self) -> None:
        """No-op: the test processes the messages."""


class VirtualRun:
    """One run. `pump` processes its messages; `advance` of several runs over one clock is `run_all`."""

    def __init__(self, items: Iterable[str], behave: Behaviour, pool: LeasePool, clock: FakeClock, *, workers: int = 4,
                 retries: int = 0, max_wait: float | None = None, tokens: int = 0,
                 timeout: float | None = None) -> None:  # fmt: skip
        self.starts: list[Start] = []
        self.events: list[Any] = []
        self.collected: list[WorkflowResult] = []
        options = Options(workers, True, retries, (), None, timeout, None, 1.0, max_wait, self.events.append, "run")
        source = source_of(list(items), ItemMaker(lambda item: item, (lambda _: tokens) if tokens else None, None))
        with mock.patch.object(driver_module, "Mailbox", _NoThread):
            self.driver = Driver(
                options, source, lambda ended: _Workers(ended, clock, behave, self.starts), pool, clock, lambda: None
            )
        self.driver.results.collect(self.collected)
        self.driver.start()

    @property
    def is_ended(self) -> bool:
        return self.driver._mailbox.is_ended

    @property
    def results(self) -> dict[str, WorkflowResult]:
        return {result.item_id: result for result in self.collected}

    def pump(self) -> None:
        self.driver._mailbox._process()

    def events_of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def run_all(clock: FakeClock, *runs: VirtualRun, seconds: float = MAX_SECONDS) -> None:
    """Let virtual time pass until all runs have ended, or for some seconds."""
    end = clock.now() + seconds
    while not all(run.is_ended for run in runs):
        for run in runs:
            run.pump()
        if all(run.is_ended for run in runs) or clock.now() >= end:
            return
        clock.advance(max(0.0, min(_next_timer(clock), end) - clock.now()))


def _next_timer(clock: FakeClock) -> float:
    return min(at for at, _, timer in clock._timers if timer.call is not None)
