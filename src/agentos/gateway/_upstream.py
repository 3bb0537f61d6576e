"""Upstream: sends a request to a provider and reads its answer, with aiohttp. Nothing else knows aiohttp's client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from functools import lru_cache
from urllib.request import getproxies_environment, proxy_bypass

import aiohttp
from aiohttp.client_middlewares import ClientHandlerType
from multidict import CIMultiDict
from yarl import URL

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
# Bytes that are read ahead of a client that reads slowly.
READ_AHEAD = 64 * 1024
# Bytes of a line of an answer's head, and number of its headers.
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 500


class NotConnected(Exception):
    """No connection was established: the provider has not seen the request."""


class Untrusted(Exception):
    """The provider's certificate is not valid: waiting does not help."""


class AnswerLost(Exception):
    """The request was sent, but its answer did not come, or not completely: it may have been carried out."""


class Answer:
    """The answer of a provider: its head, and its body as it comes."""

    __slots__ = ("_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers

    async def read(self) -> bytes:
        """Return the next bytes of the body, as they came; empty at its end. Raises `AnswerLost`."""
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AnswerLost(_name(error)) from None

    def close(self) -> None:
        """End the answer: a body that has not arrived completely is cancelled by closing the connection."""
        self._response.close()

    def release(self) -> None:
        """Give the connection back for the next request; close it if the body has not been read completely."""
        self._response.release()


class Upstream:
    """The connections to providers. Made and used on one event loop."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_make_socket),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            read_bufsize=READ_AHEAD,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            max_headers=MAX_HEADERS,
        )

    async def send(self, method: str, url: str, headers: CIMultiDict[str], body: bytes) -> Answer:
        """Send a request; return its answer when the head has come. Raises the exceptions above."""
        target = URL(url, encoded=True)
        try:
            response = await self._session.request(
                method, target, headers=headers, data=body or None, allow_redirects=False,
                proxy=_proxy(target.scheme, target.host or ""),
                middlewares=() if method == "POST" else (_send_once,),
            )  # fmt: skip
        except aiohttp.ClientConnectorCertificateError as error:
            raise Untrusted(_name(error)) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError) as error:
            raise NotConnected(_name(error)) from None
        except aiohttp.InvalidURL as error:
            raise Untrusted(_name(error)) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise AnswerLost(_name(error)) from None
        if response.status < 200:  # 101: a protocol that was not asked for
            response.close()
            raise AnswerLost(f"status {response.status}")
        return Answer(response)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
        await asyncio.sleep(0)  # transports close in the next round of the loop


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket that notices a provider whose machine or network has gone."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", PROBE_SECONDS), ("TCP_KEEPINTVL", PROBE_SECONDS), ("TCP_KEEPCNT", PROBES)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


async def _send_once(request: aiohttp.ClientRequest, handler: ClientHandlerType) -> aiohttp.ClientResponse:
    """Report a lost connection by an exception of our own: aiohttp would send GET, PUT and DELETE again."""
    try:
        return await handler(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise AnswerLost(_name(error)) from None


def _name(error: BaseException) -> str:
    """Return the kind of an error. Its text may hold an address with a password, or bytes of an answer."""
    return type(error).__name__


@lru_cache(maxsize=256)
def _proxy(scheme: str, host: str) -> str | None:
    """Return the proxy that the environment names for a host (`HTTPS_PROXY`, `NO_PROXY`); None: direct."""
    proxies: Mapping[str, str] = getproxies_environment()
    if not proxies or proxy_bypass(host):
        return None
    return proxies.get(scheme) or proxies.get("all")
