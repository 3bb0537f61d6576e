"""Credential: an id that may be shown, a secret that may not, the limits of the key, and the settings for its use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple, NoReturn, SupportsIndex

from agentos.errors import CredentialError
from agentos.limits.declaration import Limits
from agentos.redaction.mask import MASK, refuse_to_copy

from . import credential_settings as settings
from .references import is_reference, resolve

NO_VALUES: Mapping[str, str] = MappingProxyType({})


class Sources(NamedTuple):
    """The settings of a credential as they were given, with references."""

    base_url: str | None = None
    headers: Mapping[str, str] = NO_VALUES
    command_env: Mapping[str, str] = NO_VALUES

    @property
    def references(self) -> list[str]:
        """The references, each once."""
        values = (self.base_url or "", *self.headers.values(), *self.command_env.values())
        return [value for value in dict.fromkeys(values) if is_reference(value)]


class Settings(NamedTuple):
    """The settings of a credential with their references read."""

    base_url: str | None = None
    headers: Mapping[str, str] = NO_VALUES
    command_env: Mapping[str, str] = NO_VALUES
    secrets: frozenset[str] = frozenset()  # what the references of all settings name
    request_secrets: frozenset[str] = frozenset()  # the same without `command_env`, which a request does not need


class Credential:
    """An API key (or account) of one provider.

    The secret may be written as a reference, so that it stands in no program: `env:NAME`, `file:PATH` (refused when
    others can read the file) or `cmd:COMMAND` (run without a shell; its first line of output). It is read when the
    credential joins a pool. Nothing about this object shows the secret: not `repr`, `str`, `format`, `pickle`, `copy`.

    `base_url` is where the key is valid, `headers` are sent with every request (an organization, a project), and
    `command_env` are variables that a command gets beside the key (a region, a deployment). Their values may be
    references, too, and are then redacted like the secret. A `secret` of None is for an account without a key, such as
    the log-in of an agent in a profile folder: `Credential(None, id="team-a", command_env={"CLAUDE_CONFIG_DIR":
    "~/.claude-team-a"})`.
    """

    __slots__ = (
        "__has_generated_id", "__id", "__limits", "__provider", "__quota_group", "__reference", "__scopes", "__secret",
        "__settings", "__source", "__sources",
    )  # fmt: skip

    def __init__(
        self,
        secret: str | None,
        *,
        id: str | None = None,  # noqa: A002 - the name is part of the contract
        provider: str | None = None,
        quota_group: str | None = None,
        scopes: Iterable[str] = (),
        limits: Limits | None = None,
        base_url: str | None = None,
        headers: Mapping[str, str] | None = None,
        command_env: Mapping[str, str] | None = None,
    ) -> None:
        if secret is None:
            if id is None or not command_env:
                raise ValueError(
                    "a credential's secret must be a non-empty string; one without a secret (None) needs an id, and "
                    "command_env with the variables for a command"
                )
        elif not isinstance(secret, str) or not secret:
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
        headers = NO_VALUES if headers is None else headers
        command_env = NO_VALUES if command_env is None else command_env
        settings.check_headers(headers)
        settings.check_command_env(command_env)
        self.__sources = Sources(
            None if base_url is None else settings.checked_base_url(base_url),
            MappingProxyType(dict(headers)),
            MappingProxyType(settings.expanded(command_env)),
        )
        self.__source = secret
        self.__secret: str | None = None if secret is not None else ""
        self.__reference = secret if secret is not None and is_reference(secret) else None
        self.__has_generated_id = id is None
        self.__id = id or self.__digest(secret or "")
        self.__provider = provider
        self.__quota_group = quota_group
        self.__scopes = frozenset(scopes)
        self.__limits = limits if limits is not None else Limits()
        self.__settings: Settings | None = None  # None: not read yet

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
        return self.__has_generated_id

    def with_longer_id(self) -> Credential:
        """Return a copy with a longer fingerprint, for the rare pair of keys whose short ones are equal."""
        credential = Credential(
            self.__source,
            id=self.__digest(self.__source or "", digits=24),
            provider=self.__provider,
            quota_group=self.__quota_group,
            scopes=self.__scopes,
            limits=self.__limits,
            **self.__sources._asdict(),
        )
        credential.__secret = self.__secret
        credential.__reference = self.__reference
        credential.__settings = self.__settings
        return credential

    @property
    def secret(self) -> str:
        """The key itself; empty if the credential has none. Reads the reference on first use; raises
        `CredentialError`, naming the reference."""
        if self.__secret is None:
            assert self.__source is not None
            self.__secret = resolve(self.__source, self.__id)
        return self.__secret

    @property
    def has_secret(self) -> bool:
        """Whether there is a key, and not only settings such as a profile folder."""
        return self.__source is not None

    @property
    def reference(self) -> str | None:
        """`env:…`, `file:…` or `cmd:…`, which another process can read for itself; None for a plain secret."""
        return self.__reference

    # The settings read all references on first use, and raise `CredentialError`, naming the reference.

    @property
    def base_url(self) -> str | None:
        """The address at which the key is valid, without a slash at its end; None: the provider's own."""
        return self.__read_settings().base_url

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of every request."""
        return self.__read_settings().headers

    @property
    def command_env(self) -> Mapping[str, str]:
        """The variables of a command beside the key, with `~` expanded."""
        return self.__read_settings().command_env

    @property
    def secrets(self) -> frozenset[str]:
        """The values that must not be shown: the secret, and what references among the settings name."""
        return self.__read_settings().secrets | ({self.secret} - {""})

    @property
    def request_secrets(self) -> frozenset[str]:
        """`secrets` without those of `command_env`."""
        return self.__read_settings().request_secrets | ({self.secret} - {""})

    @property
    def sources(self) -> Sources:
        """The settings as they were given: another process can read their references for itself."""
        return self.__sources

    @property
    def fingerprint(self) -> str:
        """A short one-way digest of the secret, and of the settings if there are any."""
        return self.__digest(self.secret)

    @property
    def identity(self) -> str:
        """A long one-way digest of the same. The same key may be used in two regions: those are two credentials."""
        return self.__digest(self.secret, digits=32)

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

    def __read_settings(self) -> Settings:
        if self.__settings is None:
            self.__settings = read_settings(self.__sources, self.__id)
        return self.__settings

    def __digest(self, secret: str, digits: int = 8) -> str:
        parts = [secret]
        base_url, headers, command_env = self.__sources
        if base_url is not None or headers or command_env:
            parts += ["", base_url or ""]
            parts += [f"{name}: {value}" for name, value in sorted(headers.items())]
            parts += [f"{name}={value}" for name, value in sorted(command_env.items())]
        return fingerprint("\0".join(parts), digits)

    def __repr__(self) -> str:
        return f"Credential({MASK}, id={self.__id!r}, provider={self.__provider!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_copy(self)

    def __getstate__(self) -> NoReturn:
        refuse_to_copy(self)


def read_settings(sources: Sources, credential_id: str) -> Settings:
    """Return the settings with their references read, each once. Raise `CredentialError`, naming the reference."""
    values = {source: resolve(source, credential_id) for source in sources.references}
    found = Settings(
        None if sources.base_url is None else values.get(sources.base_url, sources.base_url),
        _values(sources.headers, values),
        _values(sources.command_env, values),
        frozenset(values.values()),
        frozenset(values[source] for source in sources._replace(command_env=NO_VALUES).references),
    )
    try:
        settings.check_headers(found.headers)
        settings.check_command_env(found.command_env)
        base_url = None if found.base_url is None else settings.checked_base_url(found.base_url)
    except ValueError as error:
        problem = f"a reference names a value that cannot be used: {error}"
        raise CredentialError(f"credential {credential_id}: {problem}") from None
    return found._replace(base_url=base_url)


def _values(sources: Mapping[str, str], values: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: values.get(source, source) for name, source in sources.items()})


def fingerprint(secret: str, digits: int = 8) -> str:
    """Return a stable name for a key: a one-way digest, never a part of it."""
    data = secret.encode("utf-8", "surrogatepass")
    return "key-" + hashlib.blake2b(data, digest_size=digits // 2, person=b"agentos-key").hexdigest()


def fingerprint_of(secrets: Iterable[str]) -> str:
    """Return the fingerprint of several secrets together; of one, its own."""
    return fingerprint("\0".join(sorted(secrets)))
