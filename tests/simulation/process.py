"""A process: its part of the pool, and a run whose items it carries out. What the driver does, without its threads."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentos.clock import Timer
from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.pool._memory import MemoryStore
from agentos.pool._record_handle import RecordHandle
from agentos.pool._replicas.shared import SharedStore
from agentos.pool.credential import Credential
from agentos.pool.lease_states import LIVE, REFUSED, WAITING
from agentos.providers import verdicts
from agentos.runs._admission import Admission
from agentos.runs._rules.scheduler import FAILED, Again, Run
from agentos.testing import Answer
from agentos.verdict import AUTH_FAILED, NOTHING_SAID, PERMANENT, TRANSIENT, Verdict

from . import checks
from .ledger import Ledger
from .member import Talker
from .server import Link
from .setting import Key, Planned

if TYPE_CHECKING:
    from .world import World

GRACE = 2.0


class ProcessClock:
    """Monotonic time of one process, which no other process knows."""

    def __init__(self, process: Process, offset: float) -> None:
        self._process = process
        self._offset = offset

    def now(self) -> float:
        return self._process.world.now + self._offset

    def epoch(self) -> float:
        return self._process.world.now + self._process.world.epoch

    def call_at(self, at: float, call: Callable[[], None]) -> Timer:
        timer = Timer(at, call)

        def due() -> None:
            if timer.call is not None:
                timer.call()

        self._process.later(max(0.0, at - self.now()), "timer", due)
        return timer


class Attempt:
    def __init__(self, item: Item, record: RecordHandle, number: int) -> None:
        self.item = item
        self.record = record
        self.number = number
        self.answer: Answer | None = None
        self.should_stop = False
        assert record.credential is not None
        self.credential_id = record.credential.id


class Process:
    def __init__(self, world: World, pid: int, plan: Planned, ledger: Ledger, chance: random.Random) -> None:
        self.world = world
        self.pid = pid
        self.plan = plan
        self.ledger = ledger
        self.chance = chance
        self.name = f"process {pid}"
        self.clock = ProcessClock(self, float(chance.randint(10, 10_000)))
        self.is_dead = self.is_closed = False
        self.paused_until = 0.0
        self.session_ids: list[str] = []
        self.talks_at = -1.0  # when it is due to talk to the store
        self.link: Link | None = None
        self.member: Talker | None = None
        self.store: MemoryStore | SharedStore = self._open_store()
        self.keys = {id_: world.setting.keys[id_] for id_ in plan.keys}
        for key in self.keys.values():
            self.add(key)
        self.launch = ledger.launch + 1
        left = ledger.begin()
        if self.launch > 1:
            world.situations.note("resumed")
        self._arriving = deque(left)
        self.run = Run(max_workers=plan.workers, retries=plan.retries, total=len(ledger.ids))
        self.run.recorded(len(ledger.ids) - len(left))
        self.attempts: dict[Attempt, None] = {}  # those that are waited for
        self.leased: dict[Attempt, None] = {}  # those that have not ended at all
        self.make_handle = self.store.make_handle
        self.request = self.store.request
        self.confirm = self.store.confirm
        self.withdraw = self.store.withdraw
        self.admission = Admission(self, self._on_lease)  # type: ignore[arg-type]
        self.callers: dict[RecordHandle, None] = {}  # who ask beside the run
        self.ended_records: deque[RecordHandle] = deque(maxlen=8)
        self.later(0.0, "begins", self.fill)

    # --- the pool, as `Admission` sees it ---------------------------------------------------------------------------

    def _open_store(self) -> MemoryStore | SharedStore:
        if self.world.memory is not None:
            return self.world.memory
        self.link = Link(self.world.server, self.world.setting.store == "polled")
        self.link.later = self.later
        self.member = Talker(self, self.link, self.world.setting.ttl)
        store = SharedStore(self.link, "the store", self.clock, self.on_event, self.world.setting.ttl, str)
        store._member = self.member
        return store

    def request_now(self, record: RecordHandle) -> bool:
        return False if self.store.is_shared else self.store.request(record, False)

    def on_event(self, event: Any) -> None:
        if self.world.memory is not None:
            self.world.pool_events([event])

    # --- time -------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, what: str, call: Callable[[], None]) -> None:
        self.world.at(self.world.now + seconds, what, call, self)

    def look_around(self) -> None:
        """After every step: when is it due to talk to the store?"""
        if self.member is None or self.is_dead or self.is_closed:
            return
        due = max(self.world.now, self.world.now + self.member.due_at() - self.clock.now())
        if self.talks_at < 0 or due < self.talks_at:
            self.talks_at = due
            self.world.at(due + self.world.moment(), "talks", lambda: self._talk(due), self)

    def _talk(self, due: float) -> None:
        if self.talks_at != due or self.member is None:
            return  # it was brought forward
        self.talks_at = -1.0
        if not self.member.talk_once():
            self.is_closed = True

    # --- reading and asking -----------------------------------------------------------------------------------------

    def fill(self) -> None:
        run = self.run
        at = run.wake(self.clock.now())
        if at is not None:
            self.later(at - self.clock.now() + 1e-6, "a pause is over", self.fill)
        if run.stopped is None and not run.is_source_ended:
            for _ in range(max(0, min(run.room(), len(self._arriving)))):
                id_ = self._arriving.popleft()
                run.read(self.world.make_item(id_))
            run.is_source_ended = not self._arriving
        for scope in tuple(run.lanes):
            free = run.max_workers - run.running - self.admission.count(scope)
            while free > 0 and scope in run.lanes and run.stopped is None:
                free -= 1
                item = run.take(scope)
                record = self.admission.admit(item)
                if record is not None:
                    self._start(item, record)
        if run.is_over() and not self.leased and not self.is_closed:
            self.close()

    def _on_lease(self, item: Item, record: RecordHandle) -> None:
        """The store calls it from anywhere; it is dealt with in its turn, which may take a while."""
        seconds = self.world.moment() if self.chance.random() < 0.97 else self.chance.uniform(0.1, 3.0)
        self.later(seconds, f"hears of {item.id}", lambda: self._pick_up(item, record))

    def _pick_up(self, item: Item, record: RecordHandle) -> None:
        admission, run = self.admission, self.run
        if not admission.is_asking(item, record):
            return
        if record.state == REFUSED or run.free_workers() <= 0:
            admission.withdraw(item)
            if record.too_large is not None:
                run.rejected(item.id)
                self.ledger.end(self.launch, item.id, 10**6, "too large")
            else:
                run.put_back(item)
                if record.state == REFUSED:
                    self.stop("no credential can be used")
        elif admission.pick_up(item, record):
            self._start(item, record)
        self.fill()

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _start(self, item: Item, record: RecordHandle) -> None:
        checks.check_handed_out(self.world, self, record)
        self.run.started(item, self.clock.now())
        attempt = Attempt(item, record, item.attempts)
        self.attempts[attempt] = self.leased[attempt] = None
        if not self.ledger.start(self.launch, item.id, attempt.number):
            self._give_back(attempt, None)
            self._conclude(attempt, INTERRUPTED)
            self.stop("another launch has taken over")
            return
        self.later(self.world.moment(), f"{item.id} is sent with {attempt.credential_id}", lambda: self._send(attempt))
        if self.plan.timeout is not None:
            self.later(self.plan.timeout, "time is up", lambda: self._time_out(attempt))

    def _send(self, attempt: Attempt) -> None:
        if attempt not in self.leased:
            return
        world, item = self.world, attempt.item
        checks.check_sent(world, self, attempt.record)
        answer = attempt.answer = world.setting.provider.ask(
            attempt.credential_id, now=world.now + world.epoch, tokens=item.tokens, model=item.scope
        )
        seconds = self.chance.uniform(0.01, 0.3)
        if self.chance.random() < world.setting.slow_share:
            seconds = self.chance.uniform(1.0, 30.0)
        # The provider goes on, whatever becomes of the process.
        self.world.at(world.now + seconds, "an answer leaves", lambda: self._leave(answer, item))
        self.later(seconds + world.moment(), f"{item.id} is answered {answer.status}", lambda: self._end(attempt))
        if self.chance.random() < 0.05:
            self.later(seconds / 2, "an answer in between", lambda: self._between(attempt))

    def _leave(self, answer: Answer, item: Item) -> None:
        self.world.setting.provider.finish(answer, now=self.world.now + self.world.epoch, tokens=item.payload["tokens"])

    def _between(self, attempt: Attempt) -> None:
        if self.chance.random() < 0.5:
            self.store.use_more(attempt.record, 1, self.chance.choice([0, 50]))
        else:
            self.store.observed(attempt.record, Verdict("rate_limited", retry_after=self.chance.uniform(0.1, 4.0)))

    def _end(self, attempt: Attempt) -> None:
        """The worker has its answer, or something else has gone wrong."""
        if attempt not in self.leased or attempt.answer is None:
            return
        kind, verdict = self._judge(attempt, attempt.answer)
        if kind == "success" and attempt.item.tokens and self.chance.random() < 0.7:
            self.store.settle(attempt.record, None, attempt.item.payload["tokens"])
        self._give_back(attempt, verdict, success=kind == "success")
        if attempt in self.attempts:
            self._conclude(attempt, kind)
        else:
            self.world.situations.note("late release")
        self.fill()

    def _judge(self, attempt: Attempt, answer: Answer) -> tuple[str | None, Verdict | None]:
        note = self.world.situations.note
        if attempt.should_stop and self.chance.random() < 0.5:
            note("interrupted")
            return INTERRUPTED, NOTHING_SAID
        if self.chance.random() < self.world.setting.chance_of_failure:
            kind = self.chance.choice([TRANSIENT, PERMANENT, WORKER_DIED, None])
            if kind == WORKER_DIED:
                note("worker died")
            elif kind is not None:
                note(f"verdict {kind}")
            return kind, Verdict(kind) if kind in (TRANSIENT, PERMANENT) else NOTHING_SAID
        verdict = verdicts.from_response(answer.status, answer.headers, answer.body, now=self.clock.epoch())
        note("success" if verdict.kind is None else f"verdict {verdict.kind}")
        if verdict.kind is None:
            if verdict.limit_requests is not None or verdict.limit_tokens is not None:
                self.store.observed(attempt.record, verdict)
            return "success", None
        return verdict.kind, verdict

    def _give_back(self, attempt: Attempt, verdict: Verdict | None, *, success: bool = False) -> None:
        self.store.end(attempt.record, verdict, success)
        del self.leased[attempt]
        self.ended_records.append(attempt.record)

    def _conclude(self, attempt: Attempt, kind: str | None) -> None:
        """What becomes of the item."""
        item, run = attempt.item, self.run
        del self.attempts[attempt]
        if kind == "success":
            run.succeeded(item)
            self._record(attempt, "succeeded")
            return
        is_proven = kind == AUTH_FAILED and self.store.is_proven(attempt.credential_id)
        refused_by = attempt.credential_id if is_proven else None
        decision = run.failed_attempt(item, kind, self.clock.now(), self.chance.random(), refused_by)
        if decision is FAILED:
            self._record(attempt, f"failed: {kind}")
        elif isinstance(decision, Again):
            self.world.situations.note("rotated" if decision.at is None else "retried")

    def _record(self, attempt: Attempt, outcome: str) -> None:
        self.ledger.attempt_done(attempt.item.id)
        if not self.ledger.end(self.launch, attempt.item.id, attempt.number, outcome):
            self.stop("another launch has taken over")

    def _time_out(self, attempt: Attempt) -> None:
        if attempt not in self.attempts:
            return
        if self.chance.random() < 0.5:  # it can be killed
            self.world.situations.note("attempt timed out")
            self._give_back(attempt, NOTHING_SAID)
            self._conclude(attempt, TRANSIENT)
        else:  # it keeps its lease until it ends
            self.world.situations.note("attempt abandoned")
            self._conclude(attempt, PERMANENT)
        self.fill()

    # --- stopping ---------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Nothing new starts; what runs is told, and waited for as long as the grace lasts."""
        if self.run.stopped is not None:
            return
        self.world.situations.note("stopped")
        self.run.stop(reason)
        for item in self.admission.withdraw_all():
            self.run.put_back(item)
        for attempt in self.attempts:
            attempt.should_stop = True
        self.later(GRACE, "the grace is over", self._give_up)
        self.later(0.0, "is it over", self.fill)

    def _give_up(self) -> None:
        for attempt in tuple(self.attempts):
            del self.attempts[attempt]
            self.run.give_up()
        for attempt in tuple(self.leased):
            self._give_back(attempt, None)
        self.fill()

    @property
    def is_closing(self) -> bool:
        return self.is_closed or (self.member is not None and self.member._is_closing)

    def close(self) -> None:
        """Gives back all that it holds. In memory there is nobody to tell."""
        for record in tuple(self.callers):
            self._forget(record)
        if self.member is None:
            self.is_closed = True
        elif not self.is_closing:
            self.member.close()

    def crash(self) -> None:
        """Without a word."""
        self.is_dead = True
        self.ledger.killed([attempt.item.id for attempt in self.leased])
        if self.link is not None:
            self.link.close()
            self.world.server.links.remove(self.link)
            self.world.server.watch.dead_sessions.update(self.session_ids)

    # --- beside the run ---------------------------------------------------------------------------------------------

    def add(self, key: Key) -> None:
        self.keys = {**getattr(self, "keys", {}), key.id: key}
        if self.world.memory is not None and key.id in self.world.memory._pool.credentials:
            return
        self.store.add(
            Credential(
                f"sk-simulated-{key.id}",
                id=key.id,
                quota_group=key.group,
                provider=key.provider,
                scopes=key.scopes,
                limits=key.limits,
            )
        )

    def call(self, timeout: float) -> None:
        """Somebody asks for a lease by hand, for a while, and for so much that it may be too large."""
        if self.is_closing:
            return
        tokens = self.chance.choice([0, 0, 100, 600, 5000])
        record = RecordHandle("caller", 1, tokens, self.chance.choice(self.world.setting.models))
        self.callers[record] = None
        record.deliver = lambda: self.later(self.world.moment(), "a caller hears", lambda: self._called(record))
        if self.store.request(record, True) or record.state == REFUSED:
            self._called(record)
        elif record.state == WAITING:
            self.later(timeout, "a caller's time is up", lambda: self._expire(record))

    def _expire(self, record: RecordHandle) -> None:
        if record.state == WAITING and record in self.callers:
            self.world.situations.note("asker timed out")
            self.store.expire(record)

    def _called(self, record: RecordHandle) -> None:
        if record not in self.callers:
            return
        if record.state == LIVE and self.store.confirm(record):
            self.later(self.chance.uniform(0.01, 1.0), "a caller is done", lambda: self._forget(record))
        elif record.state not in (LIVE, WAITING):
            del self.callers[record]

    def _forget(self, record: RecordHandle) -> None:
        if record in self.callers:
            del self.callers[record]
            self.store.withdraw(record) if record.state == WAITING else self.store.end(record, None, True)
