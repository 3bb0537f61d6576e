"""The world of one seed: virtual time, what is due in it, and the processes that live there."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any
from unittest import mock

from agentos.clock import Timer
from agentos.events import CoolDownStarted, LimitLearned, LimitShared
from agentos.items.item import Item
from agentos.pool import _memory as memory
from agentos.pool._memory import MemoryStore
from agentos.pool._replicas import member, shared

from . import checks, faults
from .ledger import Ledger
from .process import Process
from .server import Server
from .setting import make_setting
from .situations import Situations
from .watch import Watch
from .watched import WatchedAllocator

# A history that has not come to an end after so many more steps, without any faults, never will.
MOST_TO_DRAIN = 60_000


class World:
    def __init__(self, seed: int, situations: Situations | None = None) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.situations = Situations() if situations is None else situations
        self.setting = make_setting(self.chance)
        self.epoch = self.setting.epoch  # the date at which time began here
        self.now = 0.0
        self.steps = 0
        self.history: list[str] | None = None  # told step by step, where somebody wants to read it
        self.trace = hashlib.blake2b(digest_size=12)
        self.handed_out: dict[str, set[int]] = {}  # by credential: fences
        self.lost_fences: dict[str, int] = {}  # the greatest of them, where the log has been lost since
        # By group and log: when requests that were sent had been admitted.
        self.sent: dict[tuple[str, str], list[float]] = {}
        self.has_changed_keys = False  # somebody has described a key anew
        self.is_calm = False  # no more faults
        self.calm_at = 0.0
        self.stepped_at = -1e9  # when the store's clock was moved forward
        self._due: list[tuple[float, int, str, Callable[[], None], Process | None]] = []
        self._numbers = 0
        self._sessions = 0
        self._pids = 0
        self._gone: set[int] = set()
        self.server = Server(self)
        self.memory: MemoryStore | None = None
        if self.setting.store == "memory":
            self.open_memory()
        self.ledgers = [
            Ledger([f"r{number}i{n}" for n in range(plan.items)], self.situations)
            for number, plan in enumerate(self.setting.runs)
        ]
        self.processes: list[Process | None] = [None] * len(self.ledgers)  # the newest of each run
        self.everybody: list[Process] = []  # zombies, too
        for number in range(len(self.ledgers)):
            self.launch(number)
        faults.begin(self)

    def open_memory(self) -> None:
        """A pool in memory, for all runs of the one process that there is."""
        self.handed_out.clear()
        self.sent.clear()
        clock = _WorldClock(self)
        self.memory = MemoryStore(clock, lambda event: self.pool_events([event]))
        self.memory._pool = WatchedAllocator(Watch(self.situations))

    # --- steps ------------------------------------------------------------------------------------------------------

    def at(self, at: float, what: str, call: Callable[[], None], process: Process | None = None) -> None:
        self._numbers += 1
        heappush(self._due, (at, self._numbers, what, call, process))

    def step(self) -> bool:
        """The next thing happens. False: nothing will happen any more."""
        if not self._due:
            return False
        at, _, what, call, process = heappop(self._due)
        if process is not None:
            if process.is_dead:
                return True
            if process.paused_until > at:
                self.at(process.paused_until, what, call, process)
                return True
        self.now = max(self.now, at)
        self.steps += 1
        self._tell(what, process)
        call()
        for each in self.everybody:
            each.look_around()
        checks.check(self)
        return True

    def _tell(self, what: str, process: Process | None) -> None:
        line = f"{self.steps:>6}  {self.now:12.6f}  {'' if process is None else process.name:<11} {what}"
        self.trace.update(line.encode())
        if self.history is not None:
            self.history.append(line)

    def run(self, steps: int) -> None:
        """So many steps with faults, then without any until everything has ended."""
        with self._chance_in_stores():
            while self.steps < steps and not self.is_complete() and self.step():
                pass
            self.calm_down()
            end = self.steps + MOST_TO_DRAIN
            while not self.is_at_rest() and self.step():
                assert self.steps < end, f"it does not come to an end: {self}"
            checks.check_at_rest(self)

    def calm_down(self) -> None:
        self.is_calm = True
        self.calm_at = self.now
        faults.heal(self)

    def is_complete(self) -> bool:
        return all(ledger.is_complete for ledger in self.ledgers)

    def is_at_rest(self) -> bool:
        return self.is_complete() and all(p.is_dead or p.is_closed for p in self.everybody)

    def __str__(self) -> str:
        left = [len(ledger.ids) - len(ledger.outcomes) for ledger in self.ledgers]
        return f"seed {self.seed}, step {self.steps}, {self.setting.store}, {self.setting.kind}, items left {left}"

    @contextmanager
    def _chance_in_stores(self) -> Iterator[None]:
        """The stores have a source of chance of their own, and keep states rarely."""
        with (
            mock.patch.object(memory, "_jitter", self.chance.random),
            mock.patch.object(shared, "_jitter", self.chance.random),
            mock.patch.object(member, "KEEP_EVERY", 60),
            mock.patch.object(member, "KEEP_PER_CREDENTIAL", 4),
        ):
            yield

    # --- for those who live here ------------------------------------------------------------------------------------

    def moment(self) -> float:
        """What anything takes at least."""
        return self.chance.uniform(0.0, 0.01)

    def travel(self) -> None:
        """To the store or back."""
        self.now += self.chance.uniform(0.0, 0.003)

    def next_session(self) -> str:
        self._sessions += 1
        return f"session-{self._sessions}"

    def is_gone(self, pid: int) -> bool:
        return pid in self._gone

    def make_item(self, id_: str) -> Item:
        """The same whenever it is read."""
        chance = random.Random(f"{self.seed} {id_}")
        tokens = chance.choice([0, 10, 100, 400]) if self.setting.kind in ("tokens", "mixed") else 0
        if tokens and chance.random() < 0.03:
            tokens = 100_000
        really = int(tokens * chance.choice([0.2, 1.0, 1.0, 1.5]))
        return Item(id_, {"tokens": really}, chance.choice(self.setting.models), tokens)

    def pool_events(self, events: list[Any]) -> None:
        for event in events:
            if isinstance(event, LimitLearned):
                self.situations.note("limit learned")
            elif isinstance(event, LimitShared) and event.is_shared:
                self.situations.note("shared limit found")
            elif isinstance(event, CoolDownStarted):
                assert event.seconds > 0

    # --- processes come and go --------------------------------------------------------------------------------------

    def launch(self, number: int) -> Process:
        self._pids += 1
        chance = random.Random(self.chance.random())
        process = Process(self, self._pids, self.setting.runs[number], self.ledgers[number], chance)
        self.processes[number] = process
        if self.is_calm:
            faults.restore_keys(process)
        self.everybody = [p for p in self.everybody if not (p.is_dead or p.is_closed)] + [process]
        return process

    def crash(self, process: Process) -> None:
        process.crash()
        self._gone.add(process.pid)


def simulate(seed: int, steps: int, situations: Situations | None = None) -> World:
    """The whole history of a seed. If a promise is broken in it, the error says how to see that again."""
    world = World(seed, situations)
    try:
        world.run(steps)
    except BaseException as error:
        where = f"step {world.steps} of a history with seed={seed}"
        error.add_note(f"{where}; the same again: python -m tests.simulation {seed} --steps {steps}")
        raise
    return world


class _WorldClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> float:
        """Dates, so that one can count days by them."""
        return self.epoch()

    def epoch(self) -> float:
        return self._world.now + self._world.epoch

    def call_at(self, at: float, call: Callable[[], None]) -> Any:
        timer = Timer(at, call)

        def due() -> None:
            if timer.call is not None:
                timer.call()

        self._world.at(at - self._world.epoch, "the pool's timer", due)
        return timer
