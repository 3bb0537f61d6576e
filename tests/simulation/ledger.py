"""A minimal model of the ledger: what the real one promises about launches, attempts and outcomes."""

from __future__ import annotations

from .situations import Situations


class Ledger:
    """The durable record of one run. It outlives the processes that write to it."""

    def __init__(self, ids: list[str], situations: Situations) -> None:
        self.ids = ids
        self.launch = 0
        self.outcomes: dict[str, str] = {}
        self.started: dict[str, tuple[int, int]] = {}  # by item: the newest attempt, as (launch, number)
        self.executed: dict[str, int] = {}  # by item: number of attempts that produced an outcome
        self.in_flight_at_kill: dict[str, int] = {}  # by item: number of kills during an attempt
        self._situations = situations

    def begin(self) -> list[str]:
        """Begin a launch. Return the ids without an outcome."""
        self.launch += 1
        return [id_ for id_ in self.ids if id_ not in self.outcomes]

    def start(self, launch: int, id_: str, attempt: int) -> bool:
        """Record the start of an attempt. Return False if a newer launch has taken over."""
        if launch != self.launch:
            return False
        assert id_ not in self.outcomes, f"{id_} is executed although it has its outcome"  # invariant 21
        assert self.started.get(id_, (0, 0)) < (launch, attempt), f"{id_}: attempts are not numbered in their order"
        self.started[id_] = (launch, attempt)
        return True

    def end(self, launch: int, id_: str, attempt: int, outcome: str) -> bool:
        """Record an outcome. Return False, without recording, for an older launch or attempt."""  # invariant 23
        if launch != self.launch or self.started.get(id_, (launch, 0)) > (launch, attempt):
            self._situations.note("result of an older launch refused")
            return False
        assert id_ not in self.outcomes, f"{id_} ended a second time"  # invariant 19
        self.outcomes[id_] = outcome
        return True

    def attempt_done(self, id_: str) -> None:
        """Count an attempt that produced an outcome, whether or not it is recorded."""
        self.executed[id_] = self.executed.get(id_, 0) + 1
        if self.executed[id_] > 1:
            self._situations.note("executed twice after a kill")
            assert self.executed[id_] <= 1 + self.in_flight_at_kill.get(id_, 0), f"{id_} was executed twice"  # 21

    def killed(self, ids: list[str]) -> None:
        for id_ in ids:
            self.in_flight_at_kill[id_] = self.in_flight_at_kill.get(id_, 0) + 1

    @property
    def is_complete(self) -> bool:
        return len(self.outcomes) == len(self.ids)
