"""A simulated process: its member of the pool, and a run. Does the work of the run's driver without threads."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentos.items.item import INTERRUPTED, WORKER_DIED, Item
from agentos.pool._memory import MemoryStore
from agentos.pool._record_handle import RecordHandle
from agentos.pool._rules.lease_states import LIVE, REFUSED, WAITING
from agentos.pool.credential import Credential
from agentos.pool.shared._member.handles import MemberHandle
from agentos.pool.shared.shared_store import SharedStore
from agentos.providers import verdicts
from agentos.runs._parts.admission import Admission
from agentos.runs._rules.circuit_breaker import CircuitBreaker
from agentos.runs._rules.scheduler import FAILED, Again, Scheduler
from agentos.testing import Answer
from agentos.verdict import AUTH_FAILED, NO_VERDICT, PERMANENT, RETRY_ON_OTHER_KEY, TRANSIENT, Verdict

from . import invariants
from .clocks import ProcessClock
from .ledger import Ledger
from .member import SimulatedMember
from .scenario import Key, RunPlan

if TYPE_CHECKING:
    from .world import World

Handle = RecordHandle | MemberHandle
GRACE = 2.0  # seconds that running attempts get after a stop


class _NoGate:
    """No-op: the member finds its owner in the world."""

    name = "the store"


class Attempt:
    """One attempt at an item, with the lease that it uses."""

    def __init__(self, item: Item, record: Handle, number: int) -> None:
        self.item = item
        self.record = record
        self.number = number
        self.answer: Answer | None = None
        self.started_at = 0.0
        self.should_stop = False
        assert record.credential_id is not None
        self.credential_id = record.credential_id


class Process:
    """One launch of one run. Also the pool that `Admission` expects."""

    def __init__(self, world: World, pid: int, plan: RunPlan, ledger: Ledger, rng: random.Random) -> None:
        self.world = world
        self.pid = pid
        self.plan = plan
        self.ledger = ledger
        self.rng = rng
        self.name = f"process {pid}"
        self.clock = ProcessClock(self, float(rng.randint(10, 10_000)))
        self.is_dead = self.is_closed = False
        self.paused_until = 0.0
        self.is_cut = False  # from the server: messages get lost both ways
        self.step_at = -1.0  # of the member's next step; negative: none is scheduled
        self.member: SimulatedMember | None = None
        self.store: MemoryStore | SharedStore = self._open_store()
        self.keys = {id_: world.scenario.keys[id_] for id_ in plan.keys}
        for key in self.keys.values():
            self.add(key)
        self.launch = ledger.launch + 1
        unfinished_ids = ledger.begin()
        if self.launch > 1:
            world.situations.note("resumed")
        self._unread_ids = deque(unfinished_ids)
        self.run = Scheduler(max_workers=plan.workers, retries=plan.retries, total=len(ledger.ids))
        self.run.count_recorded(len(ledger.ids) - len(unfinished_ids))
        self.attempts: dict[Attempt, None] = {}  # attempts that the run waits for
        self.leased_attempts: dict[Attempt, None] = {}  # attempts whose lease is live, abandoned ones included
        self.make_handle = self.store.make_handle
        self.request = self.store.request
        self.confirm = self.store.confirm
        self.withdraw = self.store.withdraw
        self.avoid = self.store.avoid
        self.breaker = CircuitBreaker()
        self.admission = Admission(self, self._on_lease, self.breaker, self.clock)  # type: ignore[arg-type]
        self.callers: dict[Handle, None] = {}  # leases requested outside the run
        self.ended_records: deque[Handle] = deque(maxlen=8)
        self.call_later(0.0, "the run starts", self.schedule_items)

    # --- the pool interface for `Admission` --------------------------------------------------------------------------

    def _open_store(self) -> MemoryStore | SharedStore:
        if self.world.memory is not None:
            return self.world.memory
        self.member = SimulatedMember(self, self.world.scenario.ttl)
        store = SharedStore(_NoGate(), self.clock, self.on_event, self.world.scenario.ttl, str)
        store._member = self.member  # type: ignore[assignment]
        return store

    def request_now(self, record: Handle) -> bool:
        return self.store.request_now(record)

    def on_event(self, event: Any) -> None:
        if self.world.memory is not None:
            self.world.pool_events([event])

    # --- time -------------------------------------------------------------------------------------------------------

    def call_later(self, seconds: float, label: str, call: Callable[[], None]) -> None:
        self.world.schedule(self.world.now + seconds, label, call, self)

    def schedule_step(self) -> None:
        """Schedule the member's next step, or bring it forward. Called after every step of the world."""
        if self.member is None or self.is_dead or self.is_closed:
            return
        due = max(self.world.now, self.world.now + self.member.step_at() - self.clock.now())
        if self.step_at < 0 or due < self.step_at:
            self.step_at = due
            self.world.schedule(due + self.world.short_delay(), "the member acts", lambda: self._step(due), self)

    def _step(self, due: float) -> None:
        if self.step_at == due and self.member is not None and not self.is_closed:
            self.step_at = -1.0
            self.member.step()

    # --- reading and requesting -------------------------------------------------------------------------------------

    def schedule_items(self) -> None:
        """Read items and request leases for them, as the driver does after handling its messages."""
        run = self.run
        at = run.wake(self.clock.now())
        if at is not None:
            self.call_later(at - self.clock.now() + 1e-6, "a pause is over", self.schedule_items)
        if run.stopped is None and not run.is_source_ended:
            for _ in range(max(0, min(run.room(), len(self._unread_ids)))):
                id_ = self._unread_ids.popleft()
                run.add(self.world.make_item(id_))
            run.is_source_ended = not self._unread_ids
        for scope in tuple(run.lanes):
            free = run.max_workers - run.running - self.admission.open_by_scope.get(scope, 0)
            while free > 0 and scope in run.lanes and run.stopped is None:
                free -= 1
                item = run.take(scope)
                record = self.admission.admit(item)
                if record is not None:
                    self._start(item, record)
        if run.is_over() and not self.leased_attempts and not self.is_closed:
            self.close()

    def _on_lease(self, item: Item, record: Handle) -> None:
        """Handle a granted or refused request later: the store calls this inside its own step."""
        seconds = self.world.short_delay() if self.rng.random() < 0.97 else self.rng.uniform(0.1, 3.0)
        self.call_later(seconds, f"the lease for {item.id} is delivered", lambda: self._pick_up(item, record))

    def _pick_up(self, item: Item, record: Handle) -> None:
        admission, run = self.admission, self.run
        if not admission.is_requesting(item, record):
            return
        if record.state == REFUSED or run.free_workers() <= 0:
            admission.withdraw(item)
            if record.too_large is not None:
                run.reject(item.id)
                self.ledger.end(self.launch, item.id, 10**6, "too large")
            else:
                run.put_back(item)
                if record.state == REFUSED and not self.breaker.ignore_exclusions(item):
                    self.stop("no credential can be used")
        elif admission.pick_up(item, record):
            self._start(item, record)
        self.schedule_items()

    # --- attempts ---------------------------------------------------------------------------------------------------

    def _start(self, item: Item, record: Handle) -> None:
        invariants.check_handed_out(self.world, self, record)
        self.run.start(item, self.clock.now())
        attempt = Attempt(item, record, item.attempts)
        attempt.started_at = self.clock.now()
        resting = self.breaker.resting(item.scope, attempt.started_at)
        assert attempt.credential_id not in resting, f"{item.id} starts with a credential that rests in its run"
        self.breaker.started(item, attempt.credential_id, attempt.started_at)
        self._follow_breaker()
        self.attempts[attempt] = self.leased_attempts[attempt] = None
        if not self.ledger.start(self.launch, item.id, attempt.number):
            self._release(attempt, None)
            self._finish_attempt(attempt, INTERRUPTED)
            self.stop("another launch has taken over")
            return
        self.call_later(
            self.world.short_delay(), f"{item.id} is sent with {attempt.credential_id}", lambda: self._send(attempt)
        )
        if self.plan.timeout is not None:
            self.call_later(self.plan.timeout, "time is up", lambda: self._time_out(attempt))

    def _send(self, attempt: Attempt) -> None:
        if attempt not in self.leased_attempts:
            return
        world, item = self.world, attempt.item
        invariants.check_sent(world, attempt.record)
        answer = attempt.answer = world.scenario.provider.ask(
            attempt.credential_id, now=world.now + world.epoch, tokens=item.tokens, model=item.scope
        )
        seconds = self.rng.uniform(0.01, 0.3)
        if self.rng.random() < world.scenario.slow_answer_share:
            seconds = self.rng.uniform(1.0, 30.0)
        # Scheduled in the world, not in the process: the provider finishes the request even if the process crashes.
        self.world.schedule(
            world.now + seconds, "the provider ends a request", lambda: self._finish_request(answer, item)
        )
        self.call_later(
            seconds + world.short_delay(), f"{item.id} is answered {answer.status}", lambda: self._end(attempt)
        )
        if self.rng.random() < 0.05:
            self.call_later(seconds / 2, "an intermediate answer arrives", lambda: self._observe_midway(attempt))

    def _finish_request(self, answer: Answer, item: Item) -> None:
        self.world.scenario.provider.finish(
            answer, now=self.world.now + self.world.epoch, tokens=item.payload["tokens"]
        )

    def _observe_midway(self, attempt: Attempt) -> None:
        if self.rng.random() < 0.5:
            self.store.use_more(attempt.record, 1, self.rng.choice([0, 50]))
        else:
            self.store.observed(attempt.record, Verdict("rate_limited", retry_after=self.rng.uniform(0.1, 4.0)))

    def _end(self, attempt: Attempt) -> None:
        """End an attempt that was answered."""
        if attempt not in self.leased_attempts or attempt.answer is None:
            return
        kind, verdict = self._classify(attempt, attempt.answer)
        if kind == "success" and attempt.item.tokens and self.rng.random() < 0.7:
            self.store.settle(attempt.record, None, attempt.item.payload["tokens"])
        self._release(attempt, verdict, success=kind == "success")
        if attempt in self.attempts:
            self._finish_attempt(attempt, kind, verdict)
        else:
            self.world.situations.note("late release")
        self.schedule_items()

    def _classify(self, attempt: Attempt, answer: Answer) -> tuple[str | None, Verdict | None]:
        note = self.world.situations.note
        if attempt.should_stop and self.rng.random() < 0.5:
            note("interrupted")
            return INTERRUPTED, NO_VERDICT
        if self.rng.random() < self.world.scenario.failure_probability:
            kind = self.rng.choice([TRANSIENT, PERMANENT, WORKER_DIED, None])
            if kind == WORKER_DIED:
                note("worker died")
            elif kind is not None:
                note(f"verdict {kind}")
            return kind, Verdict(kind) if kind in (TRANSIENT, PERMANENT) else NO_VERDICT
        verdict = verdicts.from_response(answer.status, answer.headers, answer.body, now=self.clock.epoch())
        note("success" if verdict.kind is None else f"verdict {verdict.kind}")
        if verdict.kind is None:
            if verdict.limit_requests is not None or verdict.limit_tokens is not None:
                self.store.observed(attempt.record, verdict)
            return "success", None
        if answer.reason == "dead" and self.rng.random() < 0.5:
            note("silent failure of a key")
            return None, NO_VERDICT
        if verdict.kind in RETRY_ON_OTHER_KEY and self.rng.random() < 0.1:
            note("printed refusal")
            verdict = verdict._replace(is_printed=True)
        return verdict.kind, verdict

    def _release(self, attempt: Attempt, verdict: Verdict | None, *, success: bool = False) -> None:
        if verdict is not None and verdict.is_printed:
            verdict = verdict._replace(kind=TRANSIENT)  # as `LeasePool.end` does
        self.store.end(attempt.record, verdict, success)
        del self.leased_attempts[attempt]
        self.ended_records.append(attempt.record)

    def _finish_attempt(self, attempt: Attempt, kind: str | None, verdict: Verdict | None = None) -> None:
        """Let the run decide about the item: succeeded, failed, or another attempt."""
        item, run, now, breaker = attempt.item, self.run, self.clock.now(), self.breaker
        del self.attempts[attempt]
        if kind == "success":
            run.succeed(item)
            self._record(attempt, "succeeded")
            breaker.succeeded(item, attempt.credential_id, attempt.started_at, now)
            self._follow_breaker()
            return
        advice = None
        if verdict is not None and verdict.is_printed:
            what = (attempt.credential_id, verdict, attempt.started_at, now, self.rng.random())
            advice = breaker.refused(item, *what)
            kind = TRANSIENT if advice is None else kind
        if advice is None and kind in (TRANSIENT, None):
            advice = breaker.failed(
                item, attempt.credential_id, attempt.started_at, self.plan.keys, now, usable=lambda: self.plan.keys
            )
        is_proven = kind == AUTH_FAILED and breaker.has_worked(item.scope, attempt.credential_id)
        refused_by = attempt.credential_id if is_proven else None
        decision = run.fail_attempt(item, kind, now, self.rng.random(), refused_by, None, advice)
        self._follow_breaker()
        if decision is FAILED:
            self._record(attempt, f"failed: {kind}")
        elif isinstance(decision, Again):
            self.world.situations.note("rotated" if decision.at is None else "retried")

    def _follow_breaker(self) -> None:
        """Request other credentials if some rest now, as the driver does."""
        for event in self.breaker.events:
            self.world.situations.note(type(event).__name__)
        self.breaker.events.clear()
        self.admission.refresh()
        at = self.breaker.next_change(self.clock.now())
        if at is not None:
            self.call_later(at - self.clock.now() + 1e-6, "a rest is over", self.admission.refresh)

    def _record(self, attempt: Attempt, outcome: str) -> None:
        self.ledger.attempt_done(attempt.item.id)
        if not self.ledger.end(self.launch, attempt.item.id, attempt.number, outcome):
            self.stop("another launch has taken over")

    def _time_out(self, attempt: Attempt) -> None:
        if attempt not in self.attempts:
            return
        if self.rng.random() < 0.5:  # the attempt is killed
            self.world.situations.note("attempt timed out")
            self._release(attempt, NO_VERDICT)
            self._finish_attempt(attempt, TRANSIENT)
        else:  # the attempt is abandoned and keeps its lease until it ends
            self.world.situations.note("attempt abandoned")
            self._finish_attempt(attempt, PERMANENT)
        self.schedule_items()

    # --- stopping ---------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Start no more attempts, ask the running ones to stop, and abandon them after GRACE seconds."""
        if self.run.stopped is not None:
            return
        self.world.situations.note("stopped")
        self.run.stop(reason)
        for item in self.admission.withdraw_all():
            self.run.put_back(item)
        for attempt in self.attempts:
            attempt.should_stop = True
        self.call_later(GRACE, "the grace is over", self._end_grace)
        self.call_later(0.0, "the run may have ended", self.schedule_items)

    def _end_grace(self) -> None:
        for attempt in tuple(self.attempts):
            del self.attempts[attempt]
            self.run.give_up()
        for attempt in tuple(self.leased_attempts):
            self._release(attempt, None)
        self.schedule_items()

    @property
    def is_closing(self) -> bool:
        return self.is_closed or (self.member is not None and self.member._is_closing)

    def close(self) -> None:
        """Release all leases and leave the pool. A pool in memory has no sessions to leave."""
        for record in tuple(self.callers):
            self._end_call(record)
        if self.member is None:
            self.is_closed = True
        elif not self.is_closing:
            self.member.close()
            self.is_closed = True

    def crash(self) -> None:
        """Die without releasing anything or leaving the pool."""
        self.is_dead = True
        self.ledger.killed([attempt.item.id for attempt in self.leased_attempts])
        if self.member is not None and self.member.link is not None:
            self.member.link.vanish()

    # --- leases outside the run -------------------------------------------------------------------------------------

    def add(self, key: Key) -> None:
        self.keys = {**getattr(self, "keys", {}), key.id: key}
        if self.world.memory is not None and key.id in self.world.memory._allocator.credentials:
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
        """Request a lease outside the run, with a timeout; the request may be too large for every credential."""
        if self.is_closing:
            return
        tokens = self.rng.choice([0, 0, 100, 600, 5000])
        record = self.make_handle("caller", 1, tokens, self.rng.choice(self.world.scenario.models))
        self.callers[record] = None
        record.deliver = lambda: self.call_later(
            self.world.short_delay(), "a caller's lease is delivered", lambda: self._serve_caller(record)
        )
        if self.store.request(record, True) or record.state == REFUSED:
            self._serve_caller(record)
        elif record.state == WAITING:
            self.call_later(timeout, "a caller's timeout is reached", lambda: self._expire(record))

    def _expire(self, record: Handle) -> None:
        if record.state == WAITING and record in self.callers:
            self.world.situations.note("request timed out")
            self.store.expire(record)

    def _serve_caller(self, record: Handle) -> None:
        if record not in self.callers:
            return
        if record.state == LIVE and self.store.confirm(record):
            self.call_later(self.rng.uniform(0.01, 1.0), "a caller releases its lease", lambda: self._end_call(record))
        elif record.state not in (LIVE, WAITING):
            del self.callers[record]

    def _end_call(self, record: Handle) -> None:
        if record in self.callers:
            del self.callers[record]
            self.store.withdraw(record) if record.state == WAITING else self.store.end(record, None, True)
