"""The log of a pool that several machines share, in Redis or Valkey.

Three small scripts (`lua/`) append and read; none of them knows a rule of the pool. The server's clock decides. Whoever
waits is told of every entry at once, by a subscription.

A server that was flushed, or started anew, may have forgotten who holds what. The log then has another *epoch*: all
begin anew with what is there, and the first of them says that nothing is to be granted until all leases have run out.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from agentos.errors import StoreError

from ..store_url import join, without_password
from .log import Answer, Entry, Start, StoreLost, StoreRefused
from .states import rules_version

try:
    import redis
    from redis import exceptions
except ModuleNotFoundError:
    raise StoreError("a store in Redis or Valkey needs an extra: pip install 'agentos-parallel[redis]'") from None

# So many entries before the last kept state stay, for those who are a little behind.
KEPT_BEHIND = 4096
# A pool that nobody has used for so long is removed.
UNUSED_SECONDS = 30 * 86_400
# An answer that takes longer than this share of a lease's life, within these bounds, is taken for none.
TIMEOUT_SHARE, LEAST_TIMEOUT, MOST_TIMEOUT = 1 / 3, 0.5, 5.0
_ANOTHER_VERSION = "another version of agentos uses it: wait for its runs to end, or choose another pool (?pool=NAME)"
_FORBIDDEN = (exceptions.AuthenticationError, exceptions.NoPermissionError)
_WHERE_IT_STANDS = " (put the password into the address: redis://:PASSWORD@HOST:PORT/DB)"


class RedisLog:
    poll_seconds: float | None = None

    def __init__(self, url: str) -> None:
        self._url, name = _split(url)
        redis.ConnectionPool.from_url(self._url)  # raises ValueError for what is no address
        self._where = without_password(url)
        self._keys = [f"{{agentos:{name}}}:{part}" for part in ("pool", "log", "state")]
        self._channel = f"{{agentos:{name}}}:said"
        self._scripts = {path: _script(path) for path in ("exchange", "load", "keep", "look")}
        self._rules = rules_version()
        self._timeout = MOST_TIMEOUT
        self._connection: Any = None
        self._server = ""
        self._listener: _Listener | None = None
        try:
            redis.ConnectionPool.from_url(self._url).make_connection()  # which connects to nobody yet
        except (ValueError, TypeError, exceptions.RedisError):
            raise ValueError(
                f"the store's address {self._where} has an unknown option; ?pool=NAME chooses a pool"
            ) from None

    def look(self) -> Start | None:
        self._connect()
        reply = self._run("look", self._rules)
        if not reply:
            return None
        if not reply[0]:
            raise StoreRefused(_ANOTHER_VERSION)
        name, at, state, position, entries = reply
        found = [_entry(entry) for entry in entries]
        return Start(name.decode(), float(at), state or None, position, found, is_doubtful=False)

    def load(self, ttl: float) -> Start:
        self._timeout = min(MOST_TIMEOUT, max(LEAST_TIMEOUT, TIMEOUT_SHARE * ttl))
        self._connect()
        epoch = secrets.token_hex(8)
        reply = self._run("load", epoch, self._rules, self._server, UNUSED_SECONDS)
        if not reply[0]:
            raise StoreRefused(_ANOTHER_VERSION)
        name, at, state, position, entries, doubt = reply
        found = [_entry(entry) for entry in entries]
        return Start(name.decode(), float(at), state or None, position, found, is_doubtful=bool(doubt))

    def exchange(self, epoch: str, position: int, batch: bytes | None, ttl: float) -> Answer:
        if self._connection is None:
            self._connect()
            return Answer("", 0.0, None)  # it may be another server by now: `load` finds out
        reply = self._run("exchange", epoch, position, ttl, self._channel, batch or b"")
        if len(reply) == 1:
            return Answer(reply[0].decode(), 0.0, None)
        entries = [_entry(entry) for entry in reply[2]] if len(reply) > 2 else None
        return Answer(epoch, float(reply[1]), entries)

    def has_news(self) -> bool:
        return False  # we are told

    def listen(self, heard: Callable[[int, Entry], None] | None, missed: Callable[[], None]) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if heard is not None:
            with self._translated():
                self._listener = _Listener(self._open(), self._channel, heard, missed)

    def keep(self, epoch: str, position: int, state: bytes) -> None:
        self._run("keep", epoch, position, state, KEPT_BEHIND, UNUSED_SECONDS)

    def abandon(self) -> None:
        self._connection = self._listener = None

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self._disconnect()

    # --- inside ---------------------------------------------------------------------------------------------------

    def _run(self, script: str, *arguments: Any) -> Any:
        digest, text = self._scripts[script]
        with self._translated():
            try:
                return self._command("EVALSHA", digest, 3, *self._keys, *arguments)
            except exceptions.NoScriptError:
                return self._command("EVAL", text, 3, *self._keys, *arguments)

    def _command(self, *words: Any) -> Any:
        if self._connection is None:
            raise exceptions.ConnectionError("not connected")
        self._connection.send_command(*words)
        return self._connection.read_response()

    def _connect(self) -> None:
        self._disconnect()
        with self._translated():
            self._connection = self._open()
            try:
                info = self._command("INFO", "server").decode()
            except exceptions.ResponseError:  # not for everybody's eyes: then a restart is noticed by what is missing
                info = ""
            self._server = dict(line.partition(":")[::2] for line in info.splitlines()).get("run_id", "")

    def _open(self) -> Any:
        pool = redis.ConnectionPool.from_url(
            self._url, protocol=2, socket_connect_timeout=self._timeout, socket_timeout=self._timeout
        )
        connection: Any = pool.make_connection()
        connection.connect()
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                connection.disconnect()

    @contextlib.contextmanager
    def _translated(self) -> Any:
        try:
            yield
        except _FORBIDDEN as error:
            self._disconnect()
            more = _WHERE_IT_STANDS if isinstance(error, exceptions.AuthenticationError) else ""
            raise StoreRefused(f"{error}{more}") from None
        except (exceptions.RedisError, OSError) as error:
            self._disconnect()
            raise StoreLost(str(error).rstrip(".") or type(error).__name__) from None


class _Listener:
    """A subscription of its own, and the thread that hears it."""

    def __init__(self, connection: Any, channel: str, heard: Callable[[int, Entry], None],
                 missed: Callable[[], None]) -> None:  # fmt: skip
        self._connection = connection
        self._heard = heard
        self._missed = missed
        self._is_closed = False
        connection.send_command("SUBSCRIBE", channel)
        connection.read_response()  # from here on nothing is missed,
        connection._sock.settimeout(None)  # and it may be long until somebody says something
        threading.Thread(target=self._listen, name="agentos-store-news", daemon=True).start()

    def _listen(self) -> None:
        try:
            while not self._is_closed:
                message = self._connection.read_response()
                if message[0] == b"message":
                    position, entry = message[2].split(b" ", 1)
                    self._heard(int(position), _entry(entry))
        except Exception:
            if not self._is_closed:
                self._missed()
        finally:
            with contextlib.suppress(Exception):
                self._connection.disconnect()

    def close(self) -> None:
        self._is_closed = True
        # The thread reads from it: it must not be taken away under its hands, only be told that nothing more comes.
        with contextlib.suppress(Exception):
            self._connection._sock.shutdown(2)


def _split(url: str) -> tuple[str, str]:
    """The server's address, and the name of the pool there."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    name = options.pop("pool", "pool")
    return join(parts, list(options.items())), name


def _entry(text: bytes) -> Entry:
    at, batch = text.split(b" ", 1)
    return float(at), batch


def _script(name: str) -> tuple[str, str]:
    text = resources.files(__package__).joinpath("lua", f"{name}.lua").read_text()
    return hashlib.sha1(text.encode()).hexdigest(), text  # noqa: S324 - how the server names scripts
