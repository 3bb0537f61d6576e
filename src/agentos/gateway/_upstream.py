"""Upstream: sends a request to a provider. Only this module and `_upstream_answer` know aiohttp's client.

aiohttp's connector makes and keeps the connections (addresses, TLS, proxies, reuse), and its parser reads answers. The
head of a request is written here: a `ClientSession` takes as long for one request as all rules of the gateway, and
would send a GET, PUT or DELETE a second time by itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from ._upstream_answer import Answer

# Seconds until a connection must be established.
CONNECT_SECONDS = 15.0
# Seconds without a byte after which the machine of the provider is asked whether it still has the connection, and
# between two such questions; after PROBES without an answer the connection counts as lost. There is no other limit:
# reasoning may take many minutes, and the client decides how long it waits.
PROBE_SECONDS = 60
PROBES = 5
# Seconds that an idle connection is kept. Shorter than providers keep theirs: a request that is sent into a connection
# that the provider is closing is lost.
IDLE_SECONDS = 15.0
# Bytes of a body that is copied behind its head, to be sent with one system call.
MAX_JOINED_BYTES = 64 * 1024
# Origins that are remembered.
MAX_ORIGINS = 256
# Connections that are closed for one request because bytes came on them that no request asked for.
MAX_STALE_CONNECTIONS = 100
_BODY_METHODS = frozenset({"POST", "PUT", "PATCH"})


class NotConnected(Exception):
    """No connection was established: the provider has not seen the request. The text is its address."""


class Untrusted(Exception):
    """The provider's certificate is not valid: waiting does not help."""


class _Origin:
    """One scheme, host and port, with the proxy on the way there."""

    __slots__ = ("_is_proxied", "address", "request", "text")

    def __init__(self, text: str, loop: asyncio.AbstractEventLoop) -> None:
        """Raises `ValueError` for an address that is not valid."""
        url = URL(text)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("no valid address")
        proxy = _proxy(url.scheme, url.host)
        self.text = text
        self.address = _address(url) if proxy is None else f"{_address(url)} through the proxy {_address(URL(proxy))}"
        # What the connector wants to know of a request is the same for all requests to an origin.
        self.request = aiohttp.ClientRequest("GET", url, loop=loop, proxy=None if proxy is None else URL(proxy))
        self._is_proxied = proxy is not None and url.scheme == "http"

    def head(self, method: str, path: str) -> list[str]:
        """Return the first lines of a request."""
        headers = self.request.headers
        lines = [f"{method} {self.text if self._is_proxied else ''}{path} HTTP/1.1", f"Host: {headers['Host']}"]
        if "Proxy-Authorization" in headers:  # of a proxy that sees the request itself
            lines.append(f"Proxy-Authorization: {headers['Proxy-Authorization']}")
        return lines


class Upstream:
    """The connections to providers. Made and used on one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_make_socket)
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        self._origins: dict[str, _Origin] = {}

    async def send(self, method: str, url: str, headers: Iterable[tuple[str, str]], body: bytes) -> Answer:
        """Send a request; return its answer when the head has come. Raises the exceptions above."""
        path_start = url.find("/", url.find("://") + 3)
        origin = self._origins.get(url[:path_start]) or self._add_origin(url[:path_start])
        connection = await self._connect(origin)  # which also finds out what a proxy wants in the head
        try:
            lines = origin.head(method, url[path_start:])
            lines += [f"{name}: {value}" for name, value in headers]
            head = _encoded(lines, len(body) if body or method in _BODY_METHODS else None)
            answer = Answer(connection, self._loop)
        except BaseException:
            connection.close()
            raise
        try:
            _write(connection, head, body)
            await answer.receive_head()
        except BaseException:
            answer.close()
            raise
        return answer

    async def _connect(self, origin: _Origin) -> Connection:
        """Return a connection on which nothing unsolicited has come (such as the 408 of an idle connection): the next
        request would take it for its answer."""
        try:
            for _ in range(MAX_STALE_CONNECTIONS):
                connection = await self._connector.connect(origin.request, [], self._timeout)
                if connection.protocol is None or not connection.protocol.should_close:
                    return connection
                connection.close()
        except aiohttp.ClientConnectorCertificateError:
            raise Untrusted("its certificate is not trusted; SSL_CERT_FILE names a file with authorities") from None
        except aiohttp.InvalidURL as error:
            raise Untrusted(_name(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError):
            raise NotConnected(origin.address) from None
        raise NotConnected(origin.address)  # which answers before it is asked

    def _add_origin(self, text: str) -> _Origin:
        if len(self._origins) >= MAX_ORIGINS:
            self._origins.clear()
        try:
            origin = self._origins[text] = _Origin(text, self._loop)
        except ValueError as error:
            raise Untrusted(_name(error)) from None
        return origin

    async def close(self) -> None:
        """Close all connections."""
        await self._connector.close()
        await asyncio.sleep(0)  # transports close in the next round of the loop


def _encoded(lines: list[str], length: int | None) -> bytes:
    """Return the head of a request. Raises `Untrusted` if a line has a line break, which would begin another header or
    request."""
    if length is not None:
        lines.append(f"Content-Length: {length}")
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape")
    if head.count(b"\n") != len(lines) + 1 or head.count(b"\r") != len(lines) + 1 or b"\0" in head:
        raise Untrusted("a header has a line break")
    return head


def _write(connection: Connection, head: bytes, body: bytes) -> None:
    transport = connection.transport
    assert transport is not None
    if len(body) <= MAX_JOINED_BYTES:
        transport.write(head + body)
    else:
        transport.write(head)
        transport.write(body)


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that notices a provider whose machine or network has gone."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", PROBE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


def _name(error: BaseException) -> str:
    """Return the kind of an error. Its text may hold an address with a password, or bytes of an answer."""
    return type(error).__name__


def _address(url: URL) -> str:
    """Return host and port: an address may also have a name and a password."""
    return f"{url.host_subcomponent}:{url.port}"


def _proxy(scheme: str, host: str) -> str | None:
    """Return the proxy that the environment names for a host (`HTTPS_PROXY`, `NO_PROXY`); None: direct. Raises
    `Untrusted` for a proxy of another kind than HTTP: without it the request would take a way that was not wanted."""
    proxies: Mapping[str, str] = getproxies_environment()
    if not proxies or proxy_bypass(host):
        return None
    proxy = proxies.get(scheme) or proxies.get("all")
    if proxy is None or proxy.startswith(("http://", "https://")):
        return proxy
    if "://" in proxy:
        raise Untrusted("the environment names a proxy that is not reached by HTTP")
    return f"http://{proxy}"  # as curl and SDKs understand it
