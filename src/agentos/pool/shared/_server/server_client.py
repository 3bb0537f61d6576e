"""A pool on a Redis or Valkey server: its address, the names of its keys and channels, its scripts, and the errors of
the client library as this package raises them."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from agentos.errors import StoreError

from ...store_url import join, without_password
from ..transport import StoreLost, StoreRefused

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ModuleNotFoundError:
    raise StoreError("a store in Redis or Valkey needs an extra: pip install 'agentos-parallel[redis]'") from None

# Seconds after which a server that does not answer counts as lost.
TIMEOUT_SECONDS = 3.0
_SCRIPTS = ("take", "announce", "find", "read", "adopt", "commit", "renew", "save", "rewrite", "release")
# Commands that an access list must allow. Without `info` the pool waits for lost leases at every start.
COMMANDS = (
    "+eval +evalsha +script|load +get +set +del +exists +expire +type +hset +hget +hmget +hgetall +hincrby +rpush "
    "+lrange +llen +ltrim +time +publish +subscribe +unsubscribe +pubsub|numsub +info"
)
# How servers of several versions say that a script lacks a right.
_FORBIDDEN_IN_SCRIPT = ("ACL failure in script", "user executing the script")
_AUTHORITY = ": name the file of the authority that signed it in the address (rediss://HOST:PORT/DB?ssl_ca_certs=FILE)"
_WHERE_IT_GOES = " (put the password into the address: redis://:PASSWORD@HOST:PORT/DB)"


class PoolServer:
    """The address of a pool on a server. Connects to nothing."""

    def __init__(self, url: str) -> None:
        """Raises `ValueError` for an address that the client library does not accept."""
        self.full_url = url  # with its password: for the owner process only
        self._url, pool = _split(url)
        self.name = without_password(url)
        self.prefix = f"{{agentos:{pool}}}:"
        self.keys = [f"{self.prefix}{part}" for part in ("owner", "meta", "journal", "snapshot")]
        self.ask = f"{self.prefix}ask"  # the channel on which the owner listens
        self.up = f"{self.prefix}up"  # ... on which owners say that they listen
        self.errors = _Errors(self)  # a block in which errors of the client library are raised as ours
        try:
            redis.ConnectionPool.from_url(self._url).make_connection()  # connects to nothing yet
        except (ValueError, TypeError, exceptions.RedisError) as error:
            if isinstance(error, ValueError) and "connection URL" in str(error):
                raise
            raise ValueError(
                f"the store's address {self.name} has an unknown option; ?pool=NAME chooses a pool"
            ) from None

    def tell(self, gate_id: bytes) -> str:
        """Return the channel on which one member listens."""
        return f"{self.prefix}tell:{gate_id.hex()}"

    def connect(self) -> PoolClient:
        """Open one connection for commands. Raises `StoreLost` and `StoreRefused`."""
        with self.errors:
            return PoolClient(
                self,
                redis.Redis.from_url(
                    self._url,
                    single_connection_client=True,
                    protocol=2,
                    socket_timeout=TIMEOUT_SECONDS,
                    socket_connect_timeout=TIMEOUT_SECONDS,
                    retry=Retry(NoBackoff(), 0, supported_errors=()),  # a repeated command would be sent twice
                ),
            )

    def translated(self, error: BaseException) -> StoreLost | StoreRefused | None:
        """Return an error of the client library as this package raises it; None for any other exception."""
        if isinstance(error, exceptions.AuthenticationError):
            return StoreRefused(f"{error}{_WHERE_IT_GOES}")
        if isinstance(error, exceptions.NoPermissionError):
            return StoreRefused(self._rights(error))
        if isinstance(error, exceptions.ResponseError):
            is_forbidden = any(text in str(error) for text in _FORBIDDEN_IN_SCRIPT)
            return StoreRefused(self._rights(error)) if is_forbidden else StoreLost(str(error))
        if isinstance(error, exceptions.RedisError | OSError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                return StoreRefused(f"{error}{_AUTHORITY}")
            return StoreLost(str(error).rstrip(".") or type(error).__name__)
        return None

    def _rights(self, error: Exception) -> str:
        return (
            f"the server's access list forbids this user something that the pool needs ({error}). Allow it keys, "
            f"channels and commands: ACL SETUSER NAME ~{self.prefix}* &{self.prefix}* {COMMANDS}"
        )


class _Errors:
    """A block in which errors are translated. A class: a generator would cost several times as much per command."""

    __slots__ = ("_server",)

    def __init__(self, server: PoolServer) -> None:
        self._server = server

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: type[BaseException] | None, error: BaseException | None, _tb: object) -> None:
        translated = None if error is None else self._server.translated(error)
        if translated is not None:
            raise translated from None


class PoolClient:
    """One connection for commands. One thread at a time uses it."""

    def __init__(self, server: PoolServer, client: redis.Redis) -> None:
        self.server = server
        self._client: Any = client  # parts of the library have no types
        self._scripts: dict[str, Any] = {name: client.register_script(text) for name, text in _script_texts().items()}
        keys = [key.encode() for key in server.keys]
        self._calls = {  # how the command that runs a script begins
            name: _packed(b"EVALSHA", script.sha.encode(), b"%d" % len(keys), *keys)
            for name, script in self._scripts.items()
        }

    def run(self, script: str, *arguments: bytes | str | int) -> Any:
        """Run a script. Raises `StoreLost` and `StoreRefused`."""
        packed = [argument if type(argument) is bytes else str(argument).encode() for argument in arguments]
        with self.server.errors:
            try:
                self._send(3 + len(self.server.keys) + len(packed), self._calls[script] + _packed(*packed))
                return self._client.connection.read_response()
            except exceptions.NoScriptError:  # the server was restarted, or never had it
                return self._scripts[script](keys=self.server.keys, args=packed)

    def _send(self, length: int, parts: bytes) -> None:
        """Send a command of some parts. The library's own way to run a command takes several times as long."""
        self._client.connection.send_packed_command([b"*%d\r\n" % length + parts])

    def publish(self, channel: str, message: bytes) -> int:
        """Return the number of receivers. Raises `StoreLost` and `StoreRefused`."""
        with self.server.errors:
            return int(self._client.publish(channel, message))

    def start_publish(self, channel: str, message: bytes) -> None:
        """`publish` without waiting for the number of receivers: `finish_publish` must be called as often before any
        other command. Raises `StoreLost` and `StoreRefused`."""
        with self.server.errors:
            self._send(3, _packed(b"PUBLISH", channel.encode(), message))

    def finish_publish(self) -> int:
        """Return the number of receivers of the message. Raises `StoreLost` and `StoreRefused`."""
        with self.server.errors:
            return int(self._client.connection.read_response())

    def count_listeners(self, channels: list[str]) -> list[int]:
        """Return the number of subscribers of each channel. Raises `StoreLost` and `StoreRefused`."""
        with self.server.errors:
            return [int(count) for _, count in self._client.pubsub_numsub(*channels)]

    def info(self, section: str) -> dict[str, Any] | None:
        """Return facts about the server; None if it denies them. Raises `StoreLost` and `StoreRefused`."""
        with self.server.errors:
            try:
                return dict(self._client.info(section))
            except exceptions.NoPermissionError:
                return None

    def subscribe(self, *channels: str) -> Subscription:
        """Open a connection that listens. Raises `StoreLost` and `StoreRefused`."""
        with self.server.errors:
            return Subscription(self.server, self._client.pubsub(), channels)

    def close(self) -> None:
        """Close the connection; in a forked child only its copy of the descriptor."""
        connection = self._client.connection
        if connection is not None:
            connection.disconnect()


class Subscription:
    """A connection on which messages of channels arrive. One thread uses it."""

    def __init__(self, server: PoolServer, pubsub: Any, channels: tuple[str, ...]) -> None:
        self._server = server
        self._pubsub = pubsub
        pubsub.subscribe(*channels)
        confirmed = 0
        while confirmed < len(channels):  # from here on nothing is missed
            message = pubsub.get_message(timeout=TIMEOUT_SECONDS)
            if message is None:
                raise exceptions.TimeoutError("the server does not answer")
            confirmed += message["type"] == "subscribe"

    def receive(self, timeout: float) -> tuple[str, bytes] | None:
        """Return the channel and content of the next message; None if none comes. Raises `StoreLost` if the connection
        broke: messages may have been missed."""
        with self._server.errors:
            try:
                if not self._pubsub.connection.can_read(timeout):
                    return None
                kind, channel, data = self._pubsub.connection.read_response(disconnect_on_error=False)
            except exceptions.TimeoutError:  # a part of a message has arrived
                return None
            if kind != b"message":
                raise StoreLost("the connection broke")  # the client library has connected and subscribed again
            return channel.decode(), data

    def close(self) -> None:
        """Close the connection; in a forked child only its copy of the descriptor."""
        connection = self._pubsub.connection
        if connection is not None:
            connection.disconnect()


def _packed(*parts: bytes) -> bytes:
    """Return parts of a command as the protocol of the server has them."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def _split(url: str) -> tuple[str, str]:
    """Return the server's address, and the name of the pool there."""
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    name = options.pop("pool", "pool")
    return join(parts, list(options.items())), name


@cache
def _script_texts() -> dict[str, str]:
    folder = resources.files(__package__).joinpath("lua")
    return {name: folder.joinpath(f"{name}.lua").read_text() for name in _SCRIPTS}
