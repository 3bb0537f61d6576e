"""Owner: decides for a shared pool. It runs the rules in memory and answers the members.

The life of a grant, in numbered steps:

1. A member sends `Request`; the transport passes its frame to `receive`.
2. The rules grant the lease, at once or when a credential is free, and a journal entry is added (`entries`).
3. The process that runs the owner takes the entries (`take_entries`) and commits them to the journal.
4. Only then are the replies (`take_frames`) sent: a grant that a member knows of is in the journal.

An owner that dies before step 3 has granted nothing. One that dies after it is replaced by an owner that reads the
grant from the journal, and repeats the reply when the member greets it.

Everything here is decided by messages and `now`: there is no clock, no input and no output.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from typing import Any

from agentos.events import STORE_LOST

from ..._rules.lease_states import LIVE, WAITING
from ..._rules.order import ORDERS
from .. import message_values as values
from .. import messages as wire
from ..transport import Loaded
from . import entries as kinds
from .lease_messages import LeaseMessages
from .owned_pool import FENCES_PER_SECOND, LAZY_SECONDS
from .queries import ANSWERS, as_known_before
from .session import Session

# Shortest time to live of a session, in seconds: a shorter one would end before its greeting is answered.
MIN_TTL = 0.05


class Owner(LeaseMessages):
    """The owner of one pool. A connection is any hashable object by which the transport knows a link."""

    # --- frames and time ------------------------------------------------------------------------------------------

    def receive(self, connection: Hashable, frame: bytes, now: float) -> None:
        """Carry out the messages of a frame. An invalid frame or message is answered by `Rejected`."""
        if now >= self._check_at or (self.allocator.due and self.allocator.due[0][0] <= now):
            self.advance(now)
        try:
            messages = wire.decode_messages(frame)
        except wire.InvalidMessage:
            self._receive_each(connection, frame, now)
            return
        for number, message in messages:
            self.take(connection, number, message, now)

    def _receive_each(self, connection: Hashable, frame: bytes, now: float) -> None:
        """Carry out the valid messages of a frame, and reject the others."""
        try:
            numbered = wire.decode_frame(frame)
        except wire.InvalidMessage as error:
            self._reply_to(connection, wire.Rejected(0, f"invalid frame: {error}"))
            return
        for number, data in numbered:
            try:
                message = wire.decode_message(data)
            except wire.InvalidMessage as error:
                self._reject(connection, number, f"invalid message: {error}")
                continue
            self.take(connection, number, message, now)

    def take(self, connection: Hashable, number: int, message: wire.Message, now: float) -> None:
        """Carry out one message. Raises only what the rules raise by mistake."""
        self.message = message
        session = self._links.get(connection)
        handler = _HANDLERS.get(type(message))
        if handler is None:
            if type(message) is wire.Query:
                self._query(connection, session, message, now)
            elif type(message) is wire.Hello:
                self._greet(connection, message, now)
            return
        if session is None:
            self._reply_to(connection, wire.Expired())
            return
        session.expires_at = now + session.ttl
        if number <= session.heard:
            return  # it was repeated, and had been processed
        session.heard = number
        self._unkept[session.id] = session
        if self.commit_by > now + LAZY_SECONDS:
            self.commit_by = now + LAZY_SECONDS
        try:
            handler(self, session, message, now)
        except ValueError as error:
            self._tell(session, wire.Rejected(number, str(error), getattr(message, "lease", None)))
        if self.allocator.served or self.allocator.events:
            self._collect(session, now)

    def _reject(self, connection: Hashable, number: int, reason: str) -> None:
        session = self._links.get(connection)
        if session is not None and number > session.heard:
            session.heard = number
        self._reply_to(connection, wire.Rejected(number, reason))

    def _reply_to(self, connection: Hashable, reply: wire.Reply) -> None:
        session = self._links.get(connection)
        if session is None:
            self._strangers.setdefault(connection, []).append(reply)
        else:
            self._tell(session, reply)

    def disconnected(self, connection: Hashable, now: float) -> None:
        """End the session of a closed link, with all its leases."""
        session = self._links.pop(connection, None)
        self._strangers.pop(connection, None)
        if session is not None and session.connection == connection:
            self._end_session(session, now)
            self._collect(None, now)

    def advance(self, now: float) -> None:
        """Let time act: end silent sessions and cool-downs that are over."""
        self.message = None
        if now >= self._check_at:
            expired = [session for session in self.sessions.values() if session.expires_at <= now]
            for session in expired:  # first: none of them must be granted what another one gives back
                self._withdraw_waiting(session, now)
            for session in expired:
                self._end_session(session, now)
            self._check_at = min((s.expires_at for s in self.sessions.values()), default=inf)
        self.allocator.advance(now)
        if self.allocator.served or self.allocator.events:
            self._collect(None, now)

    def excuse_silence(self, seconds: float) -> None:
        """Do not count some seconds, in which nothing could be received, as silence of the members."""
        for session in self.sessions.values():
            session.expires_at += seconds

    def recalculate_days(self, now: float) -> None:
        """Find the ends of the providers' days again, after a step of the wall clock, and serve their waiters."""
        groups = {credential.group: None for credential in self.allocator.credentials.values()}
        for group in groups:
            if group.pace.limiter is not None:
                group.pace.limiter.recalculate_days(now)
        self.allocator.serve_all(groups, now)
        self._collect(None, now)

    def next_at(self) -> float:
        """Return when `advance` must be called, or the entries be committed, at the latest."""
        wake_at = self.allocator.next_wake_at()
        return min(inf if wake_at is None else wake_at, self._check_at, self.commit_by)

    def _query(self, connection: Hashable, session: Session | None, query: wire.Query, now: float) -> None:
        answer = ANSWERS.get(query.what)
        if answer is None:
            self._reply_to(connection, wire.Rejected(0, f"unknown query {query.what}"))
            return
        if session is not None:
            session.expires_at = now + session.ttl
        try:
            value = answer(self, session, now, *query.arguments)
            if query.protocol < wire.PROTOCOL:
                value = as_known_before(query.what, value, query.protocol)
            reply: wire.Reply = wire.Answer(query.number, value)
        except Exception as error:  # arguments are of any type; a query changes nothing
            reply = wire.Rejected(0, f"invalid query: {type(error).__name__}")
        self._reply_to(connection, reply)

    # --- sessions -------------------------------------------------------------------------------------------------

    def _greet(self, connection: Hashable, hello: wire.Hello, now: float) -> None:
        """Begin a session, or continue it on another link or with another owner."""
        if abs(hello.protocol - wire.PROTOCOL) > 1:
            self._reply_to(connection, wire.Dismissed(_other_version(hello.protocol)))
            return
        if hello.session in self.dismissed:
            self._reply_to(connection, wire.Dismissed(self.dismissed[hello.session]))
            return
        try:
            for declaration in hello.declarations:
                self._check_zone(values.limits_of(declaration.limits), now)
        except (ValueError, TypeError) as error:
            self._reply_to(connection, wire.Dismissed(str(error)))
            return
        session = self._linked_session(connection, hello, now)
        for declaration in hello.declarations:
            self._declare(session, declaration, now)
        for id_ in session.credential_ids - {declaration.id for declaration in hello.declarations}:
            self._drop(session, wire.Drop(id_), now)
        self._welcome(session, hello, now)
        for request in hello.waiting:
            self.message = request
            record = session.leases.get(request.lease)
            if record is None:
                self._request(session, request, now)
            else:  # it may have been granted, and the reply was lost
                self._confirm(session, wire.Confirm(request.lease), now)
        self._collect(session, now)

    def _linked_session(self, connection: Hashable, hello: wire.Hello, now: float) -> Session:
        """Return the session of a greeting, bound to its link."""
        ttl = max(MIN_TTL, hello.ttl)
        session = self.sessions.get(hello.session)
        if session is None:
            session = self.join(self.next_session, hello.session, hello.host, hello.pid, hello.run, ttl, now)
            self._forget_unused(now)
        if session.connection is not None:
            self._links.pop(session.connection, None)
        session.connection, session.protocol = connection, hello.protocol
        session.replies = []  # those of an older link: the greeting says what is still to be answered
        self._links[connection] = session
        session.ttl = ttl
        session.order = hello.order if hello.order in ORDERS else None
        session.request_classes = {}
        session.expires_at = now + ttl
        self._check_at = min(self._check_at, session.expires_at)
        return session

    def _welcome(self, session: Session, hello: wire.Hello, now: float) -> None:
        """Answer a greeting: which leases have ended, and whether the journal has lost something."""
        position, kept = self._kept_of(hello)
        has_lost = position > kept
        if has_lost:
            self.hold(self.longest_ttl(), now)  # of this session, too
        self._count_used(hello, now)
        lost = [held.lease for held in hello.held if not self._is_held(session, held, now)]
        wants_usage = has_lost and not hello.used
        news = (wants_usage, self.nonce, kept)
        self._tell(session, wire.Welcome(wire.PROTOCOL, self.journal_id, self.position, *self.identity, lost, *news))

    @property
    def is_recovering(self) -> bool:
        """Return whether the journal has lost grants, and members report what they hold."""
        return bool(self.store_scope.cooling)

    def continue_history(self, loaded: Loaded) -> None:
        """Note the position of a journal, and which owner has written which part of it."""
        self.position = end = loaded.position
        for start in reversed(loaded.owners[:-1]):
            self.ends[start.nonce] = end
            end = min(end, start.position)  # higher than the position: the journal has lost its end
        self.nonce = loaded.owners[-1].nonce if loaded.owners else ""

    def _kept_of(self, hello: wire.Hello) -> tuple[int, int]:
        """Return the position that a member has seen, and up to which one the journal holds what it has seen.

        T1 reads position 9 of owner A; the journal loses its end; owner B continues it from 5 to 12; T1 greets B. The
        position alone does not show the loss; that A has written up to 5 only does.
        """
        if hello.seen is None:
            return 0, 0
        journal_id, position = hello.seen
        if journal_id != self.journal_id:
            return max(1, position), 0
        if hello.seen_owner in ("", self.nonce):  # empty: an owner has told it that did not know its nonce
            return position, min(position, self.position)
        return position, min(position, self.ends.get(hello.seen_owner, 0))

    def hold(self, seconds: float, now: float) -> None:
        """Grant nothing for a while: leases may be live that the journal does not show, and their fences were given."""
        self.allocator.members.raise_fences(int(now * FENCES_PER_SECOND))
        self.allocator.cool(self.store_scope, None, seconds, STORE_LOST, now)

    def _count_used(self, hello: wire.Hello, now: float) -> None:
        """Count what a member used before the journal was lost."""
        for usage in hello.used:
            at, detail = now - max(0.0, usage.age), values.detail_of(usage.detail)
            self.count_debt(usage.credential, usage.requests, usage.tokens, at, now, None, detail)

    def _is_held(self, session: Session, held: wire.HeldLease, now: float) -> bool:
        """Return whether a lease of a greeting is live; restore it if the journal has lost it."""
        record = session.leases.get(held.lease)
        if record is not None:
            record.restrict(session, held.for_provider, held.only)
            return record.state == LIVE and record.fence == held.fence
        credential = self.allocator.credentials.get(held.credential)
        if not self.is_recovering or credential is None or held.fence in credential.leases:
            return False
        what = (held.requests, held.tokens, held.scope, held.requester, values.detail_of(held.detail))
        self.adopt(session, held.lease, held.credential, held.fence, *what, now)
        record = session.leases[held.lease]
        record.restrict(session, held.for_provider, held.only)
        self._record_grant(session, record, now)
        return True

    def join(self, index: int, id_: str, host: str, pid: int, name: str | None, ttl: float, now: float) -> Session:
        """Begin a session."""
        session = self.sessions[id_] = self.by_index[index] = Session(id_, index, host, pid, name, ttl, now)
        self.next_session = max(self.next_session, index + 1)
        self._record((kinds.JOIN, index, id_, host, pid, name, ttl), now)
        return session

    def _end_session(self, session: Session, now: float) -> None:
        """End all leases of a session: its process is gone or was silent for too long."""
        self._record((kinds.LEAVE, session.index), now)
        if session.connection is not None:
            self._links.pop(session.connection, None)
        del self.sessions[session.id], self.by_index[session.index]
        for sessions in (self._to_send, self._unkept):
            sessions.pop(session.id, None)
        self._withdraw_waiting(session, now)
        for record in list(session.leases.values()):
            if record.state == LIVE:
                self._forget_lease(session, record, now)
                self.allocator.lease_end.lose(record, now)
        session.leases.clear()
        for id_ in session.limits:
            self.keep_to_strictest(id_, now)

    def _withdraw_waiting(self, session: Session, now: float) -> None:
        for record in session.leases.values():
            if record.state == WAITING:
                self.allocator.lease_end.withdraw(record, now)

    def longest_ttl(self) -> float:
        """Return the longest time for which a lease of a silent member is kept."""
        return max((session.ttl for session in self.sessions.values()), default=0.0)

    def _heartbeat(self, session: Session, beat: wire.Heartbeat, now: float) -> None:
        """Keep the leases that the member names. A lease that it does not know of, although it was granted long ago, is
        ended: its grant was lost on the way. The member is told, in case that the grant is only late."""
        self._to_send[session.id] = session  # the member learns that it was heard
        named = set(beat.leases)
        for record in list(session.leases.values()):
            if record.state == LIVE and record.id not in named and record.granted_at + session.ttl < now:
                self._forget_lease(session, record, now)
                self.allocator.lease_end.lose(record, now)
                self._tell(session, wire.Lost(record.id))

    def _leave(self, session: Session, _leave: wire.Leave, now: float) -> None:
        """End the session. The member waits for the answer, which is sent after the commit: this process may end with
        that of the member, as in a container."""
        connection = session.connection
        self._end_session(session, now)
        self.commit_by = 0.0
        self._reply_to(connection, wire.Expired())

    def end_absent(self, has_ended: Callable[[str], bool], now: float) -> None:
        """End the sessions whose process ended before it could greet this owner."""
        absent = [s for s in self.sessions.values() if s.connection is None and has_ended(s.id)]
        for session in absent:
            self._end_session(session, now)
        if absent:
            self._collect(None, now)


def _other_version(protocol: int) -> str:
    older, newer = ("this program", "the pool's owner") if protocol < wire.PROTOCOL else ("the pool's owner", "it")
    return (
        f"another version of agentos runs the pool (protocol {wire.PROTOCOL}, this program has {protocol}): {older} is "
        f"older than {newer}. Upgrade it, or wait until the other runs have ended"
    )


_HANDLERS: dict[Any, Callable[[Owner, Session, Any, float], None]] = {
    wire.Declaration: Owner._declare,
    wire.Drop: Owner._drop,
    wire.Request: Owner._request,
    wire.Confirm: Owner._confirm,
    wire.Withdraw: Owner._withdraw,
    wire.End: Owner._end,
    wire.Observed: Owner._observed,
    wire.Settle: Owner._settle,
    wire.UseMore: Owner._use_more,
    wire.SetQuarantine: Owner._set_quarantine,
    wire.Cool: Owner._cool,
    wire.Clear: Owner._clear,
    wire.Heartbeat: Owner._heartbeat,
    wire.Leave: Owner._leave,
}
