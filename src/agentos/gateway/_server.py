"""Server: accepts connections, checks each request before anything is leased, and hands it to an exchange.

aiohttp parses HTTP. What it leaves open is closed here: deadlines for head and body, the number of connections,
methods, `Expect`, upgrades, requests of browsers, names that are not ours, and trailers, which it hands to the next
request of a connection: a connection is closed after a request whose body came in chunks.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from ._answers import LocalAnswer, error
from ._body import Body
from ._exchange import Exchange
from ._hold import retry_headers
from ._relay import RelayedAnswer, cut, local_response, relay
from ._request import KEY_HEADERS, ClientRequest, is_text, number_header, passed_headers, passed_query
from ._routes import check_target, find_route
from ._state import GatewayState
from .client_tokens import Client

# Seconds until the head of a request must have arrived, from its first byte, for the first one from the beginning of
# its connection; and between two looks at all connections: a timer for each request would cost more than most checks.
HEAD_SECONDS = 15.0
LOOK_SECONDS = 1.0
# Seconds that a connection may be idle between requests.
IDLE_SECONDS = 90.0
# Bytes of the request line and of one header, and the number of headers.
MAX_LINE = 16 * 1024
MAX_HEADERS = 100
# Bytes of a head that is not complete LOOK_SECONDS after its first byte: nothing is known of its client yet.
MAX_SLOW_HEAD = 64 * 1024
# Connections at a time.
MAX_CONNECTIONS = 4_096
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"})
# Names that containers have for the machine they run on.
_CONTAINER_NAMES = ("host.docker.internal", "host.containers.internal", "gateway.docker.internal")

_log = logging.getLogger("agentos.gateway")
# aiohttp's messages quote what clients sent, tokens included.
_silent = logging.getLogger("agentos.gateway.discarded")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False
_silent.setLevel(logging.CRITICAL + 1)


class Connection(web.RequestHandler):
    """One connection: aiohttp's, with a deadline for the head of each request."""

    __slots__ = ("_now", "head_bytes", "head_since", "is_busy", "provider")

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(
            server, loop=loop, keepalive_timeout=IDLE_SECONDS, logger=_silent, access_log=None,  # type: ignore[arg-type]
            max_line_size=MAX_LINE, max_field_size=MAX_LINE, max_headers=MAX_HEADERS, lingering_time=2.0,
            auto_decompress=False,
        )  # fmt: skip
        self._now = loop.time
        self.head_since: float | None = None  # when a head began that is not complete
        self.head_bytes = 0  # that have come since then
        self.is_busy = False  # a request is being answered
        self.provider: str | None = None  # that it is for

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.head_since = self._now()  # also if nothing is ever sent

    def data_received(self, data: bytes) -> None:
        if not self.is_busy:
            if self.head_since is None:
                self.head_since, self.head_bytes = self._now(), 0
            self.head_bytes += len(data)
        super().data_received(data)

    def handle_error(self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None,
                     message: str | None = None) -> web.StreamResponse:  # fmt: skip
        """Return the answer to a request that is not valid HTTP. aiohttp's would quote it."""
        del exc, message
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent")
        answer = error("openai", "invalid_request", "the request is not valid HTTP/1.1", status=status, is_final=True)
        response = local_response(answer)
        response.headers["Server"] = "agentos"
        response.force_close()
        return response


class GatewayServer:
    """Serves a gateway's state on one address."""

    def __init__(self, state: GatewayState, host: str, allowed_hosts: tuple[str, ...] = ()) -> None:
        self._state = state
        self._host = host
        self._allowed_hosts = frozenset(name.lower() for name in allowed_hosts)
        self._server: asyncio.Server | None = None
        self._web_server: web.Server | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self._port = 0
        self._usual_host: str | None = None  # the Host header that was accepted last

    # --- the socket ---------------------------------------------------------------------------------------------------

    async def listen(self, port: int) -> int:
        """Listen; return the port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        web_server = self._web_server = web.Server(self._handle, handler_cancellation=True, loop=loop)

        def connect() -> asyncio.Protocol:
            if len(web_server.connections) >= MAX_CONNECTIONS:
                return _TooMany()
            return Connection(web_server, loop)

        self._server = await loop.create_server(connect, self._host, port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]
        self._close_slow_heads()
        return self._port

    def _close_slow_heads(self) -> None:
        """Close connections whose request has not got a complete head in time; look again soon."""
        loop = asyncio.get_running_loop()
        assert self._web_server is not None
        for connection in self._web_server.connections:
            assert isinstance(connection, Connection)
            if connection.head_since is None:
                continue
            seconds = loop.time() - connection.head_since
            if seconds >= HEAD_SECONDS or (seconds >= LOOK_SECONDS and connection.head_bytes > MAX_SLOW_HEAD):
                connection.force_close()
        self._next_look = loop.call_later(LOOK_SECONDS, self._close_slow_heads)

    async def close(self, grace: float) -> None:
        """Refuse new requests, let those under way finish within `grace` seconds, then cancel the rest."""
        self._state.is_draining = True
        if self._server is not None:
            self._server.close()
        if self._next_look is not None:
            self._next_look.cancel()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        while self._state.under_way and loop.time() < end:
            await asyncio.sleep(0.02)
        self._state.joinable.end_all()
        if self._web_server is not None:
            for connection in self._web_server.connections:
                connection.force_close()
            await self._web_server.shutdown(0.5)

    # --- requests -----------------------------------------------------------------------------------------------------

    async def _handle(self, web_request: web.BaseRequest) -> web.StreamResponse:
        connection = web_request.protocol
        assert isinstance(connection, Connection)
        connection.head_since, connection.is_busy, connection.provider = None, True, None
        state = self._state
        started_at = state.pool.clock.now()
        try:
            response = await self._respond(web_request)
        except LocalAnswer as answer:
            response = local_response(answer)
            if response.status in (400, 408, 413):  # a part of the request may still come
                response.force_close()
        except ConnectionError:
            raise
        except Exception as failure:
            _report(failure)
            if web_request.writer.output_size > 0:  # an answer has begun: an error within it would be taken for its end
                cut(web_request)
                raise ConnectionResetError("the answer was cut") from None
            response = local_response(error(_family(web_request), "server_error", "the gateway has a bug: see its log"))
        finally:
            connection.is_busy = False
        if "Transfer-Encoding" in web_request.headers or state.is_draining:
            response.force_close()
        if not isinstance(response, RelayedAnswer):  # which has its headers
            response.headers.setdefault("Server", "agentos")
        if connection.provider is not None:
            state.metrics.request(connection.provider, response.status, state.pool.clock.now() - started_at)
        return response

    async def _respond(self, web_request: web.BaseRequest) -> web.StreamResponse:
        method, target = web_request.method, web_request.raw_path
        self._check(web_request)
        path, _, query = target.partition("?")
        if path == "/" and method in ("HEAD", "GET"):
            return web.Response(text="agentos gateway\n")
        if path == "/-/health" and method in ("HEAD", "GET"):
            return self._health()
        client = self._client(web_request, path, query)
        if path.startswith("/-/"):
            return await self._page(path)
        route = find_route(path, web_request.headers, self._state.addresses)
        if route is None or method == "HEAD":
            raise error(_family(web_request), "not_found", "no provider has this path: see docs/gateway.md for the "
                        "paths and mounts", is_final=True)  # fmt: skip
        assert isinstance(web_request.protocol, Connection)
        web_request.protocol.provider = route.provider
        if self._state.is_draining:
            raise error(route.error_shape, "overloaded", "the gateway is shutting down", retry_after=1)
        self._state.under_way += 1
        body = Body(self._state, client, web_request, route.error_shape)
        try:
            await body.receive()
            headers = web_request.headers
            retry_count = number_header(headers, "x-stainless-retry-count")
            request = ClientRequest(
                method, route, passed_query(query), passed_headers(headers.items(), headers.get("Connection", "")),
                body.content, await body.read(route), None if retry_count is None else int(retry_count),
                number_header(headers, "x-stainless-read-timeout", "x-stainless-timeout"),
                "idempotency-key" in headers, headers.get("User-Agent", ""),
            )  # fmt: skip
            return await self._forward(web_request, client, request)
        finally:
            body.free()
            self._state.under_way -= 1

    async def _forward(
        self, web_request: web.BaseRequest, client: Client, request: ClientRequest
    ) -> web.StreamResponse:
        exchange = Exchange(self._state, client, request)
        if request.retry_count:
            exchange = self._state.joinable.join(exchange) or exchange
        exchange.handler = asyncio.current_task()
        client.exchanges.add(exchange)
        client.verdict = None
        try:
            if request.retry_count is None:
                await exchange.begin()
            else:
                await self._begin_joinable(exchange)
            if not client.is_open:
                exchange.abandon()
                raise ConnectionResetError("the client token has ended")
            return await relay(web_request, exchange)
        except LocalAnswer as answer:
            client.verdict = answer.verdict
            answer.headers = retry_headers(request.user_agent, answer.headers)
            raise
        finally:
            client.exchanges.discard(exchange)

    async def _begin_joinable(self, exchange: Exchange) -> None:
        """Run `begin` in a task of its own, which a retry can join if this client leaves before its answer begins."""
        if exchange.task is None:
            exchange.task = asyncio.create_task(exchange.begin())
        try:
            await asyncio.shield(exchange.task)
        except asyncio.CancelledError:
            if exchange.client.is_open and not exchange.task.cancelled() and not self._state.is_draining:
                self._state.joinable.leave(exchange)
            else:
                exchange.abandon()
            raise

    # --- checks -------------------------------------------------------------------------------------------------------

    def _check(self, web_request: web.BaseRequest) -> None:
        """Raise `LocalAnswer` for a request that no client of an API sends."""
        headers, shape = web_request.headers, _family(web_request)
        if web_request.method not in _METHODS:
            raise error(shape, "invalid_request", "this method is not allowed", status=405, is_final=True)
        reason = check_target(web_request.raw_path)
        if reason is not None:
            raise error(shape, "invalid_request", reason, is_final=True)
        hosts = headers.getall("Host", [])
        if len(hosts) != 1 and (hosts or web_request.version >= (1, 1)):
            raise error(shape, "invalid_request", "a request has one Host header", is_final=True)
        if hosts and hosts[0] != self._usual_host and not self._is_own_name(hosts[0]):
            raise error(shape, "invalid_request", "this gateway does not listen on the name in the Host header: "
                        "--allow-host adds a name", status=421, is_final=True)  # fmt: skip
        if hosts:
            self._usual_host = hosts[0]
        if not is_text("".join(headers.values())):
            raise error(shape, "invalid_request", "a header has bytes that are not UTF-8", is_final=True)
        if "Origin" in headers or "Sec-Fetch-Site" in headers:
            raise error(shape, "forbidden", "requests of browsers are refused", is_final=True)
        if "Upgrade" in headers:
            answer = error(shape, "invalid_request", "upgrades are not supported: use plain HTTP/1.1", status=426)
            answer.headers |= {"upgrade": "HTTP/1.1", "connection": "close"}
            raise answer
        if (encoding := headers.get("Transfer-Encoding")) is not None:
            if web_request.version < (1, 1):
                raise error(shape, "invalid_request", "HTTP/1.0 has no transfer encodings", is_final=True)
            if encoding.lower() != "chunked":
                raise error(shape, "invalid_request", "chunked is the only transfer encoding that is understood",
                            status=501, is_final=True)  # fmt: skip
        if headers.get("Expect", "100-continue").lower() != "100-continue":
            raise error(shape, "invalid_request", "this expectation cannot be met", status=417, is_final=True)

    def _is_own_name(self, host: str) -> bool:
        """Return whether a Host header names an address that we listen on: a foreign name may be a web page that was
        resolved to this machine."""
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
        name = name.strip("[]").lower()
        if port and port != str(self._port) and name not in self._allowed_hosts:
            return False
        if name in ("localhost", "127.0.0.1", "::1", self._host.lower()) or name in self._allowed_hosts:
            return True
        if self._host in ("127.0.0.1", "localhost", "::1"):
            return False
        return name in _CONTAINER_NAMES or _is_address(name)

    def _client(self, web_request: web.BaseRequest, path: str, query: str) -> Client:
        """Return the client whose token a request shows in a header. Raises `LocalAnswer`."""
        client = self._state.tokens.find(_tokens(web_request))
        if client is not None:
            return client
        route = find_route(path, web_request.headers, self._state.addresses)
        shape = _family(web_request) if route is None else route.error_shape
        message = "the client token is missing, wrong or has ended: send it where the key would be"
        if "key=" in query.lower() or "token=" in query.lower():
            message = "a client token is accepted in a header only: URLs are logged on their way"
        raise error(shape, "auth_failed", message, is_final=True)

    # --- pages of the gateway itself ----------------------------------------------------------------------------------

    def _health(self) -> web.Response:
        state = self._state
        status = 503 if state.is_draining else 200
        body = {"status": "draining" if state.is_draining else "ok", "requests_under_way": state.under_way}
        return _json(body, status)

    async def _page(self, path: str) -> web.Response:
        if path == "/-/pool":
            states = msgspec.to_builtins(await asyncio.to_thread(self._state.pool.states))
            return _json({"credentials": states})
        if path == "/-/metrics":
            page = self._state.metrics.text(self._state.under_way)
            if page is None:
                return _json({"error": "metrics need prometheus-client: pip install 'agentos-parallel[gateway]'"}, 501)
            return web.Response(body=page[0], headers={"content-type": page[1]})
        return _json({"error": "there are /-/health, /-/metrics and /-/pool"}, 404)


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: it gets an answer and is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        transport.write(b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        transport.close()


def _report(failure: Exception) -> None:
    """Log where an unexpected error was raised. Not its text, which may hold what a client sent."""
    frames = traceback.extract_tb(failure.__traceback__)
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
    _log.error("%s in a request, raised at %s", type(failure).__name__, places)


def _tokens(web_request: web.BaseRequest) -> Iterator[str]:
    for name in KEY_HEADERS:
        for value in web_request.headers.getall(name, []):
            yield value[7:].strip() if value[:7].lower() == "bearer " else value


def _family(web_request: web.BaseRequest) -> str:
    """Return the format of errors for a request without a route."""
    headers = web_request.headers
    if "anthropic-version" in headers or web_request.raw_path.startswith("/v1/messages"):
        return "anthropic"
    return "gemini" if "x-goog-api-key" in headers or web_request.raw_path.startswith("/v1beta") else "openai"


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _json(body: Any, status: int = 200) -> web.Response:
    return web.Response(body=json.dumps(body).encode(), status=status, headers={"content-type": "application/json"})
