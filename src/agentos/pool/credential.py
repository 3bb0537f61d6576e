"""Credentials: an id that may be shown, a secret that may not, and where secrets come from."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex

from agentos.errors import CredentialError
from agentos.limits.declaration import Limits

from ._rules.records import LeaseRecord

MASK = "****"
# A helper that prints a key answers at once; one that hangs must not hang the run.
COMMAND_TIMEOUT_SECONDS = 30.0


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
            raise ValueError("a credential's secret must be a string that is not empty")
        if isinstance(scopes, str):
            raise ValueError("scopes must be a collection of names, not one string: write scopes=[name]")  # noqa: TRY004
        if id is not None and (not isinstance(id, str) or not id or id == secret):
            raise ValueError("a credential's id is shown to people: a string that is not empty and not the secret")
        if limits is not None and not isinstance(limits, Limits):
            raise ValueError(f"limits must be a Limits object, such as Limits(requests_per_minute=60), not {limits!r}")
        for name, value in (("provider", provider), ("quota_group", quota_group)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"{name} must be a name, not {value!r}")
        self.__source = secret
        self.__secret: str | None = None
        self.__reference = secret if _is_reference(secret) else None
        self.__id = id or fingerprint(secret)
        self.__provider = provider
        self.__quota_group = quota_group
        self.__scopes = frozenset(scopes)
        self.__limits = limits if limits is not None else Limits()

    @classmethod
    def literal(cls, secret: str) -> Credential:
        """A credential whose secret is this very string, even if it looks like a reference."""
        credential = cls(secret)
        credential.__secret = secret
        credential.__reference = None
        return credential

    @property
    def has_made_up_id(self) -> bool:
        return self.__id == fingerprint(self.__source)

    def with_longer_id(self) -> Credential:
        """For the rare pair of keys whose short fingerprints are the same."""
        other = Credential(
            self.__source,
            id=fingerprint(self.__source, digits=24),
            provider=self.__provider,
            quota_group=self.__quota_group,
            scopes=self.__scopes,
            limits=self.__limits,
        )
        other.__secret = self.__secret
        other.__reference = self.__reference
        return other

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
        """Its own group, unless it was said to share one."""
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


class LeasedKey(str):
    """What `reserve` returns and a worker gets: the key itself, for any SDK, that remembers its lease.

    Only its `repr` is masked: everything else must act as the key. A copy or pickle of it is a plain string.
    """

    __slots__ = ("credential_id", "record")

    credential_id: str
    record: LeaseRecord

    def __repr__(self) -> str:
        return f"<{self.credential_id} {MASK}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return str, (str(self),)


def refuse_to_copy(thing: object) -> NoReturn:
    raise TypeError(f"a {type(thing).__name__} holds a secret and is not copied, pickled or sent: pass its id instead")


def fingerprint(secret: str, digits: int = 8) -> str:
    """A stable name for a key: a one-way digest, never a piece of it."""
    data = secret.encode("utf-8", "surrogatepass")
    return "key-" + hashlib.blake2b(data, digest_size=digits // 2, person=b"agentos-key").hexdigest()


def _is_reference(source: str) -> bool:
    kind, _, rest = source.partition(":")
    return kind in ("env", "file", "cmd") and rest != ""


def resolve(source: str, credential_id: str) -> str:
    """The secret that a source names, or is. Raises `CredentialError`, which never shows it."""
    if not _is_reference(source):
        return source
    kind, _, rest = source.partition(":")
    if kind == "env":
        secret = _environment_variable(rest)
        what = f"the environment variable {rest}"
    elif kind == "file":
        what = f"the file {rest}"
        secret = _read_private_file(rest)
    else:
        what = "the output of its command"
        secret = _run_command(rest, credential_id)
    secret = secret.strip()
    if not secret:
        raise CredentialError(f"credential {credential_id}: {what} is not set or empty")
    if len(secret.splitlines()) > 1:
        raise CredentialError(f"credential {credential_id}: {what} has several lines; a key is one")
    return secret


def _environment_variable(name: str) -> str:
    try:
        return os.environ.get(name, "")
    except ValueError:  # not a name that any system could have
        return ""


def _read_private_file(path: str) -> str:
    file = Path(path)
    try:
        file = file.expanduser()
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise CredentialError(f"{file} can be read by others, so its key is not used: run chmod 600 {file}")
        return file.read_text(encoding="utf-8")
    except CredentialError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        raise CredentialError(f"cannot read the key file {file}: {error}") from None


def _run_command(command: str, credential_id: str) -> str:
    # Neither the command's output nor its error text is shown: either may hold the key.
    try:
        words = shlex.split(command)
        if not words:
            raise ValueError("no command")
        done = subprocess.run(  # noqa: S603 - running the user's own command is the job
            words, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise CredentialError(f"credential {credential_id}: its command failed: {type(error).__name__}") from None
    if done.returncode != 0:
        raise CredentialError(f"credential {credential_id}: its command ended with status {done.returncode}")
    return done.stdout.partition("\n")[0]
