"""Compare the credentials of a pool with those that are to replace them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentos.events import KeysReloaded
from agentos.limits.reset_times import seconds_to_reset

from .credential import Credential


def check_new(credentials: Iterable[Credential], epoch: float) -> dict[str, Credential]:
    """Return the credentials by id. Read all references: raise `CredentialError` or `ValueError` if one cannot be used,
    or if two are the same."""
    new: dict[str, Credential] = {}
    identities: dict[str, str] = {}
    for credential in credentials:
        for resets in credential.limits.calendars():
            seconds_to_reset(resets, epoch)  # raises if there is no such zone
        if credential.id in credential.secrets:
            raise ValueError("a credential's id is displayed and must not be the secret")
        if credential.id in new:
            raise ValueError(f"two credentials have the id {credential.id!r}: give each its own")
        same = identities.setdefault(credential.identity, credential.id)
        if same != credential.id:
            raise ValueError(f"{same} and {credential.id} have the same key")
        new[credential.id] = credential
    if not new:
        raise ValueError("no credentials: give at least one")
    return new


def compare(old: Mapping[str, Credential], new: Mapping[str, Credential]) -> KeysReloaded:
    """Return the ids that are only in `new`, in both but with another declaration, and only in `old`."""
    return KeysReloaded(
        [id_ for id_ in new if id_ not in old],
        [id_ for id_ in new if id_ in old and _declaration(new[id_]) != _declaration(old[id_])],
        [id_ for id_ in old if id_ not in new],
    )


def _declaration(credential: Credential) -> tuple[object, ...]:
    return (
        credential.identity, credential.secrets, credential.provider, credential.quota_group, credential.scopes,
        credential.limits, credential.base_url, credential.headers, credential.command_env,
    )  # fmt: skip
