"""Session: one member of a shared pool, as the owner knows it."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from agentos.limits.declaration import Limits

from ..._rules.records import LeaseRecord, RestrictedScope
from ..messages import Reply


class OwnedRecord(LeaseRecord):
    """The record of a lease that a session holds or waits for. `id` is its number there."""

    __slots__ = ("excluded", "id", "later", "owner")

    def __init__(self, requester: str | None, requests: int, tokens: int, scope: str | None, prefer: str | None = None
                 ) -> None:  # fmt: skip
        super().__init__(requester, requests, tokens, scope, prefer)
        self.excluded: frozenset[str] = frozenset()  # credentials that it must not be granted
        self.later: frozenset[str] = frozenset()  # ... not now


class Session:
    """A member: its process, its credentials, its leases, and the replies that wait to be sent to it."""

    __slots__ = (
        "connection", "credential_ids", "expires_at", "heard", "host", "id", "index", "joined_at", "kept", "leases",
        "limits", "name", "pid", "replies", "request_classes", "ttl",
    )  # fmt: skip

    def __init__(self, id_: str, index: int, host: str, pid: int, name: str | None, ttl: float, now: float) -> None:
        self.id = id_
        self.index = index  # stands for the id in the journal
        self.host = host
        self.pid = pid
        self.name = name  # of the run in that process
        self.ttl = ttl  # seconds without a message after which its leases end
        self.joined_at = now
        self.connection: Hashable | None = None  # None: it has not greeted this owner yet
        self.expires_at = inf
        self.heard = 0  # number of the last message that was processed
        self.kept = 0  # ... whose effects the journal holds
        self.replies: list[Reply] = []
        self.credential_ids: frozenset[str] = frozenset()  # the credentials that it may use
        self.limits: dict[str, Limits] = {}  # as it declares them, by credential
        self.request_classes: dict[str | None, RestrictedScope] = {}  # by scope
        self.leases: dict[int, OwnedRecord] = {}  # by number: live and waiting ones

    def class_of(self, record: OwnedRecord) -> RestrictedScope:
        """Return the class of a request of this session."""
        whole = self.request_class(record.scope)
        return whole.without(record.excluded, record.later) if record.excluded or record.later else whole

    def request_class(self, scope: str | None) -> RestrictedScope:
        """Return the class of this session's requests for a scope."""
        request_class = self.request_classes.get(scope)
        if request_class is None:
            if len(self.request_classes) > 1000:
                self.request_classes.clear()  # equal classes are one class: nothing refers to the object itself
            request_class = self.request_classes[scope] = RestrictedScope(scope, self.credential_ids)
        return request_class
