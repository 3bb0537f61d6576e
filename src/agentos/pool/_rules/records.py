"""LeaseRecord and CredentialRecord: what the rules know about one lease and one credential."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from agentos.limits.amounts import Detail
from agentos.limits.concurrency import LearnedConcurrency
from agentos.limits.declaration import AUTO, Limits
from agentos.limits.pace import Charge

from .cooldown_scope import CooldownScope
from .lease_states import WAITING

# Seconds after which a refusal of a key does not confirm an earlier one any more.
MAX_REFUSALS_APART = 86_400.0


class RestrictedScope(NamedTuple):
    """A scope for requests that only some of the pool's credentials may serve."""

    scope: str | None
    credential_ids: frozenset[str] | None  # those that may be granted; None: all
    provider: str | None = None  # None: any
    later_ids: frozenset[str] = frozenset()  # that the requester will use later: its request can wait without others
    order: str | None = None  # in which credentials are granted; None: that of the pool

    def without(self, excluded_ids: frozenset[str], later_ids: frozenset[str]) -> RestrictedScope:
        """Return the class of a request that uses some credentials not at all, and others not now."""
        assert self.credential_ids is not None
        ids = self.credential_ids - excluded_ids
        return self._replace(credential_ids=ids - later_ids, later_ids=ids & later_ids)


# Requests of one class are served by the same credentials and wait in one queue. A plain scope (None: the request named
# none) stands for all credentials of the pool, so that a request needs no tuple of its own.
RequestClass: TypeAlias = str | RestrictedScope | None


def request_class_of(scope: str | None, for_provider: str | None, only: str | None) -> RequestClass:
    """Return the class of requests that may use all credentials, those of one provider, or only one."""
    if for_provider is None and only is None:
        return scope
    return RestrictedScope(scope, None if only is None else frozenset((only,)), for_provider)


def scope_of(request_class: RequestClass) -> str | None:
    """Return the scope of a request class."""
    return request_class.scope if type(request_class) is RestrictedScope else request_class  # type: ignore[return-value]


def later_ids_of(request_class: RequestClass) -> frozenset[str]:
    """Return the credentials that requests of a class will use later, but not now."""
    return request_class.later_ids if type(request_class) is RestrictedScope else frozenset()


class LeaseRecord:
    """One lease, from its request to its end. The store makes it; only the rules change it."""

    __slots__ = (
        "at_once",
        "charge",
        "credential",
        "credential_id",
        "detail",
        "fence",
        "for_provider",
        "granted_at",
        "is_answered",
        "is_unused",
        "only",
        "prefer",
        "request_class",
        "requester",
        "requests",
        "scope",
        "sequence",
        "settled",
        "state",
        "tokens",
        "too_large",
        "waits_for_probe",
    )

    # Set by subclasses, in a pool that several processes share: the process that holds the lease, and its number there.
    # Not slots of this class: a lease of one process has neither.
    owner: Any = None
    id: Any = None

    def __init__(
        self,
        requester: str | None = None,
        requests: int = 1,
        tokens: int = 0,
        scope: str | None = None,
        prefer: str | None = None,
        for_provider: str | None = None,
        only: str | None = None,
        detail: Detail | None = None,
    ) -> None:
        self.requester = requester
        self.requests = requests  # reserved; after `settle`: used
        self.tokens = tokens
        self.detail = detail  # its tokens by direction, and its cost; None: not known
        self.scope = scope
        self.prefer = prefer  # a credential id
        self.for_provider = for_provider  # serves only credentials of this provider; None: any
        self.only = only  # the one credential that may serve it; None: any
        self.request_class: RequestClass = scope
        if for_provider is not None or only is not None:
            self.request_class = request_class_of(scope, for_provider, only)
        self.state = WAITING
        self.settled = False
        self.sequence = 0  # position in the order of requests; 0: never queued
        self.fence = 0
        self.granted_at = 0.0
        self.at_once = 0  # leases of its credential when it was granted, with itself; 0: restored, not known
        self.is_answered = False  # the provider has answered with a verdict, but the lease is live
        self.is_unused = False  # ended before it was picked up
        self.charge: tuple[CooldownScope, Charge] | None = None  # taken from the limits of its group at the grant
        self.waits_for_probe = False  # may wait until the probe of a new credential has succeeded
        self.too_large: str | None = None  # why no credential can ever serve it
        self.credential: CredentialRecord | None = None
        self.credential_id: str | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it needs one request, and states neither tokens nor a cost: every credential with room fits."""
        return not self.tokens and self.requests <= 1 and self.detail is None


def sum_of(record: LeaseRecord, tokens: int, detail: Detail | None) -> Detail | None:
    """Return the detail of a lease that uses more: `tokens` by direction, if that is known."""
    if record.detail is None and detail is None:
        return None
    before = Detail(record.tokens, record.tokens) if record.detail is None else record.detail
    more = Detail(tokens, tokens) if detail is None else detail
    return Detail(
        before.input_tokens + more.input_tokens, before.output_tokens + more.output_tokens, before.cost + more.cost
    )


class CredentialRecord:
    """One credential: what is declared, its leases, and its health."""

    __slots__ = (
        "auth_failed_at",
        "auth_failed_by",
        "auth_failures",
        "concurrency",
        "cooldown_scopes",
        "cooled",
        "fence",
        "group",
        "id",
        "is_healthy",
        "is_proven",
        "last_used",
        "leases",
        "limits",
        "max_concurrent",
        "offered",
        "position",
        "probe_deadline",
        "provider",
        "quarantine",
        "removed",
        "scopes",
        "used_requests",
        "used_tokens",
    )

    def __init__(
        self, id_: str, group: CooldownScope, provider: CooldownScope, scopes: frozenset[str], limits: Limits
    ) -> None:
        self.id = id_
        self.group = group
        self.provider = provider
        self.cooldown_scopes: tuple[CooldownScope, ...] = (CooldownScope("credential", id_), group, provider)
        self.scopes = scopes  # empty: serves every scope
        self.limits = limits  # as declared
        self.max_concurrent = limits.first_concurrent  # live leases at once; changes while it is learned
        self.concurrency = LearnedConcurrency() if limits.max_concurrent == AUTO else None
        self.leases: dict[int, LeaseRecord] = {}  # live, by fence
        self.fence = 0
        self.position = 0  # in the order in which credentials joined
        self.last_used = 0
        self.offered: dict[RequestClass, int] = {}  # class -> `last_used` of its hint in that heap
        self.cooled = 0  # running cool-downs of its `cooldown_scopes`: 0 spares a search
        self.quarantine: str | None = None  # reason
        self.removed = False
        self.is_proven = False  # it has served a request successfully
        self.probe_deadline = 0.0  # until then requests that wait for a probe leave it alone
        # Proven, in use, and without a failure since: nothing forbids a grant, and a further success changes nothing.
        self.is_healthy = False
        self.auth_failures = 0  # in a row
        self.auth_failed_by: str | None = None  # requester of the last one
        self.auth_failed_at = 0.0
        self.used_requests = self.used_tokens = 0  # by ended leases

    def count_refusal(self, requester: str | None, now: float) -> bool:
        """Count a refusal of the key. Return whether it follows one of another requester."""
        if now - self.auth_failed_at >= MAX_REFUSALS_APART:
            self.auth_failures = 0
        by_another = self.auth_failures > 0 and (requester is None or requester != self.auth_failed_by)
        self.auth_failures += 1
        self.auth_failed_by, self.auth_failed_at = requester, now
        return by_another

    def follow_concurrency(self) -> None:
        """Apply a change of the learned number of leases at once."""
        if self.concurrency is not None:
            self.group.pace.max_concurrent += self.concurrency.limit - self.max_concurrent
            self.max_concurrent = self.concurrency.limit

    @property
    def is_in_use(self) -> bool:
        """Whether it is neither quarantined nor removed."""
        return self.quarantine is None and not self.removed

    def is_unrestricted(self) -> bool:
        """Return whether no cool-down, quarantine or removal forbids it, in any scope."""
        return not self.cooled and self.is_in_use

    def serves(self, request_class: RequestClass) -> bool:
        """Return whether requests of a class may be granted it."""
        if type(request_class) is RestrictedScope:
            request_class, credential_ids, provider, _, _ = request_class
            if credential_ids is not None and self.id not in credential_ids:
                return False
            if provider is not None and self.provider.name != provider:
                return False
        return request_class is None or not self.scopes or request_class in self.scopes

    def can_ever_serve(self, request_class: RequestClass) -> bool:
        """Return whether requests of a class may be granted it, now or later."""
        if type(request_class) is RestrictedScope and self.id in request_class.later_ids:
            request_class = request_class._replace(credential_ids=None)
        return self.serves(request_class)

    def usable_at(self, scope: str | None) -> float:
        """Return the instant from which no cool-down forbids it; 0 if none does now."""
        return max(cooldown_scope.usable_at(scope) for cooldown_scope in self.cooldown_scopes) if self.cooled else 0.0

    def paced_until(
        self, scope: str | None, requests: int, tokens: int, now: float, detail: Detail | None = None
    ) -> float:
        """Return the instant from which its limits admit this usage; 0 if they do now."""
        pace = self.group.pace
        return 0.0 if pace.is_free else pace.ready_at(scope, requests, tokens, now, detail)

    def full_until(self, now: float) -> float:
        """Return the instant until which its declared limits admit no request; 0 if they admit one now."""
        limiter = self.group.pace.limiter
        return 0.0 if limiter is None else limiter.full_until(now)

    def changes_at(self, record: LeaseRecord, now: float) -> float:
        """Return a lower bound of the instant at which its limits admit more than now for a request."""
        plain_at = self.paced_until(record.scope, 1, 0, now)
        return plain_at or self.group.pace.changes_at(record.scope, record.tokens, now, record.detail)

    def is_usable(self, scope: str | None, now: float) -> bool:
        """Return whether one more request of a scope could be granted it now."""
        return self.has_room() and self.usable_at(scope) <= now and not self.paced_until(scope, 1, 0, now)

    def has_room(self) -> bool:
        """Return whether it may have one more lease, leaving cool-downs and limits aside."""
        return len(self.leases) < self.max_concurrent and self.quarantine is None and not self.removed
