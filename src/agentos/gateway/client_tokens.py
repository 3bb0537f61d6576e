"""Client tokens: what clients show the gateway instead of a key. Each belongs to an attempt, or to a named client.

Tokens are kept as digests only: in memory for attempts, in a file of the AgentOS home directory for named clients.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import logging
import os
import secrets
import string
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentos.errors import GatewayError
from agentos.items.access import AttemptUsage, RequestMeter
from agentos.verdict import Verdict

_log = logging.getLogger("agentos.gateway")

PREFIX = "agentos-"
_LENGTH = 32
_ALPHABET = string.ascii_letters + string.digits
# Characters of a client's name.
MAX_NAME = 64
# Seconds between two looks at the file of named clients.
_LOOK_SECONDS = 1.0


def new_token() -> str:
    """Return a new client token."""
    return PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def digest(token: str) -> str:
    """Return what is kept of a token. Tokens are random, so that a plain digest cannot be reversed by guessing."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(slots=True, eq=False)
class Client:
    """The owner of a token: an attempt, or a named client. Changed on the gateway's loop, read from any thread."""

    name: str  # for the pool: the item's id, or the name
    is_attempt: bool = False
    is_patient: bool = False  # its program was set up to wait longer for an answer than it does by default
    usage: AttemptUsage = field(default_factory=AttemptUsage)
    verdict: Verdict | None = None  # why the last request was refused, if the client was told so
    is_open: bool = True
    exchanges: set[Any] = field(default_factory=set)  # requests under way
    meter: RequestMeter | None = None  # of an attempt: its run may refuse requests
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards `usage` and `unsettled`
    unsettled: set[Any] = field(default_factory=set)  # accounts of requests that were sent and are not counted yet
    long_body: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while one that is long or compressed is read

    def count_refusal(self, credential_id: str) -> None:
        """Count an answer of a provider that the client does not see."""
        with self.lock:
            self.usage.refusals += 1
            self.usage.of(credential_id).refusals += 1

    def unsettled_requests(self) -> tuple[Any, ...]:
        """Return the accounts of requests that were sent and are not counted yet."""
        with self.lock:
            return tuple(self.unsettled)

    def usage_so_far(self) -> AttemptUsage:
        """Return a copy of what was used so far. A request under way counts as it is estimated."""
        with self.lock:
            total = self.usage.copy()
            for account in self.unsettled:
                account.add_expected(total)
        return total


class ClientTokens:
    """All tokens that a gateway accepts. Safe to use from any thread."""

    def __init__(self, named: NamedClients | None = None) -> None:
        self._lock = threading.Lock()  # guards changes of _attempts; the loop reads it without
        self._attempts: dict[str, Client] = {}  # digest -> client
        self._named = named

    def open(self, name: str, meter: RequestMeter | None = None) -> str:
        """Return a token for an attempt, valid until `close`."""
        token = new_token()
        with self._lock:
            self._attempts[digest(token)] = Client(name, is_attempt=True, meter=meter)
        return token

    def close(self, token: str) -> Client | None:
        """End a token; return its client, None if it has ended before."""
        with self._lock:
            client = self._attempts.pop(digest(token), None)
        if client is not None:
            client.is_open = False
        return client

    def attempt(self, token: str) -> Client | None:
        """Return the client of an attempt's token; None if it has ended."""
        return self._attempts.get(digest(token))

    def find(self, tokens: Iterable[str]) -> Client | None:
        """Return the client that one of these tokens belongs to; None if there is none."""
        for token in tokens:
            if not token.startswith(PREFIX):
                continue
            mark = digest(token)
            client = self._attempts.get(mark) or (None if self._named is None else self._named.find(mark))
            if client is not None:
                return client
        return None


class NamedClients:
    """Named clients, whose digests are in a file that another process may change. The file is for its owner only."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = -_LOOK_SECONDS
        self._stamp: tuple[int, int, int] | None = None
        self._clients: dict[str, Client] = {}  # by digest
        self._look()

    def find(self, mark: str) -> Client | None:
        """Return the client whose token has this digest. A changed file is noticed within a second; one that cannot be
        read is reported, and the clients that were read before stay."""
        if self._clock() - self._looked_at >= _LOOK_SECONDS:
            try:
                self._look()
            except GatewayError as error:
                _log.error("%s. Until then its clients stay as they were", error)
        return self._clients.get(mark)

    def names(self) -> list[str]:
        """Return the names of all clients."""
        return [client.name for client in self._clients.values()]

    def add(self, name: str) -> str:
        """Make a token for a name, which replaces an older one; write the file; return the token."""
        check_name(name)
        token = new_token()
        with self._current_digests() as digests:
            self._write(digests | {name: digest(token)})
        return token

    def remove(self, name: str) -> None:
        """Forget a client. Raises `GatewayError` if there is none of this name."""
        with self._current_digests() as digests:
            if name not in digests:
                raise GatewayError(f"no client is named {name!r}: {', '.join(digests) or 'there is none'}")
            del digests[name]
            self._write(digests)

    @contextmanager
    def _current_digests(self) -> Iterator[dict[str, str]]:
        """Yield the digests in the file, by name. No other process changes it meanwhile: its token would be lost."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._path.with_name(f"{self._path.name}-lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._look()
            yield {client.name: mark for mark, client in self._clients.items()}

    def _write(self, digests: dict[str, str]) -> None:
        content = json.dumps({"clients": {name: {"sha256": mark} for name, mark in digests.items()}}, indent=2)
        write_private(self._path, content + "\n")
        self._stamp = None
        self._look()

    def _look(self) -> None:
        self._looked_at = self._clock()
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._clients = None, {}
            return
        except OSError as error:
            raise GatewayError(f"{self._path}: {error.strerror}") from None
        stamp = status.st_mtime_ns, status.st_size, status.st_ino
        if stamp == self._stamp:
            return
        known = {client.name: client for client in self._clients.values()}
        self._stamp = stamp  # also if it is damaged: it is read again when it has changed
        try:
            table = json.loads(self._path.read_text(encoding="utf-8"))["clients"]
            digests = {entry["sha256"]: name for name, entry in table.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise GatewayError(f"{self._path} cannot be read: remove it, and make the tokens again") from None
        self._clients = {mark: _same_or_new(known.get(name), name) for mark, name in digests.items()}


def _same_or_new(known: Client | None, name: str) -> Client:
    return known if known is not None else Client(name)


def check_name(name: str) -> None:
    """Raise `GatewayError` unless a name of a client can be shown and stored."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise GatewayError(f"a client's name has 1 to {MAX_NAME} printable characters, not {name[:MAX_NAME]!r}")


def write_private(path: Path, content: str) -> None:
    """Replace a file that only its owner may read. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(temporary).unlink()
        raise
