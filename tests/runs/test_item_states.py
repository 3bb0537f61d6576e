"""The transition table of an item, compared with what the scheduler does in random histories."""

from __future__ import annotations

import random
from collections.abc import Callable

from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.runs._rules import item_states as table
from agentos.runs._rules.circuit_breaker import Advice
from agentos.runs._rules.scheduler import AT_ONCE, FAILED, UNFINISHED, NoPool, Scheduler
from agentos.verdict import AUTH_FAILED, PERMANENT, RATE_LIMITED, TRANSIENT

KINDS = (RATE_LIMITED, AUTH_FAILED, TRANSIENT, PERMANENT, WORKER_DIED, INTERRUPTED, None)


class History:
    """Drives a scheduler at random, as the driver does, and notes every transition.

    The state of an item is read from the scheduler's data before and after each event. `held` has the states of the
    items that the scheduler has not got yet or has handed out.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.scheduler = Scheduler(max_workers=3, retries=1)
        self.items = [Item(str(number), None, scope=self.rng.choice("ab")) for number in range(5)]
        self.held = dict.fromkeys(self.items, table.UNREAD)
        self.transitions: dict[tuple[str, str], set[str]] = {}

    def run(self) -> None:
        events = [self.read, self.take, self.take, self.leave_request, self.start, self.start, self.end, self.wake]
        for _ in range(self.rng.randrange(5, 120)):
            self.now += self.rng.random()
            self.rng.choice(events)()
            if self.rng.random() < 0.01:
                self.scheduler.stop("stopped")
        self.end_run()

    # --- events ---------------------------------------------------------------------------------------------------

    def read(self) -> None:
        item = self.pick(table.UNREAD)
        if item is not None and self.scheduler.room() > 0:
            if self.rng.random() < 0.1:
                self.perform(table.REJECT, item, self.scheduler.reject)
            else:
                self.perform(table.ADD, item, lambda: self.scheduler.add(item))

    def take(self) -> None:
        requesting = sum(state == table.REQUESTING for state in self.held.values())
        if self.scheduler.lanes and self.scheduler.free_workers() > requesting:
            scope = self.rng.choice(list(self.scheduler.lanes))
            item = self.scheduler.lanes[scope][0]
            self.perform(table.TAKE, item, lambda: self.scheduler.take(scope), table.REQUESTING)

    def leave_request(self) -> None:
        item = self.pick(table.REQUESTING)
        if item is not None and self.rng.random() < 0.5:
            if self.rng.random() < 0.3:
                self.perform(table.REJECT, item, lambda: self.scheduler.reject(item.id))
            else:
                self.perform(table.PUT_BACK, item, lambda: self.scheduler.put_back(item))

    def start(self) -> None:
        item = self.pick(table.REQUESTING)
        if item is not None and self.scheduler.free_workers() > 0:
            self.perform(table.START, item, lambda: self.scheduler.start(item, self.now), table.RUNNING)

    def end(self) -> None:
        item = self.pick(table.RUNNING)
        if item is None:
            return
        if self.rng.random() < 0.2:
            self.perform(table.SUCCEED, item, lambda: self.scheduler.succeed(item))
        elif self.rng.random() < 0.05:
            self.perform(table.GIVE_UP, item, self.scheduler.give_up, table.UNFINISHED)
        else:
            self.fail_attempt(item)

    def fail_attempt(self, item: Item) -> None:
        before = self.states()
        no_pool = self.rng.choice([None, NoPool(None), NoPool(0.5)])
        kind = self.rng.choice(KINDS)
        usable_at = self.now + 1.0 if kind == RATE_LIMITED and self.rng.random() < 0.3 else None
        advice = self.rng.choice([None, Advice(False), Advice(True), Advice(True, 0.5)])
        decision = self.scheduler.fail_attempt(item, kind, self.now, 0.5, None, no_pool, advice, usable_at)
        del self.held[item]
        if decision is UNFINISHED:
            self.held[item] = table.UNFINISHED
        events = [(FAILED, table.FAIL), (AT_ONCE, table.RETRY_NOW), (UNFINISHED, table.INTERRUPT)]
        event = next((event for known, event in events if known is decision), table.RETRY_LATER)
        self.note(event, before, {item})

    def wake(self) -> None:
        before = self.states()
        due = {item for at, _, item in self.scheduler._pausing if at <= self.now}
        self.scheduler.wake(self.now)
        self.note(table.WAKE, before, due)

    def end_run(self) -> None:
        """Stop the run as the driver does: requests are withdrawn, attempts given up, all other items stay behind."""
        self.scheduler.stop("stopped")
        while (item := self.pick(table.REQUESTING)) is not None:
            self.perform(table.PUT_BACK, item, lambda item=item: self.scheduler.put_back(item))
        while (item := self.pick(table.RUNNING)) is not None:
            self.perform(table.GIVE_UP, item, self.scheduler.give_up, table.UNFINISHED)
        assert self.scheduler.is_over()
        for state in set(self.states().values()) & {table.READY, table.PAUSING}:
            self.transitions.setdefault((state, table.END_RUN), set()).add(table.UNFINISHED)

    # --- states ---------------------------------------------------------------------------------------------------

    def states(self) -> dict[Item, str]:
        """Return the state of every item, after checking that the scheduler's data agree."""
        scheduler = self.scheduler
        ready = [item for lane in scheduler.lanes.values() for item in lane]
        pausing = [item for _, _, item in scheduler._pausing]
        placed = {**self.held, **dict.fromkeys(ready, table.READY), **dict.fromkeys(pausing, table.PAUSING)}
        assert len(placed) == len(self.held) + len(ready) + len(pausing), "an item has two states"
        assert scheduler.ready == len(ready)
        assert scheduler.running == sum(state == table.RUNNING for state in self.held.values())
        assert set(scheduler.unfinished) == {item.id for item, state in placed.items() if state != table.UNREAD}
        return {item: placed.get(item, table.ENDED) for item in self.items}

    def pick(self, state: str) -> Item | None:
        items = [item for item in self.items if self.held.get(item) == state]
        return self.rng.choice(items) if items else None

    def perform(self, event: str, item: Item, call: Callable[..., object], held_as: str | None = None) -> None:
        before = self.states()
        call()
        self.held.pop(item, None)
        if held_as is not None:
            self.held[item] = held_as
        self.note(event, before, {item})

    def note(self, event: str, before: dict[Item, str], items: set[Item]) -> None:
        """Note the transitions of these items; all others must have kept their state."""
        for item, after in self.states().items():
            if item in items:
                self.transitions.setdefault((before[item], event), set()).add(after)
            else:
                assert after == before[item], f"{event} changed the state of another item"


def test_scheduler_makes_exactly_the_transitions_of_the_table() -> None:
    """300 histories of five items each: no transition that the table lacks, and every one that it has."""
    observed: dict[tuple[str, str], set[str]] = {}
    for seed in range(300):
        history = History(seed)
        history.run()
        for step, after in history.transitions.items():
            observed.setdefault(step, set()).update(after)
    assert observed == {step: {after} for step, after in table.TRANSITIONS.items()}


def test_table_leads_from_unread_to_final_states() -> None:
    """Every state can be reached, every state but the final ones has a way out, and the final ones have none."""
    sources = {state for state, _ in table.TRANSITIONS}
    assert sources == set(table.STATES) - set(table.FINAL)
    assert set(table.TRANSITIONS.values()) == set(table.STATES) - {table.UNREAD}
