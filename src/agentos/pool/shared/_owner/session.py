"""Session: one member of a shared pool, as the owner knows it."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from math import inf
from typing import Any

from agentos.limits.declaration import Limits

from ..._rules.lease_states import LIVE
from ..._rules.records import LeaseRecord, RestrictedScope
from ..messages import PROTOCOL, Reply


class OwnedRecord(LeaseRecord):
    """The record of a lease that a session holds or waits for. `id` is its number there."""

    __slots__ = ("excluded", "id", "later", "owner")

    def __init__(self, *what: Any) -> None:
        """`what`: the arguments of a `LeaseRecord`."""
        super().__init__(*what)
        self.excluded: frozenset[str] = frozenset()  # credentials that it must not be granted
        self.later: frozenset[str] = frozenset()  # ... not now

    def join_class(self, session: Session) -> None:
        """Set the class of this request by the credentials that its session may use now."""
        whole = session.request_class(self.scope, self.for_provider, self.only)
        self.request_class = whole.without(self.excluded, self.later) if self.excluded or self.later else whole

    def restrict(self, session: Session, for_provider: str | None, only: str | None) -> None:
        """Set which credentials may serve it, if it is live: the journal of grants does not hold that, and the request
        may have to wait again."""
        if self.state == LIVE:
            self.for_provider, self.only = for_provider, only
            self.join_class(session)


class Session:
    """A member: its process, its credentials, its leases, and the replies that wait to be sent to it."""

    __slots__ = (
        "connection", "credential_ids", "expires_at", "heard", "host", "id", "index", "joined_at", "kept", "leases",
        "limits", "name", "order", "pid", "protocol", "replies", "request_classes", "ttl",
    )  # fmt: skip

    def __init__(self, id_: str, index: int, host: str, pid: int, name: str | None, ttl: float, now: float) -> None:
        self.id = id_
        self.index = index  # stands for the id in the journal
        self.host = host
        self.pid = pid
        self.name = name  # of the run in that process
        self.ttl = ttl  # seconds without a message after which its leases end
        self.joined_at = now
        self.protocol = PROTOCOL  # of its greeting
        self.connection: Hashable | None = None  # None: it has not greeted this owner yet
        self.expires_at = inf
        self.heard = 0  # number of the last message that was processed
        self.kept = 0  # ... whose effects the journal holds
        self.replies: list[Reply] = []
        self.credential_ids: frozenset[str] = frozenset()  # the credentials that it may use
        self.limits: dict[str, Limits] = {}  # as it declares them, by credential
        self.request_classes: dict[tuple[str | None, ...], RestrictedScope] = {}  # by scope, provider and credential
        self.order: str | None = None  # in which it is granted credentials; None: that of the pool
        self.leases: dict[int, OwnedRecord] = {}  # by number: live and waiting ones

    def request_class(self, scope: str | None, for_provider: str | None = None, only: str | None = None
                      ) -> RestrictedScope:  # fmt: skip
        """Return the class of this session's requests for a scope, of a provider, or for only one credential."""
        key = scope, for_provider, only
        request_class = self.request_classes.get(key)
        if request_class is None:
            if len(self.request_classes) > 1000:
                self.request_classes.clear()  # equal classes are one class: nothing refers to the object itself
            ids = self.credential_ids if only is None else self.credential_ids & {only}
            request_class = self.request_classes[key] = _class_of(scope, ids, for_provider, self.order)
        return request_class


@lru_cache(maxsize=256)
def _class_of(scope: str | None, ids: frozenset[str], provider: str | None, order: str | None) -> RestrictedScope:
    """Return one object for equal classes of all sessions: the rules find it by its identity, and need not compare all
    its credentials."""
    return RestrictedScope(scope, ids, provider, order=order)
