"""Credential: an id that may be shown, a secret that may not, and the limits of the key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NoReturn, SupportsIndex

from agentos.limits.declaration import Limits
from agentos.redaction.mask import MASK, refuse_to_copy

from .references import is_reference, resolve


class Credential:
    """An API key (or account) of one provider.

    The secret may be written as a reference, so that it stands in no program: `env:NAME`, `file:PATH` (refused when
    others can read the file) or `cmd:COMMAND` (run without a shell; its first line of output). It is read when the
    credential joins a pool. Nothing about this object shows the secret: not `repr`, `str`, `format`, `pickle`, `copy`.
    """

    __slots__ = ("__id", "__limits", "__provider", "__quota_group", "__reference", "__scopes", "__secret", "__source")

    def __init__(
        self,
        secret: str,
        *,
        id: str | None = None,  # noqa: A002 - the name is part of the contract
        provider: str | None = None,
        quota_group: str | None = None,
        scopes: Iterable[str] = (),
        limits: Limits | None = None,
    ) -> None:
        if not isinstance(secret, str) or not secret:
            raise ValueError("a credential's secret must be a non-empty string")
        if isinstance(scopes, str):
            raise ValueError("scopes must be a collection of names, not one string: write scopes=[name]")  # noqa: TRY004
        if id is not None and (not isinstance(id, str) or not id or id == secret):
            raise ValueError("a credential's id is displayed: it must be a non-empty string that is not the secret")
        if limits is not None and not isinstance(limits, Limits):
            raise ValueError(f"limits must be a Limits object, such as Limits(requests_per_minute=60), not {limits!r}")
        for name, value in (("provider", provider), ("quota_group", quota_group)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a name, not {value!r}")
        self.__source = secret
        self.__secret: str | None = None
        self.__reference = secret if is_reference(secret) else None
        self.__id = id or fingerprint(secret)
        self.__provider = provider
        self.__quota_group = quota_group
        self.__scopes = frozenset(scopes)
        self.__limits = limits if limits is not None else Limits()

    @classmethod
    def literal(cls, secret: str) -> Credential:
        """Return a credential whose secret is this very string, even if it looks like a reference."""
        credential = cls(secret)
        credential.__secret = secret
        credential.__reference = None
        return credential

    @property
    def has_generated_id(self) -> bool:
        """Whether the id is the fingerprint of the secret."""
        return self.__id == fingerprint(self.__source)

    def with_longer_id(self) -> Credential:
        """Return a copy with a longer fingerprint, for the rare pair of keys whose short ones are equal."""
        credential = Credential(
            self.__source,
            id=fingerprint(self.__source, digits=24),
            provider=self.__provider,
            quota_group=self.__quota_group,
            scopes=self.__scopes,
            limits=self.__limits,
        )
        credential.__secret = self.__secret
        credential.__reference = self.__reference
        return credential

    @property
    def secret(self) -> str:
        """The key itself. Reads the reference on first use; raises `CredentialError`, naming the reference."""
        if self.__secret is None:
            self.__secret = resolve(self.__source, self.__id)
        return self.__secret

    @property
    def reference(self) -> str | None:
        """`env:…`, `file:…` or `cmd:…`, which another process can read for itself; None for a plain secret."""
        return self.__reference

    @property
    def id(self) -> str:
        return self.__id

    @property
    def provider(self) -> str | None:
        return self.__provider

    @property
    def quota_group(self) -> str:
        """The declared group; without one, a group of its own."""
        return self.__quota_group if self.__quota_group is not None else f"credential {self.__id}"

    @property
    def scopes(self) -> frozenset[str]:
        return self.__scopes

    @property
    def limits(self) -> Limits:
        return self.__limits

    def __repr__(self) -> str:
        return f"Credential({MASK}, id={self.__id!r}, provider={self.__provider!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)

    def __getstate__(self) -> NoReturn:
        refuse_to_copy(self)


def fingerprint(secret: str, digits: int = 8) -> str:
    """Return a stable name for a key: a one-way digest, never a part of it."""
    data = secret.encode("utf-8", "surrogatepass")
    return "key-" + hashlib.blake2b(data, digest_size=digits // 2, person=b"agentos-key").hexdigest()
