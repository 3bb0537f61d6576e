"""Entries of the journal: what the owner of a shared pool has decided, in the order in which it did.

The journal holds decisions, not requests: a restored pool does not decide again, so that owners of different versions
understand each other's journals. An entry is an array that begins with its kind. A snapshot replaces all entries before
its position.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

# Number of the journal's format. An older program never opens a newer journal.
FORMAT: Final = 2

# Kinds of entries. `session` is the index of a session, see JOIN.
JOIN: Final = 0  # session, id, host, pid, name, ttl
LEAVE: Final = 1  # session
DECLARE: Final = 2  # session, id, group, provider, scopes, limits, fingerprint
DROP: Final = 3  # session, id
GRANT: Final = 4  # session, lease, credential, fence, requests, tokens, scope, requester, [detail]
END: Final = 5  # credential, fence, [whether it was its first success, or after refusals; when its success was known]
CORRECT: Final = 6  # credential, fence, requests, tokens, [detail]: what a live lease has used
DEBT: Final = 7  # credential, requests, tokens, instant, [scope, detail]: usage that no lease stands for
COOL: Final = 8  # kind, name, scope, instant of its end, verdict
QUARANTINE: Final = 9  # id, reason or None
HEARD: Final = 10  # session, number of its last message
LEARNED: Final = 11  # group, scope, requests per minute
CLEAR: Final = 12  # id
# The beginning of an entry with the instant of those that follow; without one it is that of the batch. There is no
# session 0: a version that does not know instants ignores it.
AT: Final = (HEARD, 0)

Entry = tuple[Any, ...]


class SessionRow(Struct, array_like=True):
    """A session in a snapshot."""

    index: int
    id: str
    host: str
    pid: int
    name: str | None
    ttl: float
    heard: int
    declared: dict[str, dict[str, Any]]  # limits by credential


class CredentialRow(Struct, array_like=True):
    """A credential in a snapshot."""

    id: str
    group: str
    provider: str | None
    scopes: list[str]
    limits: dict[str, Any]
    fence: int
    fingerprint: str
    seen_at: float
    quarantine: str | None
    is_proven: bool
    used_requests: int
    used_tokens: int
    auth_failures: int = 0  # in a row
    auth_failed_by: str | None = None
    auth_failed_at: float = 0.0


class LeaseRow(Struct, array_like=True):
    """A live lease in a snapshot."""

    session: int
    lease: int
    credential: str
    fence: int
    requests: int
    tokens: int
    scope: str | None
    requester: str | None
    granted_at: float
    usage: tuple[Any, ...] | None  # None: no window existed when it was granted; its figures are not used
    shares: list[tuple[str, str | None, float, float, float, float]] = []  # fields of `LeaseShare`
    detail: tuple[int, int, float] | None = None


class GroupRow(Struct, array_like=True):
    """The usage of a quota group in a snapshot."""

    name: str
    rows: list[tuple[str, str | None, float, float, float]] | None  # fields of `UsageRow`; None: no limit is counted
    bucket: tuple[float, float] | None
    learned: list[tuple[str | None, float]]  # scope, requests per minute


class CooldownRow(Struct, array_like=True):
    """A running cool-down in a snapshot."""

    kind: str
    name: str | None
    scope: str | None
    until: float
    verdict: str


class Snapshot(Struct, array_like=True):
    """The whole state of a pool."""

    at: float
    next_session: int
    sessions: list[SessionRow]
    credentials: list[CredentialRow]
    groups: list[GroupRow]
    leases: list[LeaseRow]
    cooldowns: list[CooldownRow]
    fences: dict[str, int]  # of removed credentials


_encoder = msgspec.msgpack.Encoder()
encode_entries = _encoder.encode
encode_snapshot = _encoder.encode
decode_entries = msgspec.msgpack.Decoder(list[tuple[Any, ...]]).decode
decode_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
