"""A pool that several processes share: each has a copy of it, and all copies are the same.

Whatever a process does to the pool is said in a *batch* of statements, and the store puts all batches into one order
and gives each an instant of its own clock. Every process applies them in that order to its copy. So the rules of `pool`
are the only ones, no process's clock counts, and the store decides nothing: it keeps a log.

For this to work the state may depend on nothing but the log: no clock, no chance, no order of a set. Time passes only
with batches; whoever waits for an instant says something then, an empty batch if need be.

A *session* is one process's part in the pool. It lives as long as it says something at least every `ttl` seconds; if it
does not, its leases and its places in the queues are gone, and what it says later does not count. What a session is
granted when it speaks itself is firm. What others leave to it is an offer: it has to be claimed within `CLAIM_SECONDS`.
A session that leaves one unclaimed is passed over until it speaks again, so that a dead one delays nobody for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from agentos.events import STORE_LOST
from agentos.limits.declaration import Limits, strictest
from agentos.limits.usage_report import UsageReport
from agentos.verdict import RATE_LIMITED, Verdict

from .._rules.allocator import Allocator
from .._rules.cooldown_scope import CooldownScope
from .._rules.lease_states import ENDED, LIVE, REFUSED, WAITING
from .._rules.records import LeaseRecord, RestrictedScope

# An offer that is not claimed for so long goes to the next.
CLAIM_SECONDS = 1.0
# A credential that nobody has had for so long is forgotten when somebody joins.
FORGOTTEN_AFTER = 30 * 86_400.0

# What can be said. `lease` is a number that its session chose.
JOIN = 0  # host, pid, name, ttl, place
LEAVE = 1
ADD = 2  # id, group, provider, scopes, limits, fingerprint
DROP = 3  # id
ASK = 4  # lease, requester, requests, tokens, scope, prefer, waits_for_probe, wait, front
CLAIM = 5  # lease
WITHDRAW = 6  # lease
END = 7  # lease, verdict, success, jitter
COOL_AND_END = 8  # lease, seconds
OBSERVED = 9  # lease, verdict, jitter
SETTLE = 10  # lease, requests, tokens
USE_MORE = 11  # lease, requests, tokens
QUARANTINE = 12  # id, reason
RESTORE = 13  # id
COOL = 14  # id, seconds
HOLD = 15  # seconds: what was granted before may have been forgotten
GONE = 16  # session: its process has ended without a word
USED = 17  # id, what was used of its group's allowance in a log that was lost, seconds since then

Statement = Sequence[Any]


class Session:
    """One process, as the others see it."""

    __slots__ = (
        "aside", "batch", "expires_at", "host", "id", "leases", "limits", "name", "offers", "pid", "place",
        "request_classes", "ring", "ttl",
    )  # fmt: skip

    def __init__(self, id_: str, host: str, pid: int, name: str | None, ttl: float, place: str = "") -> None:
        self.id = id_
        self.host = host
        self.pid = pid
        self.name = name  # of what it does there: a run
        self.ttl = ttl
        self.place = place  # those of the same place know by its pid whether it is gone; empty: nobody does
        self.expires_at = inf
        self.batch = 0  # the number of its last
        self.ring: frozenset[str] = frozenset()  # the credentials that it may use
        self.limits: dict[str, Limits] = {}  # as it declares them, by credential
        self.request_classes: dict[str | None, RestrictedScope] = {}  # by scope
        self.leases: dict[int, LeaseRecord] = {}  # by number, those that wait, too
        self.offers: dict[int, float] = {}  # until when each is to be claimed
        self.aside: list[LeaseRecord] | None = None  # its waiters, while it is passed over

    def request_class(self, scope: str | None) -> RestrictedScope:
        request_class = self.request_classes.get(scope)
        if request_class is None:
            request_class = self.request_classes[scope] = RestrictedScope(scope, self.ring)
        return request_class


class OwnedRecord(LeaseRecord):
    """The record of a lease that a session holds or waits for."""

    __slots__ = ("id", "owner")


class SharedPool:
    """One process's copy. `served` and `events` are for its owner to take, as in `Allocator`."""

    def __init__(self, began_at: float, day_ends: Callable[[str], Callable[[float], float]]) -> None:
        self.at = began_at  # the store's time, of the last batch
        self._has_begun = False
        self.store = CooldownScope("store", None)
        # Nobody grants a million leases of a credential in a second: fences grow, also where an older log was lost.
        self.pool = Allocator(self.store, first_fence=int(began_at * 1e6))
        self.sessions: dict[str, Session] = {}
        self.seen_at: dict[str, float] = {}  # by credential: when it was last used or added
        self.secret_fingerprints: dict[str, str] = {}  # by credential
        self._check_at = inf  # when a session expires or an offer lapses, at the earliest
        self._day_ends = day_ends

    def apply(self, at: float, session_id: str, number: int, statements: Sequence[Statement]) -> list[LeaseRecord]:
        """A batch, and all that time has done until then. Returns those who were served by it."""
        pool = self.pool
        if not self._has_begun:  # with its first batch, for all: whoever found the log empty has looked before that
            self._has_begun = True
            self.at = at
            pool.members.first_fence = int(at * 1e6)
        if at > self.at:  # a clock that steps back stands still here
            self.at = at
        at = self.at
        if at >= self._check_at:
            self._check(at)
        pool.advance(at)
        session = self.sessions.get(session_id)
        if session is None and statements and statements[0][0] == JOIN:
            session = self.sessions[session_id] = Session(session_id, *statements[0][1:])
            self._forget(at)
        if session is None or number <= session.batch:  # it has expired, or says so again: a reply was lost
            session = None
        else:
            session.batch = number
            session.expires_at = at + session.ttl
            self._check_by(session.expires_at)
            if session.aside is not None:
                aside, session.aside = session.aside, None
                pool.put_back(aside, at)
            for statement in statements:
                if session_id in self.sessions:  # else it has just left
                    self._take(session, statement, at)
        pool.advance(at)  # what was said may have left somebody else the first of a queue
        served, pool.served = pool.served, []
        for record in served:
            owner = record.owner
            if record.state == REFUSED:
                owner.leases.pop(record.id, None)
            elif owner is not session:
                owner.offers[record.id] = at + CLAIM_SECONDS
                self._check_by(at + CLAIM_SECONDS)
        return served

    def take_events(self) -> list[Any]:
        events, self.pool.events = self.pool.events, []
        return events

    def next_at(self) -> float:
        """When something must be said at the latest, so that time acts; for those who wait."""
        wake_at = self.pool.next_wake_at()
        return self._check_at if wake_at is None else min(wake_at, self._check_at)

    def used(self, ids: Iterable[str], at: float) -> dict[str, UsageReport]:
        """What is used of the allowances of these credentials; one of each group stands for it."""
        found = {}
        for id_ in ids:
            if (credential := self.pool.credentials.get(id_)) is not None:
                found[credential.group] = (id_, credential.group.pace.limiter)
        return {id_: limiter.report(at) for id_, limiter in found.values() if limiter is not None}

    def longest_ttl(self) -> float:
        return max((session.ttl for session in self.sessions.values()), default=0.0)

    # --- what time does -------------------------------------------------------------------------------------------

    def _check_by(self, at: float) -> None:
        if at < self._check_at:
            self._check_at = at

    def _check(self, at: float) -> None:
        """Ends the sessions that have been silent for too long, and the offers that nobody has claimed."""
        gone = [s for s in self.sessions.values() if s.expires_at <= at]
        slow = [s for s in self.sessions.values() if s.expires_at > at and min(s.offers.values(), default=inf) <= at]
        # The places of all of them in the queues first: what one leaves must not be offered to it again, nor to
        # another that does not answer either.
        for session in gone:
            self._leave_queues(session, at)
        for record in [record for session in slow for record in self._pass_over(session, at)]:
            self.pool.lease_end.set_aside(record, at)
        for session in gone:
            self._end(session, at)
        self._check_at = min((s.expires_at for s in self.sessions.values()), default=inf)
        for session in self.sessions.values():
            self._check_by(min(session.offers.values(), default=inf))

    def _pass_over(self, session: Session, at: float) -> list[LeaseRecord]:
        """Until it speaks again. Returns what it was offered, which is to be set aside, too."""
        waiting = [record for record in session.leases.values() if record.state == WAITING]
        offered = [session.leases[lease] for lease in session.offers]
        session.aside = sorted(waiting + offered, key=lambda record: record.sequence)
        session.offers.clear()
        for record in waiting:
            self.pool.lease_end.set_aside(record, at)
        return offered

    def _leave_queues(self, session: Session, at: float) -> None:
        if session.aside is None:
            for record in session.leases.values():
                if record.state == WAITING:
                    self.pool.lease_end.withdraw(record, at)

    def _end(self, session: Session, at: float) -> None:
        del self.sessions[session.id]
        self._leave_queues(session, at)  # first: nothing must be granted to it any more
        for record in session.leases.values():
            if record.state == LIVE:
                self.pool.lease_end.lose(record, at)
        session.leases.clear()
        for id_ in session.limits:
            self._keep_to_the_strictest(id_, at)

    # --- what is said ---------------------------------------------------------------------------------------------

    def _take(self, session: Session, statement: Statement, at: float) -> None:
        kind = statement[0]
        if kind == ASK:
            self._ask(session, at, *statement[1:])
        elif kind in _ABOUT_A_LEASE:
            record = session.leases.get(statement[1])
            if record is not None:
                self._about(session, record, kind, statement, at)
        elif kind == ADD:
            self._add(session, at, *statement[1:])
        elif kind == DROP:
            self._change_ring(session, session.ring - {statement[1]}, at)
            if session.limits.pop(statement[1], None) is not None:
                self._keep_to_the_strictest(statement[1], at)
        elif kind == LEAVE:
            self._end(session, at)
        elif kind == GONE:
            if statement[1] in self.sessions:
                self._end(self.sessions[statement[1]], at)
        elif kind == HOLD:
            # Grants may have been forgotten, and their fences with them.
            self.pool.members.raise_fences(int(at * 1e6))
            self.pool.cool(self.store, None, statement[1], STORE_LOST, at)
        elif kind != JOIN and statement[1] in self.pool.credentials:
            credential = self.pool.credentials[statement[1]]
            if kind == QUARANTINE:
                self.pool.quarantine(credential.id, statement[2], at)
            elif kind == RESTORE:
                self.pool.restore(credential.id, at)
            elif kind == COOL:
                self.pool.cool(credential.group, None, statement[2], RATE_LIMITED, at)
            elif kind == USED and (limiter := credential.group.pace.limiter) is not None:
                limiter.merge(UsageReport(*statement[2]), statement[3], at)

    def _ask(self, session: Session, at: float, lease: int, requester: str | None, requests: int, tokens: int,
             scope: str | None, prefer: str | None, waits_for_probe: bool, wait: bool,
             front: bool) -> None:  # fmt: skip
        record = OwnedRecord(requester, requests, tokens, scope, prefer)
        record.request_class = session.request_class(scope)
        record.id, record.owner, record.waits_for_probe = lease, session, waits_for_probe
        if self.pool.request(record, at, wait, front) or record.state == REFUSED:
            self.pool.served.append(record)
        elif not wait:
            record.state = ENDED
            self.pool.served.append(record)
            return
        session.leases[lease] = record

    def _about(self, session: Session, record: LeaseRecord, kind: int, statement: Statement, at: float) -> None:
        pool = self.pool
        if kind == END:
            _, _, verdict, success, jitter = statement
            if record.state == LIVE:
                self._forget_lease(session, record, at)
                pool.lease_end.end(record, at, None if verdict is None else Verdict(*verdict), success, jitter)
        elif kind == CLAIM:
            session.offers.pop(record.id, None)
            self._claim(session, record, at)
        elif kind == WITHDRAW:
            session.offers.pop(record.id, None)
            del session.leases[record.id]
            pool.lease_end.withdraw(record, at)
        elif record.state == LIVE and record.credential is not None:
            if kind == COOL_AND_END:
                self._forget_lease(session, record, at)
                pool.lease_end.cool_and_end(record, statement[2], at)
            elif kind == OBSERVED:
                pool.feedback.apply_verdict(record, Verdict(*statement[2]), at, statement[3])
            elif kind == SETTLE:
                pool.settle(record, statement[2], statement[3], at)
            elif kind == USE_MORE:
                pool.use_more(record, statement[2], statement[3], at)

    def _claim(self, session: Session, record: LeaseRecord, at: float) -> None:
        if record.state != LIVE or record.credential is None:
            return
        if record.credential.id in session.ring:
            if self.pool.confirm(record, at):
                self.pool.served.append(record)
            return
        self.pool.lease_end.set_aside(record, at)  # it was dropped meanwhile
        record.request_class = session.request_class(record.scope)
        if self.pool.request(record, at, front=True) or record.state == REFUSED:
            self.pool.served.append(record)

    def _forget_lease(self, session: Session, record: LeaseRecord, at: float) -> None:
        assert record.credential is not None
        session.offers.pop(record.id, None)
        del session.leases[record.id]
        self.seen_at[record.credential.id] = at

    def _add(self, session: Session, at: float, id_: str, group: str, provider: str | None, scopes: Sequence[str],
             limits: Sequence[Any], fingerprint: str) -> None:  # fmt: skip
        session.limits[id_] = Limits(*limits)
        together, serves = self._strictest(id_), frozenset(scopes)
        known = self.pool.credentials.get(id_)
        what = (id_, group, provider, serves, together, at, self._day_ends(together.day_resets))
        if known is None:
            self.pool.add(*what)
        else:
            as_known = (known.group.name, known.provider.name, known.scopes, known.limits)
            if (group, provider, serves, together) != as_known:
                self.pool.redeclare(*what)
            if self.secret_fingerprints.get(id_) != fingerprint:  # the quarantine was that of another secret
                self.pool.restore(id_, at)
        self.secret_fingerprints[id_] = fingerprint
        self.seen_at[id_] = at
        self._change_ring(session, session.ring | {id_}, at)

    def _strictest(self, id_: str) -> Limits:
        """What all who have a credential declare, together: nobody has to expect that its limit is passed."""
        declared = [session.limits[id_] for session in self.sessions.values() if id_ in session.limits]
        together = declared[0]
        for limits in declared[1:]:
            together = strictest(together, limits)
        return replace(together, max_concurrent=min(limits.max_concurrent for limits in declared))

    def _keep_to_the_strictest(self, id_: str, at: float) -> None:
        """Of those who are left; what was declared last if nobody is."""
        known = self.pool.credentials.get(id_)
        if known is None or not any(id_ in session.limits for session in self.sessions.values()):
            return
        together = self._strictest(id_)
        if together != known.limits:
            ends_after = self._day_ends(together.day_resets)
            self.pool.redeclare(id_, str(known.group.name), known.provider.name, known.scopes, together, at, ends_after)

    def _change_ring(self, session: Session, ring: frozenset[str], at: float) -> None:
        session.ring = ring
        session.request_classes = {}
        waiting = sorted((r for r in session.leases.values() if r.state == WAITING), key=lambda r: r.sequence)
        for record in waiting:
            self.pool.lease_end.set_aside(record, at)
            record.request_class = session.request_class(record.scope)
        if waiting:
            self.pool.put_back(waiting, at)

    def _forget(self, at: float) -> None:
        """What nobody has used for weeks is not asked for again."""
        for id_, seen_at in tuple(self.seen_at.items()):
            if seen_at + FORGOTTEN_AFTER < at and not any(id_ in session.ring for session in self.sessions.values()):
                self.pool.remove(id_, at)
                del self.seen_at[id_], self.secret_fingerprints[id_]


_ABOUT_A_LEASE = frozenset({CLAIM, WITHDRAW, END, COOL_AND_END, OBSERVED, SETTLE, USE_MORE})
