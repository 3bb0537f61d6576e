"""The pool's state where other processes share it: this process's copy, and what it says to the others.

Callers never wait for the store: what they say is put into a box, and they are told what came of it. One thread sends
what is in the box, all of it in one batch, and applies the log to the copy (`_core.shared`). So a slow or lost store
holds up nobody but those who ask for a lease.

The objects that callers have (`LeaseRecord`) are not those in the copy: theirs say what they were told, and survive
that the copy is made anew.
"""

from __future__ import annotations

import atexit
import os
import random
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from .._clock import Clock
from .._core import shared
from .._core.events import STORE_LOST, CredentialQuarantined, PoolWaiting, StoreReached, StoreUnreachable, Verdict
from .._core.plan import Planned
from .._core.pool import Pool
from .._core.records import ENDED, LIVE, REFUSED, WAITING, LeaseRecord, Want
from .._core.shared import SharedPool, Statement
from .._days import day_ends
from ..credentials import Credential, fingerprint
from ..errors import StoreError, UnknownCredential
from .log import Entry, Log, Start, StoreLost, StoreRefused
from .snapshots import CredentialSnapshot, planned, snapshot
from .states import freeze, thaw

T = TypeVar("T")

# A lease that is handed out has at least this share of its life before it; a session speaks that often per life.
FRESH_SHARE = 0.9
RENEWALS = 3
# Those who are not the first in a queue leave it to others to say that an instant has come, for so long.
OTHERS_FIRST = 0.03
# A state is kept after so many entries, and so many more per credential.
KEEP_EVERY = 1024
KEEP_PER_CREDENTIAL = 16
# After a failure the store is tried again after so many seconds, doubled up to the second figure.
FIRST_RETRY, LAST_RETRY = 0.05, 1.0
# How long those wait who want to know how things stand now, and a process that ends.
SYNC_SECONDS = 5.0
CLOSE_SECONDS = 2.0
# What is heard from others is not needed any more after so many seconds in which nobody waited here.
LISTENS_ON = 2.0

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[str, int, list[tuple[Any, ...]]]).decode
_jitter = random.random


class SharedStore:
    is_shared = True

    def __init__(self, log: Log, name: str, clock: Clock, on_event: Callable[[Any], None], ttl: float) -> None:
        self._log = log
        self._name = name
        self._clock = clock
        self._now = clock.now
        self._on_event = on_event
        self._ttl = ttl
        self.run_name: str | None = None  # what this process does, for those who look
        self._declared: dict[str, Statement] = {}  # by credential
        self._start_over()
        _OPEN.add(self)

    def _start_over(self) -> None:
        """Also in a forked child, which has none of the parent's threads, leases or connections."""
        self._changed = threading.Condition()  # guards all below
        self._thread: threading.Thread | None = None
        self._copy: SharedPool | None = None
        self._epoch = ""
        self._longest_ttl = 0.0
        self._position = 0
        self._session = ""
        self._batches = 0
        self._leases = 0
        self._box: list[Statement] = []
        self._unconfirmed: bytes | None = None  # a batch whose reply is not there yet
        self._handles: dict[int, LeaseRecord] = {}  # by number, in the order of asking: those that wait or live
        self._waiting = 0  # of them
        self._untold: list[Callable[[], None]] = []
        self._ahead = 0.0  # the store's time minus ours; rather too little than too much
        self._spoke_at = -1e9
        self._waited_at = -1e9  # when somebody waited here last
        self._is_listening = False
        self._wants_news = False
        self._syncs_asked = self._syncs_done = 0
        self._lost_since: float | None = None
        self._lost_because = ""
        self._retry_in = FIRST_RETRY
        self._refused: StoreRefused | None = None
        self._is_closing = False

    # --- leases ---------------------------------------------------------------------------------------------------

    def request(self, record: LeaseRecord, wait: bool = True, front: bool = False) -> bool:
        """False: `record.deliver()` is called when it is live, or never can be. With `wait=False` it is known here."""
        answered = None
        if not wait:
            answered = threading.Event()
            record.deliver = answered.set
        with self._changed:
            if record.id is None or record.state != WAITING or record.id not in self._handles:
                self._leases += 1
                record.id = self._leases
                record.state = WAITING
                self._handles[record.id] = record
                self._waiting += 1
                self._box.append(self._question(record, wait, front))
                self._wake()
        if answered is None:
            return False
        if not self._until(answered.is_set, SYNC_SECONDS):
            self.withdraw(record)
        return record.state == LIVE

    def _question(self, record: LeaseRecord, wait: bool, front: bool) -> Statement:
        what = (record.requester, record.requests, record.tokens, record.scope, record.prefer, record.is_patient)
        return (shared.ASK, record.id, *what, wait, front)

    def end(self, record: LeaseRecord, verdict: Verdict | None, success: bool = False) -> None:
        """Does nothing if the lease is not live."""
        jitter = 0.0 if verdict is None else _jitter()
        self._say_last(record, (shared.END, record.id, verdict, success, jitter))

    def cool_and_end(self, record: LeaseRecord, seconds: float) -> None:
        self._say_last(record, (shared.COOL_AND_END, record.id, seconds))

    def _say_last(self, record: LeaseRecord, statement: Statement) -> None:
        with self._changed:
            if record.state == LIVE:
                self._forget(record, ENDED)
                self._box.append(statement)
                self._wake()

    def use_more(self, record: LeaseRecord, requests: int, tokens: int) -> None:
        self._say_of(record, (shared.USE_MORE, record.id, requests, tokens))

    def observed(self, record: LeaseRecord, verdict: Verdict) -> None:
        self._say_of(record, (shared.OBSERVED, record.id, verdict, _jitter()))

    def settle(self, record: LeaseRecord, requests: int | None, tokens: int | None) -> bool:
        if record.settled:
            return False
        record.settled = self._say_of(record, (shared.SETTLE, record.id, requests, tokens))
        return record.settled

    def _say_of(self, record: LeaseRecord, statement: Statement) -> bool:
        with self._changed:
            if record.state != LIVE:
                return False
            self._box.append(statement)
            self._wake()
            return True

    # --- waiting --------------------------------------------------------------------------------------------------

    def withdraw(self, record: LeaseRecord) -> None:
        with self._changed:
            if record.id in self._handles:
                self._forget(record, ENDED)
                self._box.append((shared.WITHDRAW, record.id))
                self._wake()

    def expire(self, record: LeaseRecord) -> None:
        with self._changed:
            is_late = record.state == WAITING and record.id in self._handles
        if is_late:
            self.withdraw(record)
            record.deliver()

    def confirm(self, record: LeaseRecord) -> bool:
        """A waiter picks up its lease; False if it was worthless by then, and the waiter waits on."""
        with self._changed:
            if record.state != LIVE or record.credential is None:
                return False
            is_fresh = self._now() - self._spoke_at <= (1.0 - FRESH_SHARE) * self._ttl
            if is_fresh and self._is_usable(record) and record.credential.id in self._declared:
                return True
            record.state = WAITING
            self._waiting += 1
            self._box.append((shared.CLAIM, record.id))
            self._wake()
            return False

    def _is_usable(self, record: LeaseRecord) -> bool:
        credential = None if self._copy is None else self._copy.pool.credentials.get(record.credential.id)  # type: ignore[union-attr]
        if self._copy is None or credential is None:
            return False
        return credential.quarantine is None and credential.usable_at(record.scope) <= self._copy.at

    # --- the pool -------------------------------------------------------------------------------------------------

    def add(self, credential: Credential) -> None:
        limits = credential.limits
        statement = (
            shared.ADD,
            credential.id,
            credential.quota_group,
            credential.provider,
            sorted(credential.scopes),
            [
                limits.requests_per_minute,
                limits.tokens_per_minute,
                limits.requests_per_day,
                limits.max_concurrent,
                limits.burst,
                limits.day_resets,
            ],
            fingerprint(credential.secret),
        )
        with self._changed:
            self._declared[credential.id] = statement
            if self._thread is not None:
                self._box.append(statement)
                self._wake()

    def remove(self, credential_id: str) -> None:
        self._find(credential_id)
        with self._changed:
            del self._declared[credential_id]
            self._box.append((shared.DROP, credential_id))
            self._wake()

    def quarantine(self, credential_id: str, reason: str) -> None:
        self._say_of_credential(shared.QUARANTINE, credential_id, reason)

    def restore(self, credential_id: str) -> None:
        self._say_of_credential(shared.RESTORE, credential_id)

    def cool(self, credential_id: str, seconds: float) -> None:
        self._say_of_credential(shared.COOL, credential_id, seconds)

    def _say_of_credential(self, kind: int, credential_id: str, *more: Any) -> None:
        self._find(credential_id)
        with self._changed:
            self._box.append((kind, credential_id, *more))
            self._wake()

    def _find(self, credential_id: str) -> None:
        if credential_id not in self._declared:
            raise UnknownCredential("no credential with this id is in the pool")

    # --- looking --------------------------------------------------------------------------------------------------

    def live_leases(self, credential_id: str) -> list[LeaseRecord]:
        """Of this process: nobody can give back another's."""
        with self._changed:
            live = (record for record in self._handles.values() if record.state == LIVE)
            return [record for record in live if record.credential and record.credential.id == credential_id]

    def waiting_for(self, scope: str | None, need: tuple[int, int] | None = None) -> PoolWaiting:
        with self._changed:
            if self._copy is None or self._lost_since is not None:
                return PoolWaiting(STORE_LOST, len(self._declared), 0, 0, None)
            waiting = self._copy.pool.waiting_for(self._want(scope), self._copy.at, need)
            if waiting.usable_in is not None:
                passed = self._now() + self._ahead - self._copy.at
                waiting = waiting._replace(usable_in=max(0.0, waiting.usable_in - max(0.0, passed)))
            return waiting._replace(reason=STORE_LOST) if self._copy.store.cooling else waiting

    def reasons(self, scope: str | None) -> dict[str, str]:
        return self._look(
            lambda pool, _at: {id_: text for id_, text in pool.reasons(scope).items() if id_ in self._declared}
        )

    def is_proven(self, credential_id: str) -> bool:
        with self._changed:
            known = None if self._copy is None else self._copy.pool.credentials.get(credential_id)
            return known is not None and known.is_proven

    def waiters(self) -> int:
        self._sync()
        with self._changed:
            return self._waiting

    def available(self) -> int:
        self._sync()
        return self._look(lambda pool, at: sum(pool.is_usable(c, None, at) for c in self._own(pool)))

    def snapshot(self, *, everybody: bool = False) -> list[CredentialSnapshot]:
        """`everybody`: also of the credentials that only others have."""
        self._sync()

        def look(pool: Pool, at: float) -> list[CredentialSnapshot]:
            credentials = list(pool.credentials.values()) if everybody else self._own(pool)
            return [snapshot(pool, credential, at) for credential in credentials]

        return self._look(look)

    def fastest(self) -> tuple[float | None, float]:
        return self._look(lambda pool, at: pool.fastest(at, self._own(pool)))

    def planned(self) -> list[Planned]:
        self._sync()
        return self._look(lambda pool, at: [planned(c, at) for c in self._own(pool) if not c.quarantine])

    def _own(self, pool: Pool) -> list[Any]:
        return [pool.credentials[id_] for id_ in self._declared if id_ in pool.credentials]

    def _look(self, look: Callable[[Pool, float], T]) -> T:
        """At the instant of the last batch: the copy must not grow older than the others'."""
        with self._changed:
            copy = self._copy
            if copy is None:
                copy = SharedPool(0.0, day_ends)
            return look(copy.pool, copy.at)

    def _want(self, scope: str | None) -> Want:
        session = None if self._copy is None else self._copy.sessions.get(self._session)
        return Want(scope, frozenset(self._declared)) if session is None else session.want(scope)

    # --- beginning and ending -------------------------------------------------------------------------------------

    def open(self) -> None:
        """Joins the pool; raises `StoreError` if that is not possible now."""
        with self._changed:
            self._wake()
        self._until(lambda: (self._copy is not None and not self._box) or self._is_refused(), SYNC_SECONDS)
        with self._changed:
            if self._copy is None or self._refused is not None:
                reason = str(self._refused or self._lost_because or "no answer")
                self._is_closing = True
                self._changed.notify_all()
                raise StoreError(f"the pool's store {self._name} cannot be used: {reason}")

    def _is_refused(self) -> bool:
        return self._refused is not None or self._lost_since is not None

    def close(self) -> None:
        """Gives back all that this process holds, if the store can be reached."""
        with self._changed:
            thread = self._thread
            if thread is None or self._is_closing:
                return
            self._box.append((shared.LEAVE,))
            self._is_closing = True
            self._changed.notify_all()
        if thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)
        _OPEN.discard(self)

    def _sync(self) -> None:
        """What was said before is in the log, and what others have said is known. Not if the store is lost."""
        with self._changed:
            if self._lost_since is not None or threading.current_thread() is self._thread or self._is_closing:
                return
            self._syncs_asked += 1
            asked = self._syncs_asked
            self._wants_news = True
            self._wake()
        self._until(lambda: self._syncs_done >= asked or self._lost_since is not None, SYNC_SECONDS)

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Real time, whatever clock the pool has."""
        with self._changed:
            return self._changed.wait_for(condition, seconds)

    # --- the thread that talks to the store -----------------------------------------------------------------------

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="agentos-store", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                seconds = self._idle_seconds()
                if seconds > 0.0:
                    self._changed.wait(seconds)
                    seconds = self._idle_seconds()
                if self._is_over():
                    break
                is_polled = self._waiting > 0 and self._log.poll_seconds is not None
            try:
                if seconds <= 0.0 or (is_polled and self._log.has_news()):
                    self._talk()
            except (StoreLost, StoreRefused) as error:
                self._on_lost(error)
        self._log.close()

    def _is_over(self) -> bool:
        if not self._is_closing:
            return False
        has_something_to_say = self._box or self._unconfirmed is not None
        return not has_something_to_say or self._copy is None or self._lost_since is not None

    def _idle_seconds(self) -> float:
        """How long there is nothing to do."""
        if self._box or self._unconfirmed is not None or self._wants_news or self._copy is None or self._is_closing:
            return 0.0
        now = self._now()
        due = now + 3600.0
        if self._handles:
            due = self._spoke_at + self._ttl / RENEWALS
        if self._waiting:
            due = min(due, self._tick_at())
            if self._log.poll_seconds is not None:
                due = min(due, now + self._log.poll_seconds)
        elif self._is_listening:
            due = min(due, self._waited_at + LISTENS_ON)
        return due - now

    def _tick_at(self) -> float:
        """When, by our clock, somebody has to say that time has passed."""
        assert self._copy is not None
        at = self._copy.next_at()
        heads = (next(iter(queue.values())) for queue in self._copy.pool.waiting.values())
        is_ours = any(head.owner.id == self._session for head in heads)
        return at - self._ahead + (0.0 if is_ours else OTHERS_FIRST)

    def _talk(self) -> None:
        """One exchange with the store."""
        with self._changed:
            is_new = self._copy is None
        if is_new:
            self._begin(self._log.load(self._ttl))
        self._follow_listening()
        with self._changed:
            batch = self._next_batch()
            epoch, position, syncs = self._epoch, self._position, self._syncs_asked
            self._wants_news = False
        began = self._now()
        answer = self._log.exchange(epoch, position, batch, self._ttl)
        now = self._now()
        kept = None
        with self._changed:
            if answer.epoch != epoch or answer.entries is None:
                self._part()
                return
            self._ahead = answer.at - now
            told: list[Callable[[], None]] = []
            for number, entry in enumerate(answer.entries, position + 1):
                if number == self._position + 1:
                    self._apply(entry, told)
            assert self._copy is not None
            session = self._copy.sessions.get(self._session)
            if session is None or (batch is None and session.expires_at <= answer.at):
                self._lose_session()
            elif batch is not None:
                self._unconfirmed = None
                self._spoke_at = began
                every = KEEP_EVERY + KEEP_PER_CREDENTIAL * len(self._copy.pool.credentials)
                if self._position // every != position // every and len(answer.entries) > 0:
                    kept = (self._position, freeze(self._copy))
            self._syncs_done = syncs
            told += self._untold
            self._untold = []
            self._found(now, told)
            self._changed.notify_all()
        for tell in told:
            tell()
        if kept is not None:
            self._log.keep(epoch, *kept)

    def _next_batch(self) -> bytes | None:
        """All that is in the box; nothing at all if somebody only wants news, or if we were silent for so long that
        nobody may listen to us any more: that has to be found out first."""
        if self._unconfirmed is not None:
            return self._unconfirmed  # once more, with its number: if it has arrived, it does not count again
        now = self._now()
        is_joining = bool(self._box) and self._box[0][0] == shared.JOIN
        if now - self._spoke_at >= self._ttl and not is_joining:
            return None
        is_due = bool(self._handles) and now >= self._spoke_at + self._ttl / RENEWALS
        is_due = is_due or (self._waiting > 0 and now >= self._tick_at())
        if not self._box and not is_due:
            return None
        self._batches += 1
        self._unconfirmed = _encode((self._session, self._batches, self._box))
        self._box = []
        return self._unconfirmed

    def _begin(self, start: Start) -> None:
        """With what the store has."""
        with self._changed:
            ttl = max(self._ttl, self._longest_ttl)
            first_at = start.entries[0][0] if start.entries else start.at
            copy = SharedPool(first_at, day_ends) if start.state is None else thaw(start.state)
            # If the log that we knew is gone, or shorter than it was, so is what was granted there.
            is_lost = bool(self._epoch) and self._epoch != start.epoch
            self._copy, self._epoch, self._position = copy, start.epoch, start.position
            self._ahead = start.at - self._now()
            for at, batch in start.entries:
                copy.apply(at, *_decode(batch))
                self._position += 1
            copy.take_events()
            if is_lost or self._session not in copy.sessions:
                self._lose_session()
                if is_lost or start.is_doubtful:
                    self._box.insert(1, (shared.HOLD, ttl))
            else:
                self._go_on(copy.sessions[self._session])

    def _go_on(self, session: shared.Session) -> None:
        """With another copy: what happened in between was told to nobody here."""
        if session.batch < self._batches:
            return  # nothing did: the last batch has not arrived
        self._unconfirmed = None
        unasked = {said[1] for said in self._box if said[0] == shared.ASK}
        for handle in tuple(self._handles.values()):
            record = session.leases.get(handle.id)
            if handle.state == WAITING and record is not None and record.state == LIVE:
                self._box.append((shared.CLAIM, handle.id))
            elif record is None and handle.id not in unasked:
                self._forget(handle, REFUSED if handle.state == WAITING else ENDED)
                if handle.deliver is not None:
                    self._untold.append(handle.deliver)

    def _part(self) -> None:
        """From the copy: too much of the log has gone by, or it may be another log."""
        if self._copy is not None:
            self._longest_ttl = self._copy.longest_ttl()
        self._copy = None

    def _lose_session(self) -> None:
        """Nobody listens to what the old session says, and its leases are gone: a new one, which asks for what is still
        waited for."""
        self._session = secrets.token_hex(8)
        self._unconfirmed = None
        of_credentials = [said for said in self._box if said[0] in (shared.QUARANTINE, shared.RESTORE, shared.COOL)]
        self._box = [(shared.JOIN, socket.gethostname(), os.getpid(), self.run_name, self._ttl)]
        self._box += [*self._declared.values(), *of_credentials]
        self._batches = 0
        for record in tuple(self._handles.values()):
            if record.state == LIVE:
                self._forget(record, ENDED)
            else:
                self._box.append(self._question(record, True, front=False))

    def _apply(self, entry: Entry, told: list[Callable[[], None]]) -> None:
        """The next entry of the log. What is to be told to others is told later, without the lock."""
        assert self._copy is not None
        session_id, number, statements = _decode(entry[1])
        served = self._copy.apply(entry[0], session_id, number, statements)
        self._position += 1
        for record in served:
            if record.owner.id == self._session:
                self._serve(record, session_id == self._session, told)
        for event in self._copy.take_events():
            is_ours = session_id == self._session
            if is_ours or not isinstance(event, PoolWaiting):
                if isinstance(event, CredentialQuarantined) and event.credential_id not in self._declared:
                    continue
                told.append(lambda event=event: self._on_event(event))  # type: ignore[misc]

    def _serve(self, record: LeaseRecord, is_firm: bool, told: list[Callable[[], None]]) -> None:
        handle = self._handles.get(record.id)
        if handle is None or handle.state != WAITING:
            return  # it was withdrawn, and the store will hear of that
        if record.state == LIVE and not is_firm:
            self._box.append((shared.CLAIM, record.id))
            self._changed.notify_all()
            return
        if record.state == LIVE:
            handle.state = LIVE
            handle.credential, handle.fence, handle.granted_at = record.credential, record.fence, record.granted_at
            self._count_waiting(-1)
        else:
            handle.too_large = record.too_large
            self._forget(handle, REFUSED if record.state == REFUSED else ENDED)
        told.append(handle.deliver)

    def _forget(self, record: LeaseRecord, state: str) -> None:
        if record.state == WAITING:
            self._count_waiting(-1)
        record.state = state
        self._handles.pop(record.id, None)

    def _count_waiting(self, change: int) -> None:
        self._waiting += change
        self._waited_at = self._now()

    # --- what others say, as they say it --------------------------------------------------------------------------

    def _follow_listening(self) -> None:
        with self._changed:
            should = self._waiting > 0 or (self._is_listening and self._now() < self._waited_at + LISTENS_ON)
            if should == self._is_listening:
                return
            self._is_listening = should
        self._log.listen(self._heard if should else None, self._missed)

    def _heard(self, position: int, entry: Entry) -> None:
        told: list[Callable[[], None]] = []
        with self._changed:
            if self._copy is None or position <= self._position:
                return
            if position == self._position + 1:
                self._apply(entry, told)
                if self._box or self._session not in self._copy.sessions:
                    self._wants_news = True
                    self._changed.notify_all()
            else:
                self._wants_news = True
                self._changed.notify_all()
        for tell in told:
            tell()

    def _missed(self) -> None:
        """Nothing is heard any more."""
        with self._changed:
            self._is_listening = False
            self._wants_news = True
            self._changed.notify_all()

    # --- when the store is lost -----------------------------------------------------------------------------------

    def _on_lost(self, error: StoreLost | StoreRefused) -> None:
        """Says so once, and waits a moment before the next try."""
        event = None
        with self._changed:
            self._refused = error if isinstance(error, StoreRefused) else None
            if self._lost_since is None:
                self._lost_since = self._now()
                self._lost_because = str(error)
                self._is_listening = False
                self._changed.notify_all()
                if self._copy is not None:  # else whoever opens it is told
                    event = StoreUnreachable(self._name, str(error), time.time())
        if event is not None:
            self._on_event(event)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, self._retry_in)
            self._retry_in = min(LAST_RETRY, 2.0 * self._retry_in)

    def _found(self, now: float, told: list[Callable[[], None]]) -> None:
        self._retry_in = FIRST_RETRY
        self._refused = None
        if self._lost_since is not None:
            event = StoreReached(self._name, now - self._lost_since)
            self._lost_since = None
            told.append(lambda: self._on_event(event))


_OPEN: weakref.WeakSet[SharedStore] = weakref.WeakSet()


def _close_all() -> None:
    for store in tuple(_OPEN):
        store.close()


def _start_all_over() -> None:
    for store in tuple(_OPEN):
        store._start_over()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_start_all_over)
