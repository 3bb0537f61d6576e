"""A run's durable record, as simple as can be: what the real ledger promises about launches, attempts and outcomes."""

from __future__ import annotations

from .situations import Situations


class Ledger:
    """Of one run. It outlives the processes that write to it."""

    def __init__(self, ids: list[str], situations: Situations) -> None:
        self.ids = ids
        self.launch = 0
        self.outcomes: dict[str, str] = {}
        self.started: dict[str, tuple[int, int]] = {}  # by item: the newest attempt, as (launch, number)
        self.executed: dict[str, int] = {}  # by item: how many attempts came to an end that was an outcome
        self.in_flight_at_kill: dict[str, int] = {}  # by item: how often
        self._situations = situations

    def begin(self) -> list[str]:
        """A launch: what is left to do."""
        self.launch += 1
        return [id_ for id_ in self.ids if id_ not in self.outcomes]

    def start(self, launch: int, id_: str, attempt: int) -> bool:
        if launch != self.launch:
            return False
        assert id_ not in self.outcomes, f"{id_} is executed although it has its outcome"  # invariant 21
        assert self.started.get(id_, (0, 0)) < (launch, attempt), f"{id_}: attempts are not numbered in their order"
        self.started[id_] = (launch, attempt)
        return True

    def end(self, launch: int, id_: str, attempt: int, outcome: str) -> bool:
        """The outcome of an item. What an older launch or attempt says is not taken down."""  # invariant 23
        if launch != self.launch or self.started.get(id_, (launch, 0)) > (launch, attempt):
            self._situations.note("result of an older launch refused")
            return False
        assert id_ not in self.outcomes, f"{id_} ended a second time"  # invariant 19
        self.outcomes[id_] = outcome
        return True

    def attempt_done(self, id_: str) -> None:
        """An attempt got as far as an outcome, written down or not."""
        self.executed[id_] = self.executed.get(id_, 0) + 1
        if self.executed[id_] > 1:
            self._situations.note("ended twice over a kill")
            assert self.executed[id_] <= 1 + self.in_flight_at_kill.get(id_, 0), f"{id_} was executed twice"  # 21

    def killed(self, ids: list[str]) -> None:
        for id_ in ids:
            self.in_flight_at_kill[id_] = self.in_flight_at_kill.get(id_, 0) + 1

    @property
    def is_complete(self) -> bool:
        return len(self.outcomes) == len(self.ids)
