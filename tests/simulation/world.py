"""The simulated world of one seed: virtual clock, event queue, store and processes; `simulate` runs a history."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any
from unittest import mock

from agentos.events import CoolDownStarted, LimitLearned
from agentos.items.item import Item
from agentos.pool import _memory as memory
from agentos.pool._memory import MemoryStore
from agentos.pool.shared._owner import owner_process

from . import faults, invariants
from .checked_allocator import CheckedAllocator
from .clocks import PoolClock
from .journal_store import JournalStore, OwnerProcess
from .ledger import Ledger
from .oracle import PoolOracle
from .process import Process
from .scenario import make_scenario
from .situations import Situations

# Steps without faults after which a history that has not ended counts as stuck.
MAX_DRAIN_STEPS = 60_000


class World:
    """State of one history."""

    def __init__(self, seed: int, situations: Situations | None = None) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.situations = Situations() if situations is None else situations
        self.scenario = make_scenario(self.rng)
        self.epoch = self.scenario.epoch  # Unix time of the first step
        self.now = 0.0
        self.steps = 0
        self.history: list[str] | None = None  # one line per step; None: not recorded
        self.trace = hashlib.blake2b(digest_size=12)
        self.used_fences: dict[str, set[int]] = {}  # by credential
        # By quota group, journal and losses: instants at which the requests that were sent had been granted.
        self.sent: dict[tuple[str, str, int], list[float]] = {}
        self.losses = 0  # of the journal, or of a part of it
        self.lost_at = -1e9  # when the last one was
        self.has_redeclared_keys = False  # a process has changed limits or group of a key
        self.has_stopped_faults = False
        self.faults_stopped_at = 0.0
        self.has_stepped_clock = False  # the wall clock was set: days end at other instants
        self.loss_unnoticed_until = 0.0  # the journal has lost grants, and only members can know
        self._due: list[tuple[float, int, str, Callable[[], None], Process | OwnerProcess | None]] = []
        self._sequence = 0
        self._session_count = self._link_count = 0
        self._pid_count = 0
        self.store = JournalStore(self)
        self.memory: MemoryStore | None = None
        if self.scenario.store == "memory":
            self.open_memory()
        self.ledgers = [
            Ledger([f"r{number}i{n}" for n in range(plan.items)], self.situations)
            for number, plan in enumerate(self.scenario.runs)
        ]
        self.newest_processes: list[Process | None] = [None] * len(self.ledgers)  # by run
        self.all_processes: list[Process] = []  # zombies included: their run was launched again elsewhere
        for number in range(len(self.ledgers)):
            self.launch(number)
        faults.start(self)

    def open_memory(self) -> None:
        """Open a new pool in memory, shared by all runs: they are one process."""
        self.used_fences.clear()
        self.sent.clear()
        clock = PoolClock(self)
        self.memory = MemoryStore(clock, lambda event: self.pool_events([event]))
        self.memory._allocator = CheckedAllocator(PoolOracle(self.situations))

    # --- steps ------------------------------------------------------------------------------------------------------

    def schedule(
        self, at: float, label: str, call: Callable[[], None], process: Process | OwnerProcess | None = None
    ) -> None:
        self._sequence += 1
        heappush(self._due, (at, self._sequence, label, call, process))

    def step(self) -> bool:
        """Run the next event, then check all invariants. Return False if the event queue is empty."""
        if not self._due:
            return False
        at, _, label, call, process = heappop(self._due)
        if process is not None:
            if process.is_dead:
                return True
            if process.paused_until > at:
                self.schedule(process.paused_until, label, call, process)
                return True
        self.now = max(self.now, at)
        self.steps += 1
        self.log_step(label, process)
        call()
        for other in self.all_processes:
            other.schedule_step()
        for owner in self.store.processes:
            owner.schedule()
        invariants.check(self)
        return True

    def log_step(self, label: str, process: Process | OwnerProcess | None) -> None:
        line = f"{self.steps:>6}  {self.now:12.6f}  {'' if process is None else process.name:<11} {label}"
        self.trace.update(line.encode())
        if self.history is not None:
            self.history.append(line)

    def run(self, steps: int) -> None:
        """Run `steps` steps with faults, then steps without faults until everything has ended."""
        with self._seeded_stores():
            while self.steps < steps and not self.is_complete() and self.step():
                pass
            self.stop_faults()
            end = self.steps + MAX_DRAIN_STEPS
            while not self.is_finished() and self.step():
                assert self.steps < end, f"the history does not end: {self}"
            invariants.check_finished(self)

    def stop_faults(self) -> None:
        self.has_stopped_faults = True
        self.faults_stopped_at = self.now
        faults.stop(self)

    def is_complete(self) -> bool:
        return all(ledger.is_complete for ledger in self.ledgers)

    def is_finished(self) -> bool:
        return self.is_complete() and all(p.is_dead or p.is_closed for p in self.all_processes)

    def __str__(self) -> str:
        unfinished = [len(ledger.ids) - len(ledger.outcomes) for ledger in self.ledgers]
        return (
            f"seed {self.seed}, step {self.steps}, {self.scenario.store}, {self.scenario.kind}, items left {unfinished}"
        )

    @contextmanager
    def _seeded_stores(self) -> Iterator[None]:
        """Patch the stores: jitter comes from the seed, and snapshots are taken at short intervals."""
        with (
            mock.patch.object(memory, "_jitter", self.rng.random),
            mock.patch.object(owner_process, "random", self.rng),
            mock.patch.object(owner_process, "SNAPSHOT_ENTRIES", 60),
            mock.patch.object(owner_process, "SNAPSHOT_ENTRIES_PER_CREDENTIAL", 4),
        ):
            yield

    # --- services for processes and stores --------------------------------------------------------------------------

    def short_delay(self) -> float:
        """Return a random delay of up to 10 ms."""
        return self.rng.uniform(0.0, 0.01)

    def next_session_id(self) -> str:
        self._session_count += 1
        return f"session-{self._session_count}"

    def next_link(self) -> int:
        self._link_count += 1
        return self._link_count

    def make_item(self, id_: str) -> Item:
        """Return the item of an id: the same for every launch."""
        rng = random.Random(f"{self.seed} {id_}")
        tokens = rng.choice([0, 10, 100, 400]) if self.scenario.kind in ("tokens", "mixed") else 0
        if tokens and rng.random() < 0.03:
            tokens = 100_000
        used_tokens = int(tokens * rng.choice([0.2, 1.0, 1.0, 1.5]))
        return Item(id_, {"tokens": used_tokens}, rng.choice(self.scenario.models), tokens)

    def pool_events(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, LimitLearned):
                self.situations.note("limit learned")
            elif isinstance(event, CoolDownStarted):
                assert event.seconds > 0

    # --- processes --------------------------------------------------------------------------------------------------

    def launch(self, number: int) -> Process:
        self._pid_count += 1
        rng = random.Random(self.rng.random())
        process = Process(self, self._pid_count, self.scenario.runs[number], self.ledgers[number], rng)
        self.newest_processes[number] = process
        if self.has_stopped_faults:
            faults.restore_keys(process)
        self.all_processes = [p for p in self.all_processes if not (p.is_dead or p.is_closed)] + [process]
        return process

    def crash(self, process: Process) -> None:
        process.crash()


def simulate(seed: int, steps: int, situations: Situations | None = None) -> World:
    """Run the history of a seed. The error of a broken invariant carries a note with the command that repeats it."""
    world = World(seed, situations)
    try:
        world.run(steps)
    except BaseException as error:
        where = f"step {world.steps} of a history with seed={seed}"
        error.add_note(f"{where}; repeat it with: python -m tests.simulation {seed} --steps {steps}")
        raise
    return world
