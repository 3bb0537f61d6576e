"""What the pool writes down: one record per lease, one per credential."""

from __future__ import annotations

from typing import Any

from .cooling import Domain

# The life of a lease.
WAITING = "waiting"
LIVE = "live"
ENDED = "ended"  # released, taken back, withdrawn or timed out: it has no further effect
REFUSED = "refused"  # no credential can become usable without a person


class LeaseRecord:
    """One request for a credential, from asking to its end. Its owner makes it; only the pool changes it."""

    __slots__ = (
        "credential",
        "deliver",
        "fence",
        "prefer",
        "requester",
        "requests",
        "scope",
        "sequence",
        "settled",
        "state",
        "tokens",
    )

    def __init__(
        self,
        requester: str | None = None,
        requests: int = 1,
        tokens: int = 0,
        scope: str | None = None,
        prefer: str | None = None,
        deliver: Any = None,
    ) -> None:
        self.requester = requester
        self.requests = requests  # reserved; after `settle`, what was really used
        self.tokens = tokens
        self.scope = scope
        self.prefer = prefer  # a credential id, wished for
        self.deliver = deliver  # how the owner hears of it; the pool never calls it
        self.state = WAITING
        self.settled = False
        self.sequence = 0
        self.fence = 0
        self.credential: CredentialRecord | None = None


class CredentialRecord:
    """What the pool knows about one credential."""

    __slots__ = (
        "auth_failed_by",
        "auth_failures",
        "cooled",
        "domains",
        "fence",
        "group",
        "id",
        "is_proven",
        "is_trusted",
        "last_used",
        "leases",
        "max_concurrent",
        "provider",
        "quarantine",
        "removed",
        "scopes",
        "used_requests",
        "used_tokens",
    )

    def __init__(self, id: str, group: Domain, provider: Domain, scopes: frozenset[str], max_concurrent: int) -> None:  # noqa: A002
        self.id = id
        self.group = group
        self.provider = provider
        self.domains = (Domain("credential", id), group, provider)
        self.scopes = scopes  # empty: serves every scope
        self.max_concurrent = max_concurrent
        self.leases: dict[int, LeaseRecord] = {}  # the live ones, by fence
        self.fence = 0
        self.last_used = 0
        self.cooled = 0  # how many cool-downs in `domains` are running: 0 spares looking
        self.quarantine: str | None = None  # why
        self.removed = False
        self.is_proven = False  # it has been used successfully
        self.is_trusted = False  # ... and nothing has gone wrong since: one more success would be no news
        self.auth_failures = 0  # in a row
        self.auth_failed_by: str | None = None
        self.used_requests = self.used_tokens = 0  # by leases that have ended

    def has_no_objection(self) -> bool:
        """Whether nothing at all speaks against using it, in any scope."""
        return self.quarantine is None and not self.removed and not self.cooled

    def serves(self, scope: str | None) -> bool:
        return scope is None or not self.scopes or scope in self.scopes

    def usable_at(self, scope: str | None) -> float:
        """When cool-downs no longer forbid it; 0 when they do not. The limits per minute and day belong here too."""
        return max(domain.usable_at(scope) for domain in self.domains) if self.cooled else 0.0

    def has_room(self) -> bool:
        return len(self.leases) < self.max_concurrent and self.quarantine is None and not self.removed
