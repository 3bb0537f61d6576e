"""OwnedPool: the state of a shared pool in its owner, and what the owner writes and sends: entries and replies."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, NamedTuple

from agentos.events import (
    CoolDownStarted,
    CredentialQuarantined,
    LimitLearned,
    PoolWaiting,
)
from agentos.limits.declaration import Calendar

from ..._rules.allocator import Allocator
from ..._rules.cooldown_scope import CooldownScope
from ..._rules.lease_states import LIVE, REFUSED
from ..._rules.records import LeaseRecord
from .. import message_values as values
from .. import messages as wire
from . import entries as kinds
from .session import Session

# Entries that nothing waits for are written with the next grant, or after this many seconds.
LAZY_SECONDS = 1.0
# Fences of a new pool start at the microseconds since 1970: no credential is granted a million times a second, so
# fences also grow if an older journal was lost.
FENCES_PER_SECOND = 1e6


class Identity(NamedTuple):
    """The process that runs an owner."""

    pid: int
    host: str
    since: float  # epoch


class OwnedPool:
    """The pool, its sessions, and the output of the owner."""

    def __init__(
        self,
        identity: Identity,
        journal_id: str,
        ends_after: Calendar,
        jitter: Callable[[], float],
        now: float,
    ) -> None:
        self.identity = identity
        self.journal_id = journal_id
        self.position = 0  # of the journal
        self.needs_instants = False  # entries are replayed at the instants at which they were made
        self.nonce = ""  # of this owner in the history of the journal; empty: the journal has none
        self.ends: dict[str, int] = {}  # positions up to which earlier owners have written the journal, by nonce
        self.store_scope = CooldownScope("store", None)
        self.allocator = Allocator(self.store_scope, first_fence=int(now * FENCES_PER_SECOND))
        self.sessions: dict[str, Session] = {}
        self.by_index: dict[int, Session] = {}
        self.next_session = 1
        self.fingerprints: dict[str, str] = {}  # of secrets, by credential
        self.seen_at: dict[str, float] = {}  # by credential: when a member last declared or used it
        self.entries: list[kinds.Entry] = []  # not committed yet
        self._recorded_at = 0.0  # instant of the last one
        self.commit_by = inf  # the instant by which they must be; 0: before any reply is sent
        self._links: dict[Hashable, Session] = {}
        self._to_send: dict[str, Session] = {}  # sessions to which a frame is due
        self._unkept: dict[str, Session] = {}  # sessions whose last messages the journal does not hold yet
        self._strangers: dict[Hashable, list[wire.Reply]] = {}  # replies to connections without a session
        self.message: wire.Message | None = None  # that is being carried out
        self.dismissed: dict[str, str] = {}  # by session: the mistake of the rules that its greeting led to
        self._check_at = inf  # when a session expires, at the earliest
        self._ends_after = ends_after
        self._jitter = jitter

    def take_entries(self) -> list[kinds.Entry]:
        """Take the entries that must be committed, with the numbers of the messages whose effects they hold.

        The frames that are taken after it must not be sent before the entries are in the journal, whose position is
        then `position`. Members learn what is kept with their next reply, at the latest with that to a heartbeat.
        """
        entries = self.entries + [(kinds.HEARD, s.index, s.heard) for s in self._unkept.values()]
        self.position += 1
        self.entries = []
        self._recorded_at = 0.0
        self.commit_by = inf
        for session in self._unkept.values():
            session.kept = session.heard
        self._unkept = {}
        return entries

    def take_frames(self) -> list[tuple[Hashable, bytes]]:
        """Take the frames that must be sent. Call it after `take_entries` if `commit_by` is 0."""
        frames: list[tuple[Hashable, bytes]] = []
        for session in self._to_send.values():
            if session.connection is not None:
                frames.append((session.connection, self._frame(session, session.replies)))
                session.replies = []
        self._to_send = {}
        for connection, replies in self._strangers.items():
            frames.append((connection, self._frame(None, replies)))
        self._strangers = {}
        return frames

    def _frame(self, session: Session | None, replies: list[wire.Reply]) -> bytes:
        heard, kept = (0, 0) if session is None else (session.heard, session.kept)
        return wire.encode(wire.ReplyFrame(heard, kept, self.position, replies))

    def discard_output(self) -> None:
        """Forget entries and replies: a restored pool writes nothing that the journal holds already."""
        self.entries = []
        self._recorded_at = 0.0
        self.commit_by = inf
        self._to_send, self._unkept = {}, {}
        self._check_at = 0.0

    def _record(self, entry: kinds.Entry, now: float, *, urgent: bool = False) -> None:
        """Add an entry. `urgent`: a reply must not be sent before it is committed."""
        if self.needs_instants and now != self._recorded_at:
            self._recorded_at = now
            self.entries.append((*kinds.AT, now))
        self.entries.append(entry)
        if urgent:
            self.commit_by = 0.0
        elif self.commit_by > now + LAZY_SECONDS:
            self.commit_by = now + LAZY_SECONDS

    def _tell(self, session: Session, reply: wire.Reply) -> None:
        session.replies.append(reply)
        self._to_send[session.id] = session

    def _collect(self, session: Session | None, now: float) -> None:
        """Turn what the rules have done into replies and entries. `session`: whose message it was."""
        allocator = self.allocator
        if allocator.served:
            served, allocator.served = allocator.served, []
            for record in served:
                self._answer(record, now)
        if allocator.events:
            events, allocator.events = allocator.events, []
            for event in events:
                self._announce(event, session, now)

    def _answer(self, record: LeaseRecord, now: float) -> None:
        session: Session = record.owner
        if record.state == LIVE:
            self._record_grant(session, record, now)
            self._tell(session, granted(record))
        elif record.state == REFUSED:
            session.leases.pop(record.id, None)
            self._tell(session, wire.Refused(record.id, record.too_large))

    def _record_grant(self, session: Session, record: LeaseRecord, now: float) -> None:
        entry = (
            kinds.GRANT, session.index, record.id, record.credential_id, record.fence, record.requests, record.tokens,
            record.scope, record.requester, *self.detail_of(record),
        )  # fmt: skip
        self._record(entry, now, urgent=True)

    def detail_of(self, record: LeaseRecord) -> tuple[tuple[float, ...], ...]:
        """Return the last field of an entry: none without a detail, as most leases are."""
        return () if record.detail is None else (tuple(record.detail),)

    def _announce(self, event: Any, session: Session | None, now: float) -> None:
        """Record an event and send it to the members that it concerns."""
        concerned: Iterable[Session] = self.sessions.values()
        if isinstance(event, CoolDownStarted):
            self._record((kinds.COOL, *event[:3], now + event.seconds, event.verdict), now, urgent=True)
            ids = self._members_of(event)
            concerned = [s for s in concerned if not s.credential_ids.isdisjoint(ids)]
        elif isinstance(event, CredentialQuarantined):
            self._record((kinds.QUARANTINE, event.credential_id, event.reason), now, urgent=True)
            concerned = [s for s in concerned if event.credential_id in s.credential_ids]
        elif isinstance(event, LimitLearned):
            self._record((kinds.LEARNED, event.name, event.scope, event.requests_per_minute), now)
        elif isinstance(event, PoolWaiting):
            concerned = [] if session is None or self.store_scope.cooling else [session]
        else:
            return
        for other in concerned:
            self._tell(other, values.event_of(event, other.protocol))

    def _members_of(self, event: CoolDownStarted) -> Iterable[str]:
        if event.kind == "credential":
            return [str(event.name)]
        credentials = self.allocator.credentials.values()
        if event.kind == "group":
            return [c.id for c in credentials if c.group.name == event.name]
        if event.kind == "provider":
            return [c.id for c in credentials if c.provider.name == event.name]
        return self.allocator.credentials.keys()


def granted(record: LeaseRecord) -> wire.Granted:
    """Return the reply for a live lease."""
    credential = record.credential
    assert credential is not None
    return wire.Granted(
        record.id, credential.id, credential.provider.name, record.fence, record.granted_at, record.requests,
        record.tokens,
        record.sequence > 0,
    )  # fmt: skip
