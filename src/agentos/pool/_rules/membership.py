"""The credentials of a pool, and the groups and providers that they belong to."""

from __future__ import annotations

from agentos.limits.declaration import Limits

from .cooldown_scope import CooldownScope
from .records import CredentialRecord


class Membership:
    """Keeps the records of credentials that are in the pool, and of removed ones that are still leased.

    `store` is a cool-down scope of all credentials, for a store that can lose grants. `first_fence` is greater than any
    fence that was given before such a loss.
    """

    def __init__(self, store: CooldownScope | None, first_fence: int) -> None:
        self.credentials: dict[str, CredentialRecord] = {}
        self.leaving: dict[str, CredentialRecord] = {}  # removed, but still leased
        self.first_fence = first_fence
        self._store = store
        self._joined = 0
        self._groups: dict[str, CooldownScope] = {}
        self._providers: dict[str | None, CooldownScope] = {}
        self._fences: dict[str, int] = {}  # of removed credentials: fences grow also if a credential comes back

    def join(
        self, id_: str, group: str, provider: str | None, scopes: frozenset[str], limits: Limits, last_used: int
    ) -> CredentialRecord:
        """Make the record of a credential and add it to its group and provider."""
        in_group = self._groups.setdefault(group, CooldownScope("group", group))
        of_provider = self._providers.setdefault(provider, CooldownScope("provider", provider))
        credential = CredentialRecord(id_, in_group, of_provider, scopes, limits)
        if self._store is not None:
            credential.cooldown_scopes = (*credential.cooldown_scopes, self._store)
        credential.fence = self._fences.pop(id_, self.first_fence)
        self._joined += 1
        credential.position, credential.last_used = self._joined, last_used
        credential.cooled = sum(len(cooldown_scope.cooling) for cooldown_scope in credential.cooldown_scopes)
        for cooldown_scope in credential.cooldown_scopes:
            cooldown_scope.members[id_] = credential
        self.credentials[id_] = credential
        return credential

    def find(self, id_: str) -> CredentialRecord:
        """Return a credential that is in the pool, or was removed and is still leased. Raises `KeyError`."""
        return self.credentials.get(id_) or self.leaving[id_]

    def leave(self, id_: str) -> CredentialRecord:
        """Take a credential out of the pool, its group and its provider. Its live leases stay in its record."""
        credential = self.credentials.pop(id_)
        credential.removed, credential.is_healthy = True, False
        self._fences[id_] = credential.fence
        if credential.leases:
            self.leaving[id_] = credential
        for cooldown_scope in credential.cooldown_scopes:
            cooldown_scope.members.pop(id_, None)
        credential.group.pace.max_concurrent -= credential.max_concurrent
        return credential

    def take_over(self, old: CredentialRecord, credential: CredentialRecord) -> None:
        """Give the record of a redeclared credential the leases and the history of its old record."""
        self.leaving.pop(old.id, None)
        own = old.cooldown_scopes[0]  # goes on cooling
        own.members[old.id] = credential
        credential.cooldown_scopes = (own, *credential.cooldown_scopes[1:])
        credential.cooled += len(own.cooling)
        credential.leases = old.leases
        credential.position = old.position
        for record in credential.leases.values():
            record.credential = credential
        credential.quarantine, credential.is_proven = old.quarantine, old.is_proven
        credential.auth_failures, credential.auth_failed_by = old.auth_failures, old.auth_failed_by
        credential.auth_failed_at = old.auth_failed_at
        credential.used_requests, credential.used_tokens = old.used_requests, old.used_tokens
        if credential.concurrency is not None and old.concurrency is not None:
            credential.concurrency, credential.max_concurrent = old.concurrency, old.max_concurrent

    def fences(self) -> dict[str, int]:
        """Return the last fences of credentials that were removed."""
        return dict(self._fences)

    def restore_fences(self, fences: dict[str, int]) -> None:
        """Set what `fences` returned."""
        self._fences.update(fences)

    def raise_fences(self, min_fence: int) -> None:
        """Make the next fences greater than `min_fence`: the last ones that were given may have been lost."""
        self.first_fence = max(self.first_fence, min_fence)
        self._fences = {id_: max(fence, min_fence) for id_, fence in self._fences.items()}
        for credential in (*self.credentials.values(), *self.leaving.values()):
            credential.fence = max(credential.fence, min_fence)
