"""This process as a member of a shared pool: its copy, what it says to the others, and what it hears from them.

What callers say is put into a box. Whoever talks to the store sends all of it in one batch and applies the log to the
copy (`_core.shared`). There is a thread for that, so that a slow or lost store holds up nobody but those who ask for a
lease; a thread that has nothing better to do than to wait for its lease may talk in its place.
"""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from agentos.clock import MAX_WAIT, Clock
from agentos.errors import StoreError
from agentos.events import (
    STORE_LOST,
    CoolDownStarted,
    CredentialQuarantined,
    PoolWaiting,
    StoreReached,
    StoreUnreachable,
)
from agentos.limits.reset_times import day_ends
from agentos.limits.usage_report import UsageReport

from .._record_handle import RecordHandle
from .._rules.lease_states import ENDED, LIVE, REFUSED, WAITING
from .._rules.records import LeaseRecord
from . import neighbours
from . import shared_pool as shared
from .box import Box, read_batch
from .handles import Handles
from .log import Entry, Log, Start, StoreLost, StoreRefused
from .shared_pool import SharedPool, Statement
from .states import freeze, thaw

# A session speaks so often per life of its leases.
RENEWALS = 3
# Those who are not the first in a queue leave it to others to say that an instant has come, for so long.
OTHERS_FIRST = 0.03
# A state is kept after so many entries, and so many more per credential.
KEEP_EVERY = 1024
KEEP_PER_CREDENTIAL = 16
# After a failure the store is tried again after so many seconds, doubled up to the second figure.
FIRST_RETRY, LAST_RETRY = 0.05, 1.0
# A process that ends does not wait longer for the store.
CLOSE_SECONDS = 2.0
# What is heard from others is not needed any more after so many seconds in which nobody waited here.
LISTENS_ON = 2.0
# How often those who wait look whether other processes of the machine are still there.
BURY_SECONDS = 0.5
# What is worth saying also in the name of another session.
_OF_CREDENTIALS = (shared.QUARANTINE, shared.RESTORE, shared.COOL, shared.HOLD, shared.USED)


class Member:
    def __init__(self, log: Log, name: str, clock: Clock, on_event: Callable[[Any], None], ttl: float) -> None:
        self.name = name
        self.ttl = ttl
        self.run_name: str | None = None  # what this process does, for those who look
        self.declared: dict[str, Statement] = {}  # by credential
        self.now = clock.now
        self._log = log
        self._on_event = on_event
        self._start_over()
        _OPEN.add(self)

    def _start_over(self) -> None:
        """Also in a forked child, which has none of the parent's threads, leases or connections."""
        self._talking = threading.Lock()  # has who uses _log
        self.changed = threading.Condition()  # guards all below
        self.copy: SharedPool | None = None
        self.seen: SharedPool | None = None  # the last one, for those who look while there is none
        self.session_id = ""
        self.ahead = 0.0  # the store's time minus ours; rather too little than too much
        self.spoke_at = self._reached_at = -1e9
        self.lost_since: float | None = None
        self._tried_at: float | None = None  # since when nothing was heard of it, while it is asked
        self.lost_because = ""
        self.is_refused = False
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0  # when the thread looks around by itself
        self._epoch = ""
        self._position = 0
        self._longest_ttl = 0.0
        self._used: dict[str, UsageReport] = {}  # in the log that we left, until the next one knows it
        self._parted_at = 0.0
        self._box = Box(self.now)
        self.handles = Handles(self.now)
        self._untold: list[tuple[Callable[..., None], tuple[Any, ...]]] = []  # to be called without the lock
        self._is_listening = False
        self._bury_at = 0.0
        self._wants_news = False
        self._syncs_asked = self._syncs_done = 0
        self._retry_in = FIRST_RETRY
        self._is_closing = False

    # --- speaking: with the lock ----------------------------------------------------------------------------------

    def say(self, statement: Statement, *, urgent: bool = True, by_thread: bool = True) -> None:
        """`by_thread=False`: the caller will `talk`."""
        by = self._box.put(statement, urgent=urgent)
        if by_thread:
            self.wake(by)

    def ask(self, record: RecordHandle, wait: bool, front: bool, *, by_thread: bool) -> None:
        self.check_open()
        self._box.ask()
        self.handles.add(record)
        self.say(_question(record, wait, front), by_thread=by_thread)

    def wake(self, by: float = 0.0) -> None:
        """The thread looks around by then."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="agentos-store", daemon=True)
            self._thread.start()
        elif by < self._wakes_at:
            self._wakes_at = by
            self.changed.notify_all()

    # --- waiting: without it --------------------------------------------------------------------------------------

    def talk(self, is_over: Callable[[], bool]) -> None:
        """Talks to the store in the place of the thread, as long as there is something to say."""
        while (
            not is_over()
            and not self._box.send_by
            and self.lost_since is None
            and self._talking.acquire(blocking=False)
        ):
            try:
                self._exchange()
            except Exception:
                break  # the thread will meet it, too
            finally:
                self._talking.release()
        with self.changed:
            self.wake(self._look_at())  # it may have slept until an instant that is too late now

    def sync(self, seconds: float) -> None:
        """What was said before is in the log, and what others have said is known. Not if the store is lost."""
        with self.changed:
            if self.lost_since is not None or threading.current_thread() is self._thread or self._is_closing:
                return
            self._syncs_asked += 1
            asked = self._syncs_asked
            self._wants_news = True
            self.wake()
        self.until(lambda: self._syncs_done >= asked or self.lost_since is not None, seconds)

    def tell_all(self) -> None:
        """Those who wait for a condition look again."""
        with self.changed:
            self.changed.notify_all()

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Real time, whatever clock the pool has."""
        with self.changed:
            return self.changed.wait_for(condition, seconds)

    def join(self, seconds: float) -> str | None:
        """The pool. Returns why that was not possible."""
        with self.changed:
            self.wake()
        self.until(lambda: self._has_joined() or self.lost_since is not None, seconds)
        with self.changed:
            if self._has_joined():
                return None
            self._is_closing = True
            self.changed.notify_all()
            return self.lost_because or "no answer"

    def _has_joined(self) -> bool:
        return self.copy is not None and self.session_id in self.copy.sessions

    def close(self) -> None:
        """Gives back all that this process holds, if the store can be reached."""
        with self.changed:
            thread = self._thread
            if thread is None or self._is_closing:
                return
            self._is_closing = True
            self.say((shared.LEAVE,))
            self.changed.notify_all()
        if thread is not threading.current_thread():
            thread.join(CLOSE_SECONDS)
        _OPEN.discard(self)

    # --- the thread that talks to the store -----------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self.changed:
                self._wait()
                if self._is_over():
                    break
                is_due = self._due_at() <= self.now()
                is_polled = self.handles.waiting > 0 and self._log.poll_seconds is not None
            try:
                with self._talking:
                    if is_due or (is_polled and self._log.has_news()):
                        self._exchange()
            except (StoreLost, StoreRefused) as error:
                self._on_lost(error)
            except Exception as error:  # what stands there cannot be read: nobody must wait for a thread that is gone
                self._on_lost(StoreLost(f"its content cannot be read: {type(error).__name__}: {error}"))
        with self._talking:
            self._log.close()
        self._tell_who_waits()

    def _tell_who_waits(self) -> None:
        """It was closed: nothing comes any more."""
        with self.changed:
            for handle in self.handles:
                if handle.state == WAITING:
                    self.handles.forget(handle, REFUSED)
                    self._untold.append((handle.deliver, ()))
            self.changed.notify_all()
        self._tell()

    def check_open(self) -> None:
        if self._is_closing:
            raise StoreError("this pool is closed: create a new one")

    def _wait(self) -> None:
        self._wakes_at = self._look_at()
        seconds = self._wakes_at - self.now()
        if seconds > 0.0:
            self.changed.wait(seconds)
        self._wakes_at = 0.0  # it is awake: nobody needs to wake it

    def _look_at(self) -> float:
        """When the thread looks around."""
        due = self._due_at()
        if self.handles.waiting and self._log.poll_seconds is not None:
            due = min(due, self.now() + self._log.poll_seconds)
        return due

    def _is_over(self) -> bool:
        if not self._is_closing:
            return False
        return self._box.is_empty() or self.copy is None or self.lost_since is not None

    def _due_at(self) -> float:
        """When there is something to do."""
        if self._box.unconfirmed is not None or self._wants_news or self.copy is None or self._is_closing:
            return 0.0
        due = min(self._box.send_by, self.now() + MAX_WAIT)
        if self.handles:
            due = min(due, self.spoke_at + self.ttl / RENEWALS)
        if self.handles.waiting:
            due = min(due, self._tick_at(), self._bury_at)
        elif self._is_listening:
            due = min(due, self.handles.waited_at + LISTENS_ON)
        return due

    def _bury(self) -> None:
        """Says which of our neighbours have ended without a word: whoever waits need not wait for them."""
        assert self.copy is not None
        self._bury_at = self.now() + BURY_SECONDS
        here = neighbours.place()
        for session in self.copy.sessions.values():
            if here and session.place == here and session.pid != os.getpid() and neighbours.is_gone(session.pid):
                self.say((shared.GONE, session.id), by_thread=False)

    def _tick_at(self) -> float:
        """When, by our clock, somebody has to say that time has passed."""
        assert self.copy is not None
        at = self.copy.next_at()
        heads = (next(iter(queue.values())) for queue in self.copy.pool.waiting.values())
        is_ours = any(head.owner.id == self.session_id for head in heads)
        return at - self.ahead + (0.0 if is_ours else OTHERS_FIRST)

    def _on_lost(self, error: StoreLost | StoreRefused) -> None:
        """Says so once, and waits a moment before the next try."""
        with self.changed:
            self.is_refused = isinstance(error, StoreRefused)
            if self.lost_since is None:
                self.lost_since = self.now() if self._tried_at is None else self._tried_at
                self.lost_because = str(error)
                self._is_listening = False
                self.changed.notify_all()
                if self.copy is not None:  # else whoever joins is told
                    since = time.time() - (self.now() - self.lost_since)
                    event = StoreUnreachable(self.name, str(error), since)
                    self._untold.append((self._on_event, (event,)))
        self._tell()
        with self.changed:
            self.changed.wait_for(lambda: self._is_closing, self._retry_in)
            self._retry_in = min(LAST_RETRY, 2.0 * self._retry_in)

    # --- one exchange: with _talking ------------------------------------------------------------------------------

    def _exchange(self) -> None:
        if self._tried_at is None:
            self._tried_at = self.now()
        try:
            self._exchange_once()
        except (StoreLost, StoreRefused):
            raise
        except BaseException:  # a Ctrl-C in the middle: neither the connection nor the copy can be trusted
            self._log.close()
            with self.changed:
                self._part()
            raise
        self._tell()

    def _exchange_once(self) -> None:
        if self.copy is None:
            self._begin(self._log.load(self.ttl))
        with self.changed:
            if self.now() >= self._bury_at:
                self._bury()
            batch = self._next_batch()
            epoch, position, syncs = self._epoch, self._position, self._syncs_asked
            self._wants_news = False
        began = self.now()
        answer = self._log.exchange(epoch, position, batch, self.ttl)
        kept = None
        with self.changed:
            if answer.epoch != epoch or answer.entries is None:
                self._part()
                self.wake()
                return
            self._apply_all(answer.entries, position)
            self.ahead = answer.at - self.now()
            assert self.copy is not None
            session = self.copy.sessions.get(self.session_id)
            self._reached_at = began
            if self._is_closing and session is None:
                self._box.empty()
            elif session is None or (batch is None and session.expires_at <= answer.at):
                self._lose_session()
            elif batch is None and began - self.spoke_at >= self.ttl:
                # By the store's clock we were not silent for so long: we may speak, and should.
                self.spoke_at = began - self.ttl / RENEWALS
            elif batch is not None:
                self._box.unconfirmed = None
                self._used = {}
                # If its reply was lost the last time, it has arrived then, and our leases live from then on.
                self.spoke_at = min(began, session.expires_at - self.ttl - self.ahead)
                kept = self._worth_keeping(position)
            self._found()
            if self._syncs_done != syncs or self._box.batches == 1:  # somebody waits for that, or to join
                self._syncs_done = syncs
                self.changed.notify_all()
        if kept is not None:
            self._log.keep(epoch, *kept)
        if self._log.poll_seconds is None:
            self._follow_listening()

    def _next_batch(self) -> bytes | None:
        """All that is in the box; nothing at all if somebody only wants news, or if we were silent for so long that
        nobody may listen to us any more: that has to be found out first."""
        box = self._box
        if box.unconfirmed is not None and box.batches == 1 and self.now() - box.sent_at > self.ttl / 2:
            # We may have joined and expired since: to join once more under the same name would bring our leases back,
            # as others.
            self._lose_session()
        if box.unconfirmed is not None:
            return box.unconfirmed  # once more, with its number: if it has arrived, it does not count again
        now = self.now()
        is_joining = bool(box.statements) and box.statements[0][0] == shared.JOIN
        if now - self.spoke_at >= self.ttl and not is_joining:
            return None
        if not box.statements:
            is_due = bool(self.handles) and now >= self.spoke_at + self.ttl / RENEWALS
            if not is_due and not (self.handles.waiting and now >= self._tick_at()):
                return None
        return box.next_batch(self.session_id)

    def _worth_keeping(self, before: int) -> tuple[int, bytes] | None:
        """One of those who talk keeps a state now and then."""
        assert self.copy is not None
        every = KEEP_EVERY + KEEP_PER_CREDENTIAL * len(self.copy.pool.credentials)
        return (self._position, freeze(self.copy)) if self._position // every != before // every else None

    # --- joining, and joining again -------------------------------------------------------------------------------

    def _begin(self, start: Start) -> None:
        """With what the store has."""
        with self.changed:
            first_at = start.entries[0][0] if start.entries else start.at
            copy = SharedPool(first_at, day_ends) if start.state is None else thaw(start.state)
            # If the log that we knew is gone, so is what was granted there until we heard of it last.
            is_lost = bool(self._epoch) and self._epoch != start.epoch
            longest = max(self.ttl, self._longest_ttl)
            hold = longest if start.is_doubtful else longest - (self.now() - self._reached_at) if is_lost else 0.0
            for at, batch in start.entries:
                copy.apply(at, *read_batch(batch))
            copy.take_events()
            self.copy, self._epoch, self._position = copy, start.epoch, start.position + len(start.entries)
            self.ahead = start.at - self.now()
            if is_lost or self.session_id not in copy.sessions:
                self._lose_session()
                self._tell_of_use()
                if hold > 0.0:
                    self._box.statements.insert(1, (shared.HOLD, hold))
                self._bury_at = 0.0
                if (until := copy.store.cooling.get(None)) is not None:  # who held it back has told only those of then
                    event = CoolDownStarted("store", None, None, until - start.at, STORE_LOST)
                    self._untold.append((self._on_event, (event,)))
            else:
                self._go_on(copy.sessions[self.session_id])

    def _go_on(self, session: shared.Session) -> None:
        """With another copy: what happened in between was told to nobody here."""
        if session.batch >= self._box.batches:
            self._box.unconfirmed = None  # it has arrived
        unasked = {said[1] for said in self._box.unheard() if said[0] == shared.ASK}
        for handle in self.handles:
            record = session.leases.get(handle.id)
            if handle.state == WAITING and record is not None and record.state == LIVE:
                self.say((shared.CLAIM, handle.id))
            elif record is None and handle.id not in unasked:
                was_waiting = handle.state == WAITING
                self.handles.forget(handle, REFUSED if was_waiting else ENDED)
                if was_waiting:
                    self._untold.append((handle.deliver, ()))

    def _part(self) -> None:
        """From the copy: too much of the log has gone by, or it may be another log."""
        if self.copy is not None:
            self.seen = self.copy
            self._longest_ttl = self.copy.longest_ttl()
            if self.session_id in self.copy.sessions:  # else nobody knows yet what was used before this log
                self._used = self.copy.used(self.declared, self.now() + self.ahead)
                self._parted_at = self.now()
        self.copy = None

    def _tell_of_use(self) -> None:
        """A log that was lost has taken the minute's use with it, and the provider has not forgotten. All who have seen
        it tell; where the log is still there, it says the same."""
        elapsed = self.now() - self._parted_at
        place = 1 + len(self.declared)  # behind the credentials, before those who wait
        self._box.statements[place:place] = [(shared.USED, id_, told, elapsed) for id_, told in self._used.items()]

    def _lose_session(self) -> None:
        """Nobody listens to what the old session says, and its leases are gone: a new one, which asks for what is still
        waited for."""
        unheard = self._box.unheard()
        self.session_id = secrets.token_hex(8)
        of_credentials = [said for said in unheard if said[0] in _OF_CREDENTIALS]
        questions = {said[1]: said for said in unheard if said[0] == shared.ASK}
        joining = (shared.JOIN, socket.gethostname(), os.getpid(), self.run_name, self.ttl, neighbours.place())
        self._box.start_over([joining, *self.declared.values(), *of_credentials])
        for record in self.handles:
            if record.state == LIVE and record.id not in self.handles.unclaimed:
                self.handles.forget(record, ENDED)
            else:
                if record.state == LIVE:  # it was lost before its waiter came for it, who waits on
                    self.handles.wait_again(record)
                self._box.statements.append(questions.get(record.id) or _question(record, wait=True, front=False))

    # --- hearing --------------------------------------------------------------------------------------------------

    def _apply_all(self, entries: list[Entry], before: int) -> None:
        for number, entry in enumerate(entries, before + 1):
            if number == self._position + 1:  # else it was heard in the meantime
                self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        """The next entry of the log."""
        assert self.copy is not None
        session_id, number, statements = read_batch(entry[1])
        is_ours = session_id == self.session_id
        served = self.copy.apply(entry[0], session_id, number, statements)
        self._position += 1
        for record in served:
            if record.owner.id == self.session_id:
                self._serve(record, is_firm=record.id not in record.owner.offers)
        if self.copy.pool.events:
            for event in self.copy.take_events():
                if self._concerns_us(event, is_ours):
                    self._untold.append((self._on_event, (event,)))

    def _concerns_us(self, event: Any, is_ours: bool) -> bool:
        assert self.copy is not None
        if isinstance(event, PoolWaiting) and self.copy.store.cooling:
            return False  # for the store, which was told
        if isinstance(event, CredentialQuarantined):
            return event.credential_id in self.declared
        return is_ours or not isinstance(event, PoolWaiting)

    def _serve(self, record: LeaseRecord, is_firm: bool) -> None:
        handle = self.handles.get(record.id)
        if handle is None or handle.state != WAITING:
            return  # it was withdrawn, and the store will hear of that
        if record.state == LIVE and not is_firm:
            self.say((shared.CLAIM, record.id), by_thread=False)  # whoever has heard of it says so
            return
        if record.state == LIVE:
            self.handles.serve(handle, record)
        else:
            handle.too_large = record.too_large
            self.handles.forget(handle, REFUSED if record.state == REFUSED else ENDED)
        self._untold.append((handle.deliver, ()))

    def _tell(self) -> None:
        """Without the lock. If it is interrupted, the rest is told by the next."""
        while self._untold:
            with self.changed:
                if not self._untold:
                    return
                call, arguments = self._untold.pop(0)
            call(*arguments)

    def _follow_listening(self) -> None:
        """While somebody waits here, who was not served at once."""
        with self.changed:
            is_asked = self.handles.waiting > 0 and not self._box.statements
            should = is_asked or (self._is_listening and self.now() < self.handles.waited_at + LISTENS_ON)
            if should == self._is_listening:
                return
            self._is_listening = should
            self._wants_news = self._wants_news or should  # of what was said before we listened
        self._log.listen(self._heard if should else None, self._missed)

    def _heard(self, position: int, entry: Entry) -> None:
        with self.changed:
            if self.copy is None or position <= self._position:
                return
            if position == self._position + 1:
                self._apply(entry)
                if self.session_id not in self.copy.sessions:
                    self._wants_news = True
                elif self.handles.waiting:
                    self.wake(self._tick_at())  # an offer to somebody else may lapse before we would look again
            else:
                self._wants_news = True
            if self._wants_news:
                self.wake()
        self._tell()
        self.talk(lambda: False)

    def _missed(self) -> None:
        """Nothing is heard any more."""
        with self.changed:
            self._is_listening = False
            self._wants_news = True
            self.wake()

    def _found(self) -> None:
        self._retry_in = FIRST_RETRY
        self._tried_at = None
        self.is_refused = False
        if self.lost_since is not None:
            event = StoreReached(self.name, self.now() - self.lost_since)
            self.lost_since = None
            self._untold.append((self._on_event, (event,)))
            self.changed.notify_all()


def _question(record: RecordHandle, wait: bool, front: bool) -> Statement:
    what = (record.requester, record.requests, record.tokens, record.scope, record.prefer, record.waits_for_probe)
    return (shared.ASK, record.id, *what, wait, front)


_OPEN: weakref.WeakSet[Member] = weakref.WeakSet()


def _close_all() -> None:
    for member in tuple(_OPEN):
        member.close()


def _start_all_over() -> None:
    for member in tuple(_OPEN):
        member._log.abandon()
        member._start_over()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_start_all_over)
